#pragma once
// Making, checking, growing and watching ext4 and xfs.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hostio/block_device.hpp"
#include "hostio/host_helpers.hpp"
#include "hostio/mounts.hpp"
#include "hostio/process.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

inline constexpr std::string_view k_fs_ext4 = "ext4";
inline constexpr std::string_view k_fs_xfs = "xfs";
/// Smallest volume mkfs.xfs accepts.
inline constexpr std::uint64_t k_xfs_min_bytes = 300ULL << 20U;
/// Smallest volume we put ext4 on: below this no room is left for a journal.
inline constexpr std::uint64_t k_ext4_min_bytes = 8ULL << 20U;

/// INVALID_ARGUMENT for a type other than ext4 and xfs.
Result<void> check_fs_type(std::string_view fs_type);

/// OUT_OF_RANGE when a volume of `bytes` is too small for `fs_type`; checked at CreateVolume and before mkfs.
Result<void> check_fs_size(std::string_view fs_type, std::uint64_t bytes);

/// The user's mkfs options against the allowlist (messages/filesystem_options.hpp). INVALID_ARGUMENT.
Result<void> check_mkfs_options(std::string_view fs_type, const std::vector<std::string>& options);

/// The command line of mkfs: no force flag, no discard pass (row G08), lazy initialisation, the feature set
/// of kernel 5.4 (row G13), then the checked user options, then the device.
Result<std::vector<std::string>> mkfs_argv(std::string_view fs_type, const std::vector<std::string>& options,
                                           const std::string& node);

/// Runs mkfs. The caller has decided that the device is blank (decide_format). Blocking pool; kills at the
/// deadline.
Result<void> make_filesystem(CommandRunner& runner, std::string_view fs_type,
                             const std::vector<std::string>& options, const std::string& node,
                             Deadline deadline);

/// What a check found.
enum class FsckOutcome : std::uint8_t { clean, repaired };

/// Meaning of e2fsck's exit code (row G11): 0 clean; 1, 2, 3 repaired; anything with bit 4
/// FILESYSTEM_CORRUPT; other bits COMMAND_FAILED. `output` is quoted in the message.
Result<FsckOutcome> fsck_outcome(int exit_code, std::string_view node, std::string_view output);

/// Preen check before a read-write mount: e2fsck -p for ext4; xfs replays its own log at mount, so nothing is
/// done (row G10).
Result<FsckOutcome> check_filesystem(CommandRunner& runner, std::string_view fs_type, const std::string& node,
                                     Deadline deadline);

/// Grows the mounted filesystem to its device (row L03: already at size is fine). resize2fs takes the node,
/// xfs_growfs the mount point.
Result<void> grow_filesystem(CommandRunner& runner, std::string_view fs_type, const std::string& node,
                             const std::string& mount_point, Deadline deadline);

/// statfs numbers.
struct FilesystemStats {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t total_inodes = 0;
  std::uint64_t free_inodes = 0;
  std::uint64_t used_inodes = 0;
};

/// In a helper process (row I01). NOT_FOUND when the path is gone, COMMAND_TIMEOUT at the deadline.
Result<FilesystemStats> filesystem_stats(const HelperCall& helper, const std::string& path,
                                         Deadline deadline);

/// Flushes the filesystem at `path` to its device, in a helper process (row D18). IO_ERROR when data could
/// not be written.
Result<void> sync_filesystem(const HelperCall& helper, const std::string& path, Deadline deadline);

/// Sets or clears the device's read-only flag in a helper process.
Result<void> set_device_read_only(const HelperCall& helper, const std::string& node, DeviceNumber number,
                                  bool read_only, Deadline deadline);

/// Proves in a helper process that the device opens and answers a read of its first block.
Result<void> check_device_opens(const HelperCall& helper, const std::string& node, DeviceNumber number,
                                Deadline deadline);

enum class FilesystemHealth : std::uint8_t {
  alive,
  degraded,  ///< works, but has recorded errors (ext4 errors_count)
  stalled,   ///< its device does not answer now; it may again
  dead,      ///< device gone, journal aborted, shut down, or turned read-only: needs umount and mount
};
std::string_view to_string(FilesystemHealth health);

/// What is known about a mounted filesystem before and after touching it.
struct FilesystemEvidence {
  bool device_exists = true;
  bool device_live = true;  ///< a controller of its subsystem is live
  bool expected_read_only = false;
  bool superblock_read_only = false;
  bool shutdown_option = false;       ///< mountinfo says "shutdown" or "emergency_ro"
  std::uint64_t recorded_errors = 0;  ///< /sys/fs/ext4/<name>/errors_count
  /// Outcome of the write check: 0 worked, errno otherwise, -1 not run, -2 no answer in time.
  int write_check = -1;
};

/// The verdict and its reason in words. Pure.
struct FilesystemVerdict {
  FilesystemHealth health = FilesystemHealth::alive;
  std::string why;
};
FilesystemVerdict judge_filesystem(const FilesystemEvidence& evidence);

/// Whether the filesystem mounted at `entry` still works (rows D03, D12). mountinfo and sysfs decide first;
/// only when they find nothing wrong, and the device is live, the filesystem itself is asked, in a helper
/// process: an unnamed file (O_TMPFILE) in its root is created, written, fsynced and dropped. That goes
/// through the journal to the medium, which no read does (an aborted ext4 journal serves reads and still says
/// "rw"), yet touches no name, no file and no time stamp of the user's data. Read-only mounts list their root
/// directory instead.
Result<FilesystemVerdict> check_filesystem_health(const HelperCall& helper, const HostRoots& roots,
                                                  const MountEntry& entry, bool expected_read_only,
                                                  bool device_live, Deadline deadline);

}  // namespace pillar::hostio
