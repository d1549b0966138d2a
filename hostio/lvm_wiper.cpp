#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "hostio/lvm.hpp"

namespace pillar::hostio {
namespace {

constexpr std::size_t k_mib = 1024 * 1024;
constexpr std::size_t k_alignment = 4096;  // enough for O_DIRECT on every logical block size

Result<void> write_zeroes(int fd, const char* zeroes, std::uint64_t offset, std::uint64_t length,
                          const std::string& name) {
  while (length > 0) {
    const ssize_t n = ::pwrite(fd, zeroes, static_cast<std::size_t>(length), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tl::unexpected(errno_error(n < 0 ? errno : EIO, "zero " + name));
    offset += static_cast<std::uint64_t>(n);
    length -= static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

Result<void> zero_ends(int fd, std::uint64_t size_bytes, const std::string& name) {
  const std::unique_ptr<char, decltype(&std::free)> zeroes(
      static_cast<char*>(std::aligned_alloc(k_alignment, k_mib)), &std::free);
  if (!zeroes) return fail(Reason::internal, "out of memory");
  std::memset(zeroes.get(), 0, k_mib);
  const std::uint64_t length = std::min<std::uint64_t>(size_bytes, k_mib);
  if (auto r = write_zeroes(fd, zeroes.get(), 0, length, name); !r) return r;
  if (auto r = write_zeroes(fd, zeroes.get(), size_bytes - length, length, name); !r) return r;
  if (::fsync(fd) != 0) return tl::unexpected(errno_error(errno, "sync " + name));
  return {};
}

Result<void> DirectWiper::zero_ends(const LvDevice& device) {
  const Result<UniqueFd> fd =
      open_block_device(device.path, device.number, O_RDWR | O_DIRECT | O_EXCL | O_CLOEXEC);
  if (!fd) return tl::unexpected(fd.error());
  std::uint64_t size = 0;
  if (::ioctl(fd->get(), BLKGETSIZE64, &size) != 0)
    return tl::unexpected(errno_error(errno, "size of " + device.path));
  if (size != device.size_bytes)
    return fail(Reason::device_mismatch, device.path + " has " + std::to_string(size) + " bytes, expected " +
                                             std::to_string(device.size_bytes) + "; nothing was written");
  return hostio::zero_ends(fd->get(), size, device.path);
}

}  // namespace pillar::hostio
