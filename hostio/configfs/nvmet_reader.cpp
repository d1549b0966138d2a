#include "hostio/configfs/nvmet_reader.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "messages/ids.hpp"

namespace pillar::hostio::nvmet {
namespace {

template <class T>
tl::unexpected<Error> read_failed(const std::string& path, const ErrnoResult<T>& result) {
  return tl::unexpected(errno_error(result.error(), "read nvmet/" + path));
}

// The kernel appends a newline everywhere and pads the serial number with blanks.
std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// A device path may end in a blank; only the newline is the kernel's.
std::string without_newline(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Reads attributes of one item and keeps the first failure.
class AttributeReader {
 public:
  AttributeReader(ConfigfsOps& ops, std::string base) : ops_(ops), base_(std::move(base)) {}

  std::string operator()(const std::string& name) {
    const ErrnoResult<std::string> text = ops_.read(base_ + "/" + name);
    if (text) return *text;
    if (!error_) error_ = errno_error(text.error(), "read nvmet/" + base_ + "/" + name);
    return {};
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  ConfigfsOps& ops_;
  std::string base_;
  std::optional<Error> error_;
};

Result<LiveNamespace> read_namespace(ConfigfsOps& ops, const std::string& base) {
  AttributeReader attribute(ops, base);
  LiveNamespace ns{without_newline(attribute("device_path")), lower(trimmed(attribute("device_uuid"))),
                   lower(trimmed(attribute("device_nguid"))), trimmed(attribute("enable")) == "1"};
  if (attribute.error()) return tl::unexpected(*attribute.error());
  return ns;
}

Result<void> read_hosts(ConfigfsOps& ops, const std::string& base, LiveSubsystem& subsystem) {
  const auto links = ops.list(base + "/allowed_hosts");
  if (!links) return read_failed(base + "/allowed_hosts", links);
  for (const std::string& link : *links) {
    const auto host = ops.link_target(base + "/allowed_hosts/" + link);
    if (!host) return read_failed(base + "/allowed_hosts/" + link, host);
    subsystem.hosts[*host] = link;
  }
  return {};
}

// Everything of the subsystem but its port links.
Result<LiveSubsystem> read_body(ConfigfsOps& ops, const std::string& nqn) {
  const std::string base = "subsystems/" + nqn;
  AttributeReader attribute(ops, base);
  LiveSubsystem subsystem;
  subsystem.nqn = nqn;
  subsystem.serial = trimmed(attribute("attr_serial"));
  subsystem.model = trimmed(attribute("attr_model"));
  subsystem.allow_any_host = trimmed(attribute("attr_allow_any_host")) == "1";
  if (attribute.error()) return tl::unexpected(*attribute.error());
  if (auto r = read_hosts(ops, base, subsystem); !r) return tl::unexpected(r.error());
  const auto namespaces = ops.list(base + "/namespaces");
  if (!namespaces) return read_failed(base + "/namespaces", namespaces);
  for (const std::string& name : *namespaces) {
    Result<LiveNamespace> ns = read_namespace(ops, base + "/namespaces/" + name);
    if (!ns) return tl::unexpected(ns.error());
    subsystem.namespaces[name] = std::move(*ns);
  }
  return subsystem;
}

std::optional<std::uint16_t> port_id_of(const std::string& name) {
  if (name.empty() || name.size() > 5 ||
      !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    return std::nullopt;
  const unsigned long value = std::stoul(name);
  if (value > 65535 || std::to_string(value) != name) return std::nullopt;
  return static_cast<std::uint16_t>(value);
}

// Without the ports directory there is no target at all.
Result<std::vector<std::uint16_t>> port_ids(ConfigfsOps& ops) {
  const auto names = ops.list("ports");
  if (!names && names.error() == ENOENT)
    return fail(Reason::module_missing,
                "no nvmet tree in configfs: load it with `modprobe nvmet`, and mount configfs on "
                "/sys/kernel/config if it is not");
  if (!names) return read_failed("ports", names);
  std::vector<std::uint16_t> ids;
  for (const std::string& name : *names)
    if (const auto id = port_id_of(name)) ids.push_back(*id);
  return ids;
}

Result<LivePort> read_port(ConfigfsOps& ops, std::uint16_t id) {
  const std::string base = "ports/" + std::to_string(id);
  AttributeReader attribute(ops, base);
  LivePort port;
  port.id = id;
  port.trtype = trimmed(attribute("addr_trtype"));
  port.adrfam = trimmed(attribute("addr_adrfam"));
  port.traddr = trimmed(attribute("addr_traddr"));
  port.trsvcid = trimmed(attribute("addr_trsvcid"));
  port.inline_data_size = trimmed(attribute("param_inline_data_size"));
  if (attribute.error()) return tl::unexpected(*attribute.error());
  const auto links = ops.list(base + "/subsystems");
  if (!links) return read_failed(base + "/subsystems", links);
  port.linked = !links->empty();
  return port;
}

std::string port_links(std::uint16_t id) { return "ports/" + std::to_string(id) + "/subsystems"; }

}  // namespace

bool LiveSubsystem::enabled() const {
  const auto it = namespaces.find(std::to_string(k_nsid));
  return it != namespaces.end() && it->second.enabled;
}

std::set<std::string> LiveSubsystem::host_nqns() const {
  std::set<std::string> nqns;
  for (const auto& [host, link] : hosts) nqns.insert(host);
  return nqns;
}

Result<std::optional<LiveSubsystem>> read_subsystem(ConfigfsOps& ops, const std::string& nqn) {
  if (!is_valid_nqn(nqn)) return fail(Reason::invalid_argument, "not a valid NQN: " + nqn);
  const auto ports = port_ids(ops);
  if (!ports) return tl::unexpected(ports.error());
  const auto exists = ops.read("subsystems/" + nqn + "/attr_allow_any_host");
  if (!exists && exists.error() == ENOENT) return std::nullopt;
  Result<LiveSubsystem> subsystem = read_body(ops, nqn);
  if (!subsystem) return tl::unexpected(subsystem.error());
  for (const std::uint16_t id : *ports) {
    const auto target = ops.link_target(port_links(id) + "/" + nqn);
    if (target && *target == nqn) subsystem->ports[id] = nqn;
    if (!target && target.error() != ENOENT) return read_failed(port_links(id) + "/" + nqn, target);
  }
  return std::move(*subsystem);
}

Result<std::vector<LiveSubsystem>> read_our_subsystems(ConfigfsOps& ops) {
  const auto ports = port_ids(ops);
  if (!ports) return tl::unexpected(ports.error());
  const auto names = ops.list("subsystems");
  if (!names) return read_failed("subsystems", names);
  std::map<std::string, LiveSubsystem> ours;
  for (const std::string& name : *names) {
    if (!is_our_nqn(name)) continue;
    Result<LiveSubsystem> subsystem = read_body(ops, name);
    if (!subsystem) return tl::unexpected(subsystem.error());
    ours[name] = std::move(*subsystem);
  }
  for (const std::uint16_t id : *ports) {
    const auto links = ops.list(port_links(id));
    if (!links) return read_failed(port_links(id), links);
    for (const std::string& link : *links) {
      const auto target = ops.link_target(port_links(id) + "/" + link);
      if (!target) return read_failed(port_links(id) + "/" + link, target);
      if (const auto it = ours.find(*target); it != ours.end()) it->second.ports[id] = link;
    }
  }
  std::vector<LiveSubsystem> result;
  result.reserve(ours.size());
  for (auto& [nqn, subsystem] : ours) result.push_back(std::move(subsystem));
  return result;
}

Result<std::vector<LivePort>> read_ports(ConfigfsOps& ops) {
  const auto ids = port_ids(ops);
  if (!ids) return tl::unexpected(ids.error());
  std::vector<LivePort> ports;
  for (const std::uint16_t id : *ids) {
    Result<LivePort> port = read_port(ops, id);
    if (!port) return tl::unexpected(port.error());
    ports.push_back(std::move(*port));
  }
  return ports;
}

}  // namespace pillar::hostio::nvmet
