#pragma once
// What the controller knows about an agent, as the status of its PillarAgent: pure functions, so that nothing
// is written unless something changed.

#include <optional>
#include <string>
#include <vector>

#include "crd/types.hpp"
#include "messages/agent.pb.h"
#include "messages/error.hpp"

namespace pillar::controller {

/// Where an agent is dialled.
struct AgentEndpoint {
  std::string host;    ///< canonical IP literal or host name
  std::string target;  ///< "host:port", brackets around IPv6
  bool literal = false;
};
/// The endpoint of `spec`. DEPENDENCY_MISSING for nodeRef, whose address only Kubernetes knows.
Result<AgentEndpoint> agent_endpoint(const crd::AgentSpec& spec);

/// One observation of an agent.
struct AgentObservation {
  std::optional<Error> failure;  ///< it could not be asked
  std::optional<pillar::agent::v1::HealthCheckResponse> health;
  std::optional<pillar::agent::v1::GetCapabilitiesResponse> capabilities;
  bool needs_kubernetes = false;          ///< nodeRef without Kubernetes
  bool synchronised = false;              ///< marks and exports agree with the records
  std::vector<std::string> not_restored;  ///< volumes whose export could not be restored
  std::string blocked_by;                 ///< dependents that hold a deletion, empty: none or not deleting
};

/// The status after `seen`. Fields the observation says nothing about stay.
crd::AgentStatus agent_status(const crd::PillarAgent& agent, const AgentObservation& seen);

std::vector<crd::DiscoveredPool> discovered_pools(
    const pillar::agent::v1::GetCapabilitiesResponse& capabilities);

/// True when `fresh` is worth a write at once. Changes of pool usage and of the fencing sequence alone can
/// wait for a while: they change with every volume.
bool is_urgent_change(const crd::AgentStatus& stored, const crd::AgentStatus& fresh);

}  // namespace pillar::controller
