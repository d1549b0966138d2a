#pragma once
// CSI node requests, parsed and checked before anything is touched. Pure. Every RPC's answer to empty,
// malformed and unknown ids follows one table (reported-faults row K07):
//
// | RPC                          | empty id or path | malformed or unknown id                       |
// |------------------------------|------------------|-----------------------------------------------|
// | NodeStageVolume              | INVALID_ARGUMENT | NOT_FOUND                                     |
// | NodePublishVolume            | INVALID_ARGUMENT | FAILED_PRECONDITION (not staged here)         |
// | NodeUnstage, NodeUnpublish   | INVALID_ARGUMENT | OK when nothing is mounted at the path        |
// | NodeGetVolumeStats, -Health, |                  |                                               |
// | NodeExpandVolume             | INVALID_ARGUMENT | NOT_FOUND                                     |
//
// Paths come from the orchestrator, which runs as root on this node; the check is against mistakes: absolute,
// no "..", no "." or empty component, no control character, at most 4095 bytes, not below a system directory,
// and below one of the configured prefixes when there are any.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/node/stage_record.hpp"
#include "hostio/mounts.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "messages/access_modes.hpp"
#include "messages/csi.pb.h"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::node {

namespace csi = ::csi::v1;
using Context = std::map<std::string, std::string>;

/// What requests are checked against.
struct RequestRules {
  std::string host_nqn;  ///< this node's identity
  std::vector<std::string>
      allowed_prefixes;  ///< where staging and target paths may lie; empty: anywhere allowed
};

/// A map field of a message as an ordered map.
template <class Map>
Context to_context(const Map& map) {
  return Context(map.begin(), map.end());
}

/// volume_context (docs/interfaces.md section 3). Unset keys keep their defaults; unknown keys are ignored,
/// so that a newer controller can add some.
struct VolumeContext {
  SessionTarget session;
  hostio::FabricsTunables tunables;
  std::string fs_type = "ext4";
  std::vector<std::string> mkfs_options;
  std::vector<std::string> mount_options;
};

/// INVALID_ARGUMENT naming the key and the value for everything that is missing, malformed or contradicts
/// `volume_id`.
Result<VolumeContext> parse_volume_context(const VolumeId& volume, const Context& context);

/// publish_context. FAILED_PRECONDITION when it is missing (the volume was not published to this node) or
/// carries the identity of another host.
struct PublishContext {
  std::uint64_t generation = 0;
  std::string initiator_id;
  std::uint64_t capacity_bytes = 0;  ///< 0: not told
  bool formatted = false;            ///< the controller knows that the volume was formatted once
  /// Where the export listens now, when that is told: the storage node may have moved since the volume was
  /// made (row C12), and volume_context never changes.
  std::optional<std::string> address;
  std::optional<std::uint16_t> port;
};
Result<PublishContext> parse_publish_context(const Context& context, std::string_view host_nqn);

/// Whether a subsystem NQN belongs to a volume.
enum class Ownership : std::uint8_t { yes, no, unknown };
/// `unknown` for the hashed form of over-long names, which cannot be mapped back.
Ownership nqn_belongs_to(std::string_view nqn, const VolumeId& volume);

/// INVALID_ARGUMENT naming `what` and the rule that the path breaks.
Result<void> check_path(std::string_view what, std::string_view path, const RequestRules& rules);

/// NodeStageVolume, checked.
struct StageRequest {
  VolumeId volume;
  std::string volume_id;
  std::string path;
  Usage usage;
  hostio::MountOptions mount_options;
  VolumeContext context;
  PublishContext publish;
};
Result<StageRequest> parse_stage(const csi::NodeStageVolumeRequest& request, const RequestRules& rules);

/// NodePublishVolume, checked as far as that is possible without the stage record.
struct PublishRequest {
  std::string volume_id;
  std::string staging_path;
  std::string target;
  Capability capability;
  bool readonly = false;  ///< by the flag, the access mode or the mount flag "ro" (row H03)
  std::vector<std::string> mount_flags;
};
Result<PublishRequest> parse_publish(const csi::NodePublishVolumeRequest& request, const RequestRules& rules);

/// volume id and one path, for NodeUnstage and NodeUnpublish.
Result<void> check_id_and_path(std::string_view volume_id, std::string_view what, std::string_view path,
                               const RequestRules& rules);

/// The same for a path where a volume is looked for: a relative one is NOT_FOUND, as csi-sanity asks.
Result<void> check_volume_path(std::string_view volume_id, std::string_view path, const RequestRules& rules);

}  // namespace pillar::node
