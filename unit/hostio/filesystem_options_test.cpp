// The allowlist of mkfs and mount options, walked through both sides that use it: the validation of a class
// and the node.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "crd/filesystem_options.hpp"
#include "hostio/filesystem.hpp"
#include "hostio/mounts.hpp"
#include "hostio/process.hpp"
#include "messages/filesystem_options.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace std::chrono_literals;
using hostio::testing::TempDir;

namespace {

using List = std::vector<std::string>;

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> out;
  for (;;) {
    const auto at = text.find(separator);
    out.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + separator.size());
  }
}

/// Values of the form that are just inside of it.
List inside(OptionForm form) {
  if (form.empty()) return {""};
  switch (form[0]) {
    case '#':
    case '%':
    case '$':
    case '*':
      return split(form.substr(1), "..");
    case '@':
      return {"a", std::string(std::stoul(std::string(form.substr(1))), 'x')};
    case '~':
      return {"system_u:object_r:svirt_t:s0", "\"system_u:object_r:svirt_t:s0:c1,c2\""};
    default:
      return split(form, "|");
  }
}

/// Values just outside.
List outside(OptionForm form) {
  if (form.empty()) return {"1"};
  switch (form[0]) {
    case '@':
      return {"", "a b", "-a", std::string(std::stoul(std::string(form.substr(1))) + 1, 'x')};
    case '~':
      return {"", "a b"};
    case '*':
      return {"", "5000", "2147483648"};
    default:
      return {"", "x", "-1", "99999999999"};
  }
}

/// "stride=4", "quota", "4096": an option of `row` below its flag, or a mount option.
std::string item(std::string_view name, OptionForm form, const std::string& value) {
  return std::string(name) + (form.empty() && value.empty() ? "" : "=") + value;
}

/// The list that asks for `row` with `value`, together with what the row needs.
List mkfs_list(std::string_view fs, const AllowedOption& row, const std::string& value) {
  const std::string flag(row.name.substr(0, 2));
  if (row.name.size() == 2) return row.form.empty() && value.empty() ? List{flag} : List{flag, value};
  std::string text = item(row.name.substr(3), row.form, value);
  for (const auto& other : allowed_mkfs_options(fs))
    if (!row.needs.empty() && other.name == flag + " " + std::string(row.needs))
      text += "," + item(row.needs, other.form, inside(other.form).front());
  return {flag, text};
}

List mount_list(std::string_view fs, const AllowedOption& row, const std::string& value) {
  List list{item(row.name, row.form, value)};
  for (const auto& other : allowed_mount_options(fs))
    if (!row.needs.empty() && other.name == row.needs)
      list.push_back(item(other.name, other.form, inside(other.form).front()));
  return list;
}

std::string text_of(const List& list) {
  std::string out;
  for (const auto& each : list) out += each + " ";
  return out;
}

crd::FsType type_of(std::string_view fs) { return fs == "ext4" ? crd::FsType::ext4 : crd::FsType::xfs; }

struct Verdict {
  bool class_takes = false;
  bool node_takes = false;
};
Verdict mount_verdict(std::string_view fs, const List& list) {
  return {crd::check_mount_options(type_of(fs), list, "spec.filesystem.mountOptions").empty(),
          hostio::parse_mount_options(fs, list, false).has_value()};
}
Verdict mkfs_verdict(std::string_view fs, const List& list) {
  return {crd::check_mkfs_options(type_of(fs), list, "spec.filesystem.mkfsOptions").empty(),
          hostio::mkfs_argv(fs, list, "/dev/x").has_value()};
}

}  // namespace

TEST_CASE("every allowed mount option is taken by the class and by the node") {
  for (const std::string_view fs : {"ext4", "xfs"}) {
    for (const auto& row : allowed_mount_options(fs)) {
      for (const auto& value : inside(row.form)) {
        const auto list = mount_list(fs, row, value);
        CAPTURE(text_of(list));
        const auto verdict = mount_verdict(fs, list);
        CHECK(verdict.class_takes);
        CHECK(verdict.node_takes);
        // What the node records is read again when pods are published.
        const auto parsed = hostio::parse_mount_options(fs, list, false);
        if (!parsed) continue;
        const auto again = hostio::parse_mount_options(fs, {parsed->str()}, false);
        REQUIRE(again);
        CHECK(*again == *parsed);
      }
      for (const auto& value : outside(row.form)) {
        if (value.empty() && row.form.empty()) continue;
        const List list{std::string(row.name) + "=" + value};
        CAPTURE(text_of(list));
        const auto verdict = mount_verdict(fs, list);
        CHECK(!verdict.class_takes);
        CHECK(!verdict.node_takes);
      }
    }
  }
}

TEST_CASE("every allowed mkfs option is taken by the class and by the node") {
  for (const std::string_view fs : {"ext4", "xfs"}) {
    for (const auto& row : allowed_mkfs_options(fs)) {
      for (const auto& value : inside(row.form)) {
        const auto list = mkfs_list(fs, row, value);
        CAPTURE(text_of(list));
        const auto verdict = mkfs_verdict(fs, list);
        CHECK(verdict.class_takes);
        CHECK(verdict.node_takes);
      }
      for (const auto& value : outside(row.form)) {
        const auto list = mkfs_list(fs, row, value);
        CAPTURE(text_of(list));
        const auto verdict = mkfs_verdict(fs, list);
        CHECK(!verdict.class_takes);
        CHECK(!verdict.node_takes);
      }
    }
  }
}

TEST_CASE("what one side refuses the other refuses, with place, value and remedy") {
  const std::pair<std::string_view, List> mounts[] = {
      {"ext4", {"seclabel"}},
      {"ext4", {"nombcache"}},
      {"ext4", {"silent"}},
      {"ext4", {""}},
      {"ext4", {"noatime", "atime"}},
      {"ext4", {"noauto_da_alloc"}},
      {"ext4", {"nobarrier"}},
      {"ext4", {"data=writeback"}},
      {"ext4", {"commit=0"}},
      {"xfs", {"ikeep"}},
      {"xfs", {"attr2"}},
      {"xfs", {"logbsize=100k"}},
      {"xfs", {"sunit=8"}},
      {"xfs", {"noalign", "sunit=8,swidth=8"}},
  };
  for (const auto& [fs, list] : mounts) {
    CAPTURE(text_of(list));
    const auto verdict = mount_verdict(fs, list);
    CHECK(!verdict.class_takes);
    CHECK(!verdict.node_takes);
  }
  const std::pair<std::string_view, List> mkfs[] = {
      {"ext4", {"-O", "bigalloc"}},       {"ext4", {"-O", "fast_commit"}}, {"ext4", {"-O", "quota,quota"}},
      {"ext4", {"-E", "stripe-width=8"}}, {"ext4", {"-T", "default"}},     {"xfs", {"-i", "size=256"}},
      {"xfs", {"-l", "lazy-count=1"}},    {"xfs", {"-m", "bigtime=1"}},    {"xfs", {"-d", "su=64k"}},
      {"xfs", {"-b", "size=512"}},        {"ext4", {"-O", "quota,"}},
  };
  for (const auto& [fs, list] : mkfs) {
    CAPTURE(text_of(list));
    const auto verdict = mkfs_verdict(fs, list);
    CHECK(!verdict.class_takes);
    CHECK(!verdict.node_takes);
  }
  const auto errors =
      crd::check_mount_options(crd::FsType::ext4, {"noatime", "seclabel"}, "spec.filesystem.mountOptions");
  REQUIRE(errors.size() == 1);
  CHECK(errors.front().path == "spec.filesystem.mountOptions[1]");
  CHECK(errors.front().value == "\"seclabel\"");
  CHECK(errors.front().problem.find("accepted: defaults") != std::string::npos);
}

TEST_CASE("the real mkfs makes a filesystem with each allowed option") {
  const TempDir dir;
  hostio::ProcessRunner runner;
  // Ends of ranges that no small image can have.
  const auto too_much = [](std::string_view name, const std::string& value) {
    constexpr std::string_view rows[] = {"-N 4294967295",       "-J size 10240",      "-d agcount 65536",
                                         "-b size 1024",        "-d su 1073741824",   "-d sunit 2097152",
                                         "-d swidth 134217728", "-l size 2136997888", "-l size 1048576",
                                         "-d agcount 1",        "-d sw 65536"};
    const std::string text = std::string(name) + " " + value;
    return std::any_of(std::begin(rows), std::end(rows), [&](auto row) { return row == text; });
  };
  for (const std::string_view fs : {"ext4", "xfs"}) {
    const auto path = dir / std::string(fs);
    for (const auto& row : allowed_mkfs_options(fs)) {
      for (const auto& value : inside(row.form)) {
        if (too_much(row.name, value)) continue;
        const auto list = mkfs_list(fs, row, value);
        CAPTURE(text_of(list));
        std::filesystem::remove(path);
        std::ofstream(path).close();
        std::filesystem::resize_file(path, 2ULL << 30U);  // sparse; with stripes xfs wants a large log
        const auto made = hostio::make_filesystem(runner, fs, list, path, Deadline::after(60s));
        CHECK_MESSAGE(made.has_value(), (made ? "" : made.error().message));
      }
    }
  }
}
