// agent/pool/<vg>: metadata-changing commands of one volume group, one at a time, and its cached capacity.

#include <optional>
#include <utility>

#include "actors/agent/context.hpp"
#include "actors/agent/health.hpp"

namespace pillar::agent {
namespace {

using runtime::OperationContext;

constexpr std::size_t k_waiting = 1024;  // volume queues bound what can arrive

struct PoolState {
  explicit PoolState(runtime::ActorBase* self) : queue(self->cell(), {k_waiting}) {}
  std::optional<hostio::VolumeGroup> cached;
  Clock::time_point cached_at;
  runtime::OperationQueue queue;  // last: its coroutines refer to the members above
};

/// Runs one metadata change in the pool, alone in its volume group even across a restart of this actor.
template <class T, class Job>
Task<Result<T>> change(ContextPtr context, OperationContext op, std::string pool, std::string what, Job job) {
  auto hold = context->in_flight->begin("pool/" + pool, ChangeKind::pool);
  if (!hold)
    co_return fail(Reason::operation_pending,
                   what + ": an earlier command on pool " + pool + " is still running; repeat the call");
  auto guarded = [job = std::move(job), hold]() -> Result<T> {
    Result<T> result = job();
    hold->release();
    return result;
  };
  hold.reset();
  runtime::JobOptions options{std::move(what), {}};
  co_return co_await context->commands->run<T>(op.executor(), job_deadline(*context), std::move(guarded),
                                               std::move(options));
}

Task<Result<hostio::VolumeGroup>> capacity(ContextPtr context, PoolState* state, OperationContext op,
                                           std::shared_ptr<const PoolInfo> request) {
  if (state->cached && Clock::now() - state->cached_at < context->limits.capacity_cache)
    co_return *state->cached;
  auto job = [context, request] {
    return context->host.backend->pool_info(request->pool, Deadline::after(context->limits.command));
  };
  runtime::JobOptions options{"read pool " + request->pool, {}};
  auto info = co_await context->commands->run<hostio::VolumeGroup>(op.executor(), job_deadline(*context), job,
                                                                   std::move(options));
  if (!info) co_return info;
  state->cached = *info;
  state->cached_at = Clock::now();
  publish_size(*context, *info);
  co_return info;
}

using PoolActor = Child<PoolRegistry>;
using PoolImpl = runtime::Stateful<PoolState, PoolActor>;

/// Queues `run(backend, request, deadline)` as the metadata change that `call` asks for.
template <class Request, class Response, class Run>
void submit_change(PoolImpl* self, const ContextPtr& context, const Call<Request, Response>& call,
                   const char* operation, Run run) {
  PoolState* state = &self->state;
  state->queue.submit(
      call, operation,
      [context, state, run, operation](OperationContext op,
                                       std::shared_ptr<const Request> request) -> Task<Result<Response>> {
        state->cached.reset();
        auto job = [context, request, run]() -> Result<Response> {
          return run(*context->host.backend, *request, Deadline::after(context->limits.command));
        };
        std::string what = std::string(operation) + " of volume " + request->volume.str();
        auto result = co_await change<Response>(context, op, request->volume.pool, std::move(what), job);
        state->cached.reset();
        co_return result;
      });
}

Result<Done> done_of(const Result<void>& result) {
  if (!result) return tl::unexpected(result.error());
  return Done{};
}

PoolActor::behavior_type pool_actor(PoolImpl* self, ContextPtr context) {
  return {[self, context](const Call<LvCreate, hostio::LogicalVolume>& call) {
            submit_change(self, context, call, "create", [](Backend& backend, const LvCreate& r, Deadline d) {
              return backend.create(r.volume, r.uid, r.range, d);
            });
          },
          [self, context](const Call<LvExtend, hostio::LogicalVolume>& call) {
            submit_change(self, context, call, "extend", [](Backend& backend, const LvExtend& r, Deadline d) {
              return backend.extend(r.volume, r.uid, r.range, d);
            });
          },
          [self, context](const Call<LvRemove, Done>& call) {
            submit_change(self, context, call, "remove", [](Backend& backend, const LvRemove& r, Deadline d) {
              return done_of(backend.remove(r.volume, r.uid, d));
            });
          },
          [self, context](const Call<LvChangeOwner, Done>& call) {
            submit_change(self, context, call, "change_owner",
                          [](Backend& backend, const LvChangeOwner& r, Deadline d) {
                            return done_of(backend.change_owner(r.volume, r.old_uid, r.new_uid, d));
                          });
          },
          [self, context](const Call<PoolInfo, hostio::VolumeGroup>& call) {
            self->state.queue.submit(call, "capacity",
                                     [context, state = &self->state](
                                         OperationContext op, std::shared_ptr<const PoolInfo> request) {
                                       return capacity(context, state, std::move(op), std::move(request));
                                     });
          }};
}

}  // namespace

PoolRegistry spawn_pools(runtime::System& system, ContextPtr context) {
  runtime::RegistryOptions options;
  options.kind = "agent/pool";
  return runtime::spawn_registry<Call<LvCreate, hostio::LogicalVolume>, Call<LvExtend, hostio::LogicalVolume>,
                                 Call<LvRemove, Done>, Call<LvChangeOwner, Done>,
                                 Call<PoolInfo, hostio::VolumeGroup>>(
      system, options, [&system, context](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), pool_actor, context);
      });
}

}  // namespace pillar::agent
