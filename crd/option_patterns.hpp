#pragma once
// The allowlists of options as rules of the API server (CEL with RE2 patterns), made from the same tables
// that the code checks with. They accept whatever the code accepts; that options contradict or need each
// other, and that a size is a power of two, only the code says (a condition of the class, and CreateVolume).

#include <string>
#include <string_view>
#include <vector>

#include "messages/filesystem_options.hpp"

namespace pillar::crd {

/// A rule as the API server evaluates it.
struct CelRule {
  std::string cel;
  std::string message;
};

/// Over a map of ZFS properties as `self`.
std::vector<CelRule> zfs_property_rules();

/// Over an object with fsType, mkfsOptions and mountOptions as `self`.
std::vector<CelRule> filesystem_option_rules();

/// The pattern of a form of values.
std::string form_pattern(OptionForm form);

}  // namespace pillar::crd
