#include "crd/filesystem_options.hpp"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "crd/codec.hpp"
#include "messages/filesystem_options.hpp"

namespace pillar::crd {
namespace {

struct Rule {
  std::string_view name;
  OptionForm form;
};

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

std::string zfs_names() {
  std::vector<std::string> names;
  for (const auto& rule : k_zfs_properties) names.emplace_back(rule.name);
  return codec::joined(names);
}

FieldErrors to_errors(const std::vector<OptionProblem>& problems, std::string_view path) {
  FieldErrors errors;
  for (const auto& each : problems)
    errors.push_back(
        {std::string(path) + "[" + std::to_string(each.element) + "]", codec::shown(each.text), each.why});
  return errors;
}

}  // namespace

std::vector<AllowedOption> allowed_zfs_properties() {
  std::vector<AllowedOption> out;
  for (const auto& rule : k_zfs_properties) out.push_back({rule.name, rule.form, ""});
  return out;
}

FieldErrors check_mkfs_options(FsType type, const std::vector<std::string>& options, std::string_view path) {
  return to_errors(read_mkfs_options(to_string(type), options).problems, path);
}

FieldErrors check_mount_options(FsType type, const std::vector<std::string>& options, std::string_view path) {
  return to_errors(read_mount_options(to_string(type), options).problems, path);
}

FieldErrors check_zfs_properties(const std::map<std::string, std::string>& properties,
                                 std::string_view path) {
  FieldErrors errors;
  for (const auto& [name, value] : properties) {
    const auto* rule = std::find_if(std::begin(k_zfs_properties), std::end(k_zfs_properties),
                                    [key = std::string_view(name)](const Rule& r) { return r.name == key; });
    if (rule == std::end(k_zfs_properties))
      errors.push_back({codec::child_path(path, name), codec::shown(value),
                        "is not an accepted ZFS property; accepted: " + zfs_names()});
    else if (!fits_form(rule->form, value))
      errors.push_back({codec::child_path(path, name), codec::shown(value), form_text(rule->form)});
  }
  return errors;
}

}  // namespace pillar::crd
