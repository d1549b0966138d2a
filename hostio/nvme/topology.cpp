#include "hostio/nvme/topology.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "hostio/exhaustion.hpp"
#include "hostio/sysfs.hpp"
#include "messages/ids.hpp"

namespace pillar::hostio {
namespace {

/// Length of the decimal digits at the start of `text`.
std::size_t digits(std::string_view text) {
  const auto end = text.find_first_not_of("0123456789");
  return end == std::string_view::npos ? text.size() : end;
}

/// "nvme0": a controller.
bool is_controller_name(std::string_view name) {
  if (!name.starts_with("nvme")) return false;
  const auto rest = name.substr(4);
  return !rest.empty() && digits(rest) == rest.size();
}

/// "nvme0n1": a usable block device. "nvme0c1n1", the hidden disk of one path, is none; nor is a partition.
bool is_namespace_name(std::string_view name) {
  if (!name.starts_with("nvme")) return false;
  auto rest = name.substr(4);
  const auto instance = digits(rest);
  if (instance == 0 || instance == rest.size() || rest[instance] != 'n') return false;
  rest.remove_prefix(instance + 1);
  return !rest.empty() && digits(rest) == rest.size();
}

template <class T>
T number_or(const std::string& path, T otherwise) {
  const auto value = read_attribute_number(path);
  return value ? static_cast<T>(*value) : otherwise;
}

std::optional<NvmeController> read_controller(const std::string& dir, const std::string& name) {
  const auto state = read_attribute(dir + "/state");
  if (!state) return std::nullopt;
  NvmeController controller;
  controller.name = name;
  controller.dir = dir;
  controller.state = controller_state_from(*state);
  controller.nqn = read_attribute(dir + "/subsysnqn").value_or("");
  controller.transport = read_attribute(dir + "/transport").value_or("");
  const auto address = parse_controller_address(read_attribute(dir + "/address").value_or(""));
  controller.address = address.traddr;
  controller.port = address.port;
  controller.host_nqn = read_attribute(dir + "/hostnqn").value_or("");
  controller.host_id = lower(read_attribute(dir + "/hostid").value_or(""));
  controller.cntlid = number_or<int>(dir + "/cntlid", -1);
  controller.queue_count = number_or<unsigned>(dir + "/queue_count", 0);
  return controller;
}

std::optional<NvmeNamespace> read_namespace(const HostRoots& roots, const std::string& dir,
                                            const std::string& name) {
  const auto device = DeviceNumber::parse(read_attribute(dir + "/dev").value_or(""));
  const auto sectors = read_attribute_number(dir + "/size");
  if (!device || !sectors) return std::nullopt;
  NvmeNamespace found;
  found.name = name;
  found.dir = dir;
  found.node = roots.dev + "/" + name;
  found.number = *device;
  found.nsid = number_or<std::uint32_t>(dir + "/nsid", 0);
  found.uuid = lower(read_attribute(dir + "/uuid").value_or(""));
  found.nguid = lower(read_attribute(dir + "/nguid").value_or(""));
  found.size_bytes = *sectors * 512;
  found.read_only = number_or<int>(dir + "/ro", 0) != 0;
  return found;
}

void add_namespaces(const HostRoots& roots, const std::string& dir, std::vector<NvmeNamespace>& out) {
  for (const auto& name : list_directory(dir)) {
    if (!is_namespace_name(name)) continue;
    const bool known = std::any_of(out.begin(), out.end(), [&](const auto& ns) { return ns.name == name; });
    if (known) continue;
    if (auto found = read_namespace(roots, dir + "/" + name, name)) out.push_back(std::move(*found));
  }
}

NvmeSubsystem read_subsystem(const HostRoots& roots, const std::string& dir, const std::string& name,
                             std::string nqn) {
  NvmeSubsystem subsystem{name, dir, std::move(nqn), {}, {}};
  add_namespaces(roots, dir, subsystem.namespaces);
  for (const auto& entry : list_directory(dir)) {
    if (!is_controller_name(entry)) continue;
    if (auto controller = read_controller(dir + "/" + entry, entry))
      subsystem.controllers.push_back(std::move(*controller));
    // Without native multipath the block device hangs below its controller.
    add_namespaces(roots, dir + "/" + entry, subsystem.namespaces);
  }
  return subsystem;
}

}  // namespace

ControllerState controller_state_from(std::string_view sysfs_text) {
  struct Row {
    std::string_view text;
    ControllerState state;
  };
  constexpr std::array rows{
      Row{"live", ControllerState::live},           Row{"new", ControllerState::starting},
      Row{"resetting", ControllerState::resetting}, Row{"connecting", ControllerState::connecting},
      Row{"deleting", ControllerState::deleting},   Row{"deleting (no IO)", ControllerState::deleting},
      Row{"dead", ControllerState::dead},
  };
  for (const auto& row : rows)
    if (row.text == sysfs_text) return row.state;
  return ControllerState::unknown;
}

std::string_view to_string(ControllerState state) {
  switch (state) {
    case ControllerState::live:
      return "live";
    case ControllerState::starting:
      return "starting";
    case ControllerState::resetting:
      return "resetting";
    case ControllerState::connecting:
      return "connecting";
    case ControllerState::deleting:
      return "deleting";
    case ControllerState::dead:
      return "dead";
    case ControllerState::unknown:
      break;
  }
  return "unknown";
}

ControllerAddress parse_controller_address(std::string_view text) {
  ControllerAddress out;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    if (item.starts_with("traddr=")) {
      const auto literal = trim(item.substr(7));
      const auto address = IpAddress::parse(literal);
      out.traddr = address ? address->text : std::string(literal);
    } else if (item.starts_with("trsvcid=")) {
      const auto port = trim(item.substr(8));
      std::from_chars(port.data(), port.data() + port.size(), out.port);
    }
  }
  return out;
}

Result<std::vector<NvmeSubsystem>> NvmeTopology::read_subsystems(std::string_view only_nqn) const {
  std::vector<NvmeSubsystem> out;
  const auto before = exhausted_reads();
  for (const auto& name : list_directory(class_dir())) {
    const auto dir = class_dir() + "/" + name;
    auto nqn = read_attribute(dir + "/subsysnqn");
    if (!nqn || (!only_nqn.empty() && *nqn != only_nqn)) continue;
    out.push_back(read_subsystem(roots_, dir, name, std::move(*nqn)));
  }
  // A session that only could not be read must not look like none.
  if (auto whole = check_not_exhausted(before, class_dir()); !whole) return tl::unexpected(whole.error());
  return out;
}

Result<std::vector<NvmeSubsystem>> NvmeTopology::subsystems() const { return read_subsystems({}); }

Result<std::vector<NvmeController>> NvmeTopology::controllers(std::string_view nqn) const {
  const auto found = read_subsystems(nqn);
  if (!found) return tl::unexpected(found.error());
  std::vector<NvmeController> out;
  for (const auto& subsystem : *found)
    out.insert(out.end(), subsystem.controllers.begin(), subsystem.controllers.end());
  return out;
}

Result<NvmeNamespace> NvmeTopology::find_namespace(std::string_view nqn, std::string_view uuid) const {
  const auto found = read_subsystems(nqn);
  if (!found) return tl::unexpected(found.error());
  const auto wanted = lower(uuid);
  std::vector<NvmeNamespace> matches;
  std::string others;
  for (const auto& subsystem : *found)
    for (const auto& ns : subsystem.namespaces) {
      if (ns.uuid == wanted) {
        matches.push_back(ns);
      } else {
        others +=
            (others.empty() ? "" : ", ") + ns.name + " (uuid " + (ns.uuid.empty() ? "none" : ns.uuid) + ")";
      }
    }
  if (matches.size() == 1) return matches.front();
  const std::string what = "namespace " + wanted + " of " + std::string(nqn);
  if (matches.size() > 1)
    return fail(Reason::device_mismatch, what + " appears twice, as " + matches[0].name + " and " +
                                             matches[1].name +
                                             ": stage the volume again after the older one is "
                                             "gone");
  if (!others.empty())
    return fail(Reason::device_mismatch, what + " is not there, but " + others +
                                             " is: the target exports another volume under this NQN");
  return fail(Reason::device_missing, what + " has no block device yet");
}

std::optional<std::string> NvmeTopology::nqn_of(DeviceNumber number) const {
  std::error_code ec;
  const auto dir = std::filesystem::canonical(roots_.sys + "/dev/block/" + number.str(), ec);
  if (ec || !is_namespace_name(dir.filename().string())) return std::nullopt;
  return read_attribute(dir.parent_path().string() + "/subsysnqn");
}

Result<bool> NvmeTopology::has_live_controller(std::string_view nqn) const {
  const auto all = controllers(nqn);
  if (!all) return tl::unexpected(all.error());
  return std::any_of(all->begin(), all->end(),
                     [](const NvmeController& one) { return one.state == ControllerState::live; });
}

}  // namespace pillar::hostio
