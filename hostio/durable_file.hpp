#pragma once
// Files that survive a power cut: O_EXCL temp -> write -> fdatasync -> rename -> fsync of the directory.
// After a crash at any step the path holds the whole old or the whole new content.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"

namespace pillar::hostio {

/// Called before each durable step with its name ("create", "write", "sync", "rename", "remove", "sync-dir");
/// an error stops there and leaves the disk as a power cut would (no cleanup). Failpoint for crash tests.
using DurableHook = std::function<Result<void>(std::string_view step)>;

/// Replaces `path` durably. STATE_UNWRITABLE for read-only, full or unpermitted file systems, IO_ERROR
/// otherwise; both name the path.
Result<void> write_file_durable(const std::string& path, std::string_view bytes, mode_t mode = 0600,
                                const DurableHook& hook = {});

/// Removes `path` durably; a missing file is success.
Result<void> remove_durable(const std::string& path, const DurableHook& hook = {});

/// Group commit: many files of one directory with one directory fsync. stage() may be called from several
/// threads only with outside locking. What was staged but not committed is discarded on destruction.
class DurableBatch {
 public:
  explicit DurableBatch(std::string directory, DurableHook hook = {});
  DurableBatch(const DurableBatch&) = delete;
  DurableBatch& operator=(const DurableBatch&) = delete;
  ~DurableBatch();

  /// Writes and syncs the temp file of `name` (a plain file name). An error leaves the other entries alone.
  Result<void> stage(const std::string& name, std::string_view bytes, mode_t mode = 0600);
  /// Stages the removal of `name`; a missing file is success.
  Result<void> stage_removal(const std::string& name);
  /// Renames all in the order of staging and syncs the directory once. One result per successful stage call,
  /// in order; a failed directory sync fails them all. The batch is empty afterwards.
  std::vector<Result<void>> commit();

 private:
  struct Entry {
    std::string path;
    std::string temp;  ///< empty: a removal
  };
  Result<void> apply(const Entry& entry) const;

  std::string directory_;
  DurableHook hook_;
  bool cut_ = false;  ///< the hook stopped us: leave temps as a power cut would
  std::vector<Entry> entries_;
};

/// Whole content of `path`. NOT_FOUND when missing, STATE_CORRUPT when larger than `limit` bytes or not a
/// regular file.
Result<std::string> read_file(const std::string& path, std::size_t limit = 1024 * 1024);

/// True when the error says that a file system has no room left (ENOSPC, EDQUOT).
bool is_full(const Error& error);

/// Creates (with parents 0755) or checks a state directory: a real directory (no symlink), owned by us, mode
/// 0700 (tightened when wider), writable. STATE_UNWRITABLE naming the path and the remedy. A full one is
/// taken: what is in it can be read, and each call that has to write says that there is no room.
Result<void> ensure_state_directory(const std::string& path);

/// Deletes temp files that a crash left in `directory`; how many.
Result<std::size_t> remove_leftover_temps(const std::string& directory);

/// CRC-32C (Castagnoli), as in RFC 3720 B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace pillar::hostio
