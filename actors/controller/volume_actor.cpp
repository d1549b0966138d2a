// The actors that answer calls: one per volume, one per kind of capacity question.

#include "actors/controller/actors.hpp"
#include "actors/controller/plan.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {
namespace {

using runtime::ActorBase;
using runtime::ActorOptions;
using runtime::OperationQueue;
using runtime::OperationQueueOptions;

/// Calls for capacity that may wait behind one of the same class.
constexpr std::size_t k_waiting_capacity = 16;

using VolumeActor =
    caf::typed_actor<caf::reacts_to<CreateCall>, caf::reacts_to<DeleteCall>, caf::reacts_to<PublishCall>,
                     caf::reacts_to<UnpublishCall>, caf::reacts_to<ExpandCall>, caf::reacts_to<ValidateCall>,
                     caf::reacts_to<GetVolumeCall>, caf::reacts_to<GetHealthCall>,
                     caf::reacts_to<FormattedCall>>;
using CapacityActor = caf::typed_actor<caf::reacts_to<CapacityCall>>;

struct VolumeActorState {
  // Nothing queues behind a running operation: the caller is told at once (rows I05, G09).
  explicit VolumeActorState(ActorBase* self) : queue(self->cell(), OperationQueueOptions{0}) {}
  OperationQueue queue;
};

struct CapacityState {
  explicit CapacityState(ActorBase* self) : queue(self->cell(), OperationQueueOptions{k_waiting_capacity}) {}
  OperationQueue queue;
};

/// Binds an operation to the ports of its actor.
template <class Request, class Response>
auto bound(Ports ports,
           Task<Result<Response>> (*operation)(OperationContext, Ports, std::shared_ptr<const Request>)) {
  return [ports = std::move(ports), operation](OperationContext context,
                                               std::shared_ptr<const Request> request) {
    return repeated_once_synchronised(std::move(context), ports, std::move(request), operation);
  };
}

VolumeActor::behavior_type volume_actor(runtime::Stateful<VolumeActorState, VolumeActor>* self, Ports ports) {
  ports.executor = self->cell()->executor();
  const auto handle = [self, ports](const auto& call, const char* name, auto operation) {
    self->state.queue.submit(call, name, bound(ports, operation));
  };
  return {
      [handle](const CreateCall& call) { handle(call, "create_volume", create_volume); },
      [handle](const DeleteCall& call) { handle(call, "delete_volume", delete_volume); },
      [handle](const PublishCall& call) { handle(call, "publish_volume", publish_volume); },
      [handle](const UnpublishCall& call) { handle(call, "unpublish_volume", unpublish_volume); },
      [handle](const ExpandCall& call) { handle(call, "expand_volume", expand_volume); },
      [handle](const ValidateCall& call) { handle(call, "validate_capabilities", validate_capabilities); },
      [handle](const GetVolumeCall& call) { handle(call, "get_volume", get_volume); },
      [handle](const GetHealthCall& call) { handle(call, "get_volume_health", get_volume_health); },
      [handle](const FormattedCall& call) { handle(call, "mark_formatted", mark_formatted); },
  };
}

CapacityActor::behavior_type capacity_actor(runtime::Stateful<CapacityState, CapacityActor>* self,
                                            Ports ports) {
  ports.executor = self->cell()->executor();
  return {[self, ports](const CapacityCall& call) {
    self->state.queue.submit(call, "get_capacity", bound(ports, get_capacity));
  }};
}

}  // namespace

VolumeRegistry spawn_volumes(runtime::System& system, Ports ports) {
  runtime::RegistryOptions options;
  options.kind = "controller/volume";
  return runtime::spawn_registry<CreateCall, DeleteCall, PublishCall, UnpublishCall, ExpandCall, ValidateCall,
                                 GetVolumeCall, GetHealthCall, FormattedCall>(
      system, options, [&system, ports](ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), volume_actor, ports);
      });
}

CapacityRegistry spawn_capacity(runtime::System& system, Ports ports) {
  runtime::RegistryOptions options;
  options.kind = "controller/capacity";
  return runtime::spawn_registry<CapacityCall>(system, options,
                                               [&system, ports](ActorOptions child, const std::string&) {
                                                 return system.spawn(std::move(child), capacity_actor, ports);
                                               });
}

}  // namespace pillar::controller
