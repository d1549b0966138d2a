// node/volume/<id> and node/inspector/<id>.

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "actors/node/actors.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::node {
namespace {

using runtime::OperationContext;

/// Longest an inspection may take before its callers are answered; statfs and its kind end long before.
constexpr Clock::duration k_inspection = std::chrono::seconds(20);
constexpr std::size_t k_waiting_inspections = 16;
constexpr std::size_t k_sharing_callers = 256;

/// The operations stand before the queue, so that the running coroutine dies before what it uses.
struct VolumeState {
  explicit VolumeState(runtime::ActorBase* self) : cell(self->cell()) {}
  std::shared_ptr<runtime::ActorCell> cell;
  std::unique_ptr<VolumeOps> ops;
  std::unique_ptr<runtime::OperationQueue> queue;

  void start(const VolumeParts& parts, std::size_t waiting) {
    ops = std::make_unique<VolumeOps>(parts.host(cell->executor()), parts.settings);
    queue = std::make_unique<runtime::OperationQueue>(cell, runtime::OperationQueueOptions{waiting});
  }
};

using VolumeActor =
    caf::typed_actor<caf::reacts_to<StageCall>, caf::reacts_to<UnstageCall>, caf::reacts_to<PublishCall>,
                     caf::reacts_to<UnpublishCall>, caf::reacts_to<ExpandCall>>;
using VolumeImpl = runtime::Stateful<VolumeState, VolumeActor>;

template <class Request, class Response>
using Method = runtime::Task<Result<Response>> (VolumeOps::*)(OperationContext,
                                                              std::shared_ptr<const Request>);

/// Handler of one message: runs `method` when the volume is free.
template <class Request, class Response>
auto handler(VolumeImpl* self, const char* name, Method<Request, Response> method) {
  return [self, name, method](const Call<Request, Response>& call) {
    auto* ops = self->state.ops.get();
    self->state.queue->submit(
        call, name, [ops, method](OperationContext context, std::shared_ptr<const Request> request) {
          return (ops->*method)(std::move(context), std::move(request));
        });
  };
}

VolumeActor::behavior_type volume_actor(VolumeImpl* self, std::shared_ptr<const VolumeParts> parts) {
  self->state.start(*parts, 0);
  return {handler(self, "stage", &VolumeOps::stage), handler(self, "unstage", &VolumeOps::unstage),
          handler(self, "publish", &VolumeOps::publish), handler(self, "unpublish", &VolumeOps::unpublish),
          handler(self, "expand", &VolumeOps::expand)};
}

/// Callers of one inspection. Answered together, from any thread.
template <class Response>
class Sharing {
 public:
  using Ptr = std::shared_ptr<Sharing>;

  /// False when too many share already, or the answer is given.
  bool join(const Reply<Response>& reply) {
    const std::lock_guard lock(mutex_);
    if (answered_ || replies_.size() >= k_sharing_callers) return false;
    replies_.push_back(reply);
    return true;
  }
  void answer(const Result<Response>& result) {
    std::vector<Reply<Response>> replies;
    {
      const std::lock_guard lock(mutex_);
      answered_ = true;
      replies.swap(replies_);
    }
    for (const auto& reply : replies) reply(result);
  }
  bool answered() {
    const std::lock_guard lock(mutex_);
    return answered_;
  }

 private:
  std::mutex mutex_;
  std::vector<Reply<Response>> replies_;
  bool answered_ = false;
};

struct InspectorState : VolumeState {
  using VolumeState::VolumeState;
  std::map<std::string, Sharing<csi::NodeGetVolumeStatsResponse>::Ptr> stats;
  std::map<std::string, Sharing<csi::NodeGetVolumeHealthResponse>::Ptr> health;
};

using InspectorActor = caf::typed_actor<caf::reacts_to<StatsCall>, caf::reacts_to<HealthCall>>;
using InspectorImpl = runtime::Stateful<InspectorState, InspectorActor>;

/// Handler of one message: joins an equal call that is running, or runs `method` for all that join (row I01).
template <class Request, class Response>
auto inspector(InspectorImpl* self, const char* name, Method<Request, Response> method,
               std::map<std::string, typename Sharing<Response>::Ptr> InspectorState::*running) {
  return [self, name, method, running](const Call<Request, Response>& call) {
    auto& shared = self->state.*running;
    std::erase_if(shared, [](const auto& each) { return each.second->answered(); });
    const std::string key = call.request->SerializeAsString();
    if (const auto at = shared.find(key); at != shared.end()) {
      if (!at->second->join(call.reply))
        call.reply(fail(Reason::queue_full, "too many equal calls are waiting for this volume; try again"));
      return;
    }
    auto group = std::make_shared<Sharing<Response>>();
    group->join(call.reply);
    shared[key] = group;
    auto* ops = self->state.ops.get();
    const Call<Request, Response> leader{
        call.request, Deadline::after(k_inspection),
        Reply<Response>([group](const Result<Response>& result) { group->answer(result); })};
    self->state.queue->submit(
        leader, name, [ops, method](OperationContext context, std::shared_ptr<const Request> request) {
          return (ops->*method)(std::move(context), std::move(request));
        });
  };
}

InspectorActor::behavior_type inspector_actor(InspectorImpl* self, std::shared_ptr<const VolumeParts> parts) {
  self->state.start(*parts, k_waiting_inspections);
  return {inspector(self, "stats", &VolumeOps::stats, &InspectorState::stats),
          inspector(self, "health", &VolumeOps::health, &InspectorState::health)};
}

struct ConnectorState {
  explicit ConnectorState(runtime::ActorBase* self)
      : cell(self->cell()),
        waiting(cell->services().metrics->gauge("pillar_csi_node_connects_waiting",
                                                "Connects that wait for a free slot")) {}
  std::shared_ptr<runtime::ActorCell> cell;
  runtime::Gauge& waiting;
  std::vector<ConnectCall> queue;
  std::size_t running = 0;
};

using ConnectorImpl = runtime::Stateful<ConnectorState, Connector>;

/// Starts waiting connects while there are free slots.
void pump(ConnectorImpl* self, const ConnectFunction& connect, std::size_t parallel) {
  auto& state = self->state;
  while (state.running < parallel && !state.queue.empty()) {
    const ConnectCall call = state.queue.front();
    state.queue.erase(state.queue.begin());
    if (call.deadline.passed()) {
      state.cell->stats().dropped_expired.add();
      call.reply(fail(Reason::deadline_exceeded, "the connect to " + call.request->session.nqn +
                                                     " waited too long for its turn; try again"));
      continue;
    }
    ++state.running;
    connect(call.request, [self, connect, parallel, reply = call.reply,
                           executor = state.cell->executor()](Result<Done> result) {
      reply(std::move(result));
      // `self` is touched only in its own context, where it is alive.
      executor->post([self, connect, parallel] {
        --self->state.running;
        pump(self, connect, parallel);
      });
    });
  }
  state.waiting.set(static_cast<double>(state.queue.size()));
}

Connector::behavior_type connector_actor(ConnectorImpl* self, ConnectFunction connect, std::size_t parallel) {
  return {[self, connect = std::move(connect), parallel](const ConnectCall& call) {
    self->state.queue.push_back(call);
    pump(self, connect, parallel);
  }};
}

}  // namespace

VolumeRegistry spawn_volumes(runtime::System& system, std::shared_ptr<const VolumeParts> parts) {
  runtime::RegistryOptions options;
  options.kind = "node/volume";
  return runtime::spawn_registry<StageCall, UnstageCall, PublishCall, UnpublishCall, ExpandCall>(
      system, options, [&system, parts](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), volume_actor, parts);
      });
}

InspectorRegistry spawn_inspectors(runtime::System& system, std::shared_ptr<const VolumeParts> parts) {
  runtime::RegistryOptions options;
  options.kind = "node/inspector";
  return runtime::spawn_registry<StatsCall, HealthCall>(
      system, options, [&system, parts](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), inspector_actor, parts);
      });
}

Connector spawn_connector(runtime::System& system, ConnectFunction connect, std::size_t parallel) {
  return system.keep(system.spawn(runtime::ActorOptions{"node/connector", "node/connector"}, connector_actor,
                                  std::move(connect), parallel));
}

}  // namespace pillar::node
