#include "actors/controller/listing.hpp"

#include "actors/controller/paging.hpp"
#include "actors/controller/records.hpp"

namespace pillar::controller {
namespace {

/// The page that a request asks for.
template <class Request>
Result<VolumePage> page_of(const VolumeIndex& index, const Request& request) {
  const auto after = parse_page_token(request.starting_token());
  if (!after) return tl::unexpected(after.error());
  const auto size = page_size(request.max_entries());
  if (!size) return tl::unexpected(size.error());
  return index.page(*after, *size);
}

std::string next_token(const VolumePage& page) {
  return page.more ? page_token(page.items.back()->spec.volume_id) : std::string();
}

}  // namespace

csi::GetPluginInfoResponse plugin_info(const std::string& version) {
  csi::GetPluginInfoResponse response;
  response.set_name(std::string(k_driver_name));
  response.set_vendor_version(version);
  return response;
}

csi::GetPluginCapabilitiesResponse plugin_capabilities() {
  csi::GetPluginCapabilitiesResponse response;
  response.add_capabilities()->mutable_service()->set_type(
      csi::PluginCapability::Service::CONTROLLER_SERVICE);
  response.add_capabilities()->mutable_service()->set_type(
      csi::PluginCapability::Service::VOLUME_ACCESSIBILITY_CONSTRAINTS);
  response.add_capabilities()->mutable_volume_expansion()->set_type(
      csi::PluginCapability::VolumeExpansion::ONLINE);
  return response;
}

csi::ControllerGetCapabilitiesResponse controller_capabilities(bool legacy_condition) {
  using Rpc = csi::ControllerServiceCapability::RPC;
  csi::ControllerGetCapabilitiesResponse response;
  for (const auto type :
       {Rpc::CREATE_DELETE_VOLUME, Rpc::PUBLISH_UNPUBLISH_VOLUME, Rpc::LIST_VOLUMES, Rpc::GET_CAPACITY,
        Rpc::PUBLISH_READONLY, Rpc::EXPAND_VOLUME, Rpc::LIST_VOLUMES_PUBLISHED_NODES, Rpc::GET_VOLUME,
        Rpc::SINGLE_NODE_MULTI_WRITER, Rpc::GET_VOLUME_HEALTH, Rpc::LIST_VOLUME_HEALTH})
    response.add_capabilities()->mutable_rpc()->set_type(type);
  if (legacy_condition) response.add_capabilities()->mutable_rpc()->set_type(Rpc::VOLUME_CONDITION);
  return response;
}

Result<csi::ListVolumesResponse> list_volumes(const VolumeIndex& index, const AgentDirectory& agents,
                                              const csi::ListVolumesRequest& request, bool legacy_condition) {
  const auto page = page_of(index, request);
  if (!page) return tl::unexpected(page.error());
  csi::ListVolumesResponse response;
  for (const auto& state : page->items) {
    auto* entry = response.add_entries();
    *entry->mutable_volume() = to_csi_volume(*state);
    auto* status = entry->mutable_status();
    for (const auto& node : state->status.published_nodes) status->add_published_node_ids(node.node_id);
    if (legacy_condition)
      *status->mutable_volume_condition() =
          pillar::controller::legacy_condition(volume_health(*state, agents.problem(state->spec.agent_ref)));
  }
  response.set_next_token(next_token(*page));
  return response;
}

Result<csi::ControllerListVolumeHealthResponse> list_volume_health(
    const VolumeIndex& index, const AgentDirectory& agents,
    const csi::ControllerListVolumeHealthRequest& request) {
  const auto page = page_of(index, request);
  if (!page) return tl::unexpected(page.error());
  csi::ControllerListVolumeHealthResponse response;
  for (const auto& state : page->items)
    *response.add_entries() = volume_health(*state, agents.problem(state->spec.agent_ref));
  response.set_next_token(next_token(*page));
  return response;
}

}  // namespace pillar::controller
