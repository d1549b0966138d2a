#include "messages/filesystem_options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace pillar {
namespace {

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool in_range(double value, std::string_view range) {
  const auto dots = range.find("..");
  return value >= number<double>(range.substr(0, dots)).value_or(0) &&
         value <= number<double>(range.substr(dots + 2)).value_or(0);
}

bool made_of(std::string_view text, std::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    const bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return alnum || others.find(c) != std::string_view::npos;
  });
}

std::optional<std::uint64_t> sized(std::string_view text) {
  std::uint64_t factor = 1;
  if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) factor = 1024;
  if (!text.empty() && (text.back() == 'm' || text.back() == 'M')) factor = 1024 * 1024;
  if (factor != 1) text.remove_suffix(1);
  const auto value = number<std::uint32_t>(text);
  if (!value) return std::nullopt;
  return *value * factor;
}

bool one_of(std::string_view words, std::string_view text) {
  while (!words.empty()) {
    const auto bar = words.find('|');
    if (text == words.substr(0, bar)) return true;
    words = bar == std::string_view::npos ? std::string_view() : words.substr(bar + 1);
  }
  return false;
}

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 200)) + "'"; }

// ---- mount -------------------------------------------------------------------------------------------

/// Options of one non-empty `group` exclude each other; `needs`: the option that has to be given with it.
struct MountRule {
  std::string_view name;
  std::string_view fs;  ///< empty: any file system
  OptionForm form;
  MountRole role;
  std::string_view group;
  std::string_view needs = {};
};

constexpr auto k_attribute = MountRole::attribute;
constexpr auto k_cleared = MountRole::cleared;
constexpr auto k_of_fs = MountRole::filesystem;

constexpr std::array k_mount_rules{
    MountRule{"defaults", "", "", MountRole::ignored, ""},
    MountRule{"_netdev", "", "", MountRole::ignored, ""},
    MountRule{"ro", "", "", MountRole::access, "access"},
    MountRule{"rw", "", "", MountRole::access, "access"},
    MountRule{"nodev", "", "", k_attribute, "dev"},
    MountRule{"dev", "", "", k_cleared, "dev"},
    MountRule{"nosuid", "", "", k_attribute, "suid"},
    MountRule{"suid", "", "", k_cleared, "suid"},
    MountRule{"noexec", "", "", k_attribute, "exec"},
    MountRule{"exec", "", "", k_cleared, "exec"},
    MountRule{"noatime", "", "", k_attribute, "atime"},
    MountRule{"atime", "", "", k_cleared, "atime"},
    MountRule{"relatime", "", "", k_cleared, "atime"},
    MountRule{"strictatime", "", "", k_attribute, "atime"},
    MountRule{"nodiratime", "", "", k_attribute, "diratime"},
    MountRule{"diratime", "", "", k_cleared, "diratime"},
    MountRule{"lazytime", "", "", k_of_fs, "lazytime"},
    MountRule{"nolazytime", "", "", k_cleared, "lazytime"},
    MountRule{"sync", "", "", k_of_fs, "sync"},
    MountRule{"async", "", "", k_cleared, "sync"},
    MountRule{"dirsync", "", "", k_of_fs, "dirsync"},
    MountRule{"discard", "", "", k_of_fs, "discard"},
    MountRule{"nodiscard", "", "", k_of_fs, "discard"},
    MountRule{"context", "", "~", k_of_fs, "context"},
    MountRule{"fscontext", "", "~", k_of_fs, "fscontext"},
    MountRule{"defcontext", "", "~", k_of_fs, "defcontext"},
    MountRule{"rootcontext", "", "~", k_of_fs, "rootcontext"},
    MountRule{"grpid", "", "", k_of_fs, "grpid"},
    MountRule{"nogrpid", "", "", k_of_fs, "grpid"},
    MountRule{"usrquota", "", "", k_of_fs, "usrquota"},
    MountRule{"grpquota", "", "", k_of_fs, "grpquota"},
    MountRule{"prjquota", "", "", k_of_fs, "prjquota"},
    MountRule{"noquota", "", "", k_of_fs, "noquota"},
    MountRule{"data", "ext4", "ordered|journal", k_of_fs, "data"},
    MountRule{"commit", "ext4", "#1..300", k_of_fs, "commit"},
    MountRule{"errors", "ext4", "remount-ro|continue", k_of_fs, "errors"},
    MountRule{"barrier", "ext4", "1", k_of_fs, "barrier"},
    MountRule{"delalloc", "ext4", "", k_of_fs, "delalloc"},
    MountRule{"nodelalloc", "ext4", "", k_of_fs, "delalloc"},
    MountRule{"acl", "ext4", "", k_of_fs, "acl"},
    MountRule{"noacl", "ext4", "", k_of_fs, "acl"},
    MountRule{"user_xattr", "ext4", "", k_of_fs, "user_xattr"},
    MountRule{"auto_da_alloc", "ext4", "", k_of_fs, "auto_da_alloc"},
    MountRule{"journal_checksum", "ext4", "", k_of_fs, "journal_checksum"},
    MountRule{"init_itable", "ext4", "#0..1000", k_of_fs, "init_itable"},
    MountRule{"noinit_itable", "ext4", "", k_of_fs, "init_itable"},
    MountRule{"dioread_lock", "ext4", "", k_of_fs, "dioread"},
    MountRule{"dioread_nolock", "ext4", "", k_of_fs, "dioread"},
    MountRule{"i_version", "ext4", "", k_of_fs, "i_version"},
    MountRule{"stripe", "ext4", "#0..2097152", k_of_fs, "stripe"},
    MountRule{"min_batch_time", "ext4", "#0..1000000", k_of_fs, "min_batch_time"},
    MountRule{"max_batch_time", "ext4", "#0..1000000", k_of_fs, "max_batch_time"},
    MountRule{"nouuid", "xfs", "", k_of_fs, "nouuid"},
    MountRule{"inode32", "xfs", "", k_of_fs, "inode"},
    MountRule{"inode64", "xfs", "", k_of_fs, "inode"},
    MountRule{"largeio", "xfs", "", k_of_fs, "largeio"},
    MountRule{"nolargeio", "xfs", "", k_of_fs, "largeio"},
    MountRule{"swalloc", "xfs", "", k_of_fs, "swalloc"},
    MountRule{"noalign", "xfs", "", k_of_fs, "noalign"},
    MountRule{"wsync", "xfs", "", k_of_fs, "wsync"},
    MountRule{"logbufs", "xfs", "#2..8", k_of_fs, "logbufs"},
    MountRule{"logbsize", "xfs", "*16384..262144", k_of_fs, "logbsize"},
    MountRule{"allocsize", "xfs", "*4096..1073741824", k_of_fs, "allocsize"},
    MountRule{"sunit", "xfs", "#0..2097152", k_of_fs, "sunit", "swidth"},
    MountRule{"swidth", "xfs", "#0..134217728", k_of_fs, "swidth", "sunit"},
    MountRule{"uquota", "xfs", "", k_of_fs, "usrquota"},
    MountRule{"gquota", "xfs", "", k_of_fs, "grpquota"},
    MountRule{"pquota", "xfs", "", k_of_fs, "prjquota"},
};

/// Options as written that the kernel refuses together, beyond those of one group.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> k_mount_conflicts{{
    {"data=journal", "delalloc"},
    {"data=journal", "dioread_nolock"},
    {"noalign", "sunit"},
}};

/// Options refused with a reason of their own.
struct Refusal {
  std::string_view name;
  std::string_view why;
};
constexpr std::array k_mount_refusals{
    Refusal{"nobarrier", "without barriers a power cut loses acknowledged writes"},
    Refusal{"barrier=0", "without barriers a power cut loses acknowledged writes"},
    Refusal{"norecovery", "mounting without journal replay shows and damages stale content"},
    Refusal{"noload", "mounting without journal replay shows and damages stale content"},
    Refusal{"remount", "the driver decides about remounting"},
    Refusal{"bind", "the driver makes its own bind mounts"},
    Refusal{"loop", "the volume is a device already"},
};

bool is_for(const MountRule& rule, std::string_view fs_type) { return rule.fs.empty() || rule.fs == fs_type; }

/// One option as written: the whole text, its name, and its value without quotes.
struct Written {
  std::size_t element = 0;
  std::string text;
  std::string name;
  std::optional<std::string> value;
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const auto first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

Written written(std::size_t element, std::string_view raw) {
  const auto text = trimmed(raw);
  Written out{element, std::string(text), std::string(text), std::nullopt};
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return out;
  out.name = std::string(text.substr(0, equals));
  auto value = text.substr(equals + 1);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  out.value = std::string(value);
  return out;
}

std::vector<Written> split_mount(const std::vector<std::string>& elements) {
  std::vector<Written> out;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    bool in_quotes = false;
    std::string item;
    for (char c : elements[i]) {
      if (c == '"') in_quotes = !in_quotes;
      if (c == ',' && !in_quotes) {
        out.push_back(written(i, item));
        item.clear();
      } else {
        item += c;
      }
    }
    out.push_back(written(i, item));
  }
  return out;
}

std::string accepted_mount(std::string_view fs_type) {
  std::string out;
  for (const auto& rule : k_mount_rules)
    if (is_for(rule, fs_type)) out += (out.empty() ? "" : ", ") + std::string(rule.name);
  return out;
}

/// The rule of an option, or why there is none.
std::pair<const MountRule*, std::string> mount_rule(const Written& option, std::string_view fs_type) {
  const auto named = [&](const auto& row) { return row.name == option.name; };
  const auto* rule = std::find_if(k_mount_rules.begin(), k_mount_rules.end(),
                                  [&](const MountRule& row) { return named(row) && is_for(row, fs_type); });
  if (rule != k_mount_rules.end()) {
    const bool fits =
        option.value.has_value() != rule->form.empty() && fits_form(rule->form, option.value.value_or(""));
    if (fits) return {rule, ""};
  }
  const auto* refusal =
      std::find_if(k_mount_refusals.begin(), k_mount_refusals.end(),
                   [&](const Refusal& row) { return row.name == option.name || row.name == option.text; });
  if (refusal != k_mount_refusals.end()) return {nullptr, "is refused: " + std::string(refusal->why)};
  if (rule != k_mount_rules.end()) return {nullptr, "is not as it should be: " + form_text(rule->form)};
  if (std::any_of(k_mount_rules.begin(), k_mount_rules.end(), named))
    return {nullptr, "is not an option of " + std::string(fs_type)};
  return {nullptr, "is not an accepted mount option; accepted: " + accepted_mount(fs_type)};
}

/// One parse of a list of mount options.
class MountReader {
 public:
  MountReader(std::string_view fs_type, const std::vector<std::string>& elements)
      : fs_type_(fs_type), words_(split_mount(elements)) {}

  CheckedOptions<MountOption> read() {
    for (const auto& option : words_) take(option);
    for (const auto& one : seen_) check_company(one);
    return std::move(out_);
  }

 private:
  struct Seen {
    const Written* option;
    const MountRule* rule;
    bool is(std::string_view text) const { return option->name == text || option->text == text; }
  };

  void problem(const Written& option, std::string why) {
    out_.problems.push_back({option.element, option.text, std::move(why)});
  }
  void contradiction(const Written& option, const Written& earlier) {
    problem(option, "contradicts " + quoted(earlier.text) + "; leave one out");
  }

  void take(const Written& option) {
    if (option.text.empty()) return problem(option, "is empty; leave it out");
    const auto [rule, why] = mount_rule(option, fs_type_);
    if (rule == nullptr) return problem(option, why);
    for (const auto& earlier : seen_) {
      if (rule->group.empty() || earlier.rule->group != rule->group) continue;
      if (earlier.option->text != option.text) contradiction(option, *earlier.option);
      return;
    }
    seen_.push_back({&option, rule});
    out_.options.push_back({option.name, option.value.value_or(""), rule->role});
  }

  void check_company(const Seen& one) {
    const auto given = [&](std::string_view text) {
      return std::find_if(seen_.begin(), seen_.end(), [&](const Seen& each) { return each.is(text); });
    };
    if (!one.rule->needs.empty() && given(one.rule->needs) == seen_.end())
      problem(*one.option, "needs " + std::string(one.rule->needs) + "= as well");
    for (const auto& [first, second] : k_mount_conflicts)
      if (const auto other = given(second); one.is(first) && other != seen_.end())
        contradiction(*other->option, *one.option);
  }

  std::string_view fs_type_;
  std::vector<Written> words_;
  std::vector<Seen> seen_;
  CheckedOptions<MountOption> out_;
};

// ---- mkfs --------------------------------------------------------------------------------------------

/// One allowed option: `flag` alone takes the value, or takes it under the sub-option `key`. Options of one
/// non-empty `group` exclude each other; `needs`: the key that has to be given with it.
struct MkfsRule {
  std::string_view fs;
  std::string_view name;  ///< "-b", or "-E stride"
  OptionForm form;
  std::string_view group = {};
  std::string_view needs = {};
  bool implied = false;

  std::string_view flag() const { return name.substr(0, 2); }
  std::string_view key() const { return name.size() > 3 ? name.substr(3) : std::string_view(); }
};

constexpr OptionForm k_features =
    "quota|project|64bit|^64bit|metadata_csum|^metadata_csum|^huge_file|^flex_bg";

constexpr std::array k_mkfs_rules{
    MkfsRule{"ext4", "-b", "1024|2048|4096"},
    MkfsRule{"ext4", "-i", "#1024..67108864"},
    MkfsRule{"ext4", "-I", "128|256|512|1024"},
    MkfsRule{"ext4", "-m", "%0..50"},
    MkfsRule{"ext4", "-N", "#16..4294967295"},
    MkfsRule{"ext4", "-T", "small|big|huge|news|largefile|largefile4"},
    MkfsRule{"ext4", "-L", "@16"},
    MkfsRule{"ext4", "-J size", "#4..10240"},
    MkfsRule{"ext4", "-E stride", "#1..65536"},
    MkfsRule{"ext4", "-E stripe_width", "#1..1048576"},
    MkfsRule{"ext4", "-E lazy_itable_init", "0|1"},
    MkfsRule{"ext4", "-E lazy_journal_init", "0|1"},
    MkfsRule{"ext4", "-E packed_meta_blocks", "0|1"},
    MkfsRule{"ext4", "-E nodiscard", "", "", "", true},
    MkfsRule{"ext4", "-O", k_features},
    MkfsRule{"xfs", "-b size", "1024|2048|4096|1k|2k|4k"},
    MkfsRule{"xfs", "-d agcount", "#1..65536"},
    MkfsRule{"xfs", "-d su", "$4096..1073741824", "stripe unit", "sw"},
    MkfsRule{"xfs", "-d sw", "#1..65536", "stripe width", "su"},
    MkfsRule{"xfs", "-d sunit", "#0..2097152", "stripe unit", "swidth"},
    MkfsRule{"xfs", "-d swidth", "#0..134217728", "stripe width", "sunit"},
    MkfsRule{"xfs", "-i size", "512|1024|2048"},
    MkfsRule{"xfs", "-i maxpct", "#0..100"},
    MkfsRule{"xfs", "-i sparse", "0|1"},
    MkfsRule{"xfs", "-l size", "$1048576..2136997888"},
    MkfsRule{"xfs", "-l su", "$4096..262144"},
    MkfsRule{"xfs", "-m crc", "1"},
    MkfsRule{"xfs", "-m finobt", "0|1"},
    MkfsRule{"xfs", "-m rmapbt", "0|1"},
    MkfsRule{"xfs", "-m reflink", "0|1"},
    MkfsRule{"xfs", "-m bigtime", "0"},
    MkfsRule{"xfs", "-m inobtcount", "0"},
    MkfsRule{"xfs", "-n size", "4096|8192|16384|32768|65536|4k|8k|16k|32k|64k"},
    MkfsRule{"xfs", "-s size", "512|4096|4k"},
    MkfsRule{"xfs", "-L", "@12"},
    MkfsRule{"xfs", "-K", "", "", "", true},
};

constexpr std::array k_mkfs_refusals{
    Refusal{"-F", "forcing could overwrite data; the driver formats only devices it has proved blank"},
    Refusal{"-f", "forcing could overwrite data; the driver formats only devices it has proved blank"},
    Refusal{"-U", "the driver leaves the UUID to mkfs"},
    Refusal{"-n", "a dry run formats nothing"},
    Refusal{"-d", "copying a directory into the file system is not supported"},
};

/// Names of the rows of a file system, of one flag or of all (empty).
std::string accepted_mkfs(std::string_view fs_type, std::string_view flag) {
  std::string out;
  for (const auto& rule : k_mkfs_rules)
    if (rule.fs == fs_type && (flag.empty() || rule.flag() == flag))
      out += (out.empty() ? "" : ", ") + std::string(rule.name);
  return out;
}

template <class Wanted>
const MkfsRule* find_mkfs(std::string_view fs_type, Wanted wanted) {
  const auto* rule = std::find_if(k_mkfs_rules.begin(), k_mkfs_rules.end(),
                                  [&](const MkfsRule& row) { return row.fs == fs_type && wanted(row); });
  return rule == k_mkfs_rules.end() ? nullptr : rule;
}

/// One parse of a list of mkfs options.
class MkfsReader {
 public:
  MkfsReader(std::string_view fs_type, const std::vector<std::string>& elements) : fs_type_(fs_type) {
    for (std::size_t i = 0; i < elements.size(); ++i) split(i, elements[i]);
  }

  CheckedOptions<MkfsOption> read() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto element = words_[i].first;
      const std::string flag = words_[i].second.substr(0, 2);
      const auto* rule = find_mkfs(fs_type_, [&](const MkfsRule& row) { return row.flag() == flag; });
      if (rule == nullptr) {
        problem(element, words_[i].second, unknown_flag(flag));
        continue;
      }
      std::string value = words_[i].second.substr(flag.size());
      const bool takes_value = !rule->form.empty() || !rule->key().empty();
      if (takes_value && value.empty()) {
        if (i + 1 == words_.size()) {
          problem(element, flag, "lacks its value: " + value_text(*rule));
          break;
        }
        value = words_[++i].second;
      }
      take_list(element, *rule, value);
    }
    check_needs();
    return std::move(out_);
  }

 private:
  void problem(std::size_t element, std::string text, std::string why) {
    out_.problems.push_back({element, std::move(text), std::move(why)});
  }

  void split(std::size_t element, std::string_view text) {
    if (trimmed(text).empty()) problem(element, std::string(text), "is empty; leave it out");
    while (!(text = trimmed(text)).empty()) {
      const auto blank = std::min(text.find_first_of(" \t\r\n"), text.size());
      words_.emplace_back(element, text.substr(0, blank));
      text.remove_prefix(blank);
    }
  }

  std::string unknown_flag(std::string_view flag) const {
    const auto* refusal = std::find_if(k_mkfs_refusals.begin(), k_mkfs_refusals.end(),
                                       [&](const Refusal& row) { return row.name == flag; });
    if (refusal != k_mkfs_refusals.end()) return "is refused: " + std::string(refusal->why);
    return "is not an accepted mkfs flag of " + std::string(fs_type_) +
           "; accepted: " + accepted_mkfs(fs_type_, "");
  }

  std::string value_text(const MkfsRule& rule) const {
    return rule.key().empty() ? form_text(rule.form) : "accepted: " + accepted_mkfs(fs_type_, rule.flag());
  }

  /// Takes "value" of a plain flag, or "a=1,b" of one with sub-options or features.
  void take_list(std::size_t element, const MkfsRule& first, std::string_view value) {
    const bool list = !first.key().empty() || first.flag() == "-O";
    for (;;) {
      const auto comma = list ? value.find(',') : std::string_view::npos;
      take(element, first, value.substr(0, comma));
      if (comma == std::string_view::npos) return;
      value.remove_prefix(comma + 1);
    }
  }

  void take(std::size_t element, const MkfsRule& first, std::string_view item) {
    const std::string text = std::string(first.flag()) + (item.empty() ? "" : " ") + std::string(item);
    const auto* rule = &first;
    auto value = item;
    if (!first.key().empty()) {
      const auto equals = item.find('=');
      const auto key = item.substr(0, equals);
      value = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
      rule = find_mkfs(fs_type_,
                       [&](const MkfsRule& row) { return row.flag() == first.flag() && row.key() == key; });
      if (rule == nullptr)
        return problem(element, text, "is not accepted; accepted: " + accepted_mkfs(fs_type_, first.flag()));
      if (rule->form.empty() && equals != std::string_view::npos)
        return problem(element, text, "is not as it should be: " + form_text(rule->form));
    }
    if (!fits_form(rule->form, value))
      return problem(element, text, "is not as it should be: " + form_text(rule->form));
    add(element, text, *rule, value);
  }

  void add(std::size_t element, const std::string& text, const MkfsRule& rule, std::string_view value) {
    // Features are names that '^' turns off: one feature has one state.
    const bool feature = rule.flag() == "-O";
    std::string_view name = feature ? value : rule.name;
    if (feature && name.starts_with('^')) name.remove_prefix(1);
    for (const auto& earlier : seen_) {
      if (earlier.name == name) return problem(element, text, "is given twice; leave one out");
      if (!rule.group.empty() && earlier.rule->group == rule.group)
        return problem(element, text, "contradicts " + quoted(earlier.rule->name) + "; leave one out");
    }
    seen_.push_back({element, std::string(name), &rule});
    out_.options.push_back(
        {std::string(rule.flag()), std::string(rule.key()), std::string(value), rule.implied});
  }

  void check_needs() {
    for (const auto& one : seen_) {
      if (one.rule->needs.empty()) continue;
      const bool met = std::any_of(seen_.begin(), seen_.end(), [&](const Seen& other) {
        return other.rule->flag() == one.rule->flag() && other.rule->key() == one.rule->needs;
      });
      if (!met)
        problem(one.element, std::string(one.rule->name),
                "needs " + std::string(one.rule->needs) + " as well");
    }
  }

  struct Seen {
    std::size_t element;
    std::string name;
    const MkfsRule* rule;
  };
  std::string_view fs_type_;
  std::vector<std::pair<std::size_t, std::string>> words_;
  std::vector<Seen> seen_;
  CheckedOptions<MkfsOption> out_;
};

}  // namespace

bool fits_form(OptionForm form, std::string_view text) {
  if (form.empty()) return text.empty();
  const auto rest = form.substr(1);
  switch (form[0]) {
    case '#': {
      const auto value = number<std::uint64_t>(text);
      return value && in_range(static_cast<double>(*value), rest);
    }
    case '%': {
      const auto value = number<double>(text);
      return value && in_range(*value, rest);
    }
    case '$':
    case '*': {
      const auto value = sized(text);
      const bool whole = form[0] == '$' || (value && (*value & (*value - 1)) == 0);
      return value && whole && in_range(static_cast<double>(*value), rest);
    }
    case '@':
      return text.size() <= number<std::size_t>(rest).value_or(0) && !text.starts_with('-') &&
             made_of(text, "._-");
    case '~':
      return text.size() <= 255 && made_of(text, ":_.,-+");
    default:
      return one_of(form, text);
  }
}

std::string form_text(OptionForm form) {
  if (form.empty()) return "takes no value";
  const std::string rest(form.substr(1));
  switch (form[0]) {
    case '#':
      return "takes an integer " + rest;
    case '%':
      return "takes a number " + rest;
    case '$':
      return "takes a size in bytes " + rest + " (k and m allowed)";
    case '*':
      return "takes a size in bytes " + rest + " that is a power of two (k and m allowed)";
    case '@':
      return "takes a label of up to " + rest + " characters from A-Z a-z 0-9 . _ -, not starting with -";
    case '~':
      return "takes a security context, in double quotes when it holds a comma";
    default:
      return "takes one of " + std::string(form);
  }
}

CheckedOptions<MountOption> read_mount_options(std::string_view fs_type,
                                               const std::vector<std::string>& elements) {
  return MountReader(fs_type, elements).read();
}

CheckedOptions<MkfsOption> read_mkfs_options(std::string_view fs_type,
                                             const std::vector<std::string>& elements) {
  return MkfsReader(fs_type, elements).read();
}

std::vector<AllowedOption> allowed_mount_options(std::string_view fs_type) {
  std::vector<AllowedOption> out;
  for (const auto& rule : k_mount_rules)
    if (is_for(rule, fs_type)) out.push_back({rule.name, rule.form, rule.needs});
  return out;
}

std::vector<AllowedOption> allowed_mkfs_options(std::string_view fs_type) {
  std::vector<AllowedOption> out;
  for (const auto& rule : k_mkfs_rules)
    if (rule.fs == fs_type) out.push_back({rule.name, rule.form, rule.needs});
  return out;
}

}  // namespace pillar
