#pragma once
// Block devices as the kernel describes them: numbers, sizes and liveness from sysfs, which never touch the
// medium, and the few calls that need the open device.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "messages/error.hpp"

namespace pillar::hostio {

/// A device number. Names such as nvme0n1 are handed out again by the kernel; the number is what mountinfo
/// and an open descriptor agree on.
struct DeviceNumber {
  unsigned major = 0;
  unsigned minor = 0;

  /// Parses "259:3", the form of mountinfo and of sysfs `dev` files.
  static std::optional<DeviceNumber> parse(std::string_view text);
  static DeviceNumber of(dev_t device);
  std::string str() const { return std::to_string(major) + ":" + std::to_string(minor); }
  friend bool operator==(const DeviceNumber&, const DeviceNumber&) = default;
  friend auto operator<=>(const DeviceNumber&, const DeviceNumber&) = default;
};

/// Where the kernel's views are found; tests point elsewhere.
struct HostRoots {
  std::string sys = "/sys";
  std::string dev = "/dev";
  std::string proc = "/proc";
};

/// True while the kernel has the block device: /sys/dev/block/M:m exists. A device that was torn down under a
/// mount stays in mountinfo but leaves this directory, so this is the test of a dead mount (never stat).
bool block_device_exists(const HostRoots& roots, DeviceNumber number);

/// Size in bytes from sysfs (no open, cannot hang). DEVICE_MISSING when the kernel does not have the device.
Result<std::uint64_t> block_device_size(const HostRoots& roots, DeviceNumber number);

/// The kernel's read-only flag of the device.
Result<bool> block_device_read_only(const HostRoots& roots, DeviceNumber number);

/// Kernel name of the device ("nvme0n1"), from sysfs.
Result<std::string> block_device_name(const HostRoots& roots, DeviceNumber number);

/// The device number of the node at `path`: a stat of the node, no open. DEVICE_MISSING when there is no
/// node, DEVICE_MISMATCH when it is no block device.
Result<DeviceNumber> device_number_of_node(const std::string& path);

/// Sets or clears the device's read-only flag (BLKROSET), so that a read-only publication holds for raw block
/// access too (reported-faults row H03). Opens the device, so it can hang: filesystem.hpp has the helper
/// form.
Result<void> set_block_device_read_only(const std::string& path, DeviceNumber expected, bool read_only);

/// A descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

/// Opens the block device at `path` and proves that the node still stands for `expected` (rows C01, C06: a
/// name may have moved to another device between look-up and open). `flags` are open(2) flags. Can hang on a
/// dead device.
Result<UniqueFd> open_block_device(const std::string& path, DeviceNumber expected, int flags);

}  // namespace pillar::hostio
