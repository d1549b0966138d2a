#include "hostio/configfs/nvmet_executor.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "hostio/block_device.hpp"

namespace pillar::hostio::nvmet {
namespace {

using Kind = ActionKind;

std::string last_component(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_port_link(const Action& action) {
  return action.kind == Kind::link && action.path.starts_with("ports/");
}

// Texts compare equal when the kernel holds the same value: it appends a newline, pads the serial number and
// shows identifiers in lower case.
std::string canonical(const std::string& attribute, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (attribute == "device_uuid" || attribute == "device_nguid")
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

struct Meaning {
  Reason reason;
  std::string remedy;
};

// What an errno means at this place, where it means more than its own text.
std::optional<Meaning> meaning_of(const Action& action, int errno_value) {
  const std::string attribute = last_component(action.path);
  if (is_port_link(action)) switch (errno_value) {
      case EADDRINUSE:
        return Meaning{Reason::port_conflict, "another program or nvmet port listens there"};
      case EADDRNOTAVAIL:
        return Meaning{Reason::port_conflict, "the address is not configured on this host"};
      case EINVAL:
        return Meaning{Reason::port_conflict, "the port's address is incomplete or of the wrong family"};
      default:
        break;
    }
  if (errno_value == EINVAL && (attribute == "attr_serial" || attribute == "attr_model"))
    return Meaning{Reason::incompatible,
                   "the kernel fixes it at the first connection; unexport the volume to change it"};
  if (attribute == "enable" && action.value == "1") switch (errno_value) {
      case ENOENT:
        return Meaning{Reason::device_missing, "the backing device is not there"};
      case EINVAL:
      case EISDIR:
      case ENOTBLK:
        return Meaning{Reason::device_mismatch, "the backing device is not a usable block device"};
      default:
        break;
    }
  if (action.kind == Kind::make_dir && errno_value == ENOENT)
    return Meaning{Reason::module_missing, "no nvmet tree in configfs; load it with `modprobe nvmet`"};
  return std::nullopt;
}

}  // namespace

Result<void> check_block_device(const std::string& path, const std::string& major_minor) {
  const Result<DeviceNumber> seen = device_number_of_node(path);
  if (!seen) return tl::unexpected(seen.error());
  const std::optional<DeviceNumber> wanted = DeviceNumber::parse(major_minor);
  if (!wanted) return fail(Reason::internal, "not a device number: " + major_minor);
  if (*wanted != DeviceNumber{} && *wanted != *seen)
    return fail(Reason::device_mismatch,
                path + " is device " + seen->str() + ", expected " + major_minor + "; nothing was enabled");
  return {};
}

Executor::Executor(ConfigfsOps& ops) : Executor(ops, Hooks{}) {}
Executor::Executor(ConfigfsOps& ops, Hooks hooks) : ops_(ops), hooks_(std::move(hooks)) {}

Result<void> Executor::run(const Plan& plan) const {
  for (const Action& action : plan) {
    if (hooks_.before)
      if (auto r = hooks_.before(action); !r) return r;
    if (auto r = perform(action); !r) return r;
  }
  return {};
}

Result<void> Executor::run(const ExportPlan& plan) const {
  for (const Plan* part : {&plan.close, &plan.barrier, &plan.prepare, &plan.open})
    if (auto r = run(*part); !r) return r;
  return {};
}

std::vector<Result<void>> Executor::open_all(const std::vector<Plan>& plans) const {
  std::vector<std::size_t> order(plans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // The paths begin with the port, so this groups the links by port.
  const auto first_path = [&](std::size_t i) { return plans[i].empty() ? "" : plans[i].front().path; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return first_path(a) < first_path(b); });
  std::vector<Result<void>> results(plans.size());
  for (const std::size_t i : order) results[i] = run(plans[i]);
  return results;
}

Result<void> Executor::perform(const Action& action) const {
  switch (action.kind) {
    case Kind::make_dir: {
      const auto r = ops_.make_dir(action.path);
      if (!r && r.error() != EEXIST) return failed(action, "mkdir", r.error());
      return {};
    }
    case Kind::write:
      return do_write(action, true);
    case Kind::write_only:
      return do_write(action, false);
    case Kind::check_device:
      return hooks_.check_device(action.path, action.value);
    case Kind::link:
      return do_link(action);
    case Kind::unlink: {
      const auto r = ops_.unlink(action.path);
      if (!r && r.error() != ENOENT) return failed(action, "unlink", r.error());
      return {};
    }
    case Kind::remove_dir:
    case Kind::remove_host:
      return do_remove(action);
  }
  return {};
}

Result<void> Executor::do_write(const Action& action, bool read_back) const {
  if (const auto r = ops_.write(action.path, action.value); !r) return failed(action, "write", r.error());
  if (!read_back) return {};
  const auto seen = ops_.read(action.path);
  if (!seen) return failed(action, "read", seen.error());
  const std::string attribute = last_component(action.path);
  if (canonical(attribute, *seen) != canonical(attribute, action.value))
    return fail(
        Reason::io_error,
        "nvmet/" + action.path + " reads " + canonical(attribute, *seen) + " after writing " + action.value,
        {{"path", action.path}, {"value", action.value}});
  return {};
}

Result<void> Executor::do_link(const Action& action) const {
  constexpr int k_attempts = 5;
  for (int attempt = 1;; ++attempt) {
    const auto r = ops_.link(action.value, action.path);
    if (r) return {};
    if (r.error() == EEXIST) {
      // Either our own name, or the kernel's answer for the same object under another name.
      const auto target = ops_.link_target(action.path);
      if (target && *target != last_component(action.value)) return failed(action, "link", EEXIST);
      return {};
    }
    // A host entry is shared: another volume may have removed it after our mkdir, as its last user.
    const bool host = action.value.starts_with("hosts/");
    if (r.error() != ENOENT || !host || attempt == k_attempts) return failed(action, "link", r.error());
    const auto made = ops_.make_dir(action.value);
    if (!made && made.error() != EEXIST) return failed(action, "mkdir", made.error());
  }
}

Result<void> Executor::do_remove(const Action& action) const {
  const auto r = ops_.remove_dir(action.path);
  if (r || r.error() == ENOENT) return {};
  const bool in_use = r.error() == EBUSY || r.error() == ENOTEMPTY;
  if (action.kind == Kind::remove_host && in_use) return {};
  return failed(action, "rmdir", r.error());
}

tl::unexpected<Error> Executor::failed(const Action& action, std::string_view op, int errno_value) const {
  if (hooks_.on_error) hooks_.on_error(op, errno_value);
  Error error = errno_error(errno_value, "nvmet: " + describe(action));
  error.details["path"] = action.path;
  if (!action.value.empty()) error.details["value"] = action.value;
  if (const auto meaning = meaning_of(action, errno_value)) {
    error.reason = meaning->reason;
    error.code = info(meaning->reason).code;
    error.message += "; " + meaning->remedy;
  }
  return tl::unexpected(std::move(error));
}

}  // namespace pillar::hostio::nvmet
