#pragma once
// One process per state directory.

#include <string>

#include "messages/error.hpp"

namespace pillar::hostio {

/// Exclusive advisory lock on `<directory>/lock`, held until destruction or the end of the process (the
/// kernel drops it, so a crash leaves no stale lock).
class DirectoryLock {
 public:
  /// STATE_LOCKED naming directory and pid of the holder when another process (or another DirectoryLock of
  /// this process) has it.
  static Result<DirectoryLock> acquire(const std::string& directory);

  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace pillar::hostio
