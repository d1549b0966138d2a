#pragma once
// Desired and live state of one export in nvmet, as values.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "hostio/block_device.hpp"

namespace pillar::hostio::nvmet {

/// attr_model of every subsystem of ours; fixed, because an initiator refuses a namespace whose identity
/// changed (row C10).
inline constexpr const char* k_model = "pillar-csi";
/// The only namespace of a subsystem of ours.
inline constexpr std::uint32_t k_nsid = 1;

/// Backing device of a namespace, with the device number it must have when it is enabled (0:0: not checked).
struct BackingDevice {
  std::string path;
  DeviceNumber number;
};

/// Who may use an export. Published exports are enabled and linked to their port; unpublished ones are
/// configured, disabled, unlinked and let nobody in (docs/fencing.md section 4).
struct Access {
  bool published = false;
  bool acl_enabled = true;      ///< false: any host may connect while published
  std::set<std::string> hosts;  ///< host NQNs; ignored when acl_enabled is false
  std::uint16_t port_id = 0;    ///< nvmet port to link to while published (Port actor's PortPlan::id)
};

/// One export as it should be.
struct DesiredExport {
  std::string nqn;
  std::string serial;
  std::string uuid;   ///< lower case, dashed
  std::string nguid;  ///< lower case, dashed
  BackingDevice device;
  Access access;
};

/// A namespace as configfs holds it.
struct LiveNamespace {
  std::string device_path;
  std::string uuid;
  std::string nguid;
  bool enabled = false;
  friend bool operator==(const LiveNamespace&, const LiveNamespace&) = default;
};

/// A subsystem as configfs holds it.
struct LiveSubsystem {
  std::string nqn;
  std::string serial;  ///< without the kernel's padding
  std::string model;
  bool allow_any_host = false;
  std::map<std::string, std::string> hosts;         ///< host NQN -> name of the link
  std::map<std::string, LiveNamespace> namespaces;  ///< by directory name ("1")
  std::map<std::uint16_t, std::string> ports;       ///< ports it is linked to -> name of the link
  friend bool operator==(const LiveSubsystem&, const LiveSubsystem&) = default;

  /// Namespace 1 of ours is enabled.
  bool enabled() const;
  std::set<std::string> host_nqns() const;
};

/// A port as it should be.
struct DesiredPort {
  std::string address;  ///< canonical literal (pillar::IpAddress)
  bool v6 = false;
  std::uint16_t port = 4420;
  std::uint32_t inline_data_size = 0;  ///< bytes, 0: the kernel's default
};

/// A port as configfs holds it.
struct LivePort {
  std::uint16_t id = 0;
  std::string trtype;
  std::string adrfam;
  std::string traddr;
  std::string trsvcid;
  std::string inline_data_size;  ///< text; "-1" before the first link
  bool linked = false;           ///< any subsystem is linked: its attributes are frozen
  friend bool operator==(const LivePort&, const LivePort&) = default;
};

}  // namespace pillar::hostio::nvmet
