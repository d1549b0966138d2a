// Command lines of mkfs.ext4 and mkfs.xfs. What is allowed is in messages/filesystem_options.hpp. Features
// are pinned to what kernel 5.4 mounts (reported-faults row G13): the tools of a newer image turn on more by
// default (ext4 orphan_file and metadata_csum_seed; xfs bigtime, inobtcount, nrext64).

#include <array>
#include <map>
#include <utility>

#include "hostio/filesystem.hpp"
#include "messages/filesystem_options.hpp"

namespace pillar::hostio {
namespace {

/// Settings every filesystem gets unless the user's options say otherwise.
struct Preset {
  std::string_view fs;
  std::string_view flag;
  std::string_view key;
  std::string_view value;
};
constexpr std::array k_presets{
    Preset{"ext4", "-m", "", "0"},  // blocks kept back for root are of no use in a volume
    Preset{"ext4", "-E", "lazy_itable_init", "1"},
    Preset{"ext4", "-E", "lazy_journal_init", "1"},
    Preset{"xfs", "-m", "crc", "1"},
    Preset{"xfs", "-m", "finobt", "1"},
    Preset{"xfs", "-m", "rmapbt", "0"},
    Preset{"xfs", "-m", "reflink", "1"},
    Preset{"xfs", "-m", "bigtime", "0"},
    Preset{"xfs", "-m", "inobtcount", "0"},
    Preset{"xfs", "-i", "sparse", "1"},
    Preset{"xfs", "-i", "nrext64", "0"},
};

/// "none" clears what mke2fs.conf of the image turns on.
constexpr std::string_view k_ext4_features =
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,"
    "huge_file,dir_nlink,extra_isize,metadata_csum";

using Settings = std::map<std::pair<std::string, std::string>, std::string>;

/// What the user asked for: settings by (flag, key), and ext4 features in the order given.
struct Parsed {
  Settings settings;
  std::vector<std::string> features;
};

Result<Parsed> parse(std::string_view fs_type, const std::vector<std::string>& options) {
  if (auto known = check_fs_type(fs_type); !known) return tl::unexpected(known.error());
  const auto checked = read_mkfs_options(fs_type, options);
  if (!checked.problems.empty())
    return fail(Reason::invalid_argument, "mkfs option '" + checked.problems.front().text + "' for " +
                                              std::string(fs_type) + " " + checked.problems.front().why);
  Parsed out;
  for (const auto& option : checked.options) {
    if (option.flag == "-O")
      out.features.push_back(option.value);
    else if (!option.implied)
      out.settings.emplace(std::pair(option.flag, option.key), option.value);
  }
  return out;
}

/// Groups the settings back by flag: "-m" "bigtime=0,crc=1". `-E` starts with nodiscard.
void append_settings(const Settings& settings, std::vector<std::string>& argv) {
  std::map<std::string, std::string> by_flag;
  for (const auto& [name, value] : settings) {
    auto& text = by_flag[name.first];
    if (!text.empty()) text += ',';
    text += name.second.empty() ? value : name.second + "=" + value;
  }
  for (const auto& [flag, text] : by_flag) {
    argv.push_back(flag);
    argv.push_back(flag == "-E" ? "nodiscard," + text : text);
  }
}

}  // namespace

Result<void> check_mkfs_options(std::string_view fs_type, const std::vector<std::string>& options) {
  const auto parsed = parse(fs_type, options);
  if (!parsed) return tl::unexpected(parsed.error());
  return {};
}

Result<std::vector<std::string>> mkfs_argv(std::string_view fs_type, const std::vector<std::string>& options,
                                           const std::string& node) {
  auto parsed = parse(fs_type, options);
  if (!parsed) return tl::unexpected(parsed.error());
  if (node.empty() || node.front() != '/')
    return fail(Reason::invalid_argument, "device path '" + node + "' is not absolute");
  for (const auto& preset : k_presets)
    if (preset.fs == fs_type)
      parsed->settings.emplace(std::pair(std::string(preset.flag), std::string(preset.key)),
                               std::string(preset.value));
  std::vector<std::string> argv{"mkfs." + std::string(fs_type), "-q"};
  if (fs_type == k_fs_xfs) {
    argv.emplace_back("-K");
  } else {
    std::string features(k_ext4_features);
    for (const auto& feature : parsed->features) features += "," + feature;
    argv.emplace_back("-O");
    argv.push_back(features);
  }
  append_settings(parsed->settings, argv);
  argv.push_back(node);
  return argv;
}

}  // namespace pillar::hostio
