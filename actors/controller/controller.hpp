#pragma once
// The controller as one object: what a front door sends calls to. Inside are the actors of
// docs/architecture.md: controller/volume/<record>, controller/agent_link/<agent>, controller/watcher/<kind>,
// controller/reconciler.

#include <chrono>
#include <memory>
#include <string>

#include "actors/controller/agent_client.hpp"
#include "actors/controller/link_ops.hpp"
#include "actors/controller/ports.hpp"
#include "actors/controller/volume_ops.hpp"
#include "actors/runtime/system.hpp"
#include "messages/call.hpp"
#include "messages/csi.pb.h"

namespace pillar::controller {

struct ControllerConfig {
  std::shared_ptr<crd::Store> store;  ///< outlives the System that the controller was made with
  std::string cluster_id;             ///< enters every subsystem NQN; must never change while volumes exist
  std::string version = "0.0.0";      ///< vendor_version of GetPluginInfo
  AgentClientFactory connect;         ///< how agents are dialled: grpc_agent_factory()
  std::shared_ptr<NodeDirectory> nodes = std::make_shared<EncodedNodeIds>();
  HostResolver resolve;  ///< empty: getaddrinfo in a blocking pool of its own
  Limits limits;
  bool legacy_volume_condition = true;  ///< answer the CSI 1.12 volume condition as well
  Clock::duration health_interval = std::chrono::seconds(15);  ///< between health checks of an agent, +-20 %
  Clock::duration retry_first = std::chrono::seconds(1);       ///< first pause after a failed check; doubles
  Clock::duration retry_max = std::chrono::seconds(30);
};

/// Calls may come from any thread. Every call is answered; a call for a volume that is being worked on gets
/// ABORTED/OPERATION_PENDING at once.
class ControllerApp {
 public:
  /// Starts the actors as roots of `system`.
  ControllerApp(runtime::System& system, ControllerConfig config);
  /// Drops what the app holds; the actors end with System::shutdown. Call that first.
  ~ControllerApp();
  ControllerApp(const ControllerApp&) = delete;
  ControllerApp& operator=(const ControllerApp&) = delete;

  // csi.v1.Identity
  void send(Call<csi::GetPluginInfoRequest, csi::GetPluginInfoResponse> call);
  void send(Call<csi::GetPluginCapabilitiesRequest, csi::GetPluginCapabilitiesResponse> call);
  void send(Call<csi::ProbeRequest, csi::ProbeResponse> call);

  // csi.v1.Controller
  void send(Call<csi::CreateVolumeRequest, csi::CreateVolumeResponse> call);
  void send(Call<csi::DeleteVolumeRequest, csi::DeleteVolumeResponse> call);
  void send(Call<csi::ControllerPublishVolumeRequest, csi::ControllerPublishVolumeResponse> call);
  void send(Call<csi::ControllerUnpublishVolumeRequest, csi::ControllerUnpublishVolumeResponse> call);
  void send(Call<csi::ValidateVolumeCapabilitiesRequest, csi::ValidateVolumeCapabilitiesResponse> call);
  void send(Call<csi::ListVolumesRequest, csi::ListVolumesResponse> call);
  void send(Call<csi::GetCapacityRequest, csi::GetCapacityResponse> call);
  void send(Call<csi::ControllerGetCapabilitiesRequest, csi::ControllerGetCapabilitiesResponse> call);
  void send(Call<csi::ControllerExpandVolumeRequest, csi::ControllerExpandVolumeResponse> call);
  void send(Call<csi::ControllerGetVolumeRequest, csi::ControllerGetVolumeResponse> call);
  void send(Call<csi::ControllerGetVolumeHealthRequest, csi::ControllerGetVolumeHealthResponse> call);
  void send(Call<csi::ControllerListVolumeHealthRequest, csi::ControllerListVolumeHealthResponse> call);

  /// A node has made the file system of a volume (docs/fencing.md section 6).
  void send(Call<MarkFormatted, Done> call);

  /// True once every watch has shown its initial state and while the store answers; what Probe says.
  bool ready() const;
  /// Why not, for the health endpoint; empty when ready.
  std::string not_ready_reason() const;

  /// Refuses further calls with SHUTTING_DOWN; operations in flight go on, and watches and links run, until
  /// System::shutdown.
  void stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace pillar::controller
