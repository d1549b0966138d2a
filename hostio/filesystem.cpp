#include "hostio/filesystem.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

/// The first lines of a tool's output, for messages.
std::string excerpt(std::string_view output) {
  constexpr std::size_t limit = 400;
  std::string text(trim(output.substr(0, limit)));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "no output" : text;
}

Command command_of(std::vector<std::string> argv, Deadline deadline) {
  Command command;
  command.program = argv.front();
  command.args.assign(argv.begin() + 1, argv.end());
  command.deadline = deadline;
  return command;
}

Result<void> done(const Result<nlohmann::json>& answer, std::string_view what) {
  if (!answer) return tl::unexpected(with_context(answer.error(), what));
  return {};
}

}  // namespace

Result<void> check_fs_type(std::string_view fs_type) {
  if (fs_type == k_fs_ext4 || fs_type == k_fs_xfs) return {};
  return fail(Reason::invalid_argument,
              "filesystem type '" + std::string(fs_type) + "' is not supported; use ext4 or xfs");
}

Result<void> check_fs_size(std::string_view fs_type, std::uint64_t bytes) {
  if (auto known = check_fs_type(fs_type); !known) return known;
  const auto least = fs_type == k_fs_xfs ? k_xfs_min_bytes : k_ext4_min_bytes;
  if (bytes >= least) return {};
  return fail(Reason::out_of_range, "a volume of " + std::to_string(bytes) + " bytes is too small for " +
                                        std::string(fs_type) + ", which needs at least " +
                                        std::to_string(least) + " bytes (" + std::to_string(least >> 20U) +
                                        " MiB)");
}

Result<void> make_filesystem(CommandRunner& runner, std::string_view fs_type,
                             const std::vector<std::string>& options, const std::string& node,
                             Deadline deadline) {
  const auto argv = mkfs_argv(fs_type, options, node);
  if (!argv) return tl::unexpected(argv.error());
  const auto result = run_checked(runner, command_of(*argv, deadline));
  if (!result) return tl::unexpected(with_context(result.error(), "format " + node));
  return {};
}

Result<FsckOutcome> fsck_outcome(int exit_code, std::string_view node, std::string_view output) {
  constexpr int repaired_bits = 1 | 2;
  if (exit_code == 0) return FsckOutcome::clean;
  if ((exit_code & ~repaired_bits) == 0) return FsckOutcome::repaired;
  const std::string what = "e2fsck of " + std::string(node) + " ended with " + std::to_string(exit_code) +
                           " (" + excerpt(output) + ")";
  const std::map<std::string, std::string> details{{"exit_code", std::to_string(exit_code)}};
  if ((exit_code & 4) != 0)
    return fail(
        Reason::filesystem_corrupt,
        what +
            ": errors are left that need a decision; detach the volume, run e2fsck by hand, it is not "
            "mounted before",
        details);
  return fail(Reason::command_failed, what + ": the check could not be done, the volume is not mounted",
              details);
}

Result<FsckOutcome> check_filesystem(CommandRunner& runner, std::string_view fs_type, const std::string& node,
                                     Deadline deadline) {
  if (fs_type != k_fs_ext4) return FsckOutcome::clean;
  const auto result = runner.run(command_of({"e2fsck", "-p", node}, deadline));
  if (!result) return tl::unexpected(with_context(result.error(), "check " + node));
  return fsck_outcome(result->exit_code, node, result->out + result->err);
}

Result<void> grow_filesystem(CommandRunner& runner, std::string_view fs_type, const std::string& node,
                             const std::string& mount_point, Deadline deadline) {
  if (auto known = check_fs_type(fs_type); !known) return known;
  const auto result = fs_type == k_fs_xfs
                          ? run_checked(runner, command_of({"xfs_growfs", "-d", mount_point}, deadline))
                          : run_checked(runner, command_of({"resize2fs", node}, deadline));
  if (!result) return tl::unexpected(with_context(result.error(), "grow " + mount_point));
  return {};
}

Result<FilesystemStats> filesystem_stats(const HelperCall& helper, const std::string& path,
                                         Deadline deadline) {
  const auto answer = helper("statfs", {{"path", path}}, deadline);
  if (!answer) return tl::unexpected(with_context(answer.error(), "statistics of " + path));
  const auto number = [&](const char* key) { return answer->value(key, std::uint64_t{0}); };
  FilesystemStats stats;
  const auto block = number("block_size");
  stats.total_bytes = number("blocks") * block;
  stats.available_bytes = number("available") * block;
  stats.used_bytes = (number("blocks") - std::min(number("blocks"), number("free"))) * block;
  stats.total_inodes = number("files");
  stats.free_inodes = number("files_free");
  stats.used_inodes = stats.total_inodes - std::min(stats.total_inodes, stats.free_inodes);
  return stats;
}

Result<void> sync_filesystem(const HelperCall& helper, const std::string& path, Deadline deadline) {
  return done(helper("syncfs", {{"path", path}}, deadline), "flush " + path);
}

Result<void> set_device_read_only(const HelperCall& helper, const std::string& node, DeviceNumber number,
                                  bool read_only, Deadline deadline) {
  const nlohmann::json input{{"node", node}, {"number", number.str()}, {"read_only", read_only}};
  return done(helper("device-read-only", input, deadline), "device " + node);
}

Result<void> check_device_opens(const HelperCall& helper, const std::string& node, DeviceNumber number,
                                Deadline deadline) {
  return done(helper("open-check", {{"node", node}, {"number", number.str()}}, deadline), "device " + node);
}

std::string_view to_string(FilesystemHealth health) {
  switch (health) {
    case FilesystemHealth::alive:
      return "alive";
    case FilesystemHealth::degraded:
      return "degraded";
    case FilesystemHealth::stalled:
      return "stalled";
    case FilesystemHealth::dead:
      break;
  }
  return "dead";
}

FilesystemVerdict judge_filesystem(const FilesystemEvidence& evidence) {
  using enum FilesystemHealth;
  if (!evidence.device_exists) return {dead, "its block device is gone"};
  if (evidence.shutdown_option) return {dead, "the filesystem has shut down"};
  if (evidence.superblock_read_only && !evidence.expected_read_only)
    return {dead, "the filesystem turned read-only after an error"};
  if (!evidence.device_live) return {stalled, "its storage node does not answer"};
  if (evidence.write_check == -2) return {stalled, "the filesystem did not answer in time"};
  if (evidence.write_check > 0)
    return {dead, std::string("the filesystem refuses access: ") + std::strerror(evidence.write_check)};
  if (evidence.recorded_errors > 0)
    return {degraded, std::to_string(evidence.recorded_errors) + " filesystem errors are recorded"};
  return {alive, ""};
}

Result<FilesystemVerdict> check_filesystem_health(const HelperCall& helper, const HostRoots& roots,
                                                  const MountEntry& entry, bool expected_read_only,
                                                  bool device_live, Deadline deadline) {
  FilesystemEvidence evidence;
  evidence.device_exists = block_device_exists(roots, entry.device);
  evidence.device_live = device_live;
  evidence.expected_read_only = expected_read_only;
  evidence.superblock_read_only = entry.superblock_read_only();
  evidence.shutdown_option =
      has_mount_option(entry.fs_options, "shutdown") || has_mount_option(entry.fs_options, "emergency_ro");
  if (const auto name = block_device_name(roots, entry.device); name && entry.fs_type == k_fs_ext4)
    evidence.recorded_errors =
        read_attribute_number(roots.sys + "/fs/ext4/" + *name + "/errors_count").value_or(0);
  auto verdict = judge_filesystem(evidence);
  if (verdict.health == FilesystemHealth::dead || verdict.health == FilesystemHealth::stalled) return verdict;
  const bool look_only = entry.read_only();
  const auto answer = helper(look_only ? "list-check" : "write-check", {{"path", entry.target}}, deadline);
  if (answer) {
    evidence.write_check = answer->value("errno", 0);
  } else if (answer.error().reason == Reason::command_timeout) {
    evidence.write_check = -2;
  } else {
    return tl::unexpected(with_context(answer.error(), "check of " + entry.target));
  }
  return judge_filesystem(evidence);
}

}  // namespace pillar::hostio
