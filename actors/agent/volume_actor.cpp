// agent/volume/<agent volume id>: one operation at a time per volume; up to 16 wait.

#include <utility>

#include "actors/agent/context.hpp"

namespace pillar::agent {
namespace {

using runtime::OperationContext;

struct VolumeState {
  explicit VolumeState(runtime::ActorBase* self) : cell(self->cell()) {}
  std::shared_ptr<runtime::ActorCell> cell;
  std::unique_ptr<runtime::OperationQueue> queue;
};

using VolumeActor = Child<VolumeRegistry>;
using VolumeImpl = runtime::Stateful<VolumeState, VolumeActor>;

template <class Request, class Response>
using Operation = Task<Result<Response>> (*)(HostPtr, Shared<Request>);

/// Runs the operation on a host of its own.
template <class Request, class Response>
Task<Result<Response>> run_operation(Operation<Request, Response> operation, ContextPtr context,
                                     OperationContext op, Shared<Request> request) {
  HostPtr host = bind_host(std::move(context), op);
  Task<Result<Response>> task = operation(host, std::move(request));
  co_return co_await std::move(task);
}

/// Handler of one message: queues `operation` under `name`.
template <class Request, class Response>
auto handler(VolumeImpl* self, const ContextPtr& context, const char* name,
             Operation<Request, Response> operation) {
  return [self, context, name, operation](const Call<Request, Response>& call) {
    self->state.queue->submit(call, name, [context, operation](OperationContext op, Shared<Request> request) {
      return run_operation<Request, Response>(operation, context, std::move(op), std::move(request));
    });
  };
}

VolumeActor::behavior_type volume_actor(VolumeImpl* self, ContextPtr context) {
  self->state.queue = std::make_unique<runtime::OperationQueue>(
      self->state.cell, runtime::OperationQueueOptions{context->limits.volume_queue});
  return {handler(self, context, "create", &create_volume),
          handler(self, context, "delete", &delete_volume),
          handler(self, context, "expand", &expand_volume),
          handler(self, context, "export", &export_volume),
          handler(self, context, "unexport", &unexport_volume),
          handler(self, context, "allow", &allow_initiator),
          handler(self, context, "deny", &deny_initiator),
          handler(self, context, "adopt", &adopt_lifecycle),
          handler(self, context, "reconcile", &reconcile_volume),
          handler(self, context, "close_stray", &close_stray)};
}

}  // namespace

VolumeRegistry spawn_volumes(runtime::System& system, ContextPtr context) {
  runtime::RegistryOptions options;
  options.kind = "agent/volume";
  return runtime::spawn_registry<Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse>,
                                 Call<v1::DeleteVolumeRequest, v1::DeleteVolumeResponse>,
                                 Call<v1::ExpandVolumeRequest, v1::ExpandVolumeResponse>,
                                 Call<v1::ExportVolumeRequest, v1::ExportVolumeResponse>,
                                 Call<v1::UnexportVolumeRequest, v1::UnexportVolumeResponse>,
                                 Call<v1::AllowInitiatorRequest, v1::AllowInitiatorResponse>,
                                 Call<v1::DenyInitiatorRequest, v1::DenyInitiatorResponse>,
                                 Call<v1::AdoptLifecycleRequest, v1::AdoptLifecycleResponse>,
                                 Call<ReconcileOne, ReconcileOutcome>, Call<CloseStray, ReconcileOutcome>>(
      system, options, [&system, context](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), volume_actor, context);
      });
}

}  // namespace pillar::agent
