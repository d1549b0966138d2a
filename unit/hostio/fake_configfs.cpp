#include "fake_configfs.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <optional>

namespace pillar::hostio::testing {
namespace {

tl::unexpected<int> err(int value) { return tl::unexpected<int>(value); }

ErrnoResult<void> result_of(int error) {
  if (error != 0) return err(error);
  return {};
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = path.find('/', begin);
    parts.push_back(path.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

bool number_within(const std::string& text, unsigned long low, unsigned long high) {
  if (text.empty() || text.size() > 10 ||
      !std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    return false;
  const unsigned long value = std::stoul(text);
  return value >= low && value <= high;
}

std::optional<bool> boolean(const std::string& text) {
  if (text == "1" || text == "y" || text == "on" || text == "true") return true;
  if (text == "0" || text == "n" || text == "off" || text == "false") return false;
  return std::nullopt;
}

std::string stripped(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string padded(std::string text) {
  text.resize(20, ' ');
  return text;
}

// Dashed, lower case, from 32 hex digits with or without dashes; empty when malformed.
std::string dashed(const std::string& text) {
  std::string hex;
  for (const char c : text)
    if (c != '-') hex += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (hex.size() != 32 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  return hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" +
         hex.substr(20);
}

template <class Map>
std::vector<std::string> names(const Map& map) {
  std::vector<std::string> result;
  for (const auto& [name, value] : map) result.push_back(name);
  return result;
}

constexpr const char* k_discovery = "nqn.2014-08.org.nvmexpress.discovery";

}  // namespace

int FakeConfigfs::injected(const std::string& op, const std::string& path, const std::string& value) {
  if (before) before(op + " " + path);
  log.push_back(op + " " + path + (value.empty() ? "" : "=" + value));
  const auto it = fail_once.find(op + " " + path);
  if (it == fail_once.end()) return loaded ? 0 : ENOENT;
  const int error = it->second;
  fail_once.erase(it);
  return error;
}

std::string FakeConfigfs::random_uuid() {
  char text[33];
  std::snprintf(text, sizeof text, "%032x", ++counter_);
  return dashed(text);
}

bool FakeConfigfs::linked(const std::string& nqn) const {
  return std::any_of(ports_.begin(), ports_.end(), [&](const auto& p) {
    return std::any_of(p.second.links.begin(), p.second.links.end(),
                       [&](const auto& l) { return l.second == nqn; });
  });
}

ErrnoResult<void> FakeConfigfs::make_dir(const std::string& path) {
  if (const int e = injected("mkdir", path); e != 0) return err(e);
  const Parts p = split(path);
  if (p.size() == 2 && p[0] == "hosts") return result_of(hosts_.insert(p[1]).second ? 0 : EEXIST);
  if (p.size() == 2 && p[0] == "subsystems") {
    if (p[1] == k_discovery) return err(EINVAL);
    Subsystem s;
    s.serial = padded(random_uuid().substr(16, 7));
    return result_of(subsystems_.emplace(p[1], s).second ? 0 : EEXIST);
  }
  if (p.size() == 2 && p[0] == "ports") {
    if (!number_within(p[1], 0, 65535)) return err(EINVAL);
    Port port;
    port.attributes = {{"addr_trtype", ""},
                       {"addr_adrfam", ""},
                       {"addr_traddr", ""},
                       {"addr_trsvcid", ""},
                       {"param_inline_data_size", "-1"}};
    return result_of(ports_.emplace(p[1], port).second ? 0 : EEXIST);
  }
  if (p.size() == 4 && p[0] == "subsystems" && p[2] == "namespaces") {
    const auto s = subsystems_.find(p[1]);
    if (s == subsystems_.end()) return err(ENOENT);
    if (!number_within(p[3], 1, 4294967294UL)) return err(EINVAL);
    Namespace ns;
    ns.uuid = random_uuid();
    ns.nguid = "00000000-0000-0000-0000-000000000000";
    return result_of(s->second.namespaces.emplace(p[3], ns).second ? 0 : EEXIST);
  }
  return err(EPERM);
}

ErrnoResult<void> FakeConfigfs::remove_dir(const std::string& path) {
  if (const int e = injected("rmdir", path); e != 0) return err(e);
  const Parts p = split(path);
  if (p.size() == 2 && p[0] == "hosts") {
    for (const auto& [nqn, s] : subsystems_)
      for (const auto& [name, host] : s.hosts)
        if (host == p[1]) return err(EBUSY);
    return result_of(hosts_.erase(p[1]) != 0 ? 0 : ENOENT);
  }
  if (p.size() == 2 && p[0] == "subsystems") {
    const auto s = subsystems_.find(p[1]);
    if (s == subsystems_.end()) return err(ENOENT);
    if (linked(p[1])) return err(EBUSY);
    if (!s->second.namespaces.empty() || !s->second.hosts.empty()) return err(ENOTEMPTY);
    subsystems_.erase(s);
    return {};
  }
  if (p.size() == 2 && p[0] == "ports") {
    const auto port = ports_.find(p[1]);
    if (port == ports_.end()) return err(ENOENT);
    if (!port->second.links.empty()) return err(ENOTEMPTY);
    ports_.erase(port);
    return {};
  }
  if (p.size() == 4 && p[0] == "subsystems" && p[2] == "namespaces") {
    const auto s = subsystems_.find(p[1]);
    return result_of(s != subsystems_.end() && s->second.namespaces.erase(p[3]) != 0 ? 0 : ENOENT);
  }
  return err(EPERM);
}

ErrnoResult<std::string> FakeConfigfs::read(const std::string& path) {
  ++reads;
  if (!loaded) return err(ENOENT);
  const Parts p = split(path);
  if (p.size() == 3 && p[0] == "subsystems" && subsystems_.contains(p[1])) {
    const Subsystem& s = subsystems_.at(p[1]);
    if (p[2] == "attr_allow_any_host") return std::string(s.any_host ? "1\n" : "0\n");
    if (p[2] == "attr_serial") return s.serial + "\n";
    if (p[2] == "attr_model") return s.model + "\n";
  }
  if (p.size() == 5 && p[0] == "subsystems" && subsystems_.contains(p[1]) &&
      subsystems_.at(p[1]).namespaces.contains(p[3])) {
    const Namespace& ns = subsystems_.at(p[1]).namespaces.at(p[3]);
    if (p[4] == "device_path") return ns.device_path + "\n";
    if (p[4] == "device_uuid") return ns.uuid + "\n";
    if (p[4] == "device_nguid") return ns.nguid + "\n";
    if (p[4] == "enable") return std::string(ns.enabled ? "1\n" : "0\n");
    if (p[4] == "revalidate_size") return err(EACCES);
  }
  if (p.size() == 3 && p[0] == "ports" && ports_.contains(p[1])) {
    const auto& attributes = ports_.at(p[1]).attributes;
    if (const auto it = attributes.find(p[2]); it != attributes.end()) return it->second + "\n";
  }
  return err(ENOENT);
}

ErrnoResult<void> FakeConfigfs::write(const std::string& path, const std::string& value) {
  if (const int e = injected("write", path, value); e != 0) return err(e);
  if (value.empty()) return err(EFAULT);
  const Parts p = split(path);
  if (p.size() == 3 && p[0] == "subsystems" && subsystems_.contains(p[1]))
    return result_of(write_subsystem(subsystems_.at(p[1]), p[2], stripped(value)));
  if (p.size() == 5 && p[0] == "subsystems" && subsystems_.contains(p[1]) &&
      subsystems_.at(p[1]).namespaces.contains(p[3]))
    return result_of(write_namespace(p[1], subsystems_.at(p[1]).namespaces.at(p[3]), p[4], stripped(value)));
  if (p.size() == 3 && p[0] == "ports" && ports_.contains(p[1]))
    return result_of(write_port(ports_.at(p[1]), p[2], stripped(value)));
  return err(ENOENT);
}

int FakeConfigfs::write_subsystem(Subsystem& s, const std::string& attribute, const std::string& value) {
  if (attribute == "attr_allow_any_host") {
    const auto on = boolean(value);
    if (!on || (*on && !s.hosts.empty())) return EINVAL;
    s.any_host = *on;
    return 0;
  }
  const bool serial = attribute == "attr_serial";
  if (!serial && attribute != "attr_model") return ENOENT;
  if (value.empty() || value.size() > (serial ? 20U : 40U) || s.connected_once) return EINVAL;
  if (serial)
    s.serial = padded(value);
  else
    s.model = value;
  return 0;
}

int FakeConfigfs::write_namespace(const std::string& nqn, Namespace& ns, const std::string& attribute,
                                  const std::string& value) {
  if (attribute == "enable") {
    const auto on = boolean(value);
    return on ? enable(nqn, ns, *on) : EINVAL;
  }
  if (attribute == "revalidate_size") return boolean(value).value_or(false) && ns.enabled ? 0 : EINVAL;
  if (ns.enabled) return EBUSY;
  if (attribute == "device_path") {
    ns.device_path = value;
    return 0;
  }
  const std::string id = dashed(value);
  if (attribute == "device_uuid") {
    if (id.empty() || value.size() != 36) return EINVAL;
    ns.uuid = id;
    return 0;
  }
  if (attribute == "device_nguid") {
    if (id.empty()) return EINVAL;
    ns.nguid = id;
    return 0;
  }
  return ENOENT;
}

int FakeConfigfs::enable(const std::string& nqn, Namespace& ns, bool on) {
  if (on && !ns.enabled) {
    if (ns.device_path == "(null)") return EINVAL;
    if (!devices.contains(ns.device_path)) return ENOENT;
  }
  if (!on) subsystems_.at(nqn).in_flight.clear();  // returns when all I/O in flight has ended
  ns.enabled = on;
  return 0;
}

int FakeConfigfs::write_port(Port& port, const std::string& attribute, const std::string& value) {
  const auto it = port.attributes.find(attribute);
  if (it == port.attributes.end()) return ENOENT;
  if (!port.links.empty()) return EACCES;
  if (attribute == "addr_trtype" && value != "tcp" && value != "rdma" && value != "fc" && value != "loop")
    return EINVAL;
  if (attribute == "addr_adrfam" && value != "ipv4" && value != "ipv6") return EINVAL;
  it->second = value;
  return 0;
}

ErrnoResult<void> FakeConfigfs::link(const std::string& target, const std::string& path) {
  if (const int e = injected("link", path); e != 0) return err(e);
  const Parts p = split(path);
  if (p.size() == 4 && p[0] == "subsystems" && p[2] == "allowed_hosts" && subsystems_.contains(p[1]))
    return result_of(link_host(subsystems_.at(p[1]), target, p[3]));
  if (p.size() == 4 && p[0] == "ports" && p[2] == "subsystems" && ports_.contains(p[1]))
    return result_of(link_port(ports_.at(p[1]), target, p[3]));
  return err(ENOENT);
}

int FakeConfigfs::link_host(Subsystem& s, const std::string& target, const std::string& name) {
  const Parts t = split(target);
  if (t.size() == 2 && t[0] == "subsystems" && subsystems_.contains(t[1])) return EINVAL;
  if (t.size() != 2 || t[0] != "hosts" || !hosts_.contains(t[1])) return ENOENT;
  if (s.any_host) return EINVAL;
  if (s.hosts.contains(name)) return EEXIST;
  for (const auto& [other, host] : s.hosts)
    if (host == t[1]) return EEXIST;
  s.hosts[name] = t[1];
  return 0;
}

int FakeConfigfs::link_port(Port& port, const std::string& target, const std::string& name) {
  const Parts t = split(target);
  if (t.size() == 2 && t[0] == "hosts" && hosts_.contains(t[1])) return EINVAL;
  if (t.size() != 2 || t[0] != "subsystems" || !subsystems_.contains(t[1])) return ENOENT;
  if (port.links.contains(name)) return EEXIST;
  for (const auto& [other, nqn] : port.links)
    if (nqn == t[1]) return EEXIST;
  if (port.links.empty())
    if (const int e = check_listen(port); e != 0) return e;
  port.links[name] = t[1];
  if (port.attributes["param_inline_data_size"] == "-1") port.attributes["param_inline_data_size"] = "16384";
  return 0;
}

int FakeConfigfs::check_listen(const Port& port) const {
  for (const auto& [name, value] : port.attributes)
    if (value.empty()) return EINVAL;
  const std::string& address = port.attributes.at("addr_traddr");
  const bool v6 = address.find(':') != std::string::npos;
  if (port.attributes.at("addr_adrfam") != (v6 ? "ipv6" : "ipv4")) return EINVAL;
  if (!addresses.contains(address)) return EADDRNOTAVAIL;
  if (taken.contains(address + ":" + port.attributes.at("addr_trsvcid"))) return EADDRINUSE;
  for (const auto& [id, other] : ports_)
    if (!other.links.empty() && other.attributes.at("addr_traddr") == address &&
        other.attributes.at("addr_trsvcid") == port.attributes.at("addr_trsvcid"))
      return EADDRINUSE;
  return 0;
}

ErrnoResult<void> FakeConfigfs::unlink(const std::string& path) {
  if (const int e = injected("unlink", path); e != 0) return err(e);
  const Parts p = split(path);
  if (p.size() != 4) return err(EPERM);
  if (p[0] == "subsystems" && p[2] == "allowed_hosts" && subsystems_.contains(p[1]))
    // Sessions stay: the list is consulted only when a host connects.
    return result_of(subsystems_.at(p[1]).hosts.erase(p[3]) != 0 ? 0 : ENOENT);
  if (p[0] == "ports" && p[2] == "subsystems" && ports_.contains(p[1])) {
    auto& links = ports_.at(p[1]).links;
    const auto it = links.find(p[3]);
    if (it == links.end()) return err(ENOENT);
    const std::string nqn = it->second;
    links.erase(it);
    std::erase_if(sessions_, [&](const Session& session) {
      if (session.nqn != nqn || session.port != p[1]) return false;
      if (can_write(session.host, nqn)) subsystems_.at(nqn).in_flight.insert(session.host);
      return true;
    });
    return {};
  }
  return err(ENOENT);
}

ErrnoResult<std::string> FakeConfigfs::link_target(const std::string& path) {
  ++reads;
  if (!loaded) return err(ENOENT);
  const Parts p = split(path);
  const std::map<std::string, std::string>* links = nullptr;
  if (p.size() == 4 && p[0] == "subsystems" && subsystems_.contains(p[1]))
    links = &subsystems_.at(p[1]).hosts;
  if (p.size() == 4 && p[0] == "ports" && ports_.contains(p[1])) links = &ports_.at(p[1]).links;
  if (links == nullptr || !links->contains(p[3])) return err(ENOENT);
  return links->at(p[3]);
}

ErrnoResult<std::vector<std::string>> FakeConfigfs::list(const std::string& path) {
  ++reads;
  if (!loaded) return err(ENOENT);
  const Parts p = split(path);
  if (path == "hosts") return std::vector<std::string>(hosts_.begin(), hosts_.end());
  if (path == "subsystems") return names(subsystems_);
  if (path == "ports") return names(ports_);
  if (p.size() == 3 && p[0] == "subsystems" && subsystems_.contains(p[1])) {
    if (p[2] == "allowed_hosts") return names(subsystems_.at(p[1]).hosts);
    if (p[2] == "namespaces") return names(subsystems_.at(p[1]).namespaces);
  }
  if (p.size() == 3 && p[0] == "ports" && p[2] == "subsystems" && ports_.contains(p[1]))
    return names(ports_.at(p[1]).links);
  return err(ENOENT);
}

bool FakeConfigfs::connect(const std::string& host, const std::string& nqn) {
  const auto s = subsystems_.find(nqn);
  if (s == subsystems_.end()) return false;
  const auto& hosts = s->second.hosts;
  const bool allowed = s->second.any_host || std::any_of(hosts.begin(), hosts.end(),
                                                         [&](const auto& h) { return h.second == host; });
  if (!allowed) return false;
  for (const auto& [id, port] : ports_)
    for (const auto& [name, target] : port.links)
      if (target == nqn) {
        sessions_.insert({host, nqn, id});
        s->second.connected_once = true;
        return true;
      }
  return false;
}

bool FakeConfigfs::can_write(const std::string& host, const std::string& nqn) const {
  const auto s = subsystems_.find(nqn);
  if (s == subsystems_.end()) return false;
  const bool enabled = std::any_of(s->second.namespaces.begin(), s->second.namespaces.end(),
                                   [](const auto& ns) { return ns.second.enabled; });
  return enabled && std::any_of(sessions_.begin(), sessions_.end(), [&](const Session& session) {
           return session.host == host && session.nqn == nqn;
         });
}

bool FakeConfigfs::access_ended(const std::string& host, const std::string& nqn) const {
  const auto s = subsystems_.find(nqn);
  return !can_write(host, nqn) && (s == subsystems_.end() || !s->second.in_flight.contains(host));
}

std::string FakeConfigfs::dump() const {
  std::string text;
  for (const auto& [nqn, s] : subsystems_) {
    text += "subsystem " + nqn + " any=" + (s.any_host ? "1" : "0") + " serial=" + s.serial +
            " model=" + s.model + "\n";
    for (const auto& [name, host] : s.hosts) text += "  allows " + name + " -> " + host + "\n";
    for (const auto& [id, ns] : s.namespaces)
      text += "  namespace " + id + " " + ns.device_path + " " + ns.uuid + " " + ns.nguid +
              (ns.enabled ? " enabled\n" : " disabled\n");
  }
  for (const auto& [id, port] : ports_) {
    text += "port " + id;
    for (const auto& [name, value] : port.attributes) text += " " + name + "=" + value;
    text += "\n";
    for (const auto& [name, nqn] : port.links) text += "  links " + name + " -> " + nqn + "\n";
  }
  return text;
}

void FakeConfigfs::reboot() {
  hosts_.clear();
  subsystems_.clear();
  ports_.clear();
  sessions_.clear();
}

}  // namespace pillar::hostio::testing
