#pragma once
// Options of mkfs, mount and ZFS in the fields of objects, checked against the allowlists. Those of mkfs and
// mount are in messages/filesystem_options.hpp, which the node reads as well.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"
#include "crd/types.hpp"
#include "messages/filesystem_options.hpp"

namespace pillar::crd {

/// Checks mkfs options ("-m", "0"). `path` names the list in errors.
FieldErrors check_mkfs_options(FsType type, const std::vector<std::string>& options, std::string_view path);

/// Checks mount options ("noatime", "commit=30").
FieldErrors check_mount_options(FsType type, const std::vector<std::string>& options, std::string_view path);

/// Checks ZFS properties (docs/interfaces.md section 2). `path` names the map in errors.
FieldErrors check_zfs_properties(const std::map<std::string, std::string>& properties, std::string_view path);
/// Every property that is accepted, with the form of its value.
std::vector<AllowedOption> allowed_zfs_properties();

}  // namespace pillar::crd
