#pragma once
// The agent's configuration file (docs/interfaces.md section 5) and the settings that come from flags.

#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::agent {

/// One pool this agent serves. Nothing outside the configured pools is ever touched.
struct LvmBackendConfig {
  std::string volume_group;
  friend bool operator==(const LvmBackendConfig&, const LvmBackendConfig&) = default;
};

/// Everything an agent is built from. The file sets backends, bind_addresses and self_restore; the rest are
/// flags.
struct AgentConfig {
  std::vector<LvmBackendConfig> backends;
  /// Addresses an export may listen on; empty: any literal address of this host.
  std::vector<IpAddress> bind_addresses;
  /// Link exports from the last complete desired set before the controller has been heard.
  bool self_restore = false;

  std::string state_dir = "/var/lib/pillar-csi/agent";
  std::string configfs_root = "/sys/kernel/config";
  std::string sysfs_root = "/sys";
  std::string dev_root = "/dev";
  std::string proc_root = "/proc";
};

/// Applies the YAML `text` (named `file` in messages) to `config`. Unknown keys, duplicate keys, wrong types
/// and duplicate volume groups are INVALID_ARGUMENT with file, line and key.
Result<AgentConfig> parse_config(std::string_view file, std::string_view text, AgentConfig config = {});

/// Reads and parses the file at `path`.
Result<AgentConfig> load_config(const std::string& path, AgentConfig config = {});

}  // namespace pillar::agent
