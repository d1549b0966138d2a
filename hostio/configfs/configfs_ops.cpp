#include "hostio/configfs/configfs_ops.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace pillar::hostio {
namespace {

// An attribute of configfs is at most one page.
constexpr std::size_t k_page = 4096;

ErrnoResult<void> checked(int rc) {
  if (rc != 0) return tl::unexpected<int>(errno);
  return {};
}

int open_retrying(const std::string& path, int flags) {
  int fd = -1;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

PosixConfigfs::PosixConfigfs(std::string root) : root_(std::move(root)) {}

ErrnoResult<void> PosixConfigfs::make_dir(const std::string& path) {
  return checked(::mkdir(full(path).c_str(), 0755));
}

ErrnoResult<void> PosixConfigfs::remove_dir(const std::string& path) {
  return checked(::rmdir(full(path).c_str()));
}

ErrnoResult<std::string> PosixConfigfs::read(const std::string& path) {
  const int fd = open_retrying(full(path), O_RDONLY);
  if (fd < 0) return tl::unexpected<int>(errno);
  std::string text;
  std::array<char, k_page> buffer{};
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    const int error = errno;
    if (n > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(n));
      continue;
    }
    ::close(fd);
    if (n < 0) return tl::unexpected<int>(error);
    return text;
  }
}

// One write call per attribute: the kernel takes each call as a whole new value. EINTR is not retried
// blindly: the store function either ran or did not, and writing the same value again is harmless.
ErrnoResult<void> PosixConfigfs::write(const std::string& path, const std::string& value) {
  const int fd = open_retrying(full(path), O_WRONLY);
  if (fd < 0) return tl::unexpected<int>(errno);
  ssize_t n = 0;
  do n = ::write(fd, value.data(), value.size());
  while (n < 0 && errno == EINTR);
  const int error = n < 0 ? errno : EIO;
  ::close(fd);
  if (n != static_cast<ssize_t>(value.size())) return tl::unexpected<int>(error);
  return {};
}

// configfs resolves the target text as a path of the calling process at once, so it must be absolute.
ErrnoResult<void> PosixConfigfs::link(const std::string& target, const std::string& path) {
  return checked(::symlink(full(target).c_str(), full(path).c_str()));
}

ErrnoResult<void> PosixConfigfs::unlink(const std::string& path) {
  return checked(::unlink(full(path).c_str()));
}

ErrnoResult<std::string> PosixConfigfs::link_target(const std::string& path) {
  std::array<char, k_page> buffer{};
  const ssize_t n = ::readlink(full(path).c_str(), buffer.data(), buffer.size());
  if (n < 0) return tl::unexpected<int>(errno);
  const std::string target(buffer.data(), static_cast<std::size_t>(n));
  return target.substr(target.rfind('/') + 1);
}

ErrnoResult<std::vector<std::string>> PosixConfigfs::list(const std::string& path) {
  DIR* dir = ::opendir(full(path).c_str());
  if (dir == nullptr) return tl::unexpected<int>(errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = &entry->d_name[0];
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(dir);
  if (error != 0) return tl::unexpected<int>(error);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pillar::hostio
