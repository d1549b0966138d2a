#pragma once
// What the agent's host must have before it can serve: kernel modules, configfs, LVM (reported-faults row
// C09).

#include <string>
#include <vector>

#include "hostio/block_device.hpp"
#include "hostio/process.hpp"

namespace pillar::hostio {

/// One line of HealthCheck.
struct HealthItem {
  std::string name;  ///< configfs, nvmet, nvmet-tcp, lvm
  bool ok = false;
  std::string message;  ///< what is wrong and how to repair it; empty when ok
};

/// Checks the target side, loading nvmet and nvmet-tcp with modprobe when they are absent. Never mounts
/// configfs: a missing mount is reported with its remedy. Blocking, each command bounded by `deadline`.
/// `configfs` is where configfs must be mounted ("/sys/kernel/config").
std::vector<HealthItem> preflight_target(CommandRunner& runner, const HostRoots& roots,
                                         const std::string& configfs, Deadline deadline);

/// Checks that the LVM tools are there and that each volume group exists: one "lvm" item.
HealthItem preflight_lvm(CommandRunner& runner, const std::vector<std::string>& volume_groups,
                         const HostRoots& roots, Deadline deadline);

/// Loads `module` unless it is loaded or built in. MODULE_MISSING naming the kernel and the remedy.
Result<void> ensure_module(CommandRunner& runner, const std::string& module, const HostRoots& roots,
                           Deadline deadline);

}  // namespace pillar::hostio
