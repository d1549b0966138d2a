#include "messages/access_modes.hpp"

#include <algorithm>

namespace pillar {
namespace {

// Two writers on two nodes need a cluster file system, which this driver does not make: both MULTI_NODE
// writer modes are refused for every volume mode.
constexpr std::array<AccessModeInfo, 7> k_table{{
    {AccessMode::single_node_writer, "SINGLE_NODE_WRITER", true, true, false, false, false},
    {AccessMode::single_node_reader_only, "SINGLE_NODE_READER_ONLY", true, true, true, false, false},
    {AccessMode::multi_node_reader_only, "MULTI_NODE_READER_ONLY", true, true, true, true, false},
    {AccessMode::multi_node_single_writer, "MULTI_NODE_SINGLE_WRITER", false, false, false, true, false},
    {AccessMode::multi_node_multi_writer, "MULTI_NODE_MULTI_WRITER", false, false, false, true, false},
    {AccessMode::single_node_single_writer, "SINGLE_NODE_SINGLE_WRITER", true, true, false, false, true},
    {AccessMode::single_node_multi_writer, "SINGLE_NODE_MULTI_WRITER", true, true, false, false, false},
}};

std::string offered(VolumeMode mode) {
  std::string list;
  for (const auto& row : k_table) {
    if (!(mode == VolumeMode::mount ? row.mount : row.block)) continue;
    if (!list.empty()) list += ", ";
    list += row.name;
  }
  return list;
}

}  // namespace

const std::array<AccessModeInfo, 7>& access_modes() noexcept { return k_table; }

const AccessModeInfo* find_access_mode(AccessMode mode) noexcept {
  const auto* row =
      std::find_if(k_table.begin(), k_table.end(), [&](const auto& each) { return each.mode == mode; });
  return row == k_table.end() ? nullptr : row;
}

AccessMode access_mode_from(std::string_view name) noexcept {
  const auto* row =
      std::find_if(k_table.begin(), k_table.end(), [&](const auto& each) { return each.name == name; });
  return row == k_table.end() ? AccessMode::unknown : row->mode;
}

std::string_view to_string(AccessMode mode) noexcept {
  const auto* row = find_access_mode(mode);
  return row ? row->name : "UNKNOWN";
}

std::string_view to_string(VolumeMode mode) noexcept { return mode == VolumeMode::mount ? "mount" : "block"; }

bool is_supported_fs_type(std::string_view fs_type) noexcept { return fs_type == "ext4" || fs_type == "xfs"; }

Result<Capability> check_capability(int access_mode, VolumeMode mode, std::string_view fs_type) {
  const auto* row =
      access_mode < 0 || access_mode > 255 ? nullptr : find_access_mode(static_cast<AccessMode>(access_mode));
  if (!row || !(mode == VolumeMode::mount ? row->mount : row->block)) {
    const std::string seen = row ? std::string(row->name) : std::to_string(access_mode);
    return fail(Reason::invalid_argument, "access mode " + seen + " is not offered for " +
                                              std::string(to_string(mode)) + " volumes; use one of " +
                                              offered(mode));
  }
  if (mode == VolumeMode::mount && !fs_type.empty() && !is_supported_fs_type(fs_type))
    return fail(Reason::invalid_argument, "file system type '" + std::string(fs_type.substr(0, 64)) +
                                              "' is not offered; use ext4 or xfs");
  return Capability{row->mode, mode, mode == VolumeMode::mount ? std::string(fs_type) : std::string()};
}

}  // namespace pillar
