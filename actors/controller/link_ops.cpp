#include "actors/controller/link_ops.hpp"

#include <map>
#include <utility>

#include "actors/controller/protection.hpp"
#include "actors/controller/volume_ops.hpp"
#include "actors/runtime/logging.hpp"

namespace pillar::controller {
namespace {

using crd::ConditionStatus;
using crd::VolumeState;
using runtime::OperationContext;

constexpr auto k_health_call = std::chrono::seconds(10);
constexpr auto k_capabilities_call = std::chrono::seconds(30);
/// Late answers in a row after which a synchronised agent counts as gone: a busy one is not cut off at once.
constexpr int k_late_answers = 3;
constexpr auto k_sync_call = std::chrono::seconds(120);
/// How long a synchronisation waits for operations in flight; after that their generations protect them.
constexpr auto k_drain = std::chrono::seconds(10);
constexpr auto k_drain_step = std::chrono::milliseconds(20);
/// A synchronised agent gets a complete list this often: what drifted is put right, and the agent may forget
/// what the list no longer names (docs/fencing.md section 1, tombstones).
constexpr auto k_resync = std::chrono::hours(6);
/// Changes of usage figures alone are written at most this often.
constexpr auto k_calm_write = std::chrono::seconds(30);

template <class Response, class Request>
Task<Result<Response>> ask_agent(LinkPorts link, std::shared_ptr<LinkMemory> memory, Request request,
                                 Clock::duration limit) {
  return ask<Response>(memory->client, link.ports.executor, std::move(request), Deadline::after(limit));
}

// ---- connection -----------------------------------------------------------------------------------------

Task<Result<std::string>> resolve_host(LinkPorts link, std::string host) {
  using Waiting = runtime::Async<Result<std::string>>;
  Waiting::Start start = [resolve = link.resolve, host](Waiting::Complete complete) {
    resolve(host, std::move(complete));
  };
  Waiting waiting(link.ports.executor, std::move(start));
  co_return co_await waiting;
}

/// Makes the client and knows the agent's IP literal; names are resolved again for every synchronisation.
Task<Result<void>> connect(LinkPorts link, std::string agent, AgentEndpoint endpoint,
                           std::shared_ptr<LinkMemory> memory) {
  if (!memory->client || memory->target != endpoint.target) {
    memory->client = link.connect(agent, endpoint.target);
    memory->target = endpoint.target;
    memory->synchronised = false;
  }
  if (memory->synchronised) co_return Result<void>();
  if (endpoint.literal) {
    memory->bind_address = endpoint.host;
    co_return Result<void>();
  }
  auto resolving = resolve_host(link, endpoint.host);
  auto address = co_await std::move(resolving);
  if (!address) co_return tl::unexpected(address.error());
  memory->bind_address = *address;
  co_return Result<void>();
}

// ---- synchronisation ------------------------------------------------------------------------------------

Task<void> drain_operations(LinkPorts link, std::string agent) {
  link.table->set_syncing(agent);
  const auto limit = Deadline::after(k_drain);
  while (link.table->leases(agent) != 0 && !limit.passed()) {
    auto pause = runtime::sleep_for(link.timer, k_drain_step);
    co_await pause;
  }
}

/// The agent's records, uncached.
Task<Result<std::vector<VolumeState>>> read_records(LinkPorts link, std::string agent) {
  auto listing = list_objects(link.ports, crd::Kind::volume);
  auto objects = co_await std::move(listing);
  if (!objects) co_return tl::unexpected(objects.error());
  std::vector<VolumeState> records;
  for (const auto& object : *objects) {
    auto state = crd::from_object<VolumeState>(object);
    // A record that does not parse may be one of this agent's: the list would not be complete.
    if (!state) co_return tl::unexpected(state.error());
    if (state->spec.agent_ref == agent) records.push_back(std::move(*state));
  }
  co_return records;
}

Task<Result<void>> seed(LinkPorts link, std::shared_ptr<LinkMemory> memory, crd::PillarAgent agent,
                        std::string epoch, std::shared_ptr<const std::vector<VolumeState>> records) {
  pb::SeedMarksRequest request;
  request.set_epoch(epoch);
  if (agent.status.fencing) request.set_sequence(static_cast<std::uint64_t>(agent.status.fencing->sequence));
  for (const auto& record : *records) {
    // Nothing was ever sent under a record without a generation, and the agent refuses a list with such a
    // mark.
    if (record.status.publication_generation < 1) continue;
    auto* mark = request.add_marks();
    mark->set_agent_volume_id(record.spec.agent_volume_id);
    mark->set_volume_uid(record.metadata.uid);
    mark->set_generation(static_cast<std::uint64_t>(record.status.publication_generation));
    mark->set_deleting(record.status.deleting);
  }
  auto asking = ask_agent<pb::SeedMarksResponse>(link, memory, std::move(request), k_sync_call);
  auto seeded = co_await std::move(asking);
  if (!seeded) co_return tl::unexpected(with_context(seeded.error(), "restoring the fencing marks"));
  co_return Result<void>();
}

bool wants_export(const VolumeState& record) {
  return record.status.phase == crd::VolumePhase::ready && !record.status.deleting &&
         record.status.export_spec.has_value();
}

/// Writes ExportReconciled where it changed. A lost race means that an operation is at work, which will set
/// it.
Task<void> write_condition(LinkPorts link, VolumeState record, ConditionStatus value, std::string reason,
                           std::string message) {
  if (!set_condition(record.status, k_export_reconciled, value, reason, std::move(message))) co_return;
  auto writing = update_object_status(link.ports, crd::to_object(record));
  auto stored = co_await std::move(writing);
  if (!stored) co_return;
  if (const auto typed = crd::from_object<VolumeState>(*stored)) link.ports.index->apply(*typed);
}

bool accepted_rollback(const VolumeState& record) {
  const auto* condition = crd::find_condition(record.status.conditions, k_export_reconciled);
  return condition != nullptr && condition->reason == k_rollback_accepted;
}

/// Takes in the agent's verdict on one volume; true when its export is as desired.
Task<bool> take_result(LinkPorts link, VolumeState record, pb::ReconcileResult result) {
  if (result.ok()) {
    auto writing = write_condition(link, std::move(record), ConditionStatus::yes, "Reconciled", {});
    co_await std::move(writing);
    co_return true;
  }
  if (reason_from_string(result.reason()) == Reason::stale_generation) {
    auto reading = get_typed<VolumeState>(link.ports, record.metadata.name);
    auto now = co_await std::move(reading);
    // A newer record explains the refusal; the same one means that the store went back in time.
    if (!now || now->metadata.uid != record.metadata.uid ||
        now->status.publication_generation != record.status.publication_generation)
      co_return true;
    auto recording = record_fence_ahead(link.ports, std::move(*now), result.message());
    co_await std::move(recording);
    co_return false;
  }
  // Until it was carried out nothing may be granted; the next round tries again.
  if (accepted_rollback(record)) co_return false;
  auto writing = write_condition(link, std::move(record), ConditionStatus::no, "ReconcileFailed",
                                 result.reason() + ": " + result.message());
  co_await std::move(writing);
  co_return false;
}

/// What a list sent to the agent says beside its volumes.
struct ListHeader {
  std::string epoch;
  std::uint64_t sequence = 0;  ///< of the agent, from before the records were read
  bool complete = false;       ///< these are all records of the agent
};

/// A volume as a list names it: with its export, or without one, so that none of its access stays.
pb::DesiredVolume listed(const VolumeState& record, std::string_view cluster_id) {
  if (wants_export(record)) return desired_volume(record, cluster_id);
  pb::DesiredVolume unexported;
  *unexported.mutable_token() = token(record);
  *unexported.mutable_volume() = volume_ref(record);
  return unexported;
}

bool misses_export_spec(const VolumeState& record) {
  return record.status.phase == crd::VolumePhase::ready && !record.status.deleting &&
         !record.status.export_spec;
}

/// Sends `records` to the agent and takes in what it says of each export. Fills memory->not_restored.
Task<Result<void>> reconcile(LinkPorts link, std::shared_ptr<LinkMemory> memory, ListHeader header,
                             std::shared_ptr<const std::vector<VolumeState>> records) {
  pb::ReconcileStateRequest request;
  request.set_epoch(header.epoch);
  request.set_sequence(header.sequence);
  request.set_complete(header.complete);
  std::map<std::string, const VolumeState*> judged;
  for (const auto& record : *records) {
    *request.add_volumes() = listed(record, link.ports.cluster_id);
    if (wants_export(record) || accepted_rollback(record)) judged[record.spec.agent_volume_id] = &record;
  }
  auto asking = ask_agent<pb::ReconcileStateResponse>(link, memory, std::move(request), k_sync_call);
  auto answer = co_await std::move(asking);
  if (!answer) co_return tl::unexpected(with_context(answer.error(), "restoring the exports"));
  memory->not_restored.clear();
  for (const auto& result : answer->results()) {
    const auto found = judged.find(result.agent_volume_id());
    if (found == judged.end()) continue;
    auto taking = take_result(link, *found->second, result);
    const bool as_desired = co_await std::move(taking);
    if (!as_desired) memory->not_restored.insert(found->second->spec.volume_id);
  }
  for (const auto& record : *records) {
    if (!misses_export_spec(record)) continue;
    memory->not_restored.insert(record.spec.volume_id);
    auto writing = write_condition(link, record, ConditionStatus::no, "ExportSpecMissing",
                                   "give it one with pillarctl export-spec set " + record.metadata.name);
    co_await std::move(writing);
  }
  co_return Result<void>();
}

/// True when `other` is a PillarAgent for the same agent, which the epoch tells (it is made once per state
/// directory), and was there first.
bool precedes(const crd::PillarAgent& other, const crd::PillarAgent& agent, const std::string& epoch) {
  if (other.metadata.uid == agent.metadata.uid) return false;
  if (!other.status.fencing || other.status.fencing->epoch != epoch) return false;
  if (!agent.status.fencing || agent.status.fencing->epoch != epoch) return true;
  const auto age = [](const crd::PillarAgent& each) {
    return std::pair(each.metadata.creation_timestamp, each.metadata.name);
  };
  return age(other) < age(agent);
}

/// Two PillarAgents for one agent would close each other's exports, each with the complete list of its own
/// records.
Task<Result<void>> check_only_one(LinkPorts link, crd::PillarAgent agent, std::string epoch) {
  auto listing = list_objects(link.ports, crd::Kind::agent);
  auto objects = co_await std::move(listing);
  if (!objects) co_return tl::unexpected(objects.error());
  for (const auto& object : *objects) {
    const auto other = crd::from_object<crd::PillarAgent>(object);
    if (!other || !precedes(*other, agent, epoch)) continue;
    co_return fail(Reason::incompatible, "its agent is already that of PillarAgent/" + other->metadata.name +
                                             " (same epoch " + epoch +
                                             "): delete one of both, or give a cloned agent a state "
                                             "directory of its own");
  }
  co_return Result<void>();
}

Task<Result<void>> synchronise(OperationContext context, LinkPorts link, std::shared_ptr<LinkMemory> memory,
                               crd::PillarAgent agent, pb::HealthCheckResponse health) {
  auto checking = check_only_one(link, agent, health.epoch());
  if (auto only = co_await std::move(checking); !only) co_return only;
  auto draining = drain_operations(link, agent.metadata.name);
  co_await std::move(draining);
  auto reading = read_records(link, agent.metadata.name);
  auto found = co_await std::move(reading);
  if (!found) co_return tl::unexpected(found.error());
  const auto records = std::make_shared<const std::vector<VolumeState>>(std::move(*found));
  if (auto step = co_await context.step("records_read"); !step) co_return tl::unexpected(step.error());
  if (!health.seeded()) {
    auto seeding = seed(link, memory, agent, health.epoch(), records);
    if (auto seeded = co_await std::move(seeding); !seeded) co_return seeded;
  }
  if (auto step = co_await context.step("marks_seeded"); !step) co_return tl::unexpected(step.error());
  ListHeader header;
  header.epoch = health.epoch();
  header.sequence = health.sequence();
  header.complete = true;
  auto restoring = reconcile(link, memory, header, records);
  if (auto restored = co_await std::move(restoring); !restored) co_return restored;
  memory->synchronised = true;
  memory->complete_at = Clock::now();
  memory->epoch = health.epoch();
  co_return Result<void>();
}

/// A complete list for an agent at work. Operations go on meanwhile: their generations and the sequence from
/// before the records were read protect them.
Task<void> resync(LinkPorts link, std::shared_ptr<LinkMemory> memory, std::string agent,
                  pb::HealthCheckResponse health) {
  memory->complete_at = Clock::now();
  auto reading = read_records(link, agent);
  auto found = co_await std::move(reading);
  if (!found) co_return;
  const auto records = std::make_shared<const std::vector<VolumeState>>(std::move(*found));
  ListHeader header;
  header.epoch = health.epoch();
  header.sequence = health.sequence();
  header.complete = true;
  auto restoring = reconcile(link, memory, header, records);
  co_await std::move(restoring);
}

/// Another try for the exports that could not be restored, without touching anything else.
Task<void> retry_exports(LinkPorts link, std::shared_ptr<LinkMemory> memory, pb::HealthCheckResponse health) {
  auto again = std::make_shared<std::vector<VolumeState>>();
  const auto before = memory->not_restored;
  for (const auto& id : before) {
    const auto known = link.ports.index->find(id);
    if (!known) continue;
    auto reading = get_typed<VolumeState>(link.ports, known->metadata.name);
    auto record = co_await std::move(reading);
    if (record && record->spec.volume_id == id) again->push_back(std::move(*record));
  }
  ListHeader header;
  header.epoch = health.epoch();
  header.sequence = health.sequence();
  // A failure leaves memory->not_restored as it was: the next round tries again.
  auto restoring = reconcile(link, memory, header, again);
  co_await std::move(restoring);
}

// ---- status ---------------------------------------------------------------------------------------------

Task<void> write_status(LinkPorts link, std::shared_ptr<LinkMemory> memory, crd::PillarAgent agent,
                        AgentObservation seen) {
  const auto fresh = agent_status(agent, seen);
  if (fresh == agent.status) co_return;
  const bool rested = Clock::now() - memory->status_written >= k_calm_write;
  if (!is_urgent_change(agent.status, fresh) && !rested) co_return;
  agent.status = fresh;
  auto writing = update_object_status(link.ports, crd::to_object(agent));
  auto stored = co_await std::move(writing);
  if (stored) memory->status_written = Clock::now();
  // A conflict or an absent store: the next round compares again.
}

AgentObservation observation(const LinkPorts& link, const LinkMemory& memory, const crd::PillarAgent& agent) {
  AgentObservation seen;
  seen.synchronised = memory.synchronised;
  seen.not_restored.assign(memory.not_restored.begin(), memory.not_restored.end());
  if (agent.metadata.deleting())
    seen.blocked_by = describe(dependents_of(agent, link.catalog->view(), *link.ports.index));
  return seen;
}

Task<RoundOutcome> report_failure(LinkPorts link, std::shared_ptr<LinkMemory> memory, crd::PillarAgent agent,
                                  Error error, bool needs_kubernetes) {
  memory->synchronised = false;
  link.table->set_down(agent.metadata.name, error.message);
  auto seen = observation(link, *memory, agent);
  seen.needs_kubernetes = needs_kubernetes;
  seen.failure = std::move(error);
  auto writing = write_status(link, memory, std::move(agent), std::move(seen));
  co_await std::move(writing);
  co_return RoundOutcome::unsettled;
}

/// True when a failed question says no more than that a synchronised agent is slow at the moment.
bool is_only_late(LinkMemory& memory, const Error& error) {
  if (!memory.synchronised || error.code != Code::deadline_exceeded) return false;
  return ++memory.late_answers < k_late_answers;
}

bool must_synchronise(const LinkMemory& memory, const pb::HealthCheckResponse& health) {
  return !memory.synchronised || memory.epoch != health.epoch() || !health.seeded() || health.gated();
}

}  // namespace

Task<RoundOutcome> link_round(OperationContext context, LinkPorts link, std::string agent_name,
                              std::shared_ptr<LinkMemory> memory) {
  auto reading = get_typed<crd::PillarAgent>(link.ports, agent_name);
  auto agent = co_await std::move(reading);
  if (!agent && agent.error().reason == Reason::not_found) {
    link.table->remove(agent_name);
    co_return RoundOutcome::agent_gone;
  }
  // The store is away: what the table says stays true until the agent itself says otherwise.
  if (!agent) co_return RoundOutcome::unsettled;
  const auto endpoint = agent_endpoint(agent->spec);
  if (!endpoint) {
    auto reporting = report_failure(link, memory, *agent, endpoint.error(), true);
    co_return co_await std::move(reporting);
  }
  auto connecting = connect(link, agent_name, *endpoint, memory);
  auto ready = co_await std::move(connecting);
  Result<pb::HealthCheckResponse> health = tl::unexpected(ready ? Error() : ready.error());
  if (ready) {
    pb::HealthCheckRequest question;
    if (agent->status.fencing) {
      question.set_known_epoch(agent->status.fencing->epoch);
      question.set_known_sequence(static_cast<std::uint64_t>(agent->status.fencing->sequence));
    }
    auto asking = ask_agent<pb::HealthCheckResponse>(link, memory, std::move(question), k_health_call);
    health = co_await std::move(asking);
  }
  if (!health && is_only_late(*memory, health.error())) co_return RoundOutcome::unsettled;
  if (!health) {
    auto reporting = report_failure(link, memory, *agent, health.error(), false);
    co_return co_await std::move(reporting);
  }
  pb::GetCapabilitiesRequest what;
  auto asking = ask_agent<pb::GetCapabilitiesResponse>(link, memory, std::move(what), k_capabilities_call);
  auto capabilities = co_await std::move(asking);
  if (!capabilities && is_only_late(*memory, capabilities.error())) co_return RoundOutcome::unsettled;
  if (!capabilities) {
    auto reporting = report_failure(link, memory, *agent, capabilities.error(), false);
    co_return co_await std::move(reporting);
  }
  memory->late_answers = 0;
  if (must_synchronise(*memory, *health)) {
    memory->synchronised = false;
    auto syncing = synchronise(context, link, memory, *agent, *health);
    if (auto synced = co_await std::move(syncing); !synced) {
      auto reporting = report_failure(link, memory, *agent, synced.error(), false);
      co_return co_await std::move(reporting);
    }
  } else if (Clock::now() - memory->complete_at >= k_resync) {
    auto resyncing = resync(link, memory, agent_name, *health);
    co_await std::move(resyncing);
  } else if (memory->not_restored.merge(
                 link.ports.index->with_export_reason(agent_name, k_rollback_accepted));
             !memory->not_restored.empty()) {
    auto retrying = retry_exports(link, memory, *health);
    co_await std::move(retrying);
  }
  link.table->set_up(agent_name, memory->client, memory->bind_address, discovered_pools(*capabilities));
  auto seen = observation(link, *memory, *agent);
  seen.health = std::move(*health);
  seen.capabilities = std::move(*capabilities);
  auto writing = write_status(link, memory, std::move(*agent), std::move(seen));
  co_await std::move(writing);
  co_return memory->not_restored.empty() ? RoundOutcome::steady : RoundOutcome::unsettled;
}

}  // namespace pillar::controller
