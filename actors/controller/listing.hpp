#pragma once
// Answers that need no operation: lists from the index, and what the plugin is and can do.

#include <string>

#include "actors/controller/agent_client.hpp"
#include "actors/controller/volume_index.hpp"
#include "messages/csi.pb.h"
#include "messages/error.hpp"

namespace pillar::controller {

namespace csi = ::csi::v1;

csi::GetPluginInfoResponse plugin_info(const std::string& version);
csi::GetPluginCapabilitiesResponse plugin_capabilities();
/// Exactly the calls that work; `legacy_condition` adds the 1.12 VOLUME_CONDITION.
csi::ControllerGetCapabilitiesResponse controller_capabilities(bool legacy_condition);

/// Every record, half-made ones too (reported-faults row K01). ABORTED for a token that is not ours.
Result<csi::ListVolumesResponse> list_volumes(const VolumeIndex& index, const AgentDirectory& agents,
                                              const csi::ListVolumesRequest& request, bool legacy_condition);
Result<csi::ControllerListVolumeHealthResponse> list_volume_health(
    const VolumeIndex& index, const AgentDirectory& agents,
    const csi::ControllerListVolumeHealthRequest& request);

}  // namespace pillar::controller
