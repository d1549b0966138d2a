#pragma once
// What all actors of one agent share: configuration, the host's interfaces, the durable state, each other.

#include <atomic>
#include <memory>
#include <string>

#include "actors/agent/agent.hpp"
#include "actors/agent/lost_marks.hpp"
#include "actors/agent/messages.hpp"
#include "actors/runtime/blocking_pool.hpp"
#include "actors/runtime/cell.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::agent {

/// Handles of the registries.
struct AgentActors {
  MarksRegistry marks;
  PoolRegistry pools;
  PortRegistry ports;
  VolumeRegistry volumes;
  ReconcileRegistry reconcile;
};

/// Shared by all actors; the members below `state` are thread-safe or fixed after the start.
struct AgentContext {
  AgentConfig config;
  AgentLimits limits;
  AgentHost host;
  runtime::Services services;
  std::unique_ptr<StateStore> store;
  AgentActors actors;
  std::shared_ptr<InFlight> in_flight = std::make_shared<InFlight>();
  std::unique_ptr<runtime::BlockingPool> commands;  ///< backend commands, slow ones of a sick disk included
  std::unique_ptr<runtime::BlockingPool> durable;   ///< the state directory
  std::unique_ptr<runtime::BlockingPool> health;    ///< looking only
  std::unique_ptr<runtime::BlockingPool> barriers;  ///< namespace disables, which may hang
  std::unique_ptr<hostio::nvmet::Executor> executor;
  std::atomic<bool> gated{true};
  /// For configfs; apart from the backend's commands, so that access can be ended whatever those wait for.
  std::unique_ptr<runtime::BlockingPool> configfs;
  LostMarks lost_marks;

  /// Seeded, and no mark is known to be lost: the controller has nothing to restore.
  bool marks_complete() const { return store->seeded() && lost_marks.none(); }
  /// Notes `volume`, whose object was seen, if its mark is lost.
  void check_mark(const AgentVolumeId& volume) {
    const auto stored = store->mark(volume);
    if (stored && stored->seeded && !stored->mark) lost_marks.note(volume);
  }
};

using ContextPtr = std::shared_ptr<AgentContext>;

/// When a job on the host counts as stuck: beyond what the backend bounds itself to. Its thread is replaced
/// and its caller answered; what it changes stays marked as in flight until it returns.
inline Deadline job_deadline(const AgentContext& context) {
  return Deadline::after(context.limits.command + std::chrono::seconds(10));
}

/// The Host of one operation.
HostPtr bind_host(ContextPtr context, runtime::OperationContext operation);

/// The configured pools, for messages.
std::string configured_pools(const AgentConfig& config);

// Registries of the kinds in messages.hpp.
MarksRegistry spawn_marks(runtime::System& system, ContextPtr context);
PoolRegistry spawn_pools(runtime::System& system, ContextPtr context);
PortRegistry spawn_ports(runtime::System& system, ContextPtr context);
VolumeRegistry spawn_volumes(runtime::System& system, ContextPtr context);
ReconcileRegistry spawn_reconcile(runtime::System& system, ContextPtr context);

}  // namespace pillar::agent
