#include "crd/filesystem_options.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "crd/codec.hpp"

namespace pillar::crd {
namespace {

/// The accepted form of a value: empty text: no value; "a|b": one of the words; "#lo..hi": an integer;
/// "%lo..hi": a decimal; "@N": a label of up to N characters; "~": a SELinux context; "$lo..hi": bytes with
/// an optional k or m.
using Form = std::string_view;

struct Rule {
  std::string_view name;
  Form form;
};

std::string form_text(Form form) {
  if (form.empty()) return "takes no value";
  const std::string rest(form.substr(1));
  switch (form[0]) {
    case '#':
      return "takes an integer " + rest;
    case '%':
      return "takes a number " + rest;
    case '$':
      return "takes a size in bytes " + rest + " (k and m allowed)";
    case '@':
      return "takes a label of up to " + rest + " characters from A-Z a-z 0-9 . _ -";
    case '~':
      return "takes a security context, in quotes when it holds a comma";
    default:
      return "takes one of " + std::string(form);
  }
}

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

bool plain_label(std::string_view text, std::size_t limit) {
  return !text.empty() && text.size() <= limit && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

bool security_context(std::string_view text) {
  // A context with categories holds commas, which mount would take for the end of the option unless quoted.
  const bool quoted = text.size() > 2 && text.front() == '"' && text.back() == '"';
  if (quoted) text = text.substr(1, text.size() - 2);
  if (!quoted && text.find(',') != std::string_view::npos) return false;
  return !text.empty() && text.size() <= 256 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view(":_.,-").find(c) != std::string_view::npos;
  });
}

std::optional<double> sized(std::string_view text) {
  double factor = 1;
  if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) factor = 1024;
  if (!text.empty() && (text.back() == 'm' || text.back() == 'M')) factor = 1024.0 * 1024;
  if (factor != 1) text.remove_suffix(1);
  const auto value = number<std::uint32_t>(text);
  if (!value) return std::nullopt;
  return *value * factor;
}

bool one_of(std::string_view words, std::string_view text) {
  if (text.empty() || text.find('|') != std::string_view::npos) return false;
  const std::string list = "|" + std::string(words) + "|";
  return list.find("|" + std::string(text) + "|") != std::string::npos;
}

bool matches(Form form, std::string_view text) {
  if (form.empty()) return text.empty();
  const auto rest = form.substr(1);
  switch (form[0]) {
    case '#': {
      const auto value = number<std::int64_t>(text);
      return value && in_range(static_cast<double>(*value), rest);
    }
    case '%': {
      const auto value = number<double>(text);
      return value && in_range(*value, rest);
    }
    case '$': {
      const auto value = sized(text);
      return value && in_range(*value, rest);
    }
    case '@':
      return plain_label(text, number<std::size_t>(rest).value_or(0));
    case '~':
      return security_context(text);
    default:
      return one_of(form, text);
  }
}

template <std::size_t N>
const Rule* find_rule(const Rule (&rules)[N], std::string_view name) {
  const auto it =
      std::find_if(std::begin(rules), std::end(rules), [&](const Rule& r) { return r.name == name; });
  return it == std::end(rules) ? nullptr : it;
}

template <std::size_t N>
std::string names_of(const Rule (&rules)[N]) {
  std::vector<std::string> names;
  for (const auto& rule : rules) names.emplace_back(rule.name);
  return codec::joined(names);
}

// ---- mkfs --------------------------------------------------------------------------------------------

/// Flags whose value is a plain form.
constexpr Rule k_ext4_flags[] = {
    {"-b", "1024|2048|4096"},
    {"-i", "#1024..67108864"},
    {"-I", "128|256|512|1024"},
    {"-m", "%0..50"},
    {"-N", "#1..4294967295"},
    {"-T", "small|default|news|largefile|largefile4|big|huge"},
    {"-L", "@16"},
};
constexpr Rule k_xfs_flags[] = {{"-L", "@12"}, {"-K", ""}};

/// Flags with comma-separated suboptions, as "flag name".
constexpr Rule k_ext4_suboptions[] = {
    {"-E lazy_itable_init", "0|1"},
    {"-E lazy_journal_init", "0|1"},
    {"-E stride", "#1..65536"},
    {"-E stripe_width", "#1..1048576"},
    {"-E stripe-width", "#1..1048576"},
    {"-E packed_meta_blocks", "0|1"},
    {"-E nodiscard", ""},
    {"-J size", "#1..10240"},
    {"-O 64bit", ""},
    {"-O ^64bit", ""},
    {"-O metadata_csum", ""},
    {"-O ^metadata_csum", ""},
    {"-O sparse_super2", ""},
    {"-O ^resize_inode", ""},
    {"-O bigalloc", ""},
    {"-O project", ""},
    {"-O quota", ""},
    {"-O inline_data", ""},
    {"-O large_dir", ""},
    {"-O ^orphan_file", ""},
    {"-O ^metadata_csum_seed", ""},
    {"-O fast_commit", ""},
};
constexpr Rule k_xfs_suboptions[] = {
    {"-b size", "512|1024|2048|4096|1k|2k|4k"},
    {"-d agcount", "#1..1048576"},
    {"-d su", "$512..1073741824"},
    {"-d sw", "#1..65536"},
    {"-d sunit", "#0..2097152"},
    {"-d swidth", "#0..134217728"},
    {"-i size", "256|512|1024|2048|1k|2k"},
    {"-i maxpct", "#0..100"},
    {"-i sparse", "0|1"},
    {"-l size", "$1048576..2136997888"},
    {"-l su", "$4096..262144"},
    {"-l lazy-count", "0|1"},
    {"-m finobt", "0|1"},
    {"-m rmapbt", "0|1"},
    {"-m reflink", "0|1"},
    {"-m bigtime", "0|1"},
    {"-m inobtcount", "0|1"},
    {"-m crc", "1"},
    {"-n size", "4096|8192|16384|32768|65536|4k|8k|16k|32k|64k"},
    {"-s size", "512|4096|4k"},
};

/// Flags refused with a reason of their own.
struct Refusal {
  std::string_view name;
  std::string_view why;
};
constexpr Refusal k_mkfs_refusals[] = {
    {"-F", "forcing could overwrite data; the driver formats only devices it has proved blank"},
    {"-f", "forcing could overwrite data; the driver formats only devices it has proved blank"},
    {"-U", "the driver leaves the UUID to mkfs"},
    {"-n", "a dry run formats nothing"},
    {"-d", "copying a directory into the file system is not supported"},
};

/// Splits "a,b=c" and checks each part against "flag a".
template <std::size_t N>
std::optional<std::string> check_suboptions(const Rule (&rules)[N], std::string_view flag,
                                            std::string_view value) {
  while (true) {
    const auto comma = value.find(',');
    const auto part = value.substr(0, comma);
    const auto equals = part.find('=');
    const auto* rule = find_rule(rules, std::string(flag) + " " + std::string(part.substr(0, equals)));
    if (!rule)
      return "\"" + std::string(part) + "\" is not accepted for " + std::string(flag) +
             "; accepted: " + names_of(rules);
    if (!matches(rule->form, equals == std::string_view::npos ? "" : part.substr(equals + 1)))
      return "\"" + std::string(rule->name) + "\" " + form_text(rule->form);
    if (comma == std::string_view::npos) return std::nullopt;
    value.remove_prefix(comma + 1);
  }
}

template <std::size_t N>
bool has_suboptions(const Rule (&rules)[N], std::string_view flag) {
  return std::any_of(std::begin(rules), std::end(rules),
                     [&](const Rule& r) { return r.name.starts_with(std::string(flag) + " "); });
}

std::optional<std::string> refusal_of(std::string_view flag) {
  for (const auto& refusal : k_mkfs_refusals)
    if (refusal.name == flag) return std::string(refusal.why);
  return std::nullopt;
}

template <std::size_t N, std::size_t M>
FieldErrors check_mkfs(const Rule (&flags)[N], const Rule (&suboptions)[M],
                       const std::vector<std::string>& options, std::string_view path) {
  FieldErrors errors;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const auto at = std::string(path) + "[" + std::to_string(i) + "]";
    const auto seen = codec::shown(options[i]);
    const auto flag = options[i].substr(0, 2);
    const auto* rule = find_rule(flags, flag);
    const bool sub = !rule && has_suboptions(suboptions, flag);
    if (!rule && !sub) {
      errors.push_back({at, seen,
                        refusal_of(flag).value_or("is not an accepted mkfs flag; accepted: " +
                                                  names_of(flags) + ", " + names_of(suboptions))});
      continue;
    }
    std::string value = options[i].substr(flag.size());
    const bool wants_value = sub || !rule->form.empty();
    if (wants_value && value.empty()) {
      if (i + 1 == options.size()) {
        errors.push_back({at, seen, "lacks its value"});
        break;
      }
      value = options[++i];
    }
    if (sub) {
      if (auto problem = check_suboptions(suboptions, flag, value)) errors.push_back({at, seen, *problem});
    } else if (!matches(rule->form, value)) {
      errors.push_back({at, codec::shown(value), flag + " " + form_text(rule->form)});
    }
  }
  return errors;
}

// ---- mount -------------------------------------------------------------------------------------------

constexpr Rule k_mount_common[] = {
    {"noatime", ""},  {"atime", ""},      {"relatime", ""},    {"strictatime", ""},  {"nodiratime", ""},
    {"diratime", ""}, {"lazytime", ""},   {"nolazytime", ""},  {"ro", ""},           {"rw", ""},
    {"nosuid", ""},   {"suid", ""},       {"nodev", ""},       {"noexec", ""},       {"exec", ""},
    {"dirsync", ""},  {"sync", ""},       {"async", ""},       {"discard", ""},      {"nodiscard", ""},
    {"context", "~"}, {"fscontext", "~"}, {"defcontext", "~"}, {"rootcontext", "~"}, {"seclabel", ""},
    {"usrquota", ""}, {"grpquota", ""},   {"prjquota", ""},    {"noquota", ""},      {"silent", ""},
};
constexpr Rule k_mount_ext4[] = {
    {"data", "ordered|journal"},
    {"commit", "#1..300"},
    {"errors", "remount-ro|continue"},
    {"barrier", "1"},
    {"delalloc", ""},
    {"nodelalloc", ""},
    {"acl", ""},
    {"noacl", ""},
    {"user_xattr", ""},
    {"auto_da_alloc", ""},
    {"stripe", "#0..2097152"},
    {"journal_checksum", ""},
    {"max_batch_time", "#0..1000000"},
    {"min_batch_time", "#0..1000000"},
    {"init_itable", "#0..1000"},
    {"noinit_itable", ""},
    {"inode_readahead_blks", "#0..1073741824"},
    {"i_version", ""},
    {"nombcache", ""},
    {"dioread_nolock", ""},
    {"dioread_lock", ""},
};
constexpr Rule k_mount_xfs[] = {
    {"allocsize", "$4096..1073741824"},
    {"inode64", ""},
    {"inode32", ""},
    {"largeio", ""},
    {"nolargeio", ""},
    {"logbufs", "#2..8"},
    {"logbsize", "$16384..262144"},
    {"noalign", ""},
    {"swalloc", ""},
    {"sunit", "#0..2097152"},
    {"swidth", "#0..134217728"},
    {"wsync", ""},
    {"nouuid", ""},
    {"uquota", ""},
    {"gquota", ""},
    {"pquota", ""},
    {"ikeep", ""},
    {"noikeep", ""},
    {"attr2", ""},
};
constexpr Refusal k_mount_refusals[] = {
    {"nobarrier", "without barriers a power cut loses acknowledged writes"},
    {"barrier", "without barriers a power cut loses acknowledged writes"},
    {"norecovery", "mounting without journal replay shows and damages stale content"},
    {"noload", "mounting without journal replay shows and damages stale content"},
    {"remount", "the driver decides about remounting"},
    {"bind", "the driver makes its own bind mounts"},
    {"loop", "the volume is a device already"},
};

template <std::size_t N>
FieldErrors check_mount(const Rule (&rules)[N], const std::vector<std::string>& options,
                        std::string_view path) {
  FieldErrors errors;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const auto at = std::string(path) + "[" + std::to_string(i) + "]";
    const auto seen = codec::shown(options[i]);
    const std::string_view option = options[i];
    const auto equals = option.find('=');
    const auto name = option.substr(0, equals);
    const auto value = equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
    const Rule* rule = find_rule(k_mount_common, name);
    if (!rule) rule = find_rule(rules, name);
    if (rule && matches(rule->form, value)) continue;
    const auto* refusal = std::find_if(std::begin(k_mount_refusals), std::end(k_mount_refusals),
                                       [&](const Refusal& r) { return r.name == name; });
    if (refusal != std::end(k_mount_refusals))
      errors.push_back({at, seen, "is refused: " + std::string(refusal->why)});
    else if (rule)
      errors.push_back({at, seen, form_text(rule->form)});
    else
      errors.push_back({at, seen,
                        "is not an accepted mount option (one option per element); accepted: " +
                            names_of(k_mount_common) + ", " + names_of(rules)});
  }
  return errors;
}

// ---- ZFS ---------------------------------------------------------------------------------------------

constexpr Rule k_zfs_properties[] = {
    {"volblocksize", "4K|8K|16K|32K|64K|128K|4k|8k|16k|32k|64k|128k|4096|8192|16384|32768|65536|131072"},
    {"recordsize", "4K|8K|16K|32K|64K|128K|256K|512K|1M"},
    {"compression",
     "on|off|lz4|zstd|zstd-1|zstd-2|zstd-3|zstd-6|zstd-9|zstd-19|zstd-fast|gzip|gzip-1|gzip-6|gzip-9|zle|"
     "lzjb"},
    {"checksum", "on|fletcher4|sha256|sha512|skein|edonr|blake3"},
    {"copies", "1|2|3"},
    {"dedup", "on|off|verify|sha256|sha512|skein|blake3"},
    {"logbias", "latency|throughput"},
    {"primarycache", "all|none|metadata"},
    {"secondarycache", "all|none|metadata"},
    {"sync", "standard|always"},
    {"redundant_metadata", "all|most|some|none"},
    {"refreservation", "none|auto"},
    {"snapdev", "hidden|visible"},
    {"atime", "on|off"},
    {"relatime", "on|off"},
    {"xattr", "on|off|sa|dir"},
    {"special_small_blocks", "#0..1048576"},
};

}  // namespace

FieldErrors check_mkfs_options(FsType type, const std::vector<std::string>& options, std::string_view path) {
  return type == FsType::ext4 ? check_mkfs(k_ext4_flags, k_ext4_suboptions, options, path)
                              : check_mkfs(k_xfs_flags, k_xfs_suboptions, options, path);
}

FieldErrors check_mount_options(FsType type, const std::vector<std::string>& options, std::string_view path) {
  return type == FsType::ext4 ? check_mount(k_mount_ext4, options, path)
                              : check_mount(k_mount_xfs, options, path);
}

FieldErrors check_zfs_properties(const std::map<std::string, std::string>& properties,
                                 std::string_view path) {
  FieldErrors errors;
  for (const auto& [name, value] : properties) {
    const auto* rule = find_rule(k_zfs_properties, name);
    if (!rule)
      errors.push_back({codec::child_path(path, name), codec::shown(value),
                        "is not an accepted ZFS property; accepted: " + names_of(k_zfs_properties)});
    else if (!matches(rule->form, value))
      errors.push_back({codec::child_path(path, name), codec::shown(value), form_text(rule->form)});
  }
  return errors;
}

}  // namespace pillar::crd
