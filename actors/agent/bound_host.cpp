// The Host of one running operation: sends durable writes to agent/marks, metadata changes to agent/pool,
// links to agent/port, and runs the rest in the blocking pools. Every call is a named step (failpoint).

#include <utility>

#include "actors/agent/context.hpp"
#include "actors/runtime/executor.hpp"
#include "hostio/configfs/nvmet_reader.hpp"

namespace pillar::agent {
namespace {

namespace nvmet = hostio::nvmet;
using runtime::Async;
using runtime::BlockingPool;
using runtime::JobOptions;

Result<void> nothing(const Result<Done>& result) {
  if (!result) return tl::unexpected(result.error());
  return {};
}

class BoundHost final : public Host {
 public:
  BoundHost(ContextPtr context, runtime::OperationContext operation)
      : context_(std::move(context)), operation_(std::move(operation)) {}

  Result<void> check_pool(const AgentVolumeId& volume, const std::string& backend_type) const override {
    if (!backend_type.empty() && backend_type != "lvm-lv")
      return fail(Reason::invalid_argument, "volume " + volume.str() + ": backend type '" + backend_type +
                                                "' is not served by this agent; it serves lvm-lv");
    for (const LvmBackendConfig& backend : context_->config.backends)
      if (backend.volume_group == volume.pool) return {};
    return fail(Reason::invalid_argument,
                "volume " + volume.str() + ": pool '" + volume.pool +
                    "' is not configured on this agent; configured: " + configured_pools(context_->config));
  }

  Result<void> check_bind_address(const IpAddress& address) const override {
    const auto& allowed = context_->config.bind_addresses;
    std::string list;
    for (const IpAddress& entry : allowed) {
      if (entry == address) return {};
      list += (list.empty() ? "" : ", ") + entry.text;
    }
    if (allowed.empty()) return {};
    return fail(Reason::invalid_argument,
                "bind address " + address.text + " is not allowed by this agent's bindAddresses: " + list);
  }

  bool drained() const override { return context_->store->drained(); }
  bool gated() const override { return context_->gated; }
  std::string device_path(const AgentVolumeId& volume) const override {
    return context_->config.dev_root + "/" + volume.pool + "/" + volume.name;
  }
  std::optional<AgentVolumeId> volume_of_nqn(const std::string& nqn) const override {
    return context_->store->volume_of_nqn(nqn);
  }
  void count_decision(std::string_view op, const std::string& decision) override {
    context_->services.metrics
        ->counter("pillar_csi_agent_fencing_decisions_total", "Fencing decisions",
                  {{"op", std::string(op)}, {"decision", decision}})
        .add();
  }

  Task<Result<StoredMark>> read_mark(AgentVolumeId volume) override {
    co_return context_->store->mark(volume);
  }

  Task<Result<Mark>> write_mark(Mark mark) override {
    if (auto s = co_await operation_.step("write_mark"); !s) co_return tl::unexpected(s.error());
    auto request = std::make_shared<const Mark>(std::move(mark));
    co_return co_await ask<Mark, Mark>(context_->actors.marks, k_only, std::move(request));
  }

  Task<Result<std::optional<ExportRecord>>> read_record(AgentVolumeId volume) override {
    co_return context_->store->record(volume);
  }

  Task<Result<void>> write_record(StateStore::RecordChange change) override {
    if (auto s = co_await operation_.step("write_record"); !s) co_return tl::unexpected(s.error());
    if (!change.record && !context_->store->record(change.volume)) co_return Result<void>{};
    auto request = std::make_shared<const StateStore::RecordChange>(std::move(change));
    auto done =
        co_await ask<StateStore::RecordChange, Done>(context_->actors.marks, k_only, std::move(request));
    co_return nothing(done);
  }

  Task<Result<std::optional<hostio::LogicalVolume>>> find(AgentVolumeId volume) override {
    auto job = [context = context_, volume, deadline = command_deadline()] {
      return context->host.backend->find(volume, deadline);
    };
    std::string what = "look up volume " + volume.str();
    auto found =
        co_await work<std::optional<hostio::LogicalVolume>>(*context_->commands, std::move(what), job);
    if (found && *found) context_->check_mark(volume);
    co_return found;
  }

  Task<Result<hostio::LogicalVolume>> create(AgentVolumeId volume, std::string uid,
                                             hostio::SizeRange range) override {
    if (auto s = co_await operation_.step("create_volume"); !s) co_return tl::unexpected(s.error());
    auto request = std::make_shared<LvCreate>();
    *request = {volume, std::move(uid), range};
    co_return co_await ask<LvCreate, hostio::LogicalVolume>(context_->actors.pools, volume.pool,
                                                            std::move(request));
  }

  Task<Result<hostio::LogicalVolume>> extend(AgentVolumeId volume, std::string uid,
                                             hostio::SizeRange range) override {
    if (auto s = co_await operation_.step("extend_volume"); !s) co_return tl::unexpected(s.error());
    auto request = std::make_shared<LvExtend>();
    *request = {volume, std::move(uid), range};
    co_return co_await ask<LvExtend, hostio::LogicalVolume>(context_->actors.pools, volume.pool,
                                                            std::move(request));
  }

  Task<Result<void>> remove(AgentVolumeId volume, std::string uid) override {
    if (auto s = co_await operation_.step("remove_volume"); !s) co_return tl::unexpected(s.error());
    auto request = std::make_shared<LvRemove>();
    *request = {volume, std::move(uid)};
    auto done = co_await ask<LvRemove, Done>(context_->actors.pools, volume.pool, std::move(request));
    co_return nothing(done);
  }

  Task<Result<hostio::LvDevice>> activate(AgentVolumeId volume, std::string uid) override {
    if (auto s = co_await operation_.step("activate_volume"); !s) co_return tl::unexpected(s.error());
    auto job = [context = context_, volume, uid, deadline = command_deadline()] {
      return context->host.backend->activate(volume, uid, deadline);
    };
    std::string what = "activate volume " + volume.str();
    auto device = co_await work<hostio::LvDevice>(*context_->commands, std::move(what), job);
    co_return device;
  }

  Task<Result<void>> change_owner(AgentVolumeId volume, std::string old_uid, std::string new_uid) override {
    if (auto s = co_await operation_.step("change_owner"); !s) co_return tl::unexpected(s.error());
    auto request = std::make_shared<LvChangeOwner>();
    *request = {volume, std::move(old_uid), std::move(new_uid)};
    auto done = co_await ask<LvChangeOwner, Done>(context_->actors.pools, volume.pool, std::move(request));
    co_return nothing(done);
  }

  Task<Result<std::optional<nvmet::LiveSubsystem>>> read_export(std::string nqn) override {
    if (auto free = check_settled(nqn); !free) co_return tl::unexpected(free.error());
    auto job = [context = context_, nqn] { return nvmet::read_subsystem(*context->host.nvmet, nqn); };
    std::string what = "read " + nqn;
    auto live = co_await work<std::optional<nvmet::LiveSubsystem>>(*context_->configfs, std::move(what), job);
    co_return live;
  }

  Task<Result<void>> configure(std::string nqn, nvmet::Plan plan) override {
    if (auto s = co_await operation_.step("configure"); !s) co_return tl::unexpected(s.error());
    auto hold = begin(nqn, ChangeKind::configure);
    if (!hold) co_return tl::unexpected(hold.error());
    auto job = plan_job(std::move(plan), std::move(*hold));
    std::string what = "configure " + nqn;
    auto done = co_await work<Done>(*context_->configfs, std::move(what), std::move(job));
    co_return nothing(done);
  }

  Task<Result<void>> barrier(std::string nqn, nvmet::Plan plan) override {
    if (auto s = co_await operation_.step("barrier"); !s) co_return tl::unexpected(s.error());
    auto hold = begin(nqn, ChangeKind::barrier);
    if (!hold) co_return tl::unexpected(hold.error());
    auto job = plan_job(std::move(plan), std::move(*hold));
    const Deadline limit = Deadline::after(context_->limits.barrier);
    JobOptions options{"end I/O of " + nqn, nqn};
    auto done = co_await context_->barriers->run<Done>(operation_.executor(), limit, std::move(job),
                                                       std::move(options));
    if (!done && context_->in_flight->busy(nqn))
      co_return tl::unexpected(unsettled(nqn, ChangeKind::barrier));
    co_return nothing(done);
  }

  Task<Result<std::uint16_t>> port_id(Endpoint endpoint) override {
    if (auto s = co_await operation_.step("ensure_port"); !s) co_return tl::unexpected(s.error());
    const std::string key = endpoint.key();
    auto request = std::make_shared<EnsurePort>();
    request->endpoint = std::move(endpoint);
    auto port = co_await ask<EnsurePort, PortId>(context_->actors.ports, key, std::move(request));
    if (!port) co_return tl::unexpected(port.error());
    co_return port->id;
  }

  Task<Result<void>> open(Endpoint endpoint, std::string nqn, nvmet::Plan plan) override {
    if (auto s = co_await operation_.step("open"); !s) co_return tl::unexpected(s.error());
    auto hold = begin(nqn, ChangeKind::configure);
    if (!hold) co_return tl::unexpected(hold.error());
    const std::string key = endpoint.key();
    auto request = std::make_shared<OpenExport>();
    request->endpoint = std::move(endpoint);
    request->plan = std::move(plan);
    request->hold = std::move(*hold);
    auto done = co_await ask<OpenExport, Done>(context_->actors.ports, key, std::move(request));
    co_return nothing(done);
  }

 private:
  Deadline command_deadline() const { return Deadline::after(context_->limits.command); }

  /// Refuses while something begun earlier still changes the export.
  Result<void> check_settled(const std::string& nqn) const {
    const auto busy = context_->in_flight->busy(nqn);
    if (!busy) return {};
    return tl::unexpected(unsettled(nqn, *busy));
  }
  static Error unsettled(const std::string& nqn, ChangeKind kind) {
    if (kind == ChangeKind::barrier)
      return fail(Reason::access_not_ended,
                  "access to " + nqn +
                      " has not ended yet: the kernel still waits for I/O in flight on its device. Repeat "
                      "the call; "
                      "if this lasts, look at the health of the disk below the volume")
          .value();
    return fail(Reason::operation_pending,
                "an earlier change of " + nqn + " is still being made on this host; repeat the call")
        .value();
  }
  /// Enters a change of the export, or refuses like check_settled.
  Result<std::shared_ptr<InFlight::Hold>> begin(const std::string& nqn, ChangeKind kind) {
    auto hold = context_->in_flight->begin(nqn, kind);
    if (hold) return hold;
    return tl::unexpected(unsettled(nqn, context_->in_flight->busy(nqn).value_or(ChangeKind::configure)));
  }
  std::function<Result<Done>()> plan_job(nvmet::Plan plan, std::shared_ptr<InFlight::Hold> hold) {
    return [context = context_, plan = std::move(plan), hold = std::move(hold)]() -> Result<Done> {
      const Result<void> result = context->executor->run(plan);
      hold->release();
      if (!result) return tl::unexpected(result.error());
      return Done{};
    };
  }

  /// Runs `job` in `pool`. The backend bounds its commands itself.
  template <class T, class Job>
  Async<Result<T>> work(BlockingPool& pool, std::string what, Job job) {
    return pool.run<T>(operation_.executor(), job_deadline(*context_), std::move(job),
                       JobOptions{std::move(what), {}});
  }

  /// Sends a call to the actor of `key` and awaits its answer. The callee's work has no deadline of ours:
  /// what it began, it finishes.
  template <class Request, class Response, class Registry>
  Async<Result<Response>> ask(const Registry& registry, std::string key,
                              std::shared_ptr<const Request> request) {
    return Async<Result<Response>>(
        operation_.executor(), [registry, key = std::move(key), request = std::move(request)](
                                   typename Async<Result<Response>>::Complete complete) mutable {
          Call<Request, Response> call{
              std::move(request), Deadline::never(),
              Reply<Response>([complete = std::move(complete)](Result<Response> result) {
                complete(std::move(result));
              })};
          runtime::route(registry, std::move(key), std::move(call));
        });
  }

  ContextPtr context_;
  runtime::OperationContext operation_;
};

}  // namespace

HostPtr bind_host(ContextPtr context, runtime::OperationContext operation) {
  return std::make_shared<BoundHost>(std::move(context), std::move(operation));
}

std::string configured_pools(const AgentConfig& config) {
  std::string list;
  for (const LvmBackendConfig& backend : config.backends)
    list += (list.empty() ? "" : ", ") + backend.volume_group;
  return list;
}

}  // namespace pillar::agent
