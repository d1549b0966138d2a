#include "tools/pillarctl/repair.hpp"

#include "crd/types.hpp"
#include "messages/ids.hpp"
#include "tools/pillarctl/store_call.hpp"

namespace pillar::pillarctl {
namespace {

/// A controller may write conditions beside us.
constexpr int k_rounds = 20;
constexpr const char* k_reconciled = "ExportReconciled";

/// Reads the record, lets `decide` edit its status, writes it back; again when somebody wrote in between.
template <class Decide>
Result<std::string> change(crd::Store& store, const std::string& name, Decide decide) {
  for (int round = 0; round < k_rounds; ++round) {
    const auto object =
        answer_of<crd::Object>([&](auto done) { store.get(crd::Kind::volume, name, std::move(done)); });
    if (!object) return tl::unexpected(object.error());
    auto record = crd::from_object<crd::VolumeState>(*object);
    if (!record) return tl::unexpected(record.error());
    Result<std::string> told = decide(*record);
    if (!told) return told;
    const auto written = answer_of<crd::Object>(
        [&](auto done) { store.update_status(crd::to_object(*record), std::move(done)); });
    if (written) return told;
    if (written.error().reason != Reason::conflict) return tl::unexpected(written.error());
  }
  return fail(Reason::conflict, "volume " + name + " is written by others all the time; repeat");
}

std::string nodes_of(const crd::VolumeStatus& status) {
  std::string text;
  for (const auto& entry : status.published_nodes)
    text += (text.empty() ? "" : ", ") + entry.node_id + (entry.readonly ? " (readonly)" : "");
  return text.empty() ? "no node" : text;
}

void put_condition(crd::VolumeStatus& status, const std::string& reason, const std::string& message) {
  crd::Condition condition;
  condition.type = k_reconciled;
  condition.status = crd::ConditionStatus::no;
  condition.reason = reason;
  condition.message = message;
  crd::set_condition(status.conditions, std::move(condition));
}

}  // namespace

Result<std::string> accept_rollback(crd::Store& store, const AcceptRollback& asked) {
  return change(store, asked.volume, [&](crd::VolumeState& record) -> Result<std::string> {
    auto& status = record.status;
    if (record.metadata.uid != asked.uid)
      return fail(Reason::invalid_argument, "volume " + asked.volume + " has uid " + record.metadata.uid +
                                                ", not " + asked.uid + "; nothing was changed");
    const auto* condition = crd::find_condition(status.conditions, k_reconciled);
    if (condition == nullptr || condition->reason != "FenceAhead")
      return fail(Reason::invalid_argument,
                  "volume " + asked.volume + " shows no FenceAhead; there is nothing to accept");
    if (asked.generation <= status.publication_generation)
      return fail(Reason::invalid_argument, "generation " + std::to_string(asked.generation) +
                                                " is not above the record's own, " +
                                                std::to_string(status.publication_generation) +
                                                "; give the one that the agent holds: " + condition->message);
    status.publication_generation = asked.generation + 1;
    put_condition(status, "RollbackAccepted", "access is being brought back to what this record says");
    return "goes on at generation " + std::to_string(status.publication_generation) +
           "; access will be that of " + nodes_of(status) + " and is ended for every other host";
  });
}

Result<std::string> set_export_spec(crd::Store& store, const SetExportSpec& asked) {
  if (!IpAddress::parse(asked.bind_address))
    return fail(Reason::invalid_argument, "--bind-address " + asked.bind_address + " is not an IP address");
  return change(store, asked.volume, [&](crd::VolumeState& record) -> Result<std::string> {
    auto& status = record.status;
    if (status.export_spec)
      return fail(Reason::invalid_argument, "volume " + asked.volume + " has an exportSpec already: " +
                                                status.export_spec->bind_address + " port " +
                                                std::to_string(status.export_spec->port));
    if (status.deleting || record.metadata.deleting())
      return fail(Reason::lifecycle_ending, "volume " + asked.volume + " is being deleted");
    if (status.phase != crd::VolumePhase::ready)
      return fail(Reason::store_not_ready,
                  "volume " + asked.volume + " is not completely created; repeat CreateVolume instead");
    crd::ExportSpec spec;
    spec.bind_address = asked.bind_address;
    spec.port = asked.port;
    spec.acl_enabled = *asked.acl;
    status.export_spec = spec;
    ++status.publication_generation;
    const std::string where = asked.bind_address + " port " + std::to_string(asked.port);
    if (!*asked.acl)
      return "is exported at " + where + "; any host that reaches it may connect while it is published";
    return "is exported at " + where + "; published to " + nodes_of(status);
  });
}

}  // namespace pillar::pillarctl
