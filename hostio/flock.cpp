#include "hostio/flock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "hostio/durable_file.hpp"

namespace pillar::hostio {
namespace {

std::string holder_of(int fd) {
  std::array<char, 32> buffer{};
  const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), 0);
  std::string_view text(buffer.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  text = text.substr(0, text.find('\n'));
  return text.empty() ? "unknown" : std::string(text);
}

}  // namespace

Result<DirectoryLock> DirectoryLock::acquire(const std::string& directory) {
  const std::string path = directory + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    const Error error = errno_error(errno, "lock file " + path);
    return fail(Reason::state_unwritable,
                error.message + "; the state directory must be a writable directory of this user");
  }
  DirectoryLock lock(fd);
  int rc = 0;
  do rc = ::flock(fd, LOCK_EX | LOCK_NB);
  while (rc != 0 && errno == EINTR);
  if (rc != 0 && errno != EWOULDBLOCK) return tl::unexpected(errno_error(errno, "flock " + path));
  if (rc != 0) {
    const std::string pid = holder_of(fd);
    return fail(Reason::state_locked,
                "state directory " + directory + " is in use by process " + pid +
                    "; stop that process or give this one another directory",
                {{"directory", directory}, {"pid", pid}});
  }
  // The pid only serves the message above; the lock itself is the kernel's and needs no room.
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const Error error = errno_error(errno, "write " + path);
    if (is_full(error)) return lock;
    return fail(Reason::state_unwritable, error.message + "; free space or remount the file system writable");
  }
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace pillar::hostio
