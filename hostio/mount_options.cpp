// Mount options as the kernel wants them. What is allowed is in messages/filesystem_options.hpp.

#include <algorithm>

#include "hostio/mounts.hpp"
#include "messages/filesystem_options.hpp"

namespace pillar::hostio {
namespace {

void apply(const MountOption& option, MountOptions& out) {
  switch (option.role) {
    case MountRole::access:
      out.read_only = out.read_only || option.name == "ro";
      return;
    case MountRole::attribute:
      out.attributes.push_back(option.name);
      return;
    case MountRole::filesystem:
      out.filesystem.emplace_back(option.name, option.value);
      return;
    case MountRole::ignored:
    case MountRole::cleared:
      return;
  }
}

}  // namespace

Result<MountOptions> parse_mount_options(std::string_view fs_type, const std::vector<std::string>& flags,
                                         bool read_only) {
  const auto checked = read_mount_options(fs_type, flags);
  if (!checked.problems.empty())
    return fail(Reason::invalid_argument,
                "mount option '" + checked.problems.front().text + "' " + checked.problems.front().why);
  MountOptions out;
  for (const auto& option : checked.options) apply(option, out);
  out.read_only = out.read_only || read_only;
  if (fs_type == "xfs" && std::none_of(out.filesystem.begin(), out.filesystem.end(),
                                       [](const auto& one) { return one.first == "nouuid"; }))
    out.filesystem.emplace_back("nouuid", "");
  std::sort(out.attributes.begin(), out.attributes.end());
  std::sort(out.filesystem.begin(), out.filesystem.end());
  return out;
}

std::string MountOptions::str() const {
  std::string text = read_only ? "ro" : "rw";
  for (const auto& attribute : attributes) text += "," + attribute;
  for (const auto& [key, value] : filesystem) {
    const bool quote = value.find(',') != std::string::npos;
    text += "," + key;
    if (!value.empty()) text += quote ? "=\"" + value + "\"" : "=" + value;
  }
  return text;
}

bool mounted_as(const MountEntry& entry, const MountOptions& options) {
  if (entry.read_only() != options.read_only) return false;
  return std::all_of(options.attributes.begin(), options.attributes.end(), [&](const std::string& attribute) {
    // strictatime is what mountinfo shows by showing neither relatime nor noatime.
    if (attribute == "strictatime")
      return !has_mount_option(entry.vfs_options, "relatime") &&
             !has_mount_option(entry.vfs_options, "noatime");
    return has_mount_option(entry.vfs_options, attribute);
  });
}

}  // namespace pillar::hostio
