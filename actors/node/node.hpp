#pragma once
// The node plugin as one object: built from its configuration, asked by Calls, shut down in order. The front
// doors (gRPC, tests) need nothing else.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/node/host.hpp"
#include "actors/node/linux_host.hpp"
#include "actors/node/volume_ops.hpp"
#include "actors/runtime/cell.hpp"
#include "actors/runtime/executor.hpp"
#include "hostio/nvme/host_identity.hpp"
#include "messages/call.hpp"
#include "messages/csi.pb.h"

namespace pillar::node {

struct NodeConfig {
  std::string node_name;
  std::string state_dir = "/var/lib/pillar-csi/node";
  hostio::HostRoots roots;
  hostio::HostIdentity identity;
  /// Where staging and target paths may lie (the kubelet directory); empty: any path that is not below a
  /// system directory.
  std::vector<std::string> allowed_prefixes;
  /// The kubelet's directory: mounts below it have to be seen on the host (row H09); empty: not checked.
  std::string kubelet_dir = "/var/lib/kubelet";
  std::int64_t max_volumes_per_node = 0;  ///< 0: no limit reported
  bool legacy_volume_condition = true;    ///< 1.12 VolumeCondition for kubelets up to 1.36
  bool standalone = false;  ///< the node id is "<name>/<host nqn>" (no CSINode to publish the NQN on)
  std::string version = "dev";
  NodeLimits limits;
};

/// Makes the host of one actor; tests give one made of values.
using HostFactory = std::function<std::shared_ptr<Host>(std::shared_ptr<runtime::TimedExecutor>)>;

/// What a node is made of beside its configuration; tests replace members.
struct NodeParts {
  runtime::Services services = {};
  HostFactory host = {};  ///< empty: the real machine
  std::function<bool()> nvme_tcp_usable =
      {};                    ///< empty: looks for the fabrics device and the module; blocking
  std::string boot_id = {};  ///< empty: read from /proc
  std::function<Result<void>()> mounts_seen = {};  ///< empty: reads mountinfo; blocking
};

/// A running node plugin. Thread-safe. Every call is answered, at the latest when it is shut down.
class NodeApp {
 public:
  /// Locks the state directory, reconciles the stage records with the kernel (row D06) and starts the actors.
  /// INVALID_ARGUMENT for a node name that gives no valid node id; STATE_LOCKED, STATE_UNWRITABLE, IO_ERROR.
  static Result<std::unique_ptr<NodeApp>> start(NodeConfig config, NodeParts parts = {});
  NodeApp(const NodeApp&) = delete;
  NodeApp& operator=(const NodeApp&) = delete;
  /// shutdown(5 s) unless that was done.
  ~NodeApp();

  // csi.v1.Identity
  void send(Call<csi::GetPluginInfoRequest, csi::GetPluginInfoResponse> call);
  void send(Call<csi::GetPluginCapabilitiesRequest, csi::GetPluginCapabilitiesResponse> call);
  void send(Call<csi::ProbeRequest, csi::ProbeResponse> call);
  // csi.v1.Node
  void send(Call<csi::NodeStageVolumeRequest, csi::NodeStageVolumeResponse> call);
  void send(Call<csi::NodeUnstageVolumeRequest, csi::NodeUnstageVolumeResponse> call);
  void send(Call<csi::NodePublishVolumeRequest, csi::NodePublishVolumeResponse> call);
  void send(Call<csi::NodeUnpublishVolumeRequest, csi::NodeUnpublishVolumeResponse> call);
  void send(Call<csi::NodeExpandVolumeRequest, csi::NodeExpandVolumeResponse> call);
  void send(Call<csi::NodeGetVolumeStatsRequest, csi::NodeGetVolumeStatsResponse> call);
  void send(Call<csi::NodeGetVolumeHealthRequest, csi::NodeGetVolumeHealthResponse> call);
  void send(Call<csi::NodeGetStorageHealthRequest, csi::NodeGetStorageHealthResponse> call);
  void send(Call<csi::NodeGetCapabilitiesRequest, csi::NodeGetCapabilitiesResponse> call);
  void send(Call<csi::NodeGetInfoRequest, csi::NodeGetInfoResponse> call);

  /// "<name>" or, standalone, "<name>/<host nqn>".
  const std::string& node_id() const;
  /// Whether volumes can be mounted here: their mounts are seen on the host (row H09). Reads mountinfo.
  Result<void> ready() const;
  /// What the start found of earlier stage records.
  const ReconcileReport& reconciled() const;
  /// Stops all actors; calls in flight are answered UNAVAILABLE. False when something was still there after
  /// `limit`.
  bool shutdown(Clock::duration limit);

 private:
  struct Impl;
  explicit NodeApp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The node id: INVALID_ARGUMENT for a name that is no DNS subdomain or, standalone, an id over 256 bytes.
Result<std::string> make_node_id(const std::string& name, bool standalone, const std::string& host_nqn);

}  // namespace pillar::node
