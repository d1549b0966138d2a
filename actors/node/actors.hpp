#pragma once
// The node's actors and what each of them is sent.
//
// | actor                | one per | does |
// |----------------------|---------|--------------------------------------------------------------------------|
// | node/volume/<id>     | volume  | changes, one at a time; a call that finds it busy is ABORTED (row I05) |
// | node/inspector/<id>  | volume  | stats and health, beside a running change; equal calls share one answer
// | | node/connector       | process | at most N connects at once, the others wait in order (row O10) |

#include <memory>
#include <string>

#include "actors/node/linux_host.hpp"
#include "actors/node/node.hpp"
#include "actors/runtime/registry.hpp"
#include "actors/runtime/system.hpp"
#include "messages/actors_caf.hpp"

namespace pillar::node {

using StageCall = Call<csi::NodeStageVolumeRequest, csi::NodeStageVolumeResponse>;
using UnstageCall = Call<csi::NodeUnstageVolumeRequest, csi::NodeUnstageVolumeResponse>;
using PublishCall = Call<csi::NodePublishVolumeRequest, csi::NodePublishVolumeResponse>;
using UnpublishCall = Call<csi::NodeUnpublishVolumeRequest, csi::NodeUnpublishVolumeResponse>;
using ExpandCall = Call<csi::NodeExpandVolumeRequest, csi::NodeExpandVolumeResponse>;
using StatsCall = Call<csi::NodeGetVolumeStatsRequest, csi::NodeGetVolumeStatsResponse>;
using HealthCall = Call<csi::NodeGetVolumeHealthRequest, csi::NodeGetVolumeHealthResponse>;

using VolumeRegistry = runtime::RegistryActor<StageCall, UnstageCall, PublishCall, UnpublishCall, ExpandCall>;
using InspectorRegistry = runtime::RegistryActor<StatsCall, HealthCall>;
using Connector = caf::typed_actor<caf::reacts_to<ConnectCall>>;

/// What volume actors are made of.
struct VolumeParts {
  HostFactory host;
  NodeSettings settings;
};

VolumeRegistry spawn_volumes(runtime::System& system, std::shared_ptr<const VolumeParts> parts);
InspectorRegistry spawn_inspectors(runtime::System& system, std::shared_ptr<const VolumeParts> parts);

/// How a connect is done: calls `done` once, from any thread.
using ConnectFunction =
    std::function<void(std::shared_ptr<const ConnectJob>, std::function<void(Result<Done>)> done)>;
Connector spawn_connector(runtime::System& system, ConnectFunction connect, std::size_t parallel);

}  // namespace pillar::node
