#pragma once
// The one table of access modes and volume modes. CreateVolume, ValidateVolumeCapabilities,
// ControllerPublish, NodeStage and NodePublish all ask it, so that no call can accept what another refuses
// (reported-faults row A06).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "messages/error.hpp"

namespace pillar {

/// csi.v1.VolumeCapability.AccessMode.Mode by its wire numbers.
enum class AccessMode : std::uint8_t {
  unknown = 0,
  single_node_writer = 1,
  single_node_reader_only = 2,
  multi_node_reader_only = 3,
  multi_node_single_writer = 4,
  multi_node_multi_writer = 5,
  single_node_single_writer = 6,
  single_node_multi_writer = 7,
};

/// How a volume is handed to a pod.
enum class VolumeMode : std::uint8_t { mount, block };

/// What one access mode means; one row of the table.
struct AccessModeInfo {
  AccessMode mode;
  std::string_view name;  ///< wire name, "SINGLE_NODE_WRITER"; also the form in publishedNodes[].accessMode
  bool mount;             ///< offered for file systems
  bool block;             ///< offered for raw devices
  bool readonly;          ///< nobody may write, whatever the readonly flag of a call says (row H03)
  bool multi_node;        ///< several nodes may hold it at once, given that each of them asked for this mode
  bool single_target;     ///< one target path at a time (ReadWriteOncePod, row A03)
};

/// The whole table in wire order, without `unknown`.
const std::array<AccessModeInfo, 7>& access_modes() noexcept;

/// The row of `mode`; null for `unknown` and for numbers of a newer specification.
const AccessModeInfo* find_access_mode(AccessMode mode) noexcept;

/// The mode whose wire name is `name`; `unknown` for anything else.
AccessMode access_mode_from(std::string_view name) noexcept;

/// Wire name of `mode`; "UNKNOWN" for what the table does not have.
std::string_view to_string(AccessMode mode) noexcept;
std::string_view to_string(VolumeMode mode) noexcept;

/// A volume capability that passed the table.
struct Capability {
  AccessMode access = AccessMode::single_node_writer;
  VolumeMode mode = VolumeMode::mount;
  std::string fs_type;  ///< mount only; empty: the volume's own file system type

  /// The row of `access`; valid because only the table makes capabilities.
  const AccessModeInfo& info() const { return *find_access_mode(access); }
  friend bool operator==(const Capability&, const Capability&) = default;
};

/// File system types that can be made and mounted.
bool is_supported_fs_type(std::string_view fs_type) noexcept;

/// Checks one capability against the table. INVALID_ARGUMENT naming the mode (or file system type) and what
/// is offered instead.
Result<Capability> check_capability(int access_mode, VolumeMode mode, std::string_view fs_type);

/// `check_capability` for a csi.v1.VolumeCapability (a template, so that this header needs no generated
/// code). INVALID_ARGUMENT also when the access type is missing.
template <class VolumeCapability>
Result<Capability> parse_capability(const VolumeCapability& wire) {
  if (!wire.has_block() && !wire.has_mount())
    return fail(Reason::invalid_argument, "volume capability has neither mount nor block; give one of them");
  const VolumeMode mode = wire.has_block() ? VolumeMode::block : VolumeMode::mount;
  return check_capability(static_cast<int>(wire.access_mode().mode()), mode, wire.mount().fs_type());
}

}  // namespace pillar
