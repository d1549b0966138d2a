#include "actors/agent/reconcile_plan.hpp"

namespace pillar::agent {

Result<void> check_reconcile_list(const v1::ReconcileStateRequest& request) {
  std::set<std::string> volumes;
  std::set<std::string> names;
  for (const auto& desired : request.volumes()) {
    const std::string& volume = desired.volume().agent_volume_id();
    if (!volumes.insert(volume).second)
      return fail(Reason::invalid_argument, "volume '" + volume + "' is listed twice");
    if (desired.has_spec() && !names.insert(desired.spec().nqn()).second)
      return fail(Reason::invalid_argument, "subsystem name '" + desired.spec().nqn() +
                                                "' is listed for two volumes, one is '" + volume + "'");
  }
  return {};
}

std::vector<std::string> stray_exports(const v1::ReconcileStateRequest& request,
                                       const std::vector<hostio::nvmet::LiveSubsystem>& live) {
  std::set<std::string> wanted;
  for (const auto& desired : request.volumes())
    if (desired.has_spec()) wanted.insert(desired.spec().nqn());
  std::vector<std::string> strays;
  for (const auto& subsystem : live) {
    const bool open = subsystem.enabled() || !subsystem.ports.empty() || !subsystem.hosts.empty() ||
                      subsystem.allow_any_host;
    if (open && wanted.count(subsystem.nqn) == 0) strays.push_back(subsystem.nqn);
  }
  return strays;
}

bool record_usable(const ExportRecord& record, const StoredMark& stored) {
  return stored.seeded && !stored.uncertain && stored.mark && stored.mark->state == LifeState::open &&
         stored.mark->uid == record.token.volume_uid && stored.mark->generation == record.token.generation;
}

v1::ReconcileResult reconcile_result(const std::string& volume, const Result<ReconcileOutcome>& outcome) {
  v1::ReconcileResult result;
  result.set_agent_volume_id(volume);
  result.set_ok(outcome.has_value());
  if (outcome) {
    result.set_changed(outcome->changed);
  } else {
    result.set_reason(std::string(to_string(outcome.error().reason)));
    result.set_message(outcome.error().message);
  }
  return result;
}

bool worth_retrying(const Error& error) {
  switch (error.reason) {
    case Reason::stale_generation:
    case Reason::foreign_lifecycle:
    case Reason::lifecycle_ending:
    case Reason::lifecycle_ended:
    case Reason::lifecycle_retired:
    case Reason::token_missing:
    case Reason::epoch_unknown:
    case Reason::invalid_argument:
    case Reason::mark_corrupt:
      return false;
    default:
      return true;
  }
}

}  // namespace pillar::agent
