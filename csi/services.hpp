#pragma once
// The gRPC services as templates over the application that answers them. An application offers
// `send(Call<Request, Response>)` for each request type it serves; every method here is one line. RPCs that
// are not listed answer UNIMPLEMENTED.

#include "csi/serve.hpp"
#include "messages/agent.grpc.pb.h"
#include "messages/csi.grpc.pb.h"

namespace pillar::csi_front {

// One handler: PILLAR_RPC(CreateVolume) serves message pair CreateVolumeRequest / CreateVolumeResponse.
#define PILLAR_RPC(package, service, rpc)                                                                   \
  grpc::ServerUnaryReactor* rpc(grpc::CallbackServerContext* context, const package::rpc##Request* request, \
                                package::rpc##Response* response) override {                                \
    return serve(                                                                                           \
        Method{service, #rpc}, context, request, response, observer_,                                       \
        [this](Call<package::rpc##Request, package::rpc##Response> call) { app_.send(std::move(call)); });  \
  }

/// What the services share: the application and the observer, both outliving the server.
template <class App>
class ServiceBase {
 protected:
  ServiceBase(App& app, CallObserver observer) : app_(app), observer_(std::move(observer)) {}
  App& app_;
  CallObserver observer_;
};

/// csi.v1.Identity.
template <class App>
class IdentityService final : public ::csi::v1::Identity::CallbackService, private ServiceBase<App> {
  using ServiceBase<App>::app_;
  using ServiceBase<App>::observer_;

 public:
  IdentityService(App& app, CallObserver observer) : ServiceBase<App>(app, std::move(observer)) {}
  PILLAR_RPC(::csi::v1, "identity", GetPluginInfo)
  PILLAR_RPC(::csi::v1, "identity", GetPluginCapabilities)
  PILLAR_RPC(::csi::v1, "identity", Probe)
};

/// csi.v1.Controller: the RPCs whose capabilities are advertised.
template <class App>
class ControllerService final : public ::csi::v1::Controller::CallbackService, private ServiceBase<App> {
  using ServiceBase<App>::app_;
  using ServiceBase<App>::observer_;

 public:
  ControllerService(App& app, CallObserver observer) : ServiceBase<App>(app, std::move(observer)) {}
  PILLAR_RPC(::csi::v1, "controller", CreateVolume)
  PILLAR_RPC(::csi::v1, "controller", DeleteVolume)
  PILLAR_RPC(::csi::v1, "controller", ControllerPublishVolume)
  PILLAR_RPC(::csi::v1, "controller", ControllerUnpublishVolume)
  PILLAR_RPC(::csi::v1, "controller", ValidateVolumeCapabilities)
  PILLAR_RPC(::csi::v1, "controller", ListVolumes)
  PILLAR_RPC(::csi::v1, "controller", GetCapacity)
  PILLAR_RPC(::csi::v1, "controller", ControllerGetCapabilities)
  PILLAR_RPC(::csi::v1, "controller", ControllerExpandVolume)
  PILLAR_RPC(::csi::v1, "controller", ControllerGetVolume)
  PILLAR_RPC(::csi::v1, "controller", ControllerGetVolumeHealth)
  PILLAR_RPC(::csi::v1, "controller", ControllerListVolumeHealth)
};

/// csi.v1.Node.
template <class App>
class NodeService final : public ::csi::v1::Node::CallbackService, private ServiceBase<App> {
  using ServiceBase<App>::app_;
  using ServiceBase<App>::observer_;

 public:
  NodeService(App& app, CallObserver observer) : ServiceBase<App>(app, std::move(observer)) {}
  PILLAR_RPC(::csi::v1, "node", NodeStageVolume)
  PILLAR_RPC(::csi::v1, "node", NodeUnstageVolume)
  PILLAR_RPC(::csi::v1, "node", NodePublishVolume)
  PILLAR_RPC(::csi::v1, "node", NodeUnpublishVolume)
  PILLAR_RPC(::csi::v1, "node", NodeGetVolumeStats)
  PILLAR_RPC(::csi::v1, "node", NodeExpandVolume)
  PILLAR_RPC(::csi::v1, "node", NodeGetCapabilities)
  PILLAR_RPC(::csi::v1, "node", NodeGetInfo)
  PILLAR_RPC(::csi::v1, "node", NodeGetVolumeHealth)
  PILLAR_RPC(::csi::v1, "node", NodeGetStorageHealth)
};

/// pillar.agent.v1.Agent.
template <class App>
class AgentService final : public ::pillar::agent::v1::Agent::CallbackService, private ServiceBase<App> {
  using ServiceBase<App>::app_;
  using ServiceBase<App>::observer_;

 public:
  AgentService(App& app, CallObserver observer) : ServiceBase<App>(app, std::move(observer)) {}
  PILLAR_RPC(::pillar::agent::v1, "agent", GetCapabilities)
  PILLAR_RPC(::pillar::agent::v1, "agent", HealthCheck)
  PILLAR_RPC(::pillar::agent::v1, "agent", GetCapacity)
  PILLAR_RPC(::pillar::agent::v1, "agent", ListVolumes)
  PILLAR_RPC(::pillar::agent::v1, "agent", ListExports)
  PILLAR_RPC(::pillar::agent::v1, "agent", CreateVolume)
  PILLAR_RPC(::pillar::agent::v1, "agent", DeleteVolume)
  PILLAR_RPC(::pillar::agent::v1, "agent", ExpandVolume)
  PILLAR_RPC(::pillar::agent::v1, "agent", ExportVolume)
  PILLAR_RPC(::pillar::agent::v1, "agent", UnexportVolume)
  PILLAR_RPC(::pillar::agent::v1, "agent", AllowInitiator)
  PILLAR_RPC(::pillar::agent::v1, "agent", DenyInitiator)
  PILLAR_RPC(::pillar::agent::v1, "agent", ReconcileState)
  PILLAR_RPC(::pillar::agent::v1, "agent", SeedMarks)
  PILLAR_RPC(::pillar::agent::v1, "agent", AdoptLifecycle)
  PILLAR_RPC(::pillar::agent::v1, "agent", Drain)
};

#undef PILLAR_RPC

}  // namespace pillar::csi_front
