#include "hostio/block_device.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

std::string device_dir(const HostRoots& roots, DeviceNumber number) {
  return roots.sys + "/dev/block/" + number.str();
}

tl::unexpected<Error> device_gone(DeviceNumber number) {
  return fail(Reason::device_missing,
              "block device " + number.str() +
                  " is not known to the kernel: its session has ended; stage the volume "
                  "again");
}

}  // namespace

std::optional<DeviceNumber> DeviceNumber::parse(std::string_view text) {
  DeviceNumber number;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, number.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != ':') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, number.minor);
  if (minor.ec != std::errc() || minor.ptr != end) return std::nullopt;
  return number;
}

DeviceNumber DeviceNumber::of(dev_t device) { return DeviceNumber{::major(device), ::minor(device)}; }

bool block_device_exists(const HostRoots& roots, DeviceNumber number) {
  return ::access(device_dir(roots, number).c_str(), F_OK) == 0;
}

Result<std::uint64_t> block_device_size(const HostRoots& roots, DeviceNumber number) {
  const auto sectors = read_attribute_number(device_dir(roots, number) + "/size");
  if (!sectors) return device_gone(number);
  return *sectors * 512;
}

Result<bool> block_device_read_only(const HostRoots& roots, DeviceNumber number) {
  const auto value = read_attribute_number(device_dir(roots, number) + "/ro");
  if (!value) return device_gone(number);
  return *value != 0;
}

Result<std::string> block_device_name(const HostRoots& roots, DeviceNumber number) {
  std::error_code ec;
  const auto real = std::filesystem::canonical(device_dir(roots, number), ec);
  if (ec) return device_gone(number);
  return real.filename().string();
}

Result<DeviceNumber> device_number_of_node(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0)
    return tl::unexpected(errno_error(errno, "device node " + path, Reason::device_missing));
  if (!S_ISBLK(st.st_mode)) return fail(Reason::device_mismatch, path + " is not a block device");
  return DeviceNumber::of(st.st_rdev);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() { return std::exchange(fd_, -1); }

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<UniqueFd> open_block_device(const std::string& path, DeviceNumber expected, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int code = errno;
    if (code == ENXIO || code == ENODEV) return device_gone(expected);
    return tl::unexpected(errno_error(code, "open " + path, Reason::device_missing));
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return tl::unexpected(errno_error(errno, "stat " + path));
  if (!S_ISBLK(st.st_mode)) return fail(Reason::device_mismatch, path + " is not a block device");
  if (const auto seen = DeviceNumber::of(st.st_rdev); seen != expected)
    return fail(Reason::device_mismatch, path + " is device " + seen.str() + " now, not " + expected.str() +
                                             ": the name was given to another device; try again");
  return fd;
}

Result<void> set_block_device_read_only(const std::string& path, DeviceNumber expected, bool read_only) {
  const auto fd = open_block_device(path, expected, O_RDONLY);
  if (!fd) return tl::unexpected(fd.error());
  int value = read_only ? 1 : 0;
  if (::ioctl(fd->get(), BLKROSET, &value) != 0)
    return tl::unexpected(errno_error(errno, "set " + path + (read_only ? " read-only" : " writable")));
  return {};
}

}  // namespace pillar::hostio
