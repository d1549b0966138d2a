#include "actors/controller/controller.hpp"

#include <prometheus/metric_family.h>

#include "actors/controller/actors.hpp"
#include "actors/controller/listing.hpp"
#include "actors/controller/resolver.hpp"

namespace pillar::controller {
namespace {

using runtime::ActorBase;
using runtime::ActorOptions;

/// How often actors that must always run are made sure of.
constexpr auto k_keeper_interval = std::chrono::seconds(10);
/// Resolver threads: names are few and cached by the system.
constexpr std::size_t k_resolver_threads = 2;

// ---- keeper ---------------------------------------------------------------------------------------------

/// controller/keeper: wakes watchers, links and the reconciler now and then, so that one that crashed comes
/// back although nobody sends it anything.
using KeeperActor = caf::typed_actor<caf::reacts_to<Wake>>;
struct KeeperState {
  explicit KeeperState(ActorBase*) {}
  std::function<void()> wake_all;
};

void keep_awake(std::shared_ptr<runtime::TimedExecutor> timer, std::function<void()> wake_all) {
  wake_all();
  auto& executor = *timer;
  executor.post_after(k_keeper_interval, [timer, wake_all] { keep_awake(timer, wake_all); });
}

KeeperActor::behavior_type keeper_actor(runtime::Stateful<KeeperState, KeeperActor>* self,
                                        std::function<void()> wake_all) {
  self->state.wake_all = std::move(wake_all);
  return {[self](const Wake&) { keep_awake(self->cell()->executor(), self->state.wake_all); }};
}

// ---- metrics --------------------------------------------------------------------------------------------

prometheus::MetricFamily family(const std::string& name, const std::string& help, const std::string& label,
                                const std::map<std::string, std::size_t>& values) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  for (const auto& [value, count] : values) {
    prometheus::ClientMetric metric;
    metric.label.push_back({label, value.empty() ? "None" : value});
    metric.gauge.value = static_cast<double>(count);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

std::vector<prometheus::MetricFamily> volume_metrics(const VolumeIndex& index) {
  const auto counts = index.counts();
  return {family("pillar_csi_volumes", "Volume records by phase", "phase", counts.by_phase),
          family("pillar_csi_volumes_export_unreconciled",
                 "Volumes whose export is not as recorded, by the reason of the condition", "reason",
                 counts.unreconciled)};
}

tl::unexpected<Error> stopping() {
  return fail(Reason::shutting_down, "the controller is shutting down; repeat the call");
}

}  // namespace

struct ControllerApp::Impl : std::enable_shared_from_this<ControllerApp::Impl> {
  Ports ports;
  std::string version;
  std::shared_ptr<AgentTable> table;
  std::shared_ptr<Catalog> catalog = std::make_shared<Catalog>();
  std::shared_ptr<WatchState> watches = std::make_shared<WatchState>();
  VolumeRegistry volumes;
  CapacityRegistry capacity;
  WakeRegistry links;
  WakeRegistry reconciler;
  WakeRegistry watchers;
  KeeperActor keeper;
  std::atomic<bool> stopped{false};

  void start(runtime::System& system, ControllerConfig config);
  void wake_link(const std::string& agent, bool now) const {
    if (links) runtime::route(links, agent, Wake{now});
  }
  void wake_reconciler(bool changed) const {
    if (reconciler) runtime::route(reconciler, std::string("all"), Wake{changed});
  }
  void wake_all() const {
    for (const auto kind : crd::k_kinds) runtime::route(watchers, std::string(crd::to_string(kind)), Wake{});
    for (const auto& agent : catalog->view().agents) wake_link(agent.first, false);
    wake_reconciler(false);
  }

  /// Sends a call to the actor of its volume. An id that is not ours names no volume: `absent` decides
  /// whether that is fine or NOT_FOUND (reported-faults row K07).
  template <class Request, class Response>
  void to_volume(Call<Request, Response> call, bool absent_is_fine) const {
    if (stopped) return call.reply(stopping());
    const std::string& text = call.request->volume_id();
    if (text.empty()) return call.reply(fail(Reason::invalid_argument, "volume_id is empty"));
    const auto id = VolumeId::parse(text);
    if (id) return runtime::route(volumes, record_name(*id), std::move(call));
    if (absent_is_fine) return call.reply(Response());
    call.reply(fail(Reason::not_found, "volume does not exist: " + id.error().message));
  }
};

void ControllerApp::Impl::start(runtime::System& system, ControllerConfig config) {
  const std::weak_ptr<Impl> weak = weak_from_this();
  version = config.version;
  table = std::make_shared<AgentTable>([weak](const std::string& agent) {
    if (const auto self = weak.lock()) self->wake_link(agent, true);
  });
  ports.store = config.store;
  ports.agents = table;
  ports.nodes = config.nodes;
  ports.index = std::make_shared<VolumeIndex>();
  ports.cluster_id = config.cluster_id;
  ports.limits = config.limits;
  ports.legacy_volume_condition = config.legacy_volume_condition;

  LinkPorts link;
  link.ports = ports;
  link.table = table;
  link.catalog = catalog;
  link.connect = config.connect;
  link.resolve = config.resolve;
  if (!link.resolve) {
    runtime::BlockingPoolOptions pool;
    pool.name = "resolver";
    pool.threads = k_resolver_threads;
    pool.metrics = system.services().metrics;
    link.resolve = system_resolver(std::make_shared<runtime::BlockingPool>(pool));
  }
  WatchTargets targets;
  targets.store = config.store;
  targets.index = ports.index;
  targets.catalog = catalog;
  targets.state = watches;
  targets.agent_changed = [weak](const std::string& agent) {
    if (const auto self = weak.lock()) self->wake_link(agent, true);
  };
  targets.configuration_changed = [weak] {
    if (const auto self = weak.lock()) self->wake_reconciler(true);
  };

  system.metrics().add_collector([index = ports.index] { return volume_metrics(*index); });
  links = spawn_links(system, link, {config.health_interval, config.retry_first, config.retry_max});
  reconciler = spawn_reconciler(system, ports, catalog);
  volumes = spawn_volumes(system, ports);
  capacity = spawn_capacity(system, ports);
  watchers = spawn_watchers(system, targets);
  const std::function<void()> wake_everyone = [weak] {
    if (const auto self = weak.lock()) self->wake_all();
  };
  keeper = system.keep(
      system.spawn(ActorOptions{"controller/keeper", "controller/keeper"}, keeper_actor, wake_everyone));
  caf::anon_send(keeper, Wake{});
}

ControllerApp::ControllerApp(runtime::System& system, ControllerConfig config)
    : impl_(std::make_shared<Impl>()) {
  impl_->start(system, std::move(config));
}

ControllerApp::~ControllerApp() = default;

void ControllerApp::send(Call<csi::GetPluginInfoRequest, csi::GetPluginInfoResponse> call) {
  call.reply(plugin_info(impl_->version));
}

void ControllerApp::send(Call<csi::GetPluginCapabilitiesRequest, csi::GetPluginCapabilitiesResponse> call) {
  call.reply(plugin_capabilities());
}

void ControllerApp::send(Call<csi::ProbeRequest, csi::ProbeResponse> call) {
  csi::ProbeResponse response;
  response.mutable_ready()->set_value(ready());
  call.reply(std::move(response));
}

void ControllerApp::send(CreateCall call) {
  if (impl_->stopped) return call.reply(stopping());
  const auto name = volume_name_for(call.request->name());
  if (!name) return call.reply(tl::unexpected(name.error()));
  runtime::route(impl_->volumes, record_name(*name), std::move(call));
}

void ControllerApp::send(DeleteCall call) { impl_->to_volume(std::move(call), true); }
void ControllerApp::send(PublishCall call) {
  // A request without these is wrong whatever its volume is.
  if (call.request->node_id().empty()) return call.reply(fail(Reason::invalid_argument, "node_id is empty"));
  if (!call.request->has_volume_capability())
    return call.reply(fail(Reason::invalid_argument, "volume_capability is missing"));
  impl_->to_volume(std::move(call), false);
}
void ControllerApp::send(UnpublishCall call) { impl_->to_volume(std::move(call), true); }
void ControllerApp::send(ExpandCall call) {
  if (!call.request->has_capacity_range())
    return call.reply(fail(Reason::invalid_argument, "capacity_range is missing"));
  impl_->to_volume(std::move(call), false);
}
void ControllerApp::send(ValidateCall call) {
  if (call.request->volume_capabilities().empty())
    return call.reply(fail(Reason::invalid_argument, "volume_capabilities is empty; give at least one"));
  impl_->to_volume(std::move(call), false);
}
void ControllerApp::send(GetVolumeCall call) { impl_->to_volume(std::move(call), false); }
void ControllerApp::send(GetHealthCall call) { impl_->to_volume(std::move(call), false); }

void ControllerApp::send(FormattedCall call) {
  const auto id = VolumeId::parse(call.request->volume_id);
  if (!id) return call.reply(fail(Reason::not_found, "volume does not exist: " + id.error().message));
  runtime::route(impl_->volumes, record_name(*id), std::move(call));
}

void ControllerApp::send(CapacityCall call) {
  if (impl_->stopped) return call.reply(stopping());
  std::string key;
  for (const auto& [name, value] : normalised_parameters(call.request->parameters()))
    key += name + "=" + value + "\n";
  runtime::route(impl_->capacity, sha256_base32(key), std::move(call));
}

void ControllerApp::send(Call<csi::ListVolumesRequest, csi::ListVolumesResponse> call) {
  if (!ready())
    return call.reply(
        fail(Reason::store_unavailable, "the volumes were not read yet: " + not_ready_reason()));
  call.reply(
      list_volumes(*impl_->ports.index, *impl_->table, *call.request, impl_->ports.legacy_volume_condition));
}

void ControllerApp::send(
    Call<csi::ControllerListVolumeHealthRequest, csi::ControllerListVolumeHealthResponse> call) {
  if (!ready())
    return call.reply(
        fail(Reason::store_unavailable, "the volumes were not read yet: " + not_ready_reason()));
  call.reply(list_volume_health(*impl_->ports.index, *impl_->table, *call.request));
}

void ControllerApp::send(
    Call<csi::ControllerGetCapabilitiesRequest, csi::ControllerGetCapabilitiesResponse> call) {
  call.reply(controller_capabilities(impl_->ports.legacy_volume_condition));
}

bool ControllerApp::ready() const { return !impl_->stopped && impl_->watches->all_running(); }

std::string ControllerApp::not_ready_reason() const {
  return impl_->stopped ? "the controller is shutting down" : impl_->watches->problems();
}

void ControllerApp::stop() { impl_->stopped = true; }

}  // namespace pillar::controller
