#include "hostio/configfs/nvmet_planner.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pillar::hostio::nvmet {
namespace {

using Kind = ActionKind;

/// Access as configfs expresses it.
struct Target {
  bool enabled = false;
  bool any_host = false;
  std::set<std::string> hosts;
  std::set<std::uint16_t> ports;
};

std::string subsystem_path(const std::string& nqn) { return "subsystems/" + nqn; }
std::string namespace_path(const std::string& nqn, const std::string& name = std::to_string(k_nsid)) {
  return subsystem_path(nqn) + "/namespaces/" + name;
}
std::string host_link_path(const std::string& nqn, const std::string& link) {
  return subsystem_path(nqn) + "/allowed_hosts/" + link;
}
std::string port_link_path(std::uint16_t id, const std::string& link) {
  return "ports/" + std::to_string(id) + "/subsystems/" + link;
}

const LiveNamespace* our_namespace(const LiveSubsystem& live) {
  const auto it = live.namespaces.find(std::to_string(k_nsid));
  return it == live.namespaces.end() ? nullptr : &it->second;
}

bool namespace_differs(const DesiredExport& desired, const LiveNamespace& ns) {
  return ns.device_path != desired.device.path || ns.uuid != desired.uuid || ns.nguid != desired.nguid;
}

/// Plans one export. `desired` null: identity and device are left as they are (closing, denying).
class ExportPlanner {
 public:
  ExportPlanner(const DesiredExport* desired, Target target, const LiveSubsystem& live, bool exists,
                bool recycle)
      : desired_(desired), target_(std::move(target)), live_(live), exists_(exists), recycle_(recycle) {
    for (const auto& [nqn, link] : live_.hosts)
      (target_.hosts.contains(nqn) ? retained_ : surplus_).insert(nqn);
    const LiveNamespace* ns = our_namespace(live_);
    rebuild_ = desired_ != nullptr && ns != nullptr && ns->enabled && namespace_differs(*desired_, *ns);
    drops_any_ = live_.allow_any_host && !target_.any_host;
    // Sessions survive every change but these: tear them down when somebody loses access.
    cut_ = recycle_ || rebuild_ || drops_any_ || !surplus_.empty() || target_.ports.empty();
    // Others who stay are readers, so nothing of the removed ones can land late; otherwise wait for the end
    // of I/O.
    const bool revokes_last = (!surplus_.empty() && retained_.empty()) || drops_any_;
    // Enabled but unlinked is what a crash between closing and the barrier leaves: the barrier is still owed
    // before anybody is let in.
    const bool owed = desired_ != nullptr && live_.ports.empty() && !target_.ports.empty();
    barrier_ = live_.enabled() && (!target_.enabled || rebuild_ || revokes_last || owed);
  }

  ExportPlan plan() {
    close();
    barrier();
    subsystem();
    access();
    open();
    return std::move(plan_);
  }

 private:
  void add(Plan& part, Kind kind, std::string path, std::string value = {}) {
    part.push_back({kind, std::move(path), std::move(value)});
  }
  void write_if(bool differs, const std::string& path, const std::string& value) {
    if (differs) add(plan_.prepare, Kind::write, path, value);
  }
  bool keeps_link(std::uint16_t id) const { return !cut_ && target_.ports.contains(id); }

  // Ports first: from then on nobody can come back, and what is left to do is visible to the next plan.
  void close() {
    for (const auto& [id, link] : live_.ports)
      if (!keeps_link(id)) add(plan_.close, Kind::unlink, port_link_path(id, link));
    for (const std::string& nqn : surplus_)
      add(plan_.close, Kind::unlink, host_link_path(live_.nqn, live_.hosts.at(nqn)));
  }

  void barrier() {
    if (barrier_) add(plan_.barrier, Kind::write, namespace_path(live_.nqn) + "/enable", "0");
    for (const auto& [name, ns] : live_.namespaces)
      if (is_extra(name) && ns.enabled)
        add(plan_.barrier, Kind::write, namespace_path(live_.nqn, name) + "/enable", "0");
  }

  bool is_extra(const std::string& name) const {
    return desired_ != nullptr && name != std::to_string(k_nsid);
  }

  void subsystem() {
    for (const std::string& nqn : surplus_) add(plan_.prepare, Kind::remove_host, "hosts/" + nqn);
    const std::string base = subsystem_path(live_.nqn);
    if (desired_ != nullptr) {
      if (!exists_) add(plan_.prepare, Kind::make_dir, base);
      write_if(live_.serial != desired_->serial, base + "/attr_serial", desired_->serial);
      write_if(live_.model != k_model, base + "/attr_model", k_model);
    }
    write_if(live_.allow_any_host != target_.any_host, base + "/attr_allow_any_host",
             target_.any_host ? "1" : "0");
    if (desired_ != nullptr) namespaces();
  }

  void namespaces() {
    for (const auto& [name, ns] : live_.namespaces)
      if (is_extra(name)) add(plan_.prepare, Kind::remove_dir, namespace_path(live_.nqn, name));
    const std::string base = namespace_path(live_.nqn);
    const LiveNamespace* ns = our_namespace(live_);
    if (ns == nullptr) add(plan_.prepare, Kind::make_dir, base);
    write_if(ns == nullptr || ns->device_path != desired_->device.path, base + "/device_path",
             desired_->device.path);
    write_if(ns == nullptr || ns->uuid != desired_->uuid, base + "/device_uuid", desired_->uuid);
    write_if(ns == nullptr || ns->nguid != desired_->nguid, base + "/device_nguid", desired_->nguid);
  }

  void access() {
    for (const std::string& nqn : target_.hosts) {
      if (retained_.contains(nqn)) continue;
      add(plan_.prepare, Kind::make_dir, "hosts/" + nqn);
      add(plan_.prepare, Kind::link, host_link_path(live_.nqn, nqn), "hosts/" + nqn);
    }
    if (!target_.enabled || (live_.enabled() && !barrier_)) return;
    if (desired_ != nullptr)
      add(plan_.prepare, Kind::check_device, desired_->device.path, desired_->device.number.str());
    add(plan_.prepare, Kind::write, namespace_path(live_.nqn) + "/enable", "1");
  }

  void open() {
    for (const std::uint16_t id : target_.ports)
      if (!live_.ports.contains(id) || !keeps_link(id))
        add(plan_.open, Kind::link, port_link_path(id, live_.nqn), subsystem_path(live_.nqn));
  }

  const DesiredExport* desired_;
  Target target_;
  const LiveSubsystem& live_;
  bool exists_;
  bool recycle_;
  std::set<std::string> surplus_;
  std::set<std::string> retained_;
  bool rebuild_ = false;
  bool drops_any_ = false;
  bool cut_ = false;
  bool barrier_ = false;
  ExportPlan plan_;
};

ExportPlan plan_to(const DesiredExport& desired, Target target, const std::optional<LiveSubsystem>& live) {
  LiveSubsystem nothing;
  nothing.nqn = desired.nqn;
  return ExportPlanner(&desired, std::move(target), live ? *live : nothing, live.has_value(), false).plan();
}

Target as_it_is(const LiveSubsystem& live) {
  Target target{live.enabled(), live.allow_any_host, live.host_nqns(), {}};
  for (const auto& [id, link] : live.ports) target.ports.insert(id);
  return target;
}

// --- ports ------------------------------------------------------------------------------------------------

struct PortAttribute {
  const char* name;
  std::string wanted;
  const std::string& seen;
};

std::vector<PortAttribute> attributes(const DesiredPort& desired, const LivePort& live) {
  std::vector<PortAttribute> result{{"addr_trtype", "tcp", live.trtype},
                                    {"addr_adrfam", desired.v6 ? "ipv6" : "ipv4", live.adrfam},
                                    {"addr_traddr", desired.address, live.traddr},
                                    {"addr_trsvcid", std::to_string(desired.port), live.trsvcid}};
  if (desired.inline_data_size != 0)
    result.push_back(
        {"param_inline_data_size", std::to_string(desired.inline_data_size), live.inline_data_size});
  return result;
}

bool same_address(const DesiredPort& desired, const LivePort& live) {
  return live.trtype == "tcp" && live.traddr == desired.address &&
         live.trsvcid == std::to_string(desired.port);
}

// A port that a crash left between mkdir and the last address: nothing in it contradicts ours.
bool half_made(const DesiredPort& desired, const LivePort& live) {
  if (live.linked) return false;
  DesiredPort address = desired;
  address.inline_data_size = 0;
  const auto list = attributes(address, live);
  return std::all_of(list.begin(), list.end(),
                     [](const PortAttribute& a) { return a.seen.empty() || a.seen == a.wanted; });
}

std::vector<std::uint16_t> probe_ids(const DesiredPort& desired) {
  std::vector<std::uint16_t> ids;
  std::uint16_t id = derived_port_id(desired.address, desired.port);
  for (unsigned i = 0; i < k_port_probes; ++i) {
    ids.push_back(id);
    id = id == 65535 ? std::uint16_t{1} : static_cast<std::uint16_t>(id + 1);
  }
  return ids;
}

Result<PortPlan> complete_port(const DesiredPort& desired, const LivePort& live, bool exists) {
  PortPlan plan{live.id, {}};
  const std::string base = "ports/" + std::to_string(live.id);
  if (!exists) plan.actions.push_back({Kind::make_dir, base, {}});
  for (const PortAttribute& a : attributes(desired, live)) {
    if (a.seen == a.wanted) continue;
    if (live.linked)
      return fail(Reason::port_conflict,
                  "nvmet port " + std::to_string(live.id) + " (" + desired.address + ":" +
                      std::to_string(desired.port) + ") has " + a.name + " = " + a.seen + ", wanted " +
                      a.wanted + ", and is in use: give these volumes another port or the same setting",
                  {{"port_id", std::to_string(live.id)}});
    plan.actions.push_back({Kind::write, base + "/" + a.name, a.wanted});
  }
  return plan;
}

}  // namespace

ExportPlan plan_export(const DesiredExport& desired, const std::optional<LiveSubsystem>& live) {
  const Access& access = desired.access;
  Target target;
  if (access.published) {
    target.enabled = true;
    target.any_host = !access.acl_enabled;
    if (access.acl_enabled) target.hosts = access.hosts;
    target.ports = {access.port_id};
  }
  return plan_to(desired, std::move(target), live);
}

ExportPlan plan_prepare(const DesiredExport& desired, const std::optional<LiveSubsystem>& live) {
  return plan_to(desired, live ? as_it_is(*live) : Target{}, live);
}

ExportPlan plan_allow(const DesiredExport& desired, const std::string& host_nqn,
                      const std::optional<LiveSubsystem>& live) {
  DesiredExport opened = desired;
  opened.access.published = true;
  opened.access.hosts = live ? live->host_nqns() : std::set<std::string>{};
  opened.access.hosts.insert(host_nqn);
  return plan_export(opened, live);
}

ExportPlan plan_deny(const DesiredExport& desired, const std::string& host_nqn, const LiveSubsystem& live) {
  Target target = as_it_is(live);
  target.hosts.erase(host_nqn);
  const bool last = target.hosts.empty() || live.allow_any_host || !live.enabled();
  if (!last && target.ports.empty()) target.ports = {desired.access.port_id};
  ExportPlan plan =
      last ? plan_close(live) : ExportPlanner(nullptr, std::move(target), live, true, true).plan();
  // Unlinked before a crash, its entry would stay: the retry removes it.
  if (!live.hosts.contains(host_nqn)) plan.prepare.push_back({Kind::remove_host, "hosts/" + host_nqn, {}});
  return plan;
}

ExportPlan plan_close(const LiveSubsystem& live) {
  return ExportPlanner(nullptr, Target{}, live, true, true).plan();
}

ExportPlan plan_remove(const LiveSubsystem& live) {
  ExportPlan plan = plan_close(live);
  for (const auto& [name, ns] : live.namespaces)
    plan.prepare.push_back({Kind::remove_dir, namespace_path(live.nqn, name), {}});
  plan.prepare.push_back({Kind::remove_dir, subsystem_path(live.nqn), {}});
  return plan;
}

Plan plan_revalidate(const LiveSubsystem& live) {
  if (!live.enabled()) return {};
  return {{Kind::write_only, namespace_path(live.nqn) + "/revalidate_size", "1"}};
}

std::uint16_t derived_port_id(const std::string& address, std::uint16_t port) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : address + "|" + std::to_string(port))
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<std::uint16_t>(hash % 65535U + 1U);
}

Result<PortPlan> plan_port(const DesiredPort& desired, const std::vector<LivePort>& live) {
  const std::vector<std::uint16_t> ids = probe_ids(desired);
  const auto ours = [&](const LivePort& p) { return std::find(ids.begin(), ids.end(), p.id) != ids.end(); };
  for (const LivePort& port : live)
    if (ours(port) && same_address(desired, port)) return complete_port(desired, port, true);
  for (const LivePort& port : live)
    if (same_address(desired, port))
      return fail(Reason::port_conflict,
                  "nvmet port " + std::to_string(port.id) + " of somebody else already uses " +
                      desired.address + ":" + std::to_string(desired.port) +
                      ": remove it or choose another port number",
                  {{"port_id", std::to_string(port.id)}});
  for (const std::uint16_t id : ids) {
    const auto it = std::find_if(live.begin(), live.end(), [&](const LivePort& p) { return p.id == id; });
    if (it == live.end()) {
      LivePort fresh;
      fresh.id = id;
      return complete_port(desired, fresh, false);
    }
    if (half_made(desired, *it)) return complete_port(desired, *it, true);
  }
  return fail(Reason::port_conflict, "no free nvmet port id for " + desired.address + ":" +
                                         std::to_string(desired.port) + " near " +
                                         std::to_string(ids.front()) + ": remove unused ports");
}

std::string describe(const Action& action) {
  switch (action.kind) {
    case Kind::make_dir:
      return "mkdir " + action.path;
    case Kind::write:
    case Kind::write_only:
      return "write " + action.path + " = " + action.value;
    case Kind::check_device:
      return "check device " + action.path + " is " + action.value;
    case Kind::link:
      return "link " + action.path + " -> " + action.value;
    case Kind::unlink:
      return "unlink " + action.path;
    case Kind::remove_dir:
    case Kind::remove_host:
      return "rmdir " + action.path;
  }
  return action.path;
}

}  // namespace pillar::hostio::nvmet
