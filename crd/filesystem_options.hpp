#pragma once
// What a user may pass to mkfs and mount: an allowlist per file system, flag and value form. Anything that
// could destroy data, weaken durability or hit another device is refused with the reason.

#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"
#include "crd/types.hpp"

namespace pillar::crd {

/// Checks mkfs arguments, one argv element each ("-m", "0" or "-m0"). `path` names the list in errors.
FieldErrors check_mkfs_options(FsType type, const std::vector<std::string>& options, std::string_view path);

/// Checks mount options, one option each ("noatime", "commit=30").
FieldErrors check_mount_options(FsType type, const std::vector<std::string>& options, std::string_view path);

/// Checks ZFS properties (docs/interfaces.md section 2). `path` names the map in errors.
FieldErrors check_zfs_properties(const std::map<std::string, std::string>& properties, std::string_view path);

}  // namespace pillar::crd
