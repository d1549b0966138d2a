// agent/reconcile: fans a desired set out to the volume actors and holds the restore gate (docs/fencing.md
// section 7): prepare every export of the set, then link each port's in one tight loop, then open the gate.
// What could not be prepared is excluded with its reason and retried; it never holds the others.

#include <spdlog/spdlog.h>

#include <mutex>
#include <utility>

#include "actors/agent/context.hpp"
#include "actors/agent/reconcile_plan.hpp"
#include "actors/runtime/executor.hpp"
#include "hostio/configfs/nvmet_reader.hpp"

namespace pillar::agent {
namespace {

namespace nvmet = hostio::nvmet;
using runtime::Async;
using runtime::OperationContext;

constexpr std::size_t k_waiting = 8;
/// A sick pool does not hold the exports of the others up for longer, when the agent starts.
constexpr std::chrono::seconds k_mark_look{10};

using Outcomes = std::vector<Result<ReconcileOutcome>>;

/// Sends `count` calls, at most `window` unanswered at a time, and collects their answers. Thread-safe.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  using Send = std::function<void(std::size_t index, Reply<ReconcileOutcome> reply)>;

  FanOut(std::size_t count, Send send, std::function<void(Outcomes)> done)
      : count_(count),
        outcomes_(count, Result<ReconcileOutcome>(ReconcileOutcome{})),
        left_(count),
        send_(std::move(send)),
        done_(std::move(done)) {}

  void start(std::size_t window) {
    if (count_ == 0) return done_({});
    for (std::size_t i = 0; i < window; ++i) send_next();
  }

 private:
  void send_next() {
    std::size_t index = 0;
    {
      const std::lock_guard lock(mutex_);
      if (next_ == count_) return;
      index = next_++;
    }
    send_(index,
          Reply<ReconcileOutcome>([self = shared_from_this(), index](Result<ReconcileOutcome> outcome) {
            self->answered(index, std::move(outcome));
          }));
  }
  void answered(std::size_t index, Result<ReconcileOutcome> outcome) {
    {
      const std::lock_guard lock(mutex_);
      outcomes_[index] = std::move(outcome);
      if (--left_ == 0) return done_(std::move(outcomes_));
    }
    send_next();
  }

  const std::size_t count_;
  std::mutex mutex_;
  Outcomes outcomes_;  ///< moved out with the last answer
  std::size_t next_ = 0;
  std::size_t left_;
  Send send_;
  std::function<void(Outcomes)> done_;
};

Async<Outcomes> fan_out(const ContextPtr& context, const OperationContext& op, std::size_t count,
                        FanOut::Send send) {
  return Async<Outcomes>(
      op.executor(), [context, count, send = std::move(send)](Async<Outcomes>::Complete complete) {
        std::make_shared<FanOut>(count, send, std::move(complete))->start(context->limits.fan_out);
      });
}

using Desired = std::vector<v1::DesiredVolume>;

Async<Outcomes> reconcile_all(const ContextPtr& context, const OperationContext& op,
                              std::shared_ptr<const Desired> volumes, bool hold_links) {
  const std::size_t count = volumes->size();
  return fan_out(
      context, op, count, [context, volumes, hold_links](std::size_t index, Reply<ReconcileOutcome> reply) {
        auto request = std::make_shared<ReconcileOne>();
        request->desired = (*volumes)[index];
        request->hold_links = hold_links;
        std::string key = request->desired.volume().agent_volume_id();
        runtime::route(context->actors.volumes, std::move(key),
                       Call<ReconcileOne, ReconcileOutcome>{
                           std::move(request), Deadline::after(context->limits.prepare), std::move(reply)});
      });
}

/// The prepared exports of one port.
struct PortBatch {
  Endpoint endpoint;
  std::vector<std::size_t> volumes;  ///< indices into the outcomes
  std::vector<nvmet::Plan> plans;
};

std::vector<PortBatch> batches_of(const Outcomes& outcomes) {
  std::map<std::string, PortBatch> ports;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i] || !outcomes[i]->link) continue;
    PortBatch& batch = ports[outcomes[i]->link->endpoint.key()];
    batch.endpoint = outcomes[i]->link->endpoint;
    batch.volumes.push_back(i);
    batch.plans.push_back(outcomes[i]->link->open);
  }
  std::vector<PortBatch> out;
  for (auto& [key, batch] : ports) out.push_back(std::move(batch));
  return out;
}

Async<Result<OpenedAll>> open_port(const ContextPtr& context, const OperationContext& op,
                                   const PortBatch& batch) {
  auto request = std::make_shared<OpenAll>();
  request->endpoint = batch.endpoint;
  request->plans = batch.plans;
  return Async<Result<OpenedAll>>(op.executor(), [context, request, key = batch.endpoint.key()](
                                                     Async<Result<OpenedAll>>::Complete complete) {
    runtime::route(context->actors.ports, key,
                   Call<OpenAll, OpenedAll>{request, Deadline::after(context->limits.prepare),
                                            Reply<OpenedAll>(std::move(complete))});
  });
}

/// Links what was prepared, port by port; a failure becomes the outcome of its volume.
Task<Outcomes> open_ports(ContextPtr context, OperationContext op, Outcomes outcomes) {
  const std::vector<PortBatch> batches = batches_of(outcomes);
  for (const PortBatch& batch : batches) {
    auto opened = co_await open_port(context, op, batch);
    for (std::size_t i = 0; i < batch.volumes.size(); ++i) {
      Result<ReconcileOutcome>& outcome = outcomes[batch.volumes[i]];
      if (!opened)
        outcome = tl::unexpected(opened.error());
      else if (!opened->results[i])
        outcome = tl::unexpected(opened->results[i].error());
    }
  }
  co_return outcomes;
}

struct ReconcileState {
  explicit ReconcileState(runtime::ActorBase* self) : cell(self->cell()), queue(self->cell(), {k_waiting}) {
    cell->add_idle_check([this] { return excluded.empty(); });
  }
  std::shared_ptr<runtime::ActorCell> cell;
  Excluded excluded;
  Clock::duration retry_delay{};
  bool retry_armed = false;
  runtime::OperationQueue queue;
};

void arm_retry(const ContextPtr& context, ReconcileState* state);

/// Reconciles what was excluded once more, linking directly: the ports are open by now.
Task<Result<void>> retry_excluded(ContextPtr context, ReconcileState* state, OperationContext op) {
  if (context->gated || state->excluded.empty()) co_return Result<void>{};
  auto volumes = std::make_shared<const Desired>(state->excluded.all());
  Outcomes outcomes = co_await reconcile_all(context, op, volumes, false);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string& volume = (*volumes)[i].volume().agent_volume_id();
    if (!outcomes[i] && worth_retrying(outcomes[i].error())) continue;
    state->excluded.drop(volume);
    if (outcomes[i]) spdlog::info("export of volume {} is restored", volume);
  }
  state->retry_delay = std::min(state->retry_delay * 2, context->limits.retry_max);
  arm_retry(context, state);
  co_return Result<void>{};
}

void arm_retry(const ContextPtr& context, ReconcileState* state) {
  if (state->retry_armed || state->excluded.empty()) return;
  state->retry_armed = true;
  if (state->retry_delay == Clock::duration::zero()) state->retry_delay = context->limits.retry_first;
  state->cell->executor()->post_after(state->retry_delay, [context, state] {
    state->retry_armed = false;
    const bool queued = state->queue.background("retry_excluded", [context, state](OperationContext op) {
      return retry_excluded(context, state, std::move(op));
    });
    if (!queued) arm_retry(context, state);
  });
}

void note_excluded(const ContextPtr& context, ReconcileState* state, const Desired& volumes,
                   const Outcomes& outcomes) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string& volume = volumes[i].volume().agent_volume_id();
    if (outcomes[i] || !worth_retrying(outcomes[i].error())) {
      state->excluded.drop(volume);
      continue;
    }
    spdlog::warn("export of volume {} is excluded: {}", volume, outcomes[i].error().message);
    state->excluded.put(volumes[i]);
  }
  state->retry_delay = Clock::duration::zero();
  arm_retry(context, state);
}

/// Closes the access of our subsystems that a complete list does not name.
Task<Result<std::vector<v1::ReconcileResult>>> close_strays(ContextPtr context, OperationContext op,
                                                            Shared<v1::ReconcileStateRequest> request) {
  auto read = [context] { return nvmet::read_our_subsystems(*context->host.nvmet); };
  runtime::JobOptions options{"list exports", {}};
  auto live = co_await context->configfs->run<std::vector<nvmet::LiveSubsystem>>(
      op.executor(), job_deadline(*context), read, std::move(options));
  if (!live) co_return tl::unexpected(live.error());
  auto closes = std::make_shared<std::vector<std::shared_ptr<CloseStray>>>();
  for (const std::string& nqn : stray_exports(*request, *live)) {
    auto close = std::make_shared<CloseStray>();
    close->nqn = nqn;
    close->volume = context->store->volume_of_nqn(nqn);
    close->known_sequence = request->sequence();
    closes->push_back(std::move(close));
  }
  auto send = [context, closes](std::size_t i, Reply<ReconcileOutcome> reply) {
    const auto& close = (*closes)[i];
    std::string key = close->volume ? close->volume->str() : "stray/" + close->nqn;
    runtime::route(context->actors.volumes, std::move(key),
                   Call<CloseStray, ReconcileOutcome>{close, Deadline::after(context->limits.prepare),
                                                      std::move(reply)});
  };
  Outcomes outcomes = co_await fan_out(context, op, closes->size(), send);
  std::vector<v1::ReconcileResult> results;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto& close = (*closes)[i];
    if (outcomes[i] && outcomes[i]->changed)
      spdlog::warn("{} was open without a record that asks for it; its access was closed", close->nqn);
    results.push_back(reconcile_result(close->volume ? close->volume->str() : close->nqn, outcomes[i]));
  }
  co_return results;
}

/// Tombstones of volumes that the complete list no longer names may go once they are old enough.
Task<Result<void>> forget_tombstones(ContextPtr context, OperationContext op,
                                     Shared<v1::ReconcileStateRequest> request) {
  auto job = [context, request]() -> Result<std::size_t> {
    std::set<AgentVolumeId> listed;
    for (const auto& desired : request->volumes())
      if (auto volume = AgentVolumeId::parse(desired.volume().agent_volume_id())) listed.insert(*volume);
    return context->store->prune_tombstones(listed);
  };
  runtime::JobOptions options{"forget tombstones", {}};
  auto pruned =
      co_await context->durable->run<std::size_t>(op.executor(), Deadline::never(), job, std::move(options));
  if (!pruned) co_return tl::unexpected(pruned.error());
  co_return Result<void>{};
}

Result<void> check_request(const AgentContext& context, const v1::ReconcileStateRequest& request) {
  if (request.epoch() != context.store->epoch())
    return fail(Reason::epoch_unknown, "the list was made for epoch '" + request.epoch() +
                                           "', this agent's epoch is " + context.store->epoch() +
                                           "; read it with HealthCheck first");
  // Not half a set: what a volume without a mark exports would be missing when its port opens.
  if (!context.marks_complete())
    return fail(Reason::epoch_unknown,
                "this agent's fencing marks are not known to be complete; seed them before reconciling");
  return check_reconcile_list(request);
}

Error still_gated(const std::string& volume) {
  return fail(Reason::restore_pending,
              "volume " + volume + ": prepared; its port opens with the first complete list")
      .value();
}

Task<Result<v1::ReconcileStateResponse>> reconcile_state(ContextPtr context, ReconcileState* state,
                                                         OperationContext op,
                                                         Shared<v1::ReconcileStateRequest> request) {
  if (auto ok = check_request(*context, *request); !ok) co_return tl::unexpected(ok.error());
  const bool gated = context->gated;
  auto volumes = std::make_shared<const Desired>(request->volumes().begin(), request->volumes().end());
  Outcomes outcomes = co_await reconcile_all(context, op, volumes, gated);
  v1::ReconcileStateResponse response;
  std::vector<v1::ReconcileResult> closed;
  if (request->complete()) {
    auto strays = co_await close_strays(context, op, request);
    if (!strays) co_return tl::unexpected(strays.error());
    closed = std::move(*strays);
    if (auto s = co_await op.step("open_ports"); !s) co_return tl::unexpected(s.error());
    outcomes = co_await open_ports(context, op, std::move(outcomes));
    context->gated = false;
    note_excluded(context, state, *volumes, outcomes);
    auto forgotten = co_await forget_tombstones(context, op, request);
    if (!forgotten) spdlog::warn("{}", forgotten.error().message);
  }
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string& volume = (*volumes)[i].volume().agent_volume_id();
    if (gated && !request->complete() && outcomes[i] && outcomes[i]->link)
      outcomes[i] = tl::unexpected(still_gated(volume));
    *response.add_results() = reconcile_result(volume, outcomes[i]);
  }
  for (v1::ReconcileResult& result : closed) *response.add_results() = std::move(result);
  co_return response;
}

/// Finds the volumes whose mark was removed while the agent was not running, before anything is restored.
/// What cannot be looked at now is noticed with the first request for it.
Task<void> find_lost_marks(ContextPtr context, OperationContext op) {
  auto job = [context]() -> Result<Done> {
    for (const LvmBackendConfig& backend : context->config.backends) {
      auto volumes = context->host.backend->list(backend.volume_group, Deadline::after(k_mark_look));
      if (!volumes) {
        spdlog::warn("fencing marks of pool {} are not checked: {}", backend.volume_group,
                     volumes.error().message);
        continue;
      }
      for (const hostio::LogicalVolume& volume : *volumes) context->check_mark(volume.id);
    }
    return Done{};
  };
  runtime::JobOptions options{"compare volumes with fencing marks", {}};
  co_await context->commands->run<Done>(op.executor(), job_deadline(*context), job, std::move(options));
}

/// Gets exports ready before the controller is heard; links them only with self_restore. The gate stays
/// closed.
Task<Result<Done>> restore_from_records(ContextPtr context, OperationContext op) {
  auto looking = find_lost_marks(context, op);
  co_await std::move(looking);
  auto volumes = std::make_shared<Desired>();
  for (const ExportRecord& record : context->store->records()) {
    auto stored = context->store->mark(record.volume);
    if (stored && record_usable(record, *stored)) volumes->push_back(desired_of_record(record));
  }
  Outcomes outcomes = co_await reconcile_all(context, op, volumes, true);
  if (context->config.self_restore) outcomes = co_await open_ports(context, op, std::move(outcomes));
  std::size_t failed = 0;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i]) continue;
    ++failed;
    spdlog::warn("export of volume {} cannot be prepared yet: {}", (*volumes)[i].volume().agent_volume_id(),
                 outcomes[i].error().message);
  }
  spdlog::info("{} recorded exports: {} {}, {} not ready", outcomes.size(), outcomes.size() - failed,
               context->config.self_restore ? "restored" : "prepared", failed);
  co_return Done{};
}

using ReconcileActor = Child<ReconcileRegistry>;

ReconcileActor::behavior_type reconcile_actor(runtime::Stateful<ReconcileState, ReconcileActor>* self,
                                              ContextPtr context) {
  ReconcileState* state = &self->state;
  return {[context, state](const Call<v1::ReconcileStateRequest, v1::ReconcileStateResponse>& call) {
            state->queue.submit(
                call, "reconcile_state",
                [context, state](OperationContext op, Shared<v1::ReconcileStateRequest> request) {
                  return reconcile_state(context, state, std::move(op), std::move(request));
                });
          },
          [context, state](const Call<RestoreFromRecords, Done>& call) {
            state->queue.submit(call, "restore_from_records",
                                [context](OperationContext op, Shared<RestoreFromRecords>) {
                                  return restore_from_records(context, std::move(op));
                                });
          }};
}

}  // namespace

ReconcileRegistry spawn_reconcile(runtime::System& system, ContextPtr context) {
  runtime::RegistryOptions options;
  options.kind = "agent/reconcile";
  return runtime::spawn_registry<Call<v1::ReconcileStateRequest, v1::ReconcileStateResponse>,
                                 Call<RestoreFromRecords, Done>>(
      system, options, [&system, context](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), reconcile_actor, context);
      });
}

}  // namespace pillar::agent
