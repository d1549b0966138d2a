#pragma once
// One round of the link to an agent, as a coroutine: ask for its health, and when it is new, restarted or has
// lost state, bring its fencing marks and exports in line with the records (docs/fencing.md sections 2 and
// 7).

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "actors/controller/agent_status.hpp"
#include "actors/controller/agent_table.hpp"
#include "actors/controller/catalog.hpp"
#include "actors/controller/ports.hpp"
#include "actors/runtime/executor.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {

/// Resolves a host name to an IP literal without blocking the caller; answers once, on any thread.
using HostResolver = std::function<void(std::string host, std::function<void(Result<std::string>)> done)>;

/// What a link works with.
struct LinkPorts {
  Ports ports;
  std::shared_ptr<AgentTable> table;
  std::shared_ptr<Catalog> catalog;
  AgentClientFactory connect;
  HostResolver resolve;
  std::shared_ptr<runtime::TimedExecutor> timer;
};

/// What a link remembers between rounds. Losing it (a restarted actor) costs one synchronisation.
struct LinkMemory {
  std::string target;
  std::shared_ptr<AgentClient> client;
  std::string bind_address;
  bool synchronised = false;
  std::string epoch;                   ///< of the last synchronisation
  Clock::time_point complete_at{};     ///< when the agent was sent its last complete list
  std::set<std::string> not_restored;  ///< volume ids whose export the agent could not bring up
  int late_answers = 0;                ///< rounds in a row in which the agent was too slow
  Clock::time_point status_written{};  ///< last write of the PillarAgent's status
};

enum class RoundOutcome : std::uint8_t {
  steady,      ///< nothing to do until the next interval
  unsettled,   ///< something failed: come back sooner, with backoff
  agent_gone,  ///< the PillarAgent does not exist any more
};

/// One round. Never fails: what went wrong is in the table, in the agent's conditions and in the outcome.
Task<RoundOutcome> link_round(runtime::OperationContext context, LinkPorts link, std::string agent,
                              std::shared_ptr<LinkMemory> memory);

}  // namespace pillar::controller
