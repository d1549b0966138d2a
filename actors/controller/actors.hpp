#pragma once
// The actors of the controller and the messages they take. Nothing outside actors/controller needs this
// header.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "actors/controller/catalog.hpp"
#include "actors/controller/link_ops.hpp"
#include "actors/controller/volume_ops.hpp"
#include "actors/runtime/registry.hpp"
#include "actors/runtime/system.hpp"

namespace pillar::controller {

/// Make sure that you run (an actor that crashed is restarted by this); with `now`: and look at once.
struct Wake {
  bool now = false;
};

using CreateCall = Call<csi::CreateVolumeRequest, csi::CreateVolumeResponse>;
using DeleteCall = Call<csi::DeleteVolumeRequest, csi::DeleteVolumeResponse>;
using PublishCall = Call<csi::ControllerPublishVolumeRequest, csi::ControllerPublishVolumeResponse>;
using UnpublishCall = Call<csi::ControllerUnpublishVolumeRequest, csi::ControllerUnpublishVolumeResponse>;
using ExpandCall = Call<csi::ControllerExpandVolumeRequest, csi::ControllerExpandVolumeResponse>;
using ValidateCall = Call<csi::ValidateVolumeCapabilitiesRequest, csi::ValidateVolumeCapabilitiesResponse>;
using GetVolumeCall = Call<csi::ControllerGetVolumeRequest, csi::ControllerGetVolumeResponse>;
using GetHealthCall = Call<csi::ControllerGetVolumeHealthRequest, csi::ControllerGetVolumeHealthResponse>;
using FormattedCall = Call<MarkFormatted, Done>;
using CapacityCall = Call<csi::GetCapacityRequest, csi::GetCapacityResponse>;

using VolumeRegistry = runtime::RegistryActor<CreateCall, DeleteCall, PublishCall, UnpublishCall, ExpandCall,
                                              ValidateCall, GetVolumeCall, GetHealthCall, FormattedCall>;
using CapacityRegistry = runtime::RegistryActor<CapacityCall>;
using WakeRegistry = runtime::RegistryActor<Wake>;

/// controller/volume/<record name>: one operation at a time, no queue. `ports.executor` is filled in per
/// actor.
VolumeRegistry spawn_volumes(runtime::System& system, Ports ports);

/// controller/capacity/<parameters>: GetCapacity, a few in a row per class.
CapacityRegistry spawn_capacity(runtime::System& system, Ports ports);

/// Pauses between rounds of a link.
struct LinkTiming {
  Clock::duration interval{};
  Clock::duration retry_first{};
  Clock::duration retry_max{};
};
/// controller/agent_link/<agent>: health checks and synchronisation of one agent.
WakeRegistry spawn_links(runtime::System& system, LinkPorts ports, LinkTiming timing);

/// controller/reconciler: conditions and finalizers of the configuration objects.
WakeRegistry spawn_reconciler(runtime::System& system, Ports ports, std::shared_ptr<Catalog> catalog);

/// Which watches have shown their whole initial state and are running.
class WatchState {
 public:
  void set(crd::Kind kind, bool running, const std::string& problem = {});
  bool all_running() const;
  /// "PillarAgent: not read yet; ..." for those that are not.
  std::string problems() const;

 private:
  mutable std::mutex mutex_;
  std::map<crd::Kind, std::string> running_;  // problem text, empty: running; absent: not read yet
};

/// What a watcher feeds and whom it tells.
struct WatchTargets {
  std::shared_ptr<crd::Store> store;
  std::shared_ptr<VolumeIndex> index;
  std::shared_ptr<Catalog> catalog;
  std::shared_ptr<WatchState> state;
  std::function<void(const std::string& agent)> agent_changed;  ///< spec or deletion, not status
  std::function<void()> configuration_changed;
};
/// controller/watcher/<kind>: LIST+WATCH of one kind with resume.
WakeRegistry spawn_watchers(runtime::System& system, WatchTargets targets);

}  // namespace pillar::controller

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(pillar::controller::Wake)
