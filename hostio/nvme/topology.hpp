#pragma once
// The initiator's NVMe objects as sysfs shows them: subsystem NQN -> controllers and namespaces. Devices are
// found by NQN and namespace UUID only; instance numbers in names mean nothing (reported-faults rows C01,
// C03, C06). Nothing here opens a device, so nothing here can hang.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hostio/block_device.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

enum class ControllerState : std::uint8_t { live, starting, resetting, connecting, deleting, dead, unknown };
ControllerState controller_state_from(std::string_view sysfs_text);
std::string_view to_string(ControllerState state);

/// One connection of this host to a subsystem.
struct NvmeController {
  std::string name;  ///< "nvme3"
  std::string dir;   ///< its sysfs directory
  std::string nqn;
  ControllerState state = ControllerState::unknown;
  std::string transport;
  std::string address;  ///< traddr, normalised when it is an IP literal (row C12)
  std::uint16_t port = 0;
  std::string host_nqn;
  std::string host_id;  ///< lower case
  int cntlid = -1;
  unsigned queue_count = 0;  ///< I/O queues and the admin queue (row R05)
};

/// A namespace as a usable block device (with native multipath: the head).
struct NvmeNamespace {
  std::string name;  ///< "nvme0n1"
  std::string dir;
  std::string node;  ///< device node under the dev root
  DeviceNumber number;
  std::uint32_t nsid = 0;
  std::string uuid;   ///< lower case; empty when the target set none
  std::string nguid;  ///< lower case; empty when unset
  std::uint64_t size_bytes = 0;
  bool read_only = false;
};

struct NvmeSubsystem {
  std::string name;
  std::string dir;
  std::string nqn;
  std::vector<NvmeController> controllers;
  std::vector<NvmeNamespace> namespaces;
};

/// Splits the sysfs `address` attribute ("traddr=..,trsvcid=..,src_addr=..").
struct ControllerAddress {
  std::string traddr;
  std::uint16_t port = 0;
};
ControllerAddress parse_controller_address(std::string_view text);

/// Read-only view of the initiator's objects.
class NvmeTopology {
 public:
  explicit NvmeTopology(HostRoots roots = {}) : roots_(std::move(roots)) {}

  /// Every subsystem of this host. Objects that vanish while they are read are left out.
  Result<std::vector<NvmeSubsystem>> subsystems() const;

  /// The controllers connected to `nqn`, in any state; empty when there are none.
  Result<std::vector<NvmeController>> controllers(std::string_view nqn) const;

  /// The block device of namespace `uuid` in subsystem `nqn`. DEVICE_MISSING while it is not there (wait for
  /// it), DEVICE_MISMATCH when the subsystem shows only other namespaces or shows this one twice.
  Result<NvmeNamespace> find_namespace(std::string_view nqn, std::string_view uuid) const;

  /// NQN of the subsystem that owns the block device; nullopt when it is no NVMe namespace or is gone. Used
  /// to rebuild a lost stage record from mountinfo (docs/fencing.md section 5).
  std::optional<std::string> nqn_of(DeviceNumber number) const;

  /// Whether I/O to the namespace of `nqn` can be expected to finish: a controller of it is live.
  Result<bool> has_live_controller(std::string_view nqn) const;

  const HostRoots& roots() const { return roots_; }

 private:
  std::string class_dir() const { return roots_.sys + "/class/nvme-subsystem"; }
  Result<std::vector<NvmeSubsystem>> read_subsystems(std::string_view only_nqn) const;

  HostRoots roots_;
};

}  // namespace pillar::hostio
