#pragma once
// Well-formed requests for one volume, to be changed by each test.

#include <memory>
#include <string>

#include "actors/node/requests.hpp"
#include "fake_host.hpp"
#include "messages/csi.pb.h"
#include "messages/ids.hpp"

namespace pillar::node::testing {

/// A volume on the fake machine.
struct Volume {
  std::string id;
  std::string nqn;

  explicit Volume(const std::string& name = "pvc-1")
      : id("storage-1/nvmeof-tcp/lvm-lv/vg0/" + name),
        nqn(export_identity("cluster-1", "storage-1", AgentVolumeId{"vg0", name}).nqn) {}

  std::string staging() const { return "/var/lib/kubelet/plugins/stage/" + VolumeId::parse(id)->volume.name; }
  static std::string target(const std::string& pod) { return "/var/lib/kubelet/pods/" + pod + "/mount"; }

  template <class Request>
  void contexts(Request& request) const {
    auto& volume = *request.mutable_volume_context();
    volume["target_id"] = nqn;
    volume["address"] = "10.0.0.5";
    volume["port"] = "4420";
    volume["pillar-csi.bhyoo.com/volume-ref"] = VolumeId::parse(id)->volume.str();
    volume["pillar-csi.bhyoo.com/protocol-type"] = "nvmeof-tcp";
    volume["pillar-csi.bhyoo.com/fs-type"] = "ext4";
    auto& publish = *request.mutable_publish_context();
    publish["pillar-csi.bhyoo.com/publication-generation"] = "7";
    publish["pillar-csi.bhyoo.com/initiator-id"] = k_host_nqn;
    publish["pillar-csi.bhyoo.com/capacity-bytes"] = std::to_string(1ULL << 30U);
  }

  static void capability(csi::VolumeCapability& out, csi::VolumeCapability::AccessMode::Mode mode,
                         bool block) {
    out.mutable_access_mode()->set_mode(mode);
    if (block)
      out.mutable_block();
    else
      out.mutable_mount();
  }

  csi::NodeStageVolumeRequest stage(bool block = false,
                                    csi::VolumeCapability::AccessMode::Mode mode =
                                        csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER) const {
    csi::NodeStageVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(staging());
    capability(*request.mutable_volume_capability(), mode, block);
    contexts(request);
    return request;
  }
  csi::NodePublishVolumeRequest publish(const std::string& pod, bool block = false, bool readonly = false,
                                        csi::VolumeCapability::AccessMode::Mode mode =
                                            csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER) const {
    csi::NodePublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(staging());
    request.set_target_path(target(pod));
    request.set_readonly(readonly);
    capability(*request.mutable_volume_capability(), mode, block);
    contexts(request);
    return request;
  }
  csi::NodeUnpublishVolumeRequest unpublish(const std::string& pod) const {
    csi::NodeUnpublishVolumeRequest request;
    request.set_volume_id(id);
    request.set_target_path(target(pod));
    return request;
  }
  csi::NodeUnstageVolumeRequest unstage() const {
    csi::NodeUnstageVolumeRequest request;
    request.set_volume_id(id);
    request.set_staging_target_path(staging());
    return request;
  }
};

inline RequestRules rules() { return RequestRules{k_host_nqn, {}}; }

}  // namespace pillar::node::testing
