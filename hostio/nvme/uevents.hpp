#pragma once
// Kernel uevents without udev: the kernel multicasts them to netlink group 1. They only shorten waits; every
// wait also looks again at an interval, so a lost event costs time and nothing else (reported-faults rows
// C05, C08, F09).

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "hostio/block_device.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

/// One kernel event.
struct Uevent {
  std::string action;     ///< add, remove, change, ...
  std::string devpath;    ///< below /sys
  std::string subsystem;  ///< block, nvme, ...
  std::string devname;
};

/// Parses one datagram; nullopt for what is not a kernel uevent (udevd's own messages start with "libudev").
std::optional<Uevent> parse_uevent(std::string_view datagram);

/// A netlink socket that hears kernel uevents.
class UeventListener {
 public:
  /// IO_ERROR when the kernel refuses the socket.
  static Result<UeventListener> open();

  /// Waits until an event of `subsystem` ("block", "nvme"; empty: any) arrives or `limit` has passed. True
  /// when one arrived. Everything queued is consumed. A buffer overrun counts as an event.
  bool wait(std::string_view subsystem, std::chrono::milliseconds limit);

 private:
  explicit UeventListener(UniqueFd fd) : fd_(std::move(fd)) {}
  bool consume(std::string_view subsystem);

  UniqueFd fd_;
};

inline constexpr std::chrono::milliseconds k_uevent_fallback{250};

/// Calls `done` at once, after every uevent and at the latest every `interval`, until it says true, fails or
/// the deadline has passed. True: the condition holds; false: time is up; an error of `done` ends the wait.
/// Blocks the calling thread: blocking pool only. Without a netlink socket it polls.
Result<bool> wait_for(const std::function<Result<bool>()>& done, Deadline deadline,
                      std::chrono::milliseconds interval = k_uevent_fallback);

}  // namespace pillar::hostio
