// The allowlist of mount options.

#include <algorithm>
#include <array>
#include <cstdint>

#include "hostio/mounts.hpp"
#include "hostio/option_values.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

enum class Kind : std::uint8_t {
  ignored,    ///< accepted, means nothing here
  access,     ///< ro, rw
  attribute,  ///< of the mount
  cleared,    ///< asks for a default attribute: only checked for contradiction
  flag,       ///< of the filesystem, without value
  number,     ///< of the filesystem, decimal in [low, high]
  size,       ///< decimal with optional k, m, g
  choice,     ///< one of the words in `words`, separated by '|'
  label,      ///< an SELinux context
};

/// One allowed option. `group`: options of the same group exclude each other.
struct Rule {
  std::string_view name;
  std::string_view fs;  ///< empty: any filesystem
  Kind kind;
  std::string_view group;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::string_view words = {};
};

constexpr std::uint64_t k_any_number = UINT32_MAX;

constexpr std::array k_rules{
    Rule{"defaults", "", Kind::ignored, ""},
    Rule{"_netdev", "", Kind::ignored, ""},
    Rule{"ro", "", Kind::access, "access"},
    Rule{"rw", "", Kind::access, "access"},
    Rule{"nodev", "", Kind::attribute, "dev"},
    Rule{"dev", "", Kind::cleared, "dev"},
    Rule{"nosuid", "", Kind::attribute, "suid"},
    Rule{"suid", "", Kind::cleared, "suid"},
    Rule{"noexec", "", Kind::attribute, "exec"},
    Rule{"exec", "", Kind::cleared, "exec"},
    Rule{"noatime", "", Kind::attribute, "atime"},
    Rule{"relatime", "", Kind::cleared, "atime"},
    Rule{"strictatime", "", Kind::attribute, "atime"},
    Rule{"nodiratime", "", Kind::attribute, "diratime"},
    Rule{"diratime", "", Kind::cleared, "diratime"},
    Rule{"lazytime", "", Kind::flag, "lazytime"},
    Rule{"nolazytime", "", Kind::cleared, "lazytime"},
    Rule{"sync", "", Kind::flag, "sync"},
    Rule{"async", "", Kind::cleared, "sync"},
    Rule{"dirsync", "", Kind::flag, "dirsync"},
    Rule{"context", "", Kind::label, "context"},
    Rule{"fscontext", "", Kind::label, "fscontext"},
    Rule{"defcontext", "", Kind::label, "defcontext"},
    Rule{"rootcontext", "", Kind::label, "rootcontext"},
    Rule{"discard", "", Kind::flag, "discard"},
    Rule{"nodiscard", "", Kind::flag, "discard"},
    Rule{"barrier", "ext4", Kind::flag, "barrier"},
    Rule{"barrier", "ext4", Kind::number, "barrier", 0, 1},
    Rule{"nobarrier", "ext4", Kind::flag, "barrier"},
    Rule{"acl", "ext4", Kind::flag, "acl"},
    Rule{"noacl", "ext4", Kind::flag, "acl"},
    Rule{"user_xattr", "ext4", Kind::flag, "xattr"},
    Rule{"nouser_xattr", "ext4", Kind::flag, "xattr"},
    Rule{"data", "ext4", Kind::choice, "data", 0, 0, "ordered|journal|writeback"},
    Rule{"errors", "ext4", Kind::choice, "errors", 0, 0, "continue|remount-ro"},
    Rule{"commit", "ext4", Kind::number, "commit", 0, 3600},
    Rule{"delalloc", "ext4", Kind::flag, "delalloc"},
    Rule{"nodelalloc", "ext4", Kind::flag, "delalloc"},
    Rule{"auto_da_alloc", "ext4", Kind::flag, "auto_da_alloc"},
    Rule{"noauto_da_alloc", "ext4", Kind::flag, "auto_da_alloc"},
    Rule{"journal_checksum", "ext4", Kind::flag, "journal_checksum"},
    Rule{"nojournal_checksum", "ext4", Kind::flag, "journal_checksum"},
    Rule{"init_itable", "ext4", Kind::number, "init_itable", 0, 1000},
    Rule{"noinit_itable", "ext4", Kind::flag, "init_itable"},
    Rule{"dioread_lock", "ext4", Kind::flag, "dioread"},
    Rule{"dioread_nolock", "ext4", Kind::flag, "dioread"},
    Rule{"block_validity", "ext4", Kind::flag, "block_validity"},
    Rule{"noblock_validity", "ext4", Kind::flag, "block_validity"},
    Rule{"i_version", "ext4", Kind::flag, "i_version"},
    Rule{"stripe", "ext4", Kind::number, "stripe", 0, k_any_number},
    Rule{"min_batch_time", "ext4", Kind::number, "min_batch_time", 0, k_any_number},
    Rule{"max_batch_time", "ext4", Kind::number, "max_batch_time", 0, k_any_number},
    Rule{"max_dir_size_kb", "ext4", Kind::number, "max_dir_size_kb", 1, k_any_number},
    Rule{"nouuid", "xfs", Kind::flag, "nouuid"},
    Rule{"inode32", "xfs", Kind::flag, "inode"},
    Rule{"inode64", "xfs", Kind::flag, "inode"},
    Rule{"largeio", "xfs", Kind::flag, "largeio"},
    Rule{"nolargeio", "xfs", Kind::flag, "largeio"},
    Rule{"swalloc", "xfs", Kind::flag, "swalloc"},
    Rule{"noalign", "xfs", Kind::flag, "noalign"},
    Rule{"wsync", "xfs", Kind::flag, "wsync"},
    Rule{"logbufs", "xfs", Kind::number, "logbufs", 2, 8},
    Rule{"logbsize", "xfs", Kind::size, "logbsize"},
    Rule{"allocsize", "xfs", Kind::size, "allocsize"},
    Rule{"sunit", "xfs", Kind::number, "sunit", 0, k_any_number},
    Rule{"swidth", "xfs", Kind::number, "swidth", 0, k_any_number},
    Rule{"grpid", "", Kind::flag, "grpid"},
    Rule{"nogrpid", "", Kind::flag, "grpid"},
    Rule{"usrquota", "", Kind::flag, "usrquota"},
    Rule{"grpquota", "", Kind::flag, "grpquota"},
    Rule{"prjquota", "", Kind::flag, "prjquota"},
    Rule{"uquota", "xfs", Kind::flag, "usrquota"},
    Rule{"gquota", "xfs", Kind::flag, "grpquota"},
    Rule{"pquota", "xfs", Kind::flag, "prjquota"},
    Rule{"noquota", "", Kind::flag, "noquota"},
};

bool takes_value(Kind kind) {
  return kind == Kind::number || kind == Kind::size || kind == Kind::choice || kind == Kind::label;
}

bool value_fits(const Rule& rule, std::string_view value) {
  switch (rule.kind) {
    case Kind::number:
      return is_number_in(value, rule.low, rule.high);
    case Kind::size:
      return is_size_text(value, "kKmMgG");
    case Kind::choice:
      return is_one_of(value, rule.words);
    case Kind::label:
      return value.size() <= 255 && is_made_of_letters_and(value, "_:.,-+");
    default:
      return false;
  }
}

/// One option as written: the whole text, its name, and its value without quotes.
struct Written {
  std::string text;
  std::string name;
  std::string value;
  bool has_value = false;
};

Written split_value(std::string_view text) {
  Written out{std::string(text), std::string(text), "", false};
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return out;
  out.has_value = true;
  out.name = std::string(text.substr(0, equals));
  auto value = text.substr(equals + 1);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  out.value = std::string(value);
  return out;
}

std::vector<Written> split_flags(const std::vector<std::string>& flags) {
  std::vector<Written> out;
  for (const auto& flag : flags) {
    bool quoted = false;
    std::string item;
    const auto flush = [&] {
      if (const auto text = trim(item); !text.empty()) out.push_back(split_value(text));
      item.clear();
    };
    for (char c : flag) {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) {
        flush();
      } else {
        item += c;
      }
    }
    flush();
  }
  return out;
}

tl::unexpected<Error> refuse(const Written& option, const std::string& why) {
  return fail(Reason::invalid_argument, "mount option '" + option.text + "' " + why);
}

Result<const Rule*> rule_of(const Written& option, std::string_view fs_type) {
  bool other_fs = false;
  bool bad_value = false;
  for (const auto& rule : k_rules) {
    if (rule.name != option.name) continue;
    if (!rule.fs.empty() && rule.fs != fs_type) {
      other_fs = true;
    } else if (takes_value(rule.kind) != option.has_value ||
               (option.has_value && !value_fits(rule, option.value))) {
      bad_value = true;
    } else {
      return &rule;
    }
  }
  if (bad_value) return refuse(option, "has a value that is missing, not allowed or out of range");
  if (other_fs) return refuse(option, "is not an option of " + std::string(fs_type));
  return refuse(option, "is not allowed; docs/interfaces.md lists the mount options that are");
}

void apply(const Rule& rule, const Written& option, MountOptions& out) {
  if (rule.kind == Kind::access && option.name == "ro") out.read_only = true;
  if (rule.kind == Kind::attribute) out.attributes.push_back(option.name);
  if (rule.kind == Kind::flag) out.filesystem.emplace_back(option.name, "");
  if (takes_value(rule.kind)) out.filesystem.emplace_back(option.name, option.value);
}

}  // namespace

Result<MountOptions> parse_mount_options(std::string_view fs_type, const std::vector<std::string>& flags,
                                         bool read_only) {
  MountOptions out;
  std::vector<std::pair<std::string_view, std::string>> groups;
  for (const auto& option : split_flags(flags)) {
    const auto rule = rule_of(option, fs_type);
    if (!rule) return tl::unexpected(rule.error());
    const auto earlier = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return !group.first.empty() && group.first == (*rule)->group;
    });
    if (earlier != groups.end()) {
      if (earlier->second == option.text) continue;
      return refuse(option, "contradicts '" + earlier->second + "'");
    }
    groups.emplace_back((*rule)->group, option.text);
    apply(**rule, option, out);
  }
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
