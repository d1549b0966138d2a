// agent/port/<address:port>: makes the nvmet port and links exports into it.

#include <utility>

#include "actors/agent/context.hpp"
#include "hostio/configfs/nvmet_reader.hpp"

namespace pillar::agent {
namespace {

namespace nvmet = hostio::nvmet;
using runtime::OperationContext;

constexpr std::size_t k_waiting = 4096;  // one call per volume of the port at most

struct PortState {
  explicit PortState(runtime::ActorBase* self) : queue(self->cell(), {k_waiting}) {}
  std::optional<PortId> known;  ///< verified once; verified again before each link
  runtime::OperationQueue queue;
};

/// Finds or makes the port in the live tree.
Result<PortId> ensure_port(const AgentContext& context, const Endpoint& endpoint) {
  auto live = nvmet::read_ports(*context.host.nvmet);
  if (!live) return tl::unexpected(live.error());
  const nvmet::DesiredPort desired{endpoint.address.text, endpoint.address.v6, endpoint.port,
                                   endpoint.inline_data_size};
  auto plan = nvmet::plan_port(desired, *live);
  if (!plan) return tl::unexpected(plan.error());
  if (auto made = context.executor->run(plan->actions); !made) return tl::unexpected(made.error());
  return PortId{plan->id};
}

Result<Done> open_export(const AgentContext& context, const OpenExport& request) {
  auto port = ensure_port(context, request.endpoint);
  if (!port) return tl::unexpected(port.error());
  if (auto linked = context.executor->run(request.plan); !linked) return tl::unexpected(linked.error());
  return Done{};
}

Result<OpenedAll> open_all(const AgentContext& context, const OpenAll& request) {
  auto port = ensure_port(context, request.endpoint);
  if (!port) return tl::unexpected(port.error());
  return OpenedAll{context.executor->open_all(request.plans)};
}

Task<Result<PortId>> ensure(ContextPtr context, PortState* state, OperationContext op,
                            std::shared_ptr<const EnsurePort> request) {
  if (state->known) co_return *state->known;
  auto job = [context, request] { return ensure_port(*context, request->endpoint); };
  runtime::JobOptions options{"make port " + request->endpoint.key(), {}};
  auto port =
      co_await context->configfs->run<PortId>(op.executor(), job_deadline(*context), job, std::move(options));
  if (port) state->known = *port;
  co_return port;
}

Task<Result<Done>> open_one(ContextPtr context, PortState* state, OperationContext op,
                            std::shared_ptr<const OpenExport> request) {
  auto job = [context, request]() -> Result<Done> {
    auto result = open_export(*context, *request);
    request->hold->release();
    return result;
  };
  runtime::JobOptions options{"link into port " + request->endpoint.key(), {}};
  auto done =
      co_await context->configfs->run<Done>(op.executor(), job_deadline(*context), job, std::move(options));
  if (!done) state->known.reset();
  co_return done;
}

Task<Result<OpenedAll>> open_many(ContextPtr context, PortState* state, OperationContext op,
                                  std::shared_ptr<const OpenAll> request) {
  auto job = [context, request] { return open_all(*context, *request); };
  runtime::JobOptions options{"open port " + request->endpoint.key(), {}};
  auto done = co_await context->configfs->run<OpenedAll>(op.executor(), job_deadline(*context), job,
                                                         std::move(options));
  if (!done) state->known.reset();
  co_return done;
}

using PortActor = Child<PortRegistry>;
using PortImpl = runtime::Stateful<PortState, PortActor>;

PortActor::behavior_type port_actor(PortImpl* self, ContextPtr context) {
  PortState* state = &self->state;
  return {
      [context, state](const Call<EnsurePort, PortId>& call) {
        state->queue.submit(call, "ensure_port",
                            [context, state](OperationContext op, std::shared_ptr<const EnsurePort> request) {
                              return ensure(context, state, std::move(op), std::move(request));
                            });
      },
      [context, state](const Call<OpenExport, Done>& call) {
        state->queue.submit(call, "open_export",
                            [context, state](OperationContext op, std::shared_ptr<const OpenExport> request) {
                              return open_one(context, state, std::move(op), std::move(request));
                            });
      },
      [context, state](const Call<OpenAll, OpenedAll>& call) {
        state->queue.submit(call, "open_port",
                            [context, state](OperationContext op, std::shared_ptr<const OpenAll> request) {
                              return open_many(context, state, std::move(op), std::move(request));
                            });
      }};
}

}  // namespace

PortRegistry spawn_ports(runtime::System& system, ContextPtr context) {
  runtime::RegistryOptions options;
  options.kind = "agent/port";
  return runtime::spawn_registry<Call<EnsurePort, PortId>, Call<OpenExport, Done>, Call<OpenAll, OpenedAll>>(
      system, options, [&system, context](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), port_actor, context);
      });
}

}  // namespace pillar::agent
