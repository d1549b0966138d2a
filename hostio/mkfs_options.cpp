// Command lines of mkfs.ext4 and mkfs.xfs. Features are pinned to what kernel 5.4 mounts (reported-faults row
// G13): the tools of a newer image turn on more by default (ext4 orphan_file and metadata_csum_seed; xfs
// bigtime, inobtcount, nrext64).

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "hostio/filesystem.hpp"
#include "hostio/option_values.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

enum class Form : std::uint8_t { number, size, choice, label };

/// One allowed option: `flag` alone takes the value, or takes it under the sub-option `key`.
struct Rule {
  std::string_view fs;
  std::string_view flag;
  std::string_view key;
  Form form;
  std::uint64_t low = 0;
  std::uint64_t high = 0;  ///< label: longest
  std::string_view words = {};
};

constexpr std::uint64_t k_any = UINT32_MAX;
constexpr std::string_view k_bool = "0|1";

constexpr std::array k_rules{
    Rule{"ext4", "-b", "", Form::choice, 0, 0, "1024|2048|4096"},
    Rule{"ext4", "-i", "", Form::number, 1024, 67108864},
    Rule{"ext4", "-I", "", Form::choice, 0, 0, "128|256|512|1024"},
    Rule{"ext4", "-N", "", Form::number, 16, k_any},
    Rule{"ext4", "-m", "", Form::number, 0, 50},
    Rule{"ext4", "-L", "", Form::label, 0, 16},
    Rule{"ext4", "-T", "", Form::choice, 0, 0, "small|big|huge|news|largefile|largefile4"},
    Rule{"ext4", "-J", "size", Form::number, 4, 40000},
    Rule{"ext4", "-E", "stride", Form::number, 1, k_any},
    Rule{"ext4", "-E", "stripe_width", Form::number, 1, k_any},
    Rule{"ext4", "-E", "lazy_itable_init", Form::choice, 0, 0, k_bool},
    Rule{"ext4", "-E", "lazy_journal_init", Form::choice, 0, 0, k_bool},
    Rule{"ext4", "-E", "packed_meta_blocks", Form::choice, 0, 0, k_bool},
    Rule{"ext4", "-O", "", Form::choice, 0, 0, "quota|project|^metadata_csum|^64bit|^huge_file|^flex_bg"},
    Rule{"xfs", "-b", "size", Form::choice, 0, 0, "1024|2048|4096|1k|2k|4k"},
    Rule{"xfs", "-d", "agcount", Form::number, 1, 65536},
    Rule{"xfs", "-d", "su", Form::size},
    Rule{"xfs", "-d", "sw", Form::number, 1, 65536},
    Rule{"xfs", "-d", "sunit", Form::number, 0, k_any},
    Rule{"xfs", "-d", "swidth", Form::number, 0, k_any},
    Rule{"xfs", "-i", "size", Form::choice, 0, 0, "256|512|1024|2048"},
    Rule{"xfs", "-i", "maxpct", Form::number, 0, 100},
    Rule{"xfs", "-l", "size", Form::size},
    Rule{"xfs", "-l", "su", Form::size},
    Rule{"xfs", "-l", "sunit", Form::number, 0, k_any},
    Rule{"xfs", "-n", "size", Form::choice, 0, 0, "4096|8192|16384|32768|65536|4k|8k|16k|32k|64k"},
    Rule{"xfs", "-s", "size", Form::choice, 0, 0, "512|4096|4k"},
    Rule{"xfs", "-m", "reflink", Form::choice, 0, 0, k_bool},
    Rule{"xfs", "-m", "rmapbt", Form::choice, 0, 0, k_bool},
    Rule{"xfs", "-m", "finobt", Form::choice, 0, 0, k_bool},
    Rule{"xfs", "-L", "", Form::label, 0, 12},
};

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

bool fits(const Rule& rule, std::string_view value) {
  switch (rule.form) {
    case Form::number:
      return is_number_in(value, rule.low, rule.high);
    case Form::size:
      return is_size_text(value, "kmg");
    case Form::choice:
      return is_one_of(value, rule.words);
    case Form::label:
      break;
  }
  return value.size() <= rule.high && !value.starts_with('-') && is_made_of_letters_and(value, "_.-");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (;;) {
    const auto at = text.find(separator);
    if (const auto part = trim(text.substr(0, at)); !part.empty()) out.emplace_back(part);
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string> words_of(const std::vector<std::string>& options) {
  std::vector<std::string> words;
  for (const auto& option : options)
    for (auto& word : split(option, ' ')) words.push_back(std::move(word));
  return words;
}

tl::unexpected<Error> refuse(std::string_view fs_type, const std::string& option, std::string_view why) {
  return fail(Reason::invalid_argument, "mkfs option '" + option + "' for " + std::string(fs_type) + " " +
                                            std::string(why) +
                                            "; docs/interfaces.md lists the mkfs options that are allowed");
}

/// Takes one "key=value" or plain value of `flag`.
Result<void> take(std::string_view fs_type, const std::string& flag, const std::string& item, bool has_keys,
                  Parsed& out) {
  const auto equals = has_keys ? item.find('=') : std::string::npos;
  const auto key = equals == std::string::npos ? std::string() : item.substr(0, equals);
  const auto value = equals == std::string::npos ? item : item.substr(equals + 1);
  const auto shown = flag + " " + item;
  const auto rule = std::find_if(k_rules.begin(), k_rules.end(), [&](const Rule& one) {
    return one.fs == fs_type && one.flag == flag && one.key == key;
  });
  if (rule == k_rules.end()) return refuse(fs_type, shown, "is not allowed");
  if (!fits(*rule, value)) return refuse(fs_type, shown, "has a value that is not allowed or out of range");
  if (flag == "-O") {
    out.features.push_back(value);
  } else if (!out.settings.emplace(std::pair(flag, key), value).second) {
    return refuse(fs_type, shown, "is given twice");
  }
  return {};
}

Result<Parsed> parse(std::string_view fs_type, const std::vector<std::string>& options) {
  if (auto known = check_fs_type(fs_type); !known) return tl::unexpected(known.error());
  Parsed out;
  const auto words = words_of(options);
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const auto& flag = words[i];
    const auto rule = std::find_if(k_rules.begin(), k_rules.end(),
                                   [&](const Rule& one) { return one.fs == fs_type && one.flag == flag; });
    if (rule == k_rules.end()) return refuse(fs_type, flag, "is not allowed");
    if (i + 1 == words.size()) return refuse(fs_type, flag, "has no value");
    for (const auto& item : split(words[i + 1], ','))
      if (auto taken = take(fs_type, flag, item, !rule->key.empty(), out); !taken)
        return tl::unexpected(taken.error());
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

Result<std::vector<std::string>> check_mkfs_options(std::string_view fs_type,
                                                    const std::vector<std::string>& options) {
  const auto parsed = parse(fs_type, options);
  if (!parsed) return tl::unexpected(parsed.error());
  return words_of(options);
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
