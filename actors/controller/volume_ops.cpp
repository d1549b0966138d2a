#include "actors/controller/volume_ops.hpp"

#include <algorithm>
#include <functional>

#include "actors/controller/plan.hpp"
#include "actors/controller/publications.hpp"

namespace pillar::controller {
namespace {

using crd::ConditionStatus;
using crd::VolumePhase;
using crd::VolumeState;
using crd::VolumeStatus;

/// Times that a lost compare-and-swap is evaluated again before the caller is told to (row O06).
constexpr int k_attempts = 16;
/// An agent call outlives its caller (docs/architecture.md, actors), but not without bound.
constexpr auto k_agent_call = std::chrono::seconds(120);

using Check = std::function<Result<void>(VolumeState&)>;
using Edit = std::function<void(VolumeState&)>;

Deadline agent_deadline() { return Deadline::after(k_agent_call); }

tl::unexpected<Error> lost_race(const std::string& volume) {
  return fail(Reason::conflict, "volume " + volume + " was changed by another call at the same time; repeat");
}

bool shows(const VolumeStatus& status, std::string_view reason) {
  const auto* condition = crd::find_condition(status.conditions, k_export_reconciled);
  return condition != nullptr && condition->reason == reason;
}

std::string rollback_remedy(const VolumeState& state) {
  return "restore a newer backup of the store, or check the volume and go on from this record with "
         "pillarctl fence accept-rollback " +
         state.metadata.name + " --uid " + state.metadata.uid +
         " --generation N, N being the generation that the agent holds (pillarctl describe pvst " +
         state.metadata.name + ")";
}

/// Refuses every change of a record that the agent is ahead of, and of one whose acceptance the agent has not
/// carried out yet: until then hosts that the record does not know may have access.
Result<void> check_not_behind(const Ports& ports, const VolumeState& state) {
  if (shows(state.status, "FenceAhead"))
    return fail(Reason::fence_ahead,
                "volume " + state.spec.volume_id +
                    ": the agent has seen a later state than this record, which was restored to "
                    "the past; " +
                    rollback_remedy(state));
  if (!shows(state.status, k_rollback_accepted)) return {};
  ports.agents->check_soon(state.spec.agent_ref);
  return fail(Reason::restore_pending,
              "volume " + state.spec.volume_id + ": its accepted rollback is being carried out; repeat",
              {{k_detail_agent, state.spec.agent_ref}});
}

// ---- reading and writing the record -------------------------------------------------------------------

Task<Result<VolumeState>> load(Ports ports, VolumeId id) {
  auto reading = get_typed<VolumeState>(ports, record_name(id));
  auto state = co_await std::move(reading);
  const bool absent = !state && state.error().reason == Reason::not_found;
  if (absent || (state && state->spec.volume_id != id.str()))
    co_return fail(Reason::not_found, "volume " + id.str() + " does not exist");
  co_return state;
}

Task<Result<VolumeState>> commit(Ports ports, VolumeState state) {
  auto object = crd::to_object(state);
  auto writing = update_object_status(ports, std::move(object));
  auto stored = co_await std::move(writing);
  if (!stored) co_return tl::unexpected(stored.error());
  auto typed = crd::from_object<VolumeState>(*stored);
  if (typed) ports.index->apply(*typed);
  co_return typed;
}

/// The compare-and-swap that precedes a mutating agent call: `check` decides on the record as read and edits
/// it, the generation rises by one. A conflict is read and decided again, within the life `uid` of the record
/// that the operation began with: another one under the same name is none of its business.
Task<Result<VolumeState>> advance(Ports ports, VolumeId id, std::string uid, Check check) {
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    auto reading = load(ports, id);
    auto state = co_await std::move(reading);
    if (!state) co_return state;
    if (uid != state->metadata.uid) co_return lost_race(id.str());
    if (auto current = check_not_behind(ports, *state); !current) co_return tl::unexpected(current.error());
    if (auto checked = check(*state); !checked) co_return tl::unexpected(checked.error());
    ++state->status.publication_generation;
    auto writing = commit(ports, std::move(*state));
    auto stored = co_await std::move(writing);
    if (stored || stored.error().reason != Reason::conflict) co_return stored;
  }
  co_return lost_race(id.str());
}

/// The compare-and-swap that records an outcome of `base`. A conflict is retried as long as nobody has
/// started another operation (same life, same generation): conditions may be written beside an operation.
Task<Result<VolumeState>> settle(Ports ports, VolumeState base, Edit edit) {
  VolumeState state = base;
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    edit(state);
    auto writing = commit(ports, state);
    auto stored = co_await std::move(writing);
    if (stored || stored.error().reason != Reason::conflict) co_return stored;
    auto reading = get_typed<VolumeState>(ports, base.metadata.name);
    auto fresh = co_await std::move(reading);
    if (!fresh) co_return fresh;
    if (fresh->metadata.uid != base.metadata.uid ||
        fresh->status.publication_generation != base.status.publication_generation)
      co_return lost_race(base.spec.volume_id);
    state = std::move(*fresh);
  }
  co_return lost_race(base.spec.volume_id);
}

// ---- refusals of the agent ------------------------------------------------------------------------------

/// True when the agent knows that this very life is over: the record was restored to before its volume was
/// deleted. Then nothing of it is left, neither access nor data.
bool life_has_ended(const VolumeState& state, const Error& refusal) {
  if (refusal.reason == Reason::lifecycle_retired) return true;
  const auto uid = refusal.details.find("uid");
  return refusal.reason == Reason::lifecycle_ended && uid != refusal.details.end() &&
         uid->second == state.metadata.uid;
}

/// What a refusal of the agent means for the caller. A stale generation is either a race that another
/// controller won (ABORTED) or a record that was restored to the past (FENCE_AHEAD).
Task<Error> explain(Ports ports, VolumeState sent, Error refusal) {
  if (needs_synchronisation(refusal)) {
    ports.agents->check_soon(sent.spec.agent_ref);
    refusal.details[k_detail_agent] = sent.spec.agent_ref;
  }
  if (refusal.reason != Reason::stale_generation)
    co_return with_context(std::move(refusal), "volume " + sent.spec.volume_id);
  auto reading = get_typed<VolumeState>(ports, sent.metadata.name);
  auto now = co_await std::move(reading);
  if (!now || now->metadata.uid != sent.metadata.uid ||
      now->status.publication_generation != sent.status.publication_generation)
    co_return lost_race(sent.spec.volume_id).value();
  auto recording = record_fence_ahead(ports, std::move(*now), refusal.message);
  auto recorded = co_await std::move(recording);
  if (!recorded && recorded.error().reason == Reason::conflict) co_return recorded.error();
  co_return fail(Reason::fence_ahead,
                 "volume " + sent.spec.volume_id + ": agent " + sent.spec.agent_ref +
                     " has seen a later state than this record (" + refusal.message + "); " +
                     rollback_remedy(sent),
                 refusal.details)
      .value();
}

// ---- create ---------------------------------------------------------------------------------------------

/// True for refusals that a repeat of the same request cannot overcome and after which nothing exists.
bool is_final_refusal(const Error& error) {
  return error.code == Code::resource_exhausted || error.code == Code::out_of_range ||
         error.code == Code::invalid_argument;
}

Task<void> note_failure(Ports ports, VolumeState state, std::string operation, Error error) {
  const auto& old = state.status.partial_failure;
  if (old && old->failed_operation == operation && old->message == error.message) co_return;
  crd::PartialFailure failure;
  failure.failed_operation = operation;
  failure.failed_at = crd::timestamp_now();
  failure.reason = std::string(to_string(error.reason));
  failure.message = error.message;
  failure.backend_created = state.status.phase == VolumePhase::create_partial;
  Edit edit = [failure](VolumeState& fresh) {
    fresh.status.partial_failure = failure;
    set_condition(fresh.status, k_ready, ConditionStatus::no, failure.failed_operation + "Failed",
                  failure.message);
  };
  auto writing = settle(ports, std::move(state), std::move(edit));
  // Best effort: the caller gets the failure itself.
  co_await std::move(writing);
}

csi::CreateVolumeResponse create_response(const VolumeState& state) {
  csi::CreateVolumeResponse response;
  *response.mutable_volume() = to_csi_volume(state);
  return response;
}

crd::ExportSpec export_spec_for(const VolumeState& state, const std::string& bind_address) {
  crd::ExportSpec spec;
  spec.bind_address = bind_address;
  if (state.spec.resolved && state.spec.resolved->protocol.nvmeof_tcp) {
    const auto& nvme = *state.spec.resolved->protocol.nvmeof_tcp;
    spec.port = nvme.port;
    spec.acl_enabled = nvme.acl;
    spec.in_capsule_data_size = nvme.in_capsule_data_size;
  }
  return spec;
}

Task<Result<VolumeState>> create_backend(OperationContext context, Ports ports, AgentLease lease,
                                         VolumeState state, CreateWishes wishes) {
  pb::CreateVolumeRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  request.set_required_bytes(wishes.size.required);
  request.set_limit_bytes(wishes.size.limit);
  if (state.spec.resolved) *request.mutable_settings() = backend_settings(state.spec.resolved->backend);
  auto asking = ask<pb::CreateVolumeResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto made = co_await std::move(asking);
  if (!made) co_return tl::unexpected(made.error());
  if (auto step = co_await context.step("backend_created"); !step) co_return tl::unexpected(step.error());
  const auto spec = export_spec_for(state, lease.bind_address());
  Edit edit = [response = *made, spec](VolumeState& fresh) {
    auto& status = fresh.status;
    status.phase = VolumePhase::create_partial;
    status.capacity_bytes = static_cast<std::int64_t>(response.capacity_bytes());
    status.backend_device_path = response.device_path();
    status.export_spec = spec;
    status.partial_failure.reset();
    ++status.publication_generation;  // the export that follows is its own committed operation
    set_condition(status, k_backend_created, ConditionStatus::yes, "Created");
    if (!spec.acl_enabled)
      set_condition(status, k_access_controlled, ConditionStatus::no, "AnyHostMayConnect",
                    "acl is false: any host that reaches " + spec.bind_address + " port " +
                        std::to_string(spec.port) + " may connect to this volume");
  };
  auto writing = settle(ports, std::move(state), std::move(edit));
  co_return co_await std::move(writing);
}

Task<Result<VolumeState>> create_export(OperationContext context, Ports ports, AgentLease lease,
                                        VolumeState state) {
  pb::ExportVolumeRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  *request.mutable_spec() = export_spec(state, ports.cluster_id);
  auto asking = ask<pb::ExportVolumeResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto exported = co_await std::move(asking);
  if (!exported) co_return tl::unexpected(exported.error());
  if (auto step = co_await context.step("exported"); !step) co_return tl::unexpected(step.error());
  crd::ExportInfo info;
  info.target_id = request.spec().nqn();
  info.address = lease.bind_address();
  info.port = static_cast<std::int32_t>(request.spec().port());
  info.volume_ref = state.spec.agent_volume_id;
  Edit edit = [info](VolumeState& fresh) {
    auto& status = fresh.status;
    status.phase = VolumePhase::ready;
    status.backend_device_path.clear();
    status.export_info = info;
    status.partial_failure.reset();
    set_condition(status, k_export_created, ConditionStatus::yes, "Created");
    set_condition(status, k_export_reconciled, ConditionStatus::yes, "Reconciled");
    set_condition(status, k_ready, ConditionStatus::yes, "Ready");
  };
  auto writing = settle(ports, std::move(state), std::move(edit));
  co_return co_await std::move(writing);
}

Task<Result<void>> finish_delete(OperationContext context, Ports ports, AgentLease lease, VolumeState state);

Check begin_delete() {
  return [](VolumeState& state) -> Result<void> {
    if (!state.status.published_nodes.empty())
      return fail(Reason::still_published, "volume " + state.spec.volume_id + " is published to " +
                                               node_list(state.status) + "; unpublish it there first");
    if (state.status.deleting)
      return fail(Reason::lifecycle_ending, "volume " + state.spec.volume_id + " is being deleted already");
    state.status.deleting = true;
    state.status.phase = VolumePhase::deleting;
    set_condition(state.status, k_ready, ConditionStatus::no, "Deleting");
    return {};
  };
}

/// The record, marked deleting. A mark that another controller was faster to set keeps its generation: the
/// agent lets a destroy go on only under the one that it began with.
Task<Result<VolumeState>> start_delete(Ports ports, VolumeId id, std::string uid) {
  auto starting = advance(ports, id, uid, begin_delete());
  auto state = co_await std::move(starting);
  if (state || state.error().reason != Reason::lifecycle_ending) co_return state;
  auto reading = load(ports, id);
  auto begun = co_await std::move(reading);
  if (begun && (!begun->status.deleting || begun->metadata.uid != uid)) co_return lost_race(id.str());
  co_return begun;
}

/// Takes a volume back that the agent has refused for good. When that fails the record stays, deleting, and
/// the next call goes on from there.
Task<void> undo_create(OperationContext context, Ports ports, AgentLease lease, VolumeId id,
                       std::string uid) {
  auto starting = start_delete(ports, id, std::move(uid));
  auto deleting = co_await std::move(starting);
  if (!deleting) co_return;
  auto finishing = finish_delete(context, ports, lease, std::move(*deleting));
  co_await std::move(finishing);
}

/// The record of the plan: made now, or found and advanced for another attempt; Ready ones are left as they
/// are.
Task<Result<VolumeState>> claim_record(OperationContext context, Ports ports, CreatePlan plan,
                                       AgentLease lease) {
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    auto reading = get_typed<VolumeState>(ports, record_name(plan.id));
    auto state = co_await std::move(reading);
    if (!state && state.error().reason == Reason::not_found) {
      auto creating = create_object(ports, crd::to_object(new_record(plan)));
      auto created = co_await std::move(creating);
      if (!created && created.error().reason == Reason::already_exists) continue;
      if (!created) co_return tl::unexpected(created.error());
      auto typed = crd::from_object<VolumeState>(*created);
      if (typed) ports.index->apply(*typed);
      co_return typed;
    }
    if (!state) co_return state;
    if (state->status.deleting && state->spec.volume_id == plan.id.str()) {
      auto finishing = finish_delete(context, ports, lease, std::move(*state));
      if (auto finished = co_await std::move(finishing); !finished)
        co_return tl::unexpected(finished.error());
      continue;
    }
    if (auto same = check_compatible(*state, plan); !same) co_return tl::unexpected(same.error());
    if (state->status.phase == VolumePhase::ready) co_return state;
    Check check = [plan](VolumeState& fresh) -> Result<void> {
      if (fresh.status.deleting || fresh.status.phase == VolumePhase::ready)
        return lost_race(fresh.spec.volume_id);
      return check_compatible(fresh, plan);
    };
    auto advancing = advance(ports, plan.id, state->metadata.uid, std::move(check));
    co_return co_await std::move(advancing);
  }
  co_return lost_race(plan.id.str());
}

Task<Result<VolumeState>> run_create(OperationContext context, Ports ports, AgentLease lease, CreatePlan plan,
                                     VolumeState state) {
  if (state.status.phase == VolumePhase::provisioning) {
    // An earlier attempt may have asked for other limits; what it recorded stays in force.
    const auto stored = wishes_from_text(state.metadata.annotations[std::string(k_annotation_request)]);
    auto making = create_backend(context, ports, lease, state, stored ? *stored : plan.wishes);
    auto made = co_await std::move(making);
    if (!made) {
      auto explaining = explain(ports, state, made.error());
      const Error error = co_await std::move(explaining);
      if (is_final_refusal(error)) {
        auto undoing = undo_create(context, ports, lease, plan.id, state.metadata.uid);
        co_await std::move(undoing);
      } else {
        auto noting = note_failure(ports, state, "Create", error);
        co_await std::move(noting);
      }
      co_return tl::unexpected(error);
    }
    state = std::move(*made);
    if (auto step = co_await context.step("export_spec_recorded"); !step)
      co_return tl::unexpected(step.error());
  }
  auto exporting = create_export(context, ports, lease, state);
  auto ready = co_await std::move(exporting);
  if (ready) co_return ready;
  auto explaining = explain(ports, state, ready.error());
  const Error error = co_await std::move(explaining);
  auto noting = note_failure(ports, state, "Export", error);
  co_await std::move(noting);
  co_return tl::unexpected(error);
}

// ---- delete ---------------------------------------------------------------------------------------------

Task<Result<void>> remove_record(Ports ports, VolumeState state) {
  const std::string name = state.metadata.name;
  const std::string uid = state.metadata.uid;
  crd::Preconditions same_life;
  same_life.uid = uid;
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    auto removing = remove_object(ports, crd::Kind::volume, name, same_life);
    auto removed = co_await std::move(removing);
    const bool absent = !removed && removed.error().reason == Reason::not_found;
    // A conflict of the uid precondition: this life is over and the name belongs to another one.
    const bool replaced = !removed && removed.error().reason == Reason::conflict;
    if (absent || replaced || (removed && removed->gone)) {
      ports.index->erase(name, uid);
      co_return Result<void>();
    }
    if (!removed) co_return tl::unexpected(removed.error());
    crd::Object object = removed->object;
    object.metadata.remove_finalizer(k_volume_finalizer);
    auto updating = update_object(ports, object);
    auto updated = co_await std::move(updating);
    if (updated || updated.error().reason == Reason::not_found) {
      ports.index->erase(name, uid);
      co_return Result<void>();
    }
    if (updated.error().reason != Reason::conflict) co_return tl::unexpected(updated.error());
  }
  co_return lost_race(state.spec.volume_id);
}

/// Deletes the backend of a record that is marked deleting, under the generation of that mark: the agent
/// admits a repeated destroy only under the same one (docs/fencing.md section 1).
Task<Result<void>> finish_delete(OperationContext context, Ports ports, AgentLease lease, VolumeState state) {
  pb::DeleteVolumeRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  request.set_nqn(subsystem_nqn(state, ports.cluster_id));
  auto asking = ask<pb::DeleteVolumeResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto deleted = co_await std::move(asking);
  if (!deleted && life_has_ended(state, deleted.error())) {
    auto removing = remove_record(ports, std::move(state));
    co_return co_await std::move(removing);
  }
  if (!deleted) {
    auto explaining = explain(ports, state, deleted.error());
    const Error error = co_await std::move(explaining);
    co_return tl::unexpected(error);
  }
  if (auto step = co_await context.step("backend_deleted"); !step) co_return tl::unexpected(step.error());
  auto removing = remove_record(ports, std::move(state));
  co_return co_await std::move(removing);
}

// ---- expand ---------------------------------------------------------------------------------------------

/// Asks the agent to grow and records the real size. The record says resizeRequired from before the call
/// until after its outcome is recorded, so that a crash in between is finished by the next publish or expand
/// (row L09).
Task<Result<VolumeState>> grow(OperationContext context, Ports ports, AgentLease lease, VolumeState state,
                               SizeRange range) {
  pb::ExpandVolumeRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  request.set_required_bytes(range.required);
  request.set_limit_bytes(range.limit);
  request.set_nqn(subsystem_nqn(state, ports.cluster_id));
  auto asking = ask<pb::ExpandVolumeResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto grown = co_await std::move(asking);
  if (!grown) {
    auto explaining = explain(ports, state, grown.error());
    const Error error = co_await std::move(explaining);
    if (is_final_refusal(error)) {
      Edit nothing_pending = [](VolumeState& fresh) { fresh.status.resize_required = false; };
      auto writing = settle(ports, std::move(state), std::move(nothing_pending));
      co_await std::move(writing);
    }
    co_return tl::unexpected(error);
  }
  if (auto step = co_await context.step("backend_expanded"); !step) co_return tl::unexpected(step.error());
  const auto bytes = static_cast<std::int64_t>(grown->capacity_bytes());
  Edit edit = [bytes](VolumeState& fresh) {
    fresh.status.capacity_bytes = std::max(fresh.status.capacity_bytes, bytes);
    fresh.status.resize_required = false;
  };
  auto writing = settle(ports, std::move(state), std::move(edit));
  co_return co_await std::move(writing);
}

Result<void> check_expandable(const VolumeState& state) {
  if (state.status.deleting)
    return fail(Reason::lifecycle_ending, "volume " + state.spec.volume_id + " is being deleted");
  if (state.status.phase != VolumePhase::ready)
    return fail(Reason::store_not_ready, "volume " + state.spec.volume_id + " is not completely created (" +
                                             std::string(crd::to_string(state.status.phase)) +
                                             "); repeat CreateVolume first");
  return {};
}

/// Finishes an interrupted expansion at the size the backend has by now.
Task<Result<void>> finish_pending_resize(OperationContext context, Ports ports, AgentLease lease, VolumeId id,
                                         std::string uid) {
  Check check = [](VolumeState& fresh) { return check_expandable(fresh); };
  auto advancing = advance(ports, id, std::move(uid), std::move(check));
  auto state = co_await std::move(advancing);
  if (!state) co_return tl::unexpected(state.error());
  if (!state->status.resize_required) co_return Result<void>();
  SizeRange present;
  present.required = static_cast<std::uint64_t>(std::max<std::int64_t>(state->status.capacity_bytes, 1));
  auto growing = grow(context, ports, lease, std::move(*state), present);
  auto grown = co_await std::move(growing);
  if (grown) co_return Result<void>();
  if (grown.error().code == Code::unavailable || grown.error().code == Code::aborted)
    co_return tl::unexpected(grown.error());
  co_return fail(Reason::resize_pending, "volume " + id.str() + " has an unfinished expansion: " +
                                             grown.error().message + "; it must end before a publish");
}

bool node_must_expand(const VolumeState& state, const csi::ControllerExpandVolumeRequest& request) {
  if (request.has_volume_capability() && request.volume_capability().has_block())
    return !state.status.published_nodes.empty();
  return true;
}

csi::ControllerExpandVolumeResponse expand_response(const VolumeState& state,
                                                    const csi::ControllerExpandVolumeRequest& request) {
  csi::ControllerExpandVolumeResponse response;
  response.set_capacity_bytes(state.status.capacity_bytes);
  response.set_node_expansion_required(node_must_expand(state, request));
  return response;
}

// ---- publish --------------------------------------------------------------------------------------------

Result<PublishRequest> publish_request(const Ports& ports,
                                       const csi::ControllerPublishVolumeRequest& request) {
  if (!request.has_volume_capability()) return fail(Reason::invalid_argument, "volume_capability is missing");
  if (request.node_id().empty()) return fail(Reason::invalid_argument, "node_id is empty");
  auto capability = parse_capability(request.volume_capability());
  if (!capability) return tl::unexpected(capability.error());
  auto initiator = ports.nodes->initiator(request.node_id());
  if (!initiator) return tl::unexpected(initiator.error());
  PublishRequest publish;
  publish.node_id = request.node_id();
  publish.initiator_id = *initiator;
  publish.mode = capability->access;
  publish.readonly = request.readonly();
  return publish;
}

Result<void> check_publishable(const VolumeState& state, const PublishRequest& publish) {
  if (auto grant = decide_publish(state.spec.volume_id, state.status, publish); !grant)
    return tl::unexpected(grant.error());
  if (auto usable = check_expandable(state); !usable) return usable;
  if (!state.status.export_spec)
    return fail(Reason::export_spec_missing,
                "volume " + state.spec.volume_id +
                    " has no exportSpec; give it one with pillarctl export-spec set " + state.metadata.name);
  return {};
}

/// A volume that nobody holds follows its agent to a new address (row C12).
void follow_agent_address(VolumeStatus& status, const std::string& bind_address) {
  if (status.published_nodes.empty() && status.export_spec && !bind_address.empty())
    status.export_spec->bind_address = bind_address;
}

Check record_publication(PublishRequest publish, std::string bind_address) {
  return [publish, bind_address](VolumeState& state) -> Result<void> {
    if (auto allowed = check_publishable(state, publish); !allowed) return allowed;
    if (state.status.resize_required)
      return fail(Reason::resize_pending,
                  "volume " + state.spec.volume_id + " has an unfinished expansion; repeat");
    follow_agent_address(state.status, bind_address);
    record_publish(state.status, publish);
    return {};
  };
}

Task<Result<void>> allow(Ports ports, AgentLease lease, VolumeState state, PublishRequest publish) {
  pb::AllowInitiatorRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  *request.mutable_spec() = export_spec(state, ports.cluster_id);
  request.mutable_initiator()->set_host_nqn(publish.initiator_id);
  request.mutable_initiator()->set_readonly(publish.readonly || find_access_mode(publish.mode)->readonly);
  auto asking = ask<pb::AllowInitiatorResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto allowed = co_await std::move(asking);
  if (allowed) co_return Result<void>();
  auto explaining = explain(ports, std::move(state), allowed.error());
  const Error error = co_await std::move(explaining);
  co_return tl::unexpected(error);
}

// ---- unpublish ------------------------------------------------------------------------------------------

/// Ends the access of one host; an empty NQN ends everybody's. OK only when the agent says that it has ended.
Task<Result<void>> deny(Ports ports, AgentLease lease, VolumeState state, std::string host_nqn) {
  pb::DenyInitiatorRequest request;
  *request.mutable_token() = token(state);
  *request.mutable_volume() = volume_ref(state);
  request.set_nqn(subsystem_nqn(state, ports.cluster_id));
  request.set_host_nqn(host_nqn);
  auto asking = ask<pb::DenyInitiatorResponse>(lease.client(), ports.executor, request, agent_deadline());
  auto denied = co_await std::move(asking);
  if (!denied && life_has_ended(state, denied.error())) co_return Result<void>();
  if (!denied) {
    auto explaining = explain(ports, std::move(state), denied.error());
    const Error error = co_await std::move(explaining);
    co_return tl::unexpected(error);
  }
  const auto& rest = denied->remaining_host_nqns();
  const bool still_there =
      host_nqn.empty() ? !rest.empty() : std::find(rest.begin(), rest.end(), host_nqn) != rest.end();
  if (still_there)
    co_return fail(Reason::access_not_ended, "volume " + state.spec.volume_id + ": agent " +
                                                 state.spec.agent_ref + " still grants access to " +
                                                 (host_nqn.empty() ? rest.Get(0) : host_nqn) + "; repeat");
  co_return Result<void>();
}

Task<Result<void>> deny_all(Ports ports, AgentLease lease, VolumeState state,
                            std::vector<crd::PublishedNode> entries) {
  if (entries.size() == state.status.published_nodes.size()) {
    // Nobody keeps access, so hosts that no record knows lose it as well.
    auto ending = deny(ports, lease, state, std::string());
    co_return co_await std::move(ending);
  }
  for (const auto& entry : entries) {
    auto ending = deny(ports, lease, state, entry.initiator_id);
    if (auto ended = co_await std::move(ending); !ended) co_return ended;
  }
  co_return Result<void>();
}

bool is_published(const VolumeStatus& status, const std::string& node_id) {
  if (node_id.empty()) return !status.published_nodes.empty();
  return std::any_of(status.published_nodes.begin(), status.published_nodes.end(),
                     [&](const auto& entry) { return entry.node_id == node_id; });
}

// ---- validate -------------------------------------------------------------------------------------------

/// Why the request cannot be confirmed; empty: it can.
std::string mismatch(const VolumeState& state, const csi::ValidateVolumeCapabilitiesRequest& request) {
  for (const auto& wire : request.volume_capabilities())
    if (auto capability = parse_capability(wire); !capability) return capability.error().message;
  if (!request.mutable_parameters().empty()) return "volumes of this driver have no mutable parameters";
  const auto context = volume_context(state);
  for (const auto& [key, value] : request.volume_context()) {
    if (key.starts_with("storage.kubernetes.io/")) continue;
    const auto found = context.find(key);
    if (found == context.end() || found->second != value)
      return "volume_context key " + key + " is not what the volume was created with";
  }
  const auto annotation = state.metadata.annotations.find(std::string(k_annotation_request));
  const auto stored = annotation == state.metadata.annotations.end() ? Result<CreateWishes>(CreateWishes())
                                                                     : wishes_from_text(annotation->second);
  for (const auto& [key, value] : normalised_parameters(request.parameters())) {
    if (!stored) return stored.error().message;
    const auto found = stored->parameters.find(key);
    if (found == stored->parameters.end() || found->second != value)
      return "parameter " + key + " is not what the volume was created with";
  }
  return {};
}

}  // namespace

Task<Result<VolumeState>> record_fence_ahead(Ports ports, VolumeState state, std::string agent_says) {
  const std::string message = "this record, at generation " +
                              std::to_string(state.status.publication_generation) +
                              ", was restored to the past; the agent says: " + agent_says;
  Edit edit = [message](VolumeState& fresh) {
    set_condition(fresh.status, k_export_reconciled, ConditionStatus::no, "FenceAhead", message);
  };
  auto writing = settle(ports, std::move(state), std::move(edit));
  co_return co_await std::move(writing);
}

Task<Result<csi::CreateVolumeResponse>> create_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::CreateVolumeRequest> request) {
  auto planning = plan_create(ports, request);
  const auto plan = co_await std::move(planning);
  if (!plan) co_return tl::unexpected(plan.error());
  auto reading = get_typed<VolumeState>(ports, record_name(plan->id));
  auto known = co_await std::move(reading);
  if (!known && known.error().reason != Reason::not_found) co_return tl::unexpected(known.error());
  if (known && !known->status.deleting) {
    if (auto same = check_compatible(*known, *plan); !same) co_return tl::unexpected(same.error());
    if (known->status.phase == VolumePhase::ready) co_return create_response(*known);
  }
  const bool begun = known && !known->status.deleting;
  if (plan->blocked && !begun && !plan->waits_for_agent) co_return tl::unexpected(*plan->blocked);
  auto leasing = lease_agent(context, ports, plan->spec.agent_ref);
  auto lease = co_await std::move(leasing);
  // A final refusal would make the caller forget what was begun; an agent out of reach is a passing
  // condition.
  if (plan->blocked && !begun && lease) co_return tl::unexpected(*plan->blocked);
  if (!lease) co_return tl::unexpected(lease.error());
  auto claiming = claim_record(context, ports, *plan, *lease);
  auto state = co_await std::move(claiming);
  if (!state) co_return tl::unexpected(state.error());
  if (auto step = co_await context.step("record_claimed"); !step) co_return tl::unexpected(step.error());
  if (state->status.phase != VolumePhase::ready) {
    auto running = run_create(context, ports, *lease, *plan, std::move(*state));
    state = co_await std::move(running);
    if (!state) co_return tl::unexpected(state.error());
  }
  // The size may only be known now: a repeat with other limits than the first attempt's is told so.
  if (auto same = check_compatible(*state, *plan); !same) co_return tl::unexpected(same.error());
  co_return create_response(*state);
}

Task<Result<csi::DeleteVolumeResponse>> delete_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::DeleteVolumeRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return csi::DeleteVolumeResponse();
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state && state.error().reason == Reason::not_found) co_return csi::DeleteVolumeResponse();
  if (!state) co_return tl::unexpected(state.error());
  if (!state->status.published_nodes.empty()) {
    auto refused = begin_delete()(*state);
    co_return tl::unexpected(refused.error());
  }
  auto leasing = lease_agent(context, ports, state->spec.agent_ref);
  auto lease = co_await std::move(leasing);
  if (!lease) co_return tl::unexpected(lease.error());
  if (!state->status.deleting) {
    auto starting = start_delete(ports, *id, state->metadata.uid);
    state = co_await std::move(starting);
    if (!state && state.error().reason == Reason::not_found) co_return csi::DeleteVolumeResponse();
    if (!state) co_return tl::unexpected(state.error());
    if (auto step = co_await context.step("delete_recorded"); !step) co_return tl::unexpected(step.error());
  }
  auto finishing = finish_delete(context, ports, *lease, std::move(*state));
  if (auto finished = co_await std::move(finishing); !finished) co_return tl::unexpected(finished.error());
  co_return csi::DeleteVolumeResponse();
}

Task<Result<csi::ControllerPublishVolumeResponse>> publish_volume(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerPublishVolumeRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  const auto publish = publish_request(ports, *request);
  if (!publish && publish.error().code == Code::invalid_argument) co_return tl::unexpected(publish.error());
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  if (!publish) co_return tl::unexpected(publish.error());
  auto place = ports.index->reserve(id->str(), publish->node_id, publish->initiator_id,
                                    ports.limits.max_volumes_per_node);
  if (!place && !is_published(state->status, publish->node_id)) co_return tl::unexpected(place.error());
  if (auto allowed = check_publishable(*state, *publish); !allowed) co_return tl::unexpected(allowed.error());
  auto leasing = lease_agent(context, ports, state->spec.agent_ref);
  auto lease = co_await std::move(leasing);
  if (!lease) co_return tl::unexpected(lease.error());
  if (state->status.resize_required) {
    auto finishing = finish_pending_resize(context, ports, *lease, *id, state->metadata.uid);
    if (auto finished = co_await std::move(finishing); !finished) co_return tl::unexpected(finished.error());
  }
  auto recording =
      advance(ports, *id, state->metadata.uid, record_publication(*publish, lease->bind_address()));
  state = co_await std::move(recording);
  if (!state) co_return tl::unexpected(state.error());
  if (auto step = co_await context.step("publication_recorded"); !step)
    co_return tl::unexpected(step.error());
  auto allowing = allow(ports, *lease, *state, *publish);
  if (auto allowed = co_await std::move(allowing); !allowed) co_return tl::unexpected(allowed.error());
  csi::ControllerPublishVolumeResponse response;
  *response.mutable_publish_context() = publish_context(*state, publish->initiator_id);
  co_return response;
}

Task<Result<csi::ControllerUnpublishVolumeResponse>> unpublish_volume(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerUnpublishVolumeRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return csi::ControllerUnpublishVolumeResponse();
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state && state.error().reason == Reason::not_found) co_return csi::ControllerUnpublishVolumeResponse();
  if (!state) co_return tl::unexpected(state.error());
  if (!is_published(state->status, request->node_id())) co_return csi::ControllerUnpublishVolumeResponse();
  auto leasing = lease_agent(context, ports, state->spec.agent_ref);
  auto lease = co_await std::move(leasing);
  if (!lease) co_return tl::unexpected(lease.error());

  auto revoked = std::make_shared<std::vector<crd::PublishedNode>>();
  Check check = [revoked, node_id = request->node_id()](VolumeState& fresh) -> Result<void> {
    *revoked = mark_revoking(fresh.status, node_id);
    if (revoked->empty()) return fail(Reason::not_found, "nothing is published there any more");
    return {};
  };
  auto marking = advance(ports, *id, state->metadata.uid, std::move(check));
  state = co_await std::move(marking);
  if (!state && state.error().reason == Reason::not_found) co_return csi::ControllerUnpublishVolumeResponse();
  if (!state) co_return tl::unexpected(state.error());
  if (auto step = co_await context.step("revoking_recorded"); !step) co_return tl::unexpected(step.error());
  auto ending = deny_all(ports, *lease, *state, *revoked);
  if (auto ended = co_await std::move(ending); !ended) co_return tl::unexpected(ended.error());
  if (auto step = co_await context.step("access_ended"); !step) co_return tl::unexpected(step.error());
  Edit edit = [revoked](VolumeState& fresh) { drop_revoked(fresh.status, *revoked); };
  auto dropping = settle(ports, std::move(*state), std::move(edit));
  if (auto dropped = co_await std::move(dropping); !dropped) co_return tl::unexpected(dropped.error());
  co_return csi::ControllerUnpublishVolumeResponse();
}

Task<Result<csi::ControllerExpandVolumeResponse>> expand_volume(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerExpandVolumeRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  const auto range =
      parse_expand_range(request->capacity_range().required_bytes(), request->capacity_range().limit_bytes());
  if (!range) co_return tl::unexpected(range.error());
  if (request->has_volume_capability())
    if (auto capability = parse_capability(request->volume_capability()); !capability)
      co_return tl::unexpected(capability.error());
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  if (auto usable = check_expandable(*state); !usable) co_return tl::unexpected(usable.error());
  const auto present = static_cast<std::uint64_t>(state->status.capacity_bytes);
  if (range->limit != 0 && present > range->limit)
    co_return fail(Reason::out_of_range, "volume " + id->str() + " has " + std::to_string(present) +
                                             " bytes already, more than limit_bytes " +
                                             std::to_string(range->limit) + "; volumes never shrink");
  if (range->required <= present && !state->status.resize_required)
    co_return expand_response(*state, *request);
  const auto bound = ports.agents->size_bound(state->spec.agent_ref, id->volume.pool);
  if (bound && range->required > *bound)
    co_return fail(Reason::out_of_range, "required_bytes " + std::to_string(range->required) +
                                             " is more than all of pool " + id->volume.pool + " (" +
                                             std::to_string(*bound) + " bytes); ask for less");
  auto leasing = lease_agent(context, ports, state->spec.agent_ref);
  auto lease = co_await std::move(leasing);
  if (!lease) co_return tl::unexpected(lease.error());
  Check check = [](VolumeState& fresh) -> Result<void> {
    if (auto usable = check_expandable(fresh); !usable) return usable;
    fresh.status.resize_required = true;
    return {};
  };
  auto recording = advance(ports, *id, state->metadata.uid, std::move(check));
  state = co_await std::move(recording);
  if (!state) co_return tl::unexpected(state.error());
  if (auto step = co_await context.step("resize_recorded"); !step) co_return tl::unexpected(step.error());
  SizeRange wanted = *range;
  wanted.required = std::max(wanted.required, static_cast<std::uint64_t>(state->status.capacity_bytes));
  auto growing = grow(context, ports, *lease, std::move(*state), wanted);
  state = co_await std::move(growing);
  if (!state) co_return tl::unexpected(state.error());
  co_return expand_response(*state, *request);
}

Task<Result<csi::ControllerGetVolumeResponse>> get_volume(
    OperationContext, Ports ports, std::shared_ptr<const csi::ControllerGetVolumeRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  csi::ControllerGetVolumeResponse response;
  *response.mutable_volume() = to_csi_volume(*state);
  auto& status = *response.mutable_status();
  for (const auto& entry : state->status.published_nodes) status.add_published_node_ids(entry.node_id);
  if (ports.legacy_volume_condition)
    *status.mutable_volume_condition() =
        legacy_condition(volume_health(*state, ports.agents->problem(state->spec.agent_ref)));
  co_return response;
}

Task<Result<csi::ControllerGetVolumeHealthResponse>> get_volume_health(
    OperationContext, Ports ports, std::shared_ptr<const csi::ControllerGetVolumeHealthRequest> request) {
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  csi::ControllerGetVolumeHealthResponse response;
  *response.mutable_volume_health() = volume_health(*state, ports.agents->problem(state->spec.agent_ref));
  co_return response;
}

Task<Result<csi::ValidateVolumeCapabilitiesResponse>> validate_capabilities(
    OperationContext, Ports ports, std::shared_ptr<const csi::ValidateVolumeCapabilitiesRequest> request) {
  if (request->volume_capabilities().empty())
    co_return fail(Reason::invalid_argument, "volume_capabilities is empty; give at least one");
  const auto id = VolumeId::parse(request->volume_id());
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  csi::ValidateVolumeCapabilitiesResponse response;
  response.set_message(mismatch(*state, *request));
  if (response.message().empty()) {
    auto& confirmed = *response.mutable_confirmed();
    *confirmed.mutable_volume_context() = request->volume_context();
    *confirmed.mutable_volume_capabilities() = request->volume_capabilities();
    *confirmed.mutable_parameters() = request->parameters();
  }
  co_return response;
}

Task<Result<Done>> mark_formatted(OperationContext, Ports ports,
                                  std::shared_ptr<const MarkFormatted> request) {
  const auto id = VolumeId::parse(request->volume_id);
  if (!id) co_return fail(Reason::not_found, "volume does not exist: " + id.error().message);
  auto reading = load(ports, *id);
  auto state = co_await std::move(reading);
  if (!state) co_return tl::unexpected(state.error());
  if (state->status.formatted) co_return Done{};
  crd::Formatted formatted;
  formatted.fs_type = request->fs_type;
  formatted.formatted_at = crd::timestamp_now();
  Edit edit = [formatted](VolumeState& fresh) { fresh.status.formatted = formatted; };
  auto writing = settle(ports, std::move(*state), std::move(edit));
  if (auto written = co_await std::move(writing); !written) co_return tl::unexpected(written.error());
  co_return Done{};
}

}  // namespace pillar::controller
