#include "hostio/nvme/uevents.hpp"

#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace pillar::hostio {
namespace {

constexpr std::uint32_t k_kernel_group = 1;  // group 2 is udevd's

/// Pause after an event: attaching many volumes makes bursts, and each look reads many files.
constexpr int k_burst_ms = 5;

}  // namespace

std::optional<Uevent> parse_uevent(std::string_view datagram) {
  const auto header = datagram.substr(0, datagram.find('\0'));
  const auto at = header.find('@');
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  Uevent event;
  event.action = std::string(header.substr(0, at));
  event.devpath = std::string(header.substr(at + 1));
  for (auto rest = datagram.substr(header.size()); !rest.empty();) {
    rest.remove_prefix(1);
    const auto field = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(field.size());
    if (field.starts_with("SUBSYSTEM=")) event.subsystem = std::string(field.substr(10));
    if (field.starts_with("DEVNAME=")) event.devname = std::string(field.substr(8));
  }
  return event;
}

Result<UeventListener> UeventListener::open() {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT));
  if (!fd) return tl::unexpected(errno_error(errno, "open the kernel event socket"));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = k_kernel_group;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return tl::unexpected(errno_error(errno, "listen to kernel events"));
  return UeventListener(std::move(fd));
}

bool UeventListener::consume(std::string_view subsystem) {
  bool heard = false;
  std::array<char, 8192> buffer{};
  for (;;) {
    const auto got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == ENOBUFS) {
      heard = true;
      continue;
    }
    if (got < 0) return heard;
    const auto event = parse_uevent({buffer.data(), static_cast<std::size_t>(got)});
    if (event && (subsystem.empty() || event->subsystem == subsystem)) heard = true;
  }
}

bool UeventListener::wait(std::string_view subsystem, std::chrono::milliseconds limit) {
  const auto until = Deadline::after(limit);
  for (;;) {
    if (consume(subsystem)) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.left());
    if (left.count() <= 0) return false;
    pollfd waiting{fd_.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<bool> wait_for(const std::function<Result<bool>()>& done, Deadline deadline,
                      std::chrono::milliseconds interval) {
  // Listening starts before the first look, so that nothing happens unheard in between.
  auto listener = UeventListener::open();
  for (;;) {
    auto now = done();
    if (!now || *now) return now;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    if (left.count() <= 0) return false;
    const auto pause = std::min(left, interval);
    if (listener) {
      if (listener->wait({}, pause)) ::poll(nullptr, 0, k_burst_ms);
    } else {
      ::poll(nullptr, 0, static_cast<int>(pause.count()));
    }
  }
}

}  // namespace pillar::hostio
