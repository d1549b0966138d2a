#include "hostio/nvme/fabrics.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "hostio/nvme/uevents.hpp"
#include "hostio/sysfs.hpp"

namespace pillar::hostio {
namespace {

using Tunable = std::optional<std::int32_t> FabricsTunables::*;

/// Range and name of each tunable; `off_at_minus_one`: -1 is legal beside the range.
struct TunableRow {
  std::string_view option;
  Tunable member;
  std::int32_t low;
  std::int32_t high;
  bool minus_one;
};

constexpr std::array k_tunables{
    TunableRow{"ctrl_loss_tmo", &FabricsTunables::ctrl_loss_tmo, 0, 30 * 86400, true},
    TunableRow{"reconnect_delay", &FabricsTunables::reconnect_delay, 1, 3600, false},
    TunableRow{"keep_alive_tmo", &FabricsTunables::keep_alive_tmo, 1, 3600, false},
    TunableRow{"fast_io_fail_tmo", &FabricsTunables::fast_io_fail_tmo, 0, 30 * 86400, true},
    TunableRow{"nr_io_queues", &FabricsTunables::nr_io_queues, 1, 128, false},
    TunableRow{"queue_size", &FabricsTunables::queue_size, 16, 1024, false},
};

/// Timeouts the kernel lets us change on a controller that exists (row E01: applied on reuse too).
constexpr std::array k_writable{
    TunableRow{"ctrl_loss_tmo", &FabricsTunables::ctrl_loss_tmo, 0, 0, true},
    TunableRow{"reconnect_delay", &FabricsTunables::reconnect_delay, 0, 0, false},
    TunableRow{"fast_io_fail_tmo", &FabricsTunables::fast_io_fail_tmo, 0, 0, true},
};

constexpr std::chrono::milliseconds k_rescan_interval{1000};

bool same_host(const NvmeController& controller, const HostIdentity& host) {
  return controller.host_nqn == host.nqn && controller.host_id == lower(host.id);
}

/// A session that can carry a volume, now or after a reconnect.
bool usable(ControllerState state) {
  return state != ControllerState::deleting && state != ControllerState::dead;
}

std::string names_of(const std::vector<NvmeController>& controllers) {
  std::string out;
  for (const auto& one : controllers)
    out += (out.empty() ? "" : ", ") + one.name + " (" + std::string(to_string(one.state)) + ", host " +
           one.host_nqn + ")";
  return out;
}

std::string endpoint(const FabricsTarget& target) {
  return (target.address.v6 ? "[" + target.address.text + "]" : target.address.text) + ":" +
         std::to_string(target.port);
}

tl::unexpected<Error> bad(std::string_view field, std::string_view value, std::string_view wanted) {
  return fail(Reason::invalid_argument,
              std::string(field) + " '" + std::string(value) + "' must be " + std::string(wanted));
}

bool plain(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f && c != ','; });
}

/// What the errno of a connect says about NVMe/TCP and what to do about it.
struct ErrnoRow {
  int code;
  Reason reason;
  std::string_view meaning;
};

constexpr std::array k_connect_errors{
    ErrnoRow{
        EIO, Reason::connect_failed,
        "the target refused: the subsystem is not exported on that port or this host is not in its list of "
        "allowed hosts; check that the volume is published to this node and that the agent's ExportsReady "
        "condition is true"},
    ErrnoRow{
        ECONNREFUSED, Reason::connect_failed,
        "nothing listens there; check that the storage node is up and its agent has restored its exports"},
    ErrnoRow{ETIMEDOUT, Reason::connect_failed,
             "the storage node does not answer; check the network path and firewall to this port"},
    ErrnoRow{EHOSTUNREACH, Reason::connect_failed, "no route to the storage node; check the network"},
    ErrnoRow{ENETUNREACH, Reason::connect_failed, "no route to the storage node; check the network"},
    ErrnoRow{ECONNRESET, Reason::connect_failed, "the target closed the connection; it may be restarting"},
    ErrnoRow{EINVAL, Reason::connect_failed,
             "the kernel rejected the connection; the kernel log of this node has the reason"},
    ErrnoRow{EAFNOSUPPORT, Reason::connect_failed, "this kernel does not have that address family enabled"},
    ErrnoRow{ENOENT, Reason::module_missing, "no fabrics device; load the kernel module nvme_fabrics"},
    ErrnoRow{ENODEV, Reason::module_missing, "no fabrics device; load the kernel module nvme_fabrics"},
    ErrnoRow{ENXIO, Reason::module_missing, "no fabrics device; load the kernel module nvme_fabrics"},
    ErrnoRow{EPROTONOSUPPORT, Reason::module_missing, "load the kernel module nvme_tcp"},
    ErrnoRow{EACCES, Reason::permission_denied, "run the node plugin privileged"},
    ErrnoRow{EPERM, Reason::permission_denied, "run the node plugin privileged"},
};

}  // namespace

Result<void> validate(const FabricsTunables& tunables) {
  for (const auto& row : k_tunables) {
    const auto& value = tunables.*row.member;
    if (!value || (row.minus_one && *value == -1)) continue;
    if (*value < row.low || *value > row.high)
      return bad(row.option, std::to_string(*value),
                 std::to_string(row.low) + ".." + std::to_string(row.high) + (row.minus_one ? " or -1" : ""));
  }
  const auto& loss = tunables.ctrl_loss_tmo;
  const auto& fast = tunables.fast_io_fail_tmo;
  if (loss && fast && *loss >= 0 && *fast > *loss)
    return bad("fast_io_fail_tmo", std::to_string(*fast), "at most ctrl_loss_tmo " + std::to_string(*loss));
  return {};
}

Result<std::string> fabrics_option_string(const FabricsTarget& target) {
  if (!is_valid_nqn(target.nqn)) return bad("subsystem NQN", target.nqn, "a valid NQN");
  if (!is_valid_nqn(target.host.nqn)) return bad("host NQN", target.host.nqn, "a valid NQN");
  if (target.host.id.size() != 36 || !plain(target.host.id)) return bad("host id", target.host.id, "a UUID");
  if (!plain(target.address.text) || !IpAddress::parse(target.address.text))
    return bad("address", target.address.text, "an IPv4 or IPv6 literal");
  if (target.port == 0) return bad("port", "0", "1..65535");
  if (auto checked = validate(target.tunables); !checked) return tl::unexpected(checked.error());
  std::string line = "transport=tcp,traddr=" + target.address.text +
                     ",trsvcid=" + std::to_string(target.port) + ",nqn=" + target.nqn +
                     ",hostnqn=" + target.host.nqn + ",hostid=" + target.host.id;
  for (const auto& row : k_tunables)
    if (const auto& value = target.tunables.*row.member)
      line += "," + std::string(row.option) + "=" + std::to_string(*value);
  return line;
}

std::optional<FabricsReply> parse_fabrics_reply(std::string_view text) {
  FabricsReply reply;
  const auto number = [&](std::string_view key, int& out) {
    const auto at = text.find(key);
    if (at == std::string_view::npos) return;
    const char* begin = text.data() + at + key.size();
    std::from_chars(begin, text.data() + text.size(), out);
  };
  number("instance=", reply.instance);
  number("cntlid=", reply.cntlid);
  if (reply.instance < 0) return std::nullopt;
  return reply;
}

Error fabrics_connect_error(int errno_value, const FabricsTarget& target,
                            const std::vector<NvmeController>& stale) {
  const std::string what =
      "connect to " + target.nqn + " at " + endpoint(target) + ": " + std::strerror(errno_value);
  std::map<std::string, std::string> details{{"errno", std::to_string(errno_value)}};
  const auto make = [&](Reason reason, const std::string& meaning) {
    return Error{info(reason).code, reason, what + ": " + meaning, std::move(details)};
  };
  if (!stale.empty() && (errno_value == EINVAL || errno_value == EALREADY))
    return make(Reason::connect_failed,
                "this node still has a session to it under another host identity: " + names_of(stale) +
                    "; end it before connecting as " + target.host.nqn);
  if (errno_value == EALREADY)
    return make(Reason::connect_failed,
                "the kernel knows this connection but sysfs does not show it; try again");
  for (const auto& row : k_connect_errors)
    if (row.code == errno_value) return make(row.reason, std::string(row.meaning));
  return make(Reason::connect_failed, "the kernel log of this node has the reason");
}

Result<std::optional<NvmeController>> Fabrics::find_session(const FabricsTarget& target) const {
  const auto all = topology_.controllers(target.nqn);
  if (!all) return tl::unexpected(all.error());
  std::optional<NvmeController> best;
  for (const auto& one : *all) {
    if (one.transport != "tcp" || one.address != target.address.text || one.port != target.port ||
        !same_host(one, target.host) || !usable(one.state))
      continue;
    if (!best || one.state == ControllerState::live) best = one;
  }
  return best;
}

Result<FabricsSession> Fabrics::reuse(NvmeController controller, const FabricsTunables& wanted) const {
  for (const auto& row : k_writable) {
    const auto& value = wanted.*row.member;
    if (!value) continue;
    const auto text = std::to_string(*value);
    const auto path = controller.dir + "/" + std::string(row.option);
    const auto seen = read_attribute(path);
    if (!seen || *seen == text || (*value == -1 && *seen == "off")) continue;
    if (const int code = write_attribute(path, text); code != 0)
      return tl::unexpected(errno_error(code, "set " + std::string(row.option) + " of " + controller.name +
                                                  " from " + *seen + " to " + text));
  }
  return FabricsSession{std::move(controller), true};
}

Result<int> Fabrics::write_connect(const std::string& options, Deadline deadline) const {
  const nlohmann::json input{{"device", topology_.roots().dev + "/nvme-fabrics"}, {"options", options}};
  auto answer = helper_("nvme-connect", input, deadline);
  if (!answer) return tl::unexpected(with_context(answer.error(), "connect"));
  return answer->value("errno", 0);
}

Result<FabricsSession> Fabrics::connect(const FabricsTarget& target, Deadline deadline) const {
  const auto options = fabrics_option_string(target);
  if (!options) return tl::unexpected(options.error());
  auto session = find_session(target);
  if (!session) return tl::unexpected(session.error());
  if (*session) return reuse(std::move(**session), target.tunables);
  const auto code = write_connect(*options, deadline);
  if (!code) return tl::unexpected(code.error());
  session = find_session(target);
  if (!session) return tl::unexpected(session.error());
  if (*session && *code == 0) return FabricsSession{std::move(**session), false};
  if (*session && *code == EALREADY) return reuse(std::move(**session), target.tunables);
  const auto stale = stale_controllers(target.nqn, target.host);
  if (!stale) return tl::unexpected(stale.error());
  if (*code != 0) {
    // Without the transport's module the kernel answers EINVAL, as for a wrong option.
    const bool no_transport = *code == EINVAL && stale->empty() &&
                              ::access((topology_.roots().sys + "/module/nvme_tcp").c_str(), F_OK) != 0;
    return tl::unexpected(fabrics_connect_error(no_transport ? EPROTONOSUPPORT : *code, target, *stale));
  }
  return fail(Reason::connect_failed, "session to " + target.nqn + " at " + endpoint(target) +
                                          " ended right after it was made; try again");
}

Result<void> Fabrics::delete_controllers(std::string_view nqn, const std::vector<NvmeController>& which,
                                         Deadline deadline) const {
  for (const auto& one : which) {
    if (one.state == ControllerState::deleting) continue;
    const nlohmann::json input{{"dir", one.dir}, {"nqn", std::string(nqn)}};
    // A refused or late write is no verdict: whether the controller is gone is read from sysfs.
    const auto answer = helper_("nvme-delete", input, deadline);
    if (!answer && answer.error().reason != Reason::command_timeout) return tl::unexpected(answer.error());
  }
  const auto remaining = [&]() -> Result<std::vector<NvmeController>> {
    auto now = topology_.controllers(nqn);
    if (!now) return now;
    std::erase_if(*now, [&](const NvmeController& one) {
      return std::none_of(which.begin(), which.end(), [&](const auto& old) {
        return old.name == one.name && old.host_nqn == one.host_nqn && old.host_id == one.host_id;
      });
    });
    return now;
  };
  const auto gone = wait_for(
      [&]() -> Result<bool> {
        const auto now = remaining();
        if (!now) return tl::unexpected(now.error());
        return now->empty();
      },
      deadline);
  if (!gone) return tl::unexpected(gone.error());
  if (*gone) return {};
  const auto left = remaining();
  return fail(Reason::device_busy, Code::unavailable,
              "sessions to " + std::string(nqn) +
                  " are still there: " + (left ? names_of(*left) : "unknown") +
                  "; the kernel is waiting for I/O in flight, try again");
}

Result<void> Fabrics::disconnect(std::string_view nqn, Deadline deadline) const {
  if (!is_valid_nqn(nqn)) return bad("subsystem NQN", nqn, "a valid NQN");
  // Another round when a connect that was cut off earlier completes meanwhile.
  for (;;) {
    const auto now = topology_.controllers(nqn);
    if (!now) return tl::unexpected(now.error());
    if (now->empty()) return {};
    if (auto done = delete_controllers(nqn, *now, deadline); !done) return done;
    if (deadline.passed() && !topology_.controllers(nqn).value_or(std::vector<NvmeController>()).empty())
      return fail(Reason::device_busy, Code::unavailable,
                  "something on this node keeps connecting to " + std::string(nqn) + "; find and end it");
  }
}

Result<std::vector<NvmeController>> Fabrics::stale_controllers(std::string_view nqn,
                                                               const HostIdentity& host) const {
  auto all = topology_.controllers(nqn);
  if (!all) return all;
  std::erase_if(*all, [&](const NvmeController& one) { return same_host(one, host); });
  return all;
}

Result<void> Fabrics::disconnect_stale(std::string_view nqn, const HostIdentity& host,
                                       Deadline deadline) const {
  const auto stale = stale_controllers(nqn, host);
  if (!stale) return tl::unexpected(stale.error());
  if (stale->empty()) return {};
  return delete_controllers(nqn, *stale, deadline);
}

Result<void> Fabrics::rescan(std::string_view nqn) const {
  const auto all = topology_.controllers(nqn);
  if (!all) return tl::unexpected(all.error());
  int last = 0;
  bool reached = false;
  for (const auto& one : *all) {
    if (one.state != ControllerState::live) continue;
    // The write only queues the scan; it does not wait for it.
    const int code = write_attribute(one.dir + "/rescan_controller", "1");
    reached = reached || code == 0;
    if (code != 0) last = code;
  }
  if (!reached && last != 0)
    return tl::unexpected(errno_error(last, "rescan " + std::string(nqn), Reason::device_missing));
  return {};
}

Result<NvmeNamespace> Fabrics::wait_for_namespace(std::string_view nqn, std::string_view uuid,
                                                  Deadline deadline) const {
  Result<NvmeNamespace> found = fail(Reason::device_missing, "");
  auto next_rescan = Clock::now() + k_rescan_interval;
  bool rescanned = false;
  const auto seen = wait_for(
      [&]() -> Result<bool> {
        found = topology_.find_namespace(nqn, uuid);
        if (found && ::access(found->node.c_str(), F_OK) == 0) return true;
        // The wrong namespace gets one rescan to turn into the right one, not the whole deadline.
        if (!found && found.error().reason == Reason::device_mismatch && rescanned &&
            Clock::now() >= next_rescan)
          return tl::unexpected(found.error());
        if (Clock::now() < next_rescan) return false;
        next_rescan = Clock::now() + k_rescan_interval;
        rescanned = true;
        if (auto done = rescan(nqn); !done) return tl::unexpected(done.error());
        return false;
      },
      deadline);
  if (!seen) return tl::unexpected(seen.error());
  if (*seen || !found) return found;
  return fail(Reason::device_missing, "device node " + found->node + " of " + std::string(nqn) +
                                          " is missing; the node plugin needs the host's /dev");
}

Result<NvmeNamespace> Fabrics::wait_for_size(std::string_view nqn, std::string_view uuid, std::uint64_t bytes,
                                             Deadline deadline) const {
  Result<NvmeNamespace> found = fail(Reason::device_missing, "");
  auto next_rescan = Clock::now();  // the target's event may be lost: ask at once
  const auto seen = wait_for(
      [&]() -> Result<bool> {
        found = topology_.find_namespace(nqn, uuid);
        if (!found) return tl::unexpected(found.error());
        if (found->size_bytes >= bytes) return true;
        if (Clock::now() < next_rescan) return false;
        next_rescan = Clock::now() + k_rescan_interval;
        if (auto done = rescan(nqn); !done) return tl::unexpected(done.error());
        return false;
      },
      deadline);
  if (!seen) return tl::unexpected(seen.error());
  if (*seen) return found;
  return fail(Reason::resize_pending, Code::unavailable,
              "device " + found->name + " of " + std::string(nqn) + " has " +
                  std::to_string(found->size_bytes) + " bytes, waiting for " + std::to_string(bytes) +
                  ": the storage node has not announced the new size yet; try again");
}

}  // namespace pillar::hostio
