#include "actors/agent/agent.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "actors/agent/context.hpp"
#include "actors/agent/health.hpp"
#include "actors/runtime/system.hpp"

namespace pillar::agent {

AgentHost make_real_host(const AgentConfig& config, const runtime::Services& services) {
  hostio::ProcessRunner::Options options;
  options.observer = [metrics = services.metrics](std::string_view executable, std::string_view result,
                                                  Clock::duration duration) {
    metrics
        ->histogram("pillar_csi_exec_duration_seconds", "Run time of external programs",
                    {{"executable", std::string(executable)}, {"result", std::string(result)}})
        .observe(std::chrono::duration<double>(duration).count());
  };
  AgentHost host;
  host.runner = std::make_shared<hostio::ProcessRunner>(std::move(options));
  hostio::Lvm::Options lvm;
  lvm.roots = {config.sysfs_root, config.dev_root, config.proc_root};
  host.backend = make_lvm_backend(host.runner, std::make_shared<hostio::DirectWiper>(), std::move(lvm));
  host.nvmet = std::make_shared<hostio::PosixConfigfs>(config.configfs_root + "/nvmet");
  return host;
}

namespace {

std::unique_ptr<runtime::BlockingPool> make_pool(const runtime::Services& services, const char* name,
                                                 std::size_t threads, std::size_t queue,
                                                 std::size_t hard_cap) {
  runtime::BlockingPoolOptions options;
  options.name = name;
  options.threads = threads;
  options.queue = queue;
  options.hard_cap = hard_cap;
  options.metrics = services.metrics;
  return std::make_unique<runtime::BlockingPool>(std::move(options));
}

std::unique_ptr<hostio::nvmet::Executor> make_executor(const AgentHost& host,
                                                       const runtime::Services& services) {
  hostio::nvmet::Executor::Hooks hooks;
  hooks.check_device = host.check_device;
  hooks.on_error = [metrics = services.metrics](std::string_view op, int errno_value) {
    const char* name = ::strerrorname_np(errno_value);
    metrics
        ->counter("pillar_csi_nvmet_configfs_errors_total", "Failed configfs operations",
                  {{"op", std::string(op)}, {"errno", name != nullptr ? name : "unknown"}})
        .add();
  };
  return std::make_unique<hostio::nvmet::Executor>(*host.nvmet, std::move(hooks));
}

ContextPtr make_context(AgentConfig config, AgentParts parts, std::unique_ptr<StateStore> store) {
  auto context = std::make_shared<AgentContext>();
  context->config = std::move(config);
  context->limits = parts.limits;
  context->host = std::move(parts.host);
  context->services = parts.services;
  context->store = std::move(store);
  context->commands = make_pool(parts.services, "commands", 8, 4096, 32);
  context->configfs = make_pool(parts.services, "configfs", 8, 4096, 32);
  context->durable = make_pool(parts.services, "durable", 2, 4096, 4);
  context->health = make_pool(parts.services, "health", 2, 64, 8);
  context->barriers = make_pool(parts.services, "barriers", 4, 4096, 64);
  context->executor = make_executor(context->host, parts.services);
  return context;
}

// The clock of tombstones: running time, so that no wall clock can age them.
using ClockActor = caf::typed_actor<caf::reacts_to<caf::unit_t>>;
struct ClockState {
  explicit ClockState(runtime::ActorBase* self) : cell(self->cell()) {}
  std::shared_ptr<runtime::ActorCell> cell;
};

void arm_tick(const std::shared_ptr<runtime::TimedExecutor>& executor, const ContextPtr& context) {
  executor->post_after(StateStore::k_tick_interval, [executor, context] {
    context->durable->submit<Done>(
        Deadline::never(),
        [context]() -> Result<Done> {
          if (auto ticked = context->store->tick(); !ticked) return tl::unexpected(ticked.error());
          return Done{};
        },
        {"advance the tombstone clock", {}}, [](const Result<Done>&) {});
    arm_tick(executor, context);
  });
}

ClockActor::behavior_type clock_actor(runtime::Stateful<ClockState, ClockActor>* self, ContextPtr context) {
  arm_tick(self->state.cell->executor(), context);
  return {[](const caf::unit_t&) {}};
}

}  // namespace

struct AgentApp::Impl {
  Impl(ContextPtr c, runtime::SystemOptions options) : context(std::move(c)), system(std::move(options)) {}

  /// Runs `job` in `pool` and answers the call with its result.
  template <class Request, class Response, class Job>
  void answer(runtime::BlockingPool& pool, const Call<Request, Response>& call, const char* what, Job job) {
    pool.submit<Response>(
        call.deadline, [job = std::move(job), request = call.request] { return job(*request); }, {what, {}},
        [reply = call.reply](Result<Response> result) { reply(std::move(result)); });
  }

  /// Sends a call to its volume's actor.
  template <class Request, class Response>
  void to_volume(Call<Request, Response> call) {
    auto volume = AgentVolumeId::parse(call.request->volume().agent_volume_id());
    if (!volume) return call.reply(tl::unexpected(volume.error()));
    runtime::route(context->actors.volumes, volume->str(), std::move(call));
  }

  ContextPtr context;
  /// Shared with the jobs that look: one that hangs in the kernel outlives this object.
  std::shared_ptr<HealthProbe> probe = std::make_shared<HealthProbe>();
  runtime::System system;
  bool stopped = false;
};

AgentApp::AgentApp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<AgentApp>> AgentApp::start(AgentConfig config, AgentParts parts) {
  auto store = StateStore::open(config.state_dir, parts.durable_hook);
  if (!store) return tl::unexpected(store.error());
  runtime::SystemOptions options;
  options.services = parts.services;
  ContextPtr context = make_context(std::move(config), std::move(parts), std::move(*store));
  auto impl = std::make_unique<Impl>(context, std::move(options));
  AgentActors& actors = context->actors;
  actors.marks = spawn_marks(impl->system, context);
  actors.pools = spawn_pools(impl->system, context);
  actors.ports = spawn_ports(impl->system, context);
  actors.volumes = spawn_volumes(impl->system, context);
  actors.reconcile = spawn_reconcile(impl->system, context);
  impl->system.keep(
      impl->system.spawn(runtime::ActorOptions{"agent/clock", "agent/clock"}, clock_actor, context));
  runtime::route(actors.reconcile, k_only,
                 Call<RestoreFromRecords, Done>{std::make_shared<const RestoreFromRecords>(),
                                                Deadline::never(), Reply<Done>([](const Result<Done>&) {})});
  return std::unique_ptr<AgentApp>(new AgentApp(std::move(impl)));
}

AgentApp::~AgentApp() { shutdown(std::chrono::seconds(5)); }

bool AgentApp::shutdown(Clock::duration limit) {
  if (std::exchange(impl_->stopped, true)) return true;
  const bool clean = impl_->system.shutdown(limit);
  // The registries hold the context and the context their handles.
  impl_->context->actors = {};
  return clean;
}

bool AgentApp::gated() const { return impl_->context->gated; }

void AgentApp::send(Call<v1::GetCapabilitiesRequest, v1::GetCapabilitiesResponse> call) {
  impl_->answer(
      *impl_->context->health, call, "GetCapabilities",
      [context = impl_->context](const v1::GetCapabilitiesRequest&) -> Result<v1::GetCapabilitiesResponse> {
        return get_capabilities(*context);
      });
}

void AgentApp::send(Call<v1::HealthCheckRequest, v1::HealthCheckResponse> call) {
  impl_->answer(*impl_->context->health, call, "HealthCheck",
                [context = impl_->context, probe = impl_->probe](const v1::HealthCheckRequest& request)
                    -> Result<v1::HealthCheckResponse> { return health_check(*context, *probe, request); });
}

void AgentApp::send(Call<v1::GetCapacityRequest, v1::GetCapacityResponse> call) {
  const std::string pool = call.request->pool();
  const auto& backends = impl_->context->config.backends;
  const bool known = std::any_of(backends.begin(), backends.end(), [&](const LvmBackendConfig& backend) {
    return backend.volume_group == pool;
  });
  if (!known)
    return call.reply(fail(Reason::invalid_argument, "pool '" + pool +
                                                         "' is not configured on this agent; configured: " +
                                                         configured_pools(impl_->context->config)));
  auto request = std::make_shared<PoolInfo>();
  request->pool = pool;
  Reply<hostio::VolumeGroup> reply([reply = call.reply](const Result<hostio::VolumeGroup>& info) {
    if (!info) return reply(tl::unexpected(info.error()));
    v1::GetCapacityResponse response;
    *response.mutable_pool() = pool_message(*info);
    response.set_maximum_volume_bytes(maximum_volume(*info));
    reply(std::move(response));
  });
  runtime::route(impl_->context->actors.pools, pool,
                 Call<PoolInfo, hostio::VolumeGroup>{std::move(request), call.deadline, std::move(reply)});
}

void AgentApp::send(Call<v1::ListVolumesRequest, v1::ListVolumesResponse> call) {
  impl_->answer(*impl_->context->commands, call, "ListVolumes",
                [context = impl_->context](const v1::ListVolumesRequest&) { return list_volumes(*context); });
}

void AgentApp::send(Call<v1::ListExportsRequest, v1::ListExportsResponse> call) {
  impl_->answer(*impl_->context->configfs, call, "ListExports",
                [context = impl_->context](const v1::ListExportsRequest&) { return list_exports(*context); });
}

void AgentApp::send(Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::DeleteVolumeRequest, v1::DeleteVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::ExpandVolumeRequest, v1::ExpandVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::ExportVolumeRequest, v1::ExportVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::UnexportVolumeRequest, v1::UnexportVolumeResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::AllowInitiatorRequest, v1::AllowInitiatorResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::DenyInitiatorRequest, v1::DenyInitiatorResponse> call) {
  impl_->to_volume(std::move(call));
}
void AgentApp::send(Call<v1::AdoptLifecycleRequest, v1::AdoptLifecycleResponse> call) {
  impl_->to_volume(std::move(call));
}

void AgentApp::send(Call<v1::ReconcileStateRequest, v1::ReconcileStateResponse> call) {
  runtime::route(impl_->context->actors.reconcile, k_only, std::move(call));
}

namespace {

Result<v1::SeedMarksResponse> seed_marks(AgentContext& context, const v1::SeedMarksRequest& request) {
  const auto lost = context.lost_marks.all();
  std::vector<Seed> seeds;
  for (const v1::SeedMark& mark : request.marks()) {
    auto volume = AgentVolumeId::parse(mark.agent_volume_id());
    if (!volume) return tl::unexpected(volume.error());
    seeds.push_back({std::move(*volume), {mark.volume_uid(), mark.generation()}, mark.deleting()});
  }
  auto sequence = context.store->seed_marks(request.epoch(), seeds, request.sequence());
  if (!sequence) return tl::unexpected(sequence.error());
  context.lost_marks.forget(lost);
  v1::SeedMarksResponse response;
  response.set_sequence(*sequence);
  return response;
}

}  // namespace

void AgentApp::send(Call<v1::SeedMarksRequest, v1::SeedMarksResponse> call) {
  impl_->answer(*impl_->context->durable, call, "SeedMarks",
                [context = impl_->context](const v1::SeedMarksRequest& request) {
                  return seed_marks(*context, request);
                });
}

void AgentApp::send(Call<v1::DrainRequest, v1::DrainResponse> call) {
  impl_->answer(*impl_->context->durable, call, "Drain",
                [context = impl_->context](const v1::DrainRequest& request) -> Result<v1::DrainResponse> {
                  if (auto set = context->store->set_drained(request.enable()); !set)
                    return tl::unexpected(set.error());
                  return v1::DrainResponse{};
                });
}

}  // namespace pillar::agent
