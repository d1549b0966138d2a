#include "actors/node/node.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>

#include "actors/node/actors.hpp"
#include "actors/runtime/logging.hpp"
#include "actors/runtime/testing.hpp"
#include "hostio/durable_file.hpp"
#include "hostio/flock.hpp"
#include "hostio/modules.hpp"
#include "messages/ids.hpp"

namespace pillar::node {
namespace {

constexpr std::size_t k_max_node_id = 256;  // CSI: NodeGetInfoResponse.node_id
constexpr const char* k_topology_key = "topology.pillar-csi.bhyoo.com/nvmeof";
constexpr Clock::duration k_start_limit = std::chrono::minutes(1);
constexpr Clock::duration k_module_limit = std::chrono::seconds(5);

/// The fabrics device and the TCP transport, loaded when that is possible (row C09).
Result<void> check_nvme_tcp(Machine& machine) {
  const auto& roots = machine.options().roots;
  auto module = hostio::ensure_module(machine.runner(), "nvme-tcp", roots, Deadline::after(k_module_limit));
  if (!module) return module;
  const std::string device = roots.dev + "/nvme-fabrics";
  if (::access(device.c_str(), F_OK) == 0) return {};
  return fail(Reason::module_missing,
              device + " is missing although nvme-tcp is loaded; give the plugin the host's /dev");
}

csi::NodeServiceCapability capability(csi::NodeServiceCapability::RPC::Type type) {
  csi::NodeServiceCapability out;
  out.mutable_rpc()->set_type(type);
  return out;
}

void collect_controllers(runtime::Metrics& metrics, const hostio::HostRoots& roots) {
  metrics.add_collector([topology = hostio::NvmeTopology(roots)] {
    std::map<std::string, double> states;
    if (const auto subsystems = topology.subsystems())
      for (const auto& subsystem : *subsystems) {
        if (!is_our_nqn(subsystem.nqn)) continue;
        for (const auto& each : subsystem.controllers) states[std::string(to_string(each.state))] += 1;
      }
    prometheus::MetricFamily family;
    family.name = "pillar_csi_node_nvme_controllers";
    family.help = "NVMe controllers of this driver by state";
    family.type = prometheus::MetricType::Gauge;
    for (const auto& [state, count] : states) {
      prometheus::ClientMetric metric;
      metric.label.push_back({"state", state});
      metric.gauge.value = count;
      family.metric.push_back(metric);
    }
    return std::vector{family};
  });
}

/// 1 while mounts made here are seen on the host.
void collect_propagation(runtime::Metrics& metrics, std::function<Result<void>()> mounts_seen) {
  metrics.add_collector([seen = std::move(mounts_seen)] {
    prometheus::MetricFamily family;
    family.name = "pillar_csi_node_mounts_seen_on_host";
    family.help =
        "1: mounts below the kubelet directory are seen on the host; 0: mount propagation is missing";
    family.type = prometheus::MetricType::Gauge;
    prometheus::ClientMetric metric;
    metric.gauge.value = seen() ? 1 : 0;
    family.metric.push_back(metric);
    return std::vector{family};
  });
}

/// The allowed directories as given and as what they resolve to: the kubelet directory may be a link.
std::vector<std::string> resolved_prefixes(std::vector<std::string> prefixes) {
  const auto given = prefixes.size();
  for (std::size_t i = 0; i < given; ++i) {
    std::error_code error;
    auto real = std::filesystem::canonical(prefixes[i], error).string();
    if (!error && real != prefixes[i]) prefixes.push_back(std::move(real));
  }
  return prefixes;
}

void log_report(const ReconcileReport& report) {
  runtime::log(spdlog::level::info, "stage records reconciled",
               {{"kept", std::to_string(report.kept)},
                {"dropped", std::to_string(report.dropped)},
                {"corrupt", std::to_string(report.corrupt)}});
  for (const auto& nqn : report.unrecorded)
    runtime::log(spdlog::level::warn, "a session has no stage record; it is left alone", {{"nqn", nqn}});
}

}  // namespace

struct NodeApp::Impl {
  explicit Impl(runtime::SystemOptions options) : system(std::move(options)) {}

  /// Runs blocking `job` in the quick pool and answers the call with its result.
  template <class Request, class Response, class Job>
  void answer(const Call<Request, Response>& call, const char* what, Job job) {
    machine->quick().submit<Response>(
        call.deadline, std::move(job), {what, {}},
        [reply = call.reply](Result<Response> result) { reply(std::move(result)); });
  }
  template <class Call>
  void to_volume(Call call) {
    std::string key = call.request->volume_id();
    if (key.empty()) return call.reply(no_id());
    runtime::route(volumes, std::move(key), std::move(call));
  }
  template <class Call>
  void to_inspector(Call call) {
    std::string key = call.request->volume_id();
    if (key.empty()) return call.reply(no_id());
    runtime::route(inspectors, std::move(key), std::move(call));
  }
  static tl::unexpected<Error> no_id() {
    return fail(Reason::invalid_argument, "volume id is empty; give the id of a volume");
  }
  /// Whether volumes can be attached here; blocking, and independent of this object's life.
  std::function<Result<void>()> usable() const {
    return [m = machine, given = parts.nvme_tcp_usable]() -> Result<void> {
      if (!given) return check_nvme_tcp(*m);
      if (given()) return {};
      return fail(Reason::module_missing, "nvme-tcp is not usable");
    };
  }
  /// Whether mounts made here are seen on the host; blocking, and independent of this object's life.
  std::function<Result<void>()> mounts_seen() const {
    if (parts.mounts_seen) return parts.mounts_seen;
    return [m = machine] { return m->check_mounts_seen(); };
  }
  Result<void> open_state();
  Result<void> reconcile(const std::string& boot_id);
  void start_actors();

  NodeConfig config;
  NodeParts parts;
  std::string node_id;
  ReconcileReport report;
  std::optional<hostio::DirectoryLock> lock;
  std::shared_ptr<Machine> machine;
  runtime::System system;
  Connector connector;
  VolumeRegistry volumes;
  InspectorRegistry inspectors;
  bool stopped = false;
};

Result<void> NodeApp::Impl::open_state() {
  if (parts.host) return {};
  if (auto made = hostio::ensure_state_directory(config.state_dir); !made) return made;
  auto locked = hostio::DirectoryLock::acquire(config.state_dir);
  if (!locked) return tl::unexpected(locked.error());
  lock = std::move(*locked);
  auto cleaned = hostio::remove_leftover_temps(config.state_dir);
  if (!cleaned) return tl::unexpected(cleaned.error());
  return {};
}

Result<void> NodeApp::Impl::reconcile(const std::string& boot_id) {
  // Before any actor exists, so that no call can meet a record that is about to be dropped.
  auto executor = std::make_shared<runtime::QueueExecutor>();
  auto host =
      parts.host ? parts.host(executor) : make_linux_host(machine, executor, [](const ConnectCall&) {});
  try {
    auto done = executor->run(reconcile_records(host, boot_id), k_start_limit);
    if (!done) return tl::unexpected(done.error());
    report = *done;
  } catch (const std::exception& failure) {
    return fail(Reason::io_error, std::string("stage records could not be reconciled: ") + failure.what());
  }
  log_report(report);
  return {};
}

void NodeApp::Impl::start_actors() {
  ConnectFunction connect = [m = machine](const std::shared_ptr<const ConnectJob>& job,
                                          std::function<void(Result<Done>)> done) {
    const auto work = [m, job]() -> Result<Done> {
      if (auto connected = m->connect(*job); !connected) return tl::unexpected(connected.error());
      return Done{};
    };
    m->slow().submit<Done>(Deadline::after(m->options().limits.connect * 2), work,
                           {"connect " + job->session.nqn, "connect " + job->session.nqn}, std::move(done));
  };
  connector = spawn_connector(system, std::move(connect), config.limits.parallel_connects);
  auto shared = std::make_shared<VolumeParts>();
  shared->host = parts.host;
  if (!shared->host)
    shared->host = [m = machine, to = connector](std::shared_ptr<runtime::TimedExecutor> executor) {
      return make_linux_host(m, std::move(executor),
                             [to](ConnectCall call) { caf::anon_send(to, std::move(call)); });
    };
  shared->settings.rules = RequestRules{config.identity.nqn, resolved_prefixes(config.allowed_prefixes)};
  shared->settings.boot_id = parts.boot_id;
  shared->settings.legacy_volume_condition = config.legacy_volume_condition;
  volumes = spawn_volumes(system, shared);
  inspectors = spawn_inspectors(system, shared);
}

Result<std::string> make_node_id(const std::string& name, bool standalone, const std::string& host_nqn) {
  if (!is_object_name(name))
    return fail(Reason::invalid_argument, "node name '" + name.substr(0, 80) + "' is not a DNS subdomain");
  if (!is_valid_nqn(host_nqn))
    return fail(Reason::host_nqn_missing, "host NQN '" + host_nqn.substr(0, 80) + "' is not valid");
  std::string id = standalone ? name + "/" + host_nqn : name;
  if (id.size() > k_max_node_id)
    return fail(Reason::invalid_argument,
                "node id '" + id + "' is longer than 256 bytes; use a shorter node name or host NQN");
  return id;
}

namespace {

/// What no flag parser finds wrong.
Result<void> check_config(const NodeConfig& config) {
  if (config.max_volumes_per_node < 0)
    return fail(Reason::invalid_argument, "max volumes per node is " +
                                              std::to_string(config.max_volumes_per_node) +
                                              "; give 0 (no limit) or a positive number");
  for (const auto& prefix : config.allowed_prefixes)
    if (auto good = check_path("allowed path", prefix, RequestRules()); !good) return good;
  return {};
}

}  // namespace

NodeApp::NodeApp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<NodeApp>> NodeApp::start(NodeConfig config, NodeParts parts) {
  auto id = make_node_id(config.node_name, config.standalone, config.identity.nqn);
  if (!id) return tl::unexpected(id.error());
  if (auto good = check_config(config); !good) return tl::unexpected(good.error());
  if (parts.boot_id.empty()) {
    auto boot = read_boot_id(config.roots);
    if (!boot) return tl::unexpected(boot.error());
    parts.boot_id = *boot;
  }
  runtime::SystemOptions options;
  options.services = parts.services;
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->config = std::move(config);
  impl->parts = std::move(parts);
  impl->node_id = std::move(*id);
  MachineOptions machine;
  machine.state_dir = impl->config.state_dir;
  machine.kubelet_dir = impl->config.kubelet_dir;
  machine.roots = impl->config.roots;
  machine.identity = impl->config.identity;
  machine.limits = impl->config.limits;
  machine.services = impl->parts.services;
  impl->machine = std::make_shared<Machine>(std::move(machine));
  if (auto opened = impl->open_state(); !opened) return tl::unexpected(opened.error());
  if (auto done = impl->reconcile(impl->parts.boot_id); !done) return tl::unexpected(done.error());
  if (auto usable = impl->usable()(); !usable)
    runtime::log(spdlog::level::warn, "volumes cannot be attached on this node",
                 {{"why", usable.error().message}});
  if (auto seen = impl->mounts_seen()(); !seen)
    runtime::log(spdlog::level::err, "volumes cannot be mounted on this node",
                 {{"why", seen.error().message}});
  collect_propagation(*impl->parts.services.metrics, impl->mounts_seen());
  collect_controllers(*impl->parts.services.metrics, impl->config.roots);
  impl->start_actors();
  return std::unique_ptr<NodeApp>(new NodeApp(std::move(impl)));
}

NodeApp::~NodeApp() { shutdown(std::chrono::seconds(5)); }

bool NodeApp::shutdown(Clock::duration limit) {
  if (std::exchange(impl_->stopped, true)) return true;
  const bool clean = impl_->system.shutdown(limit);
  impl_->volumes = VolumeRegistry();
  impl_->inspectors = InspectorRegistry();
  impl_->connector = Connector();
  return clean;
}

const std::string& NodeApp::node_id() const { return impl_->node_id; }
Result<void> NodeApp::ready() const { return impl_->mounts_seen()(); }
const ReconcileReport& NodeApp::reconciled() const { return impl_->report; }

void NodeApp::send(Call<csi::GetPluginInfoRequest, csi::GetPluginInfoResponse> call) {
  csi::GetPluginInfoResponse response;
  response.set_name(std::string(k_driver_name));
  response.set_vendor_version(impl_->config.version);
  call.reply(std::move(response));
}

void NodeApp::send(Call<csi::GetPluginCapabilitiesRequest, csi::GetPluginCapabilitiesResponse> call) {
  csi::GetPluginCapabilitiesResponse response;
  using Service = csi::PluginCapability::Service;
  for (const auto type : {Service::CONTROLLER_SERVICE, Service::VOLUME_ACCESSIBILITY_CONSTRAINTS})
    response.add_capabilities()->mutable_service()->set_type(type);
  response.add_capabilities()->mutable_volume_expansion()->set_type(
      csi::PluginCapability::VolumeExpansion::ONLINE);
  call.reply(std::move(response));
}

void NodeApp::send(Call<csi::ProbeRequest, csi::ProbeResponse> call) {
  // Records are reconciled before the first call can arrive; what is missing on the host is said per volume.
  // A plugin whose mounts nobody sees would lose the data that pods write beside them (row H09).
  impl_->answer(call, "Probe", [seen = impl_->mounts_seen()]() -> Result<csi::ProbeResponse> {
    if (auto visible = seen(); !visible) return tl::unexpected(visible.error());
    csi::ProbeResponse response;
    response.mutable_ready()->set_value(true);
    return response;
  });
}

void NodeApp::send(Call<csi::NodeStageVolumeRequest, csi::NodeStageVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void NodeApp::send(Call<csi::NodeUnstageVolumeRequest, csi::NodeUnstageVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void NodeApp::send(Call<csi::NodePublishVolumeRequest, csi::NodePublishVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void NodeApp::send(Call<csi::NodeUnpublishVolumeRequest, csi::NodeUnpublishVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void NodeApp::send(Call<csi::NodeExpandVolumeRequest, csi::NodeExpandVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void NodeApp::send(Call<csi::NodeGetVolumeStatsRequest, csi::NodeGetVolumeStatsResponse> call) {
  impl_->to_inspector(std::move(call));
}
void NodeApp::send(Call<csi::NodeGetVolumeHealthRequest, csi::NodeGetVolumeHealthResponse> call) {
  impl_->to_inspector(std::move(call));
}

void NodeApp::send(Call<csi::NodeGetStorageHealthRequest, csi::NodeGetStorageHealthResponse> call) {
  impl_->answer(
      call, "NodeGetStorageHealth",
      [check = impl_->usable(), seen = impl_->mounts_seen()]() -> Result<csi::NodeGetStorageHealthResponse> {
        csi::NodeGetStorageHealthResponse response;
        if (auto visible = seen(); !visible) {
          auto* entry = response.add_backend_health();
          entry->set_status(csi::STORAGE_UNREACHABLE);
          entry->set_reason("MountsHidden");
          entry->set_message(visible.error().message);
        }
        if (auto usable = check(); !usable) {
          auto* entry = response.add_backend_health();
          entry->set_status(csi::STORAGE_UNREACHABLE);
          entry->set_reason("NvmeTcpUnusable");
          entry->set_message(usable.error().message);
        }
        return response;
      });
}

void NodeApp::send(Call<csi::NodeGetCapabilitiesRequest, csi::NodeGetCapabilitiesResponse> call) {
  using Rpc = csi::NodeServiceCapability::RPC;
  csi::NodeGetCapabilitiesResponse response;
  // Not VOLUME_MOUNT_GROUP: with it the kubelet would leave group ownership of existing files to us, and only
  // it knows the pod's policy for them.
  for (const auto type : {Rpc::STAGE_UNSTAGE_VOLUME, Rpc::EXPAND_VOLUME, Rpc::GET_VOLUME_STATS,
                          Rpc::SINGLE_NODE_MULTI_WRITER, Rpc::GET_VOLUME_HEALTH, Rpc::GET_STORAGE_HEALTH})
    *response.add_capabilities() = capability(type);
  if (impl_->config.legacy_volume_condition) *response.add_capabilities() = capability(Rpc::VOLUME_CONDITION);
  call.reply(std::move(response));
}

void NodeApp::send(Call<csi::NodeGetInfoRequest, csi::NodeGetInfoResponse> call) {
  csi::NodeGetInfoResponse info;
  info.set_node_id(impl_->node_id);
  info.set_max_volumes_per_node(impl_->config.max_volumes_per_node);
  impl_->answer(call, "NodeGetInfo", [check = impl_->usable(), info]() -> Result<csi::NodeGetInfoResponse> {
    csi::NodeGetInfoResponse response = info;
    // A node that cannot attach registers all the same, without the key that volumes ask for.
    if (check()) (*response.mutable_accessible_topology()->mutable_segments())[k_topology_key] = "true";
    return response;
  });
}

}  // namespace pillar::node
