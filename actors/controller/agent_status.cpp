#include "actors/controller/agent_status.hpp"

#include "messages/ids.hpp"

namespace pillar::controller {
namespace {

using crd::ConditionStatus;
namespace pb = ::pillar::agent::v1;

constexpr std::size_t k_named = 10;

void put(crd::AgentStatus& status, const crd::PillarAgent& agent, std::string_view type,
         ConditionStatus value, std::string_view reason, std::string message = {}) {
  crd::Condition condition;
  condition.type = std::string(type);
  condition.status = value;
  condition.reason = std::string(reason);
  condition.message = std::move(message);
  condition.observed_generation = agent.metadata.generation;
  crd::set_condition(status.conditions, std::move(condition));
}

std::string failing_subsystems(const pb::HealthCheckResponse& health) {
  std::string text;
  for (const auto& subsystem : health.subsystems())
    if (!subsystem.ok()) text += (text.empty() ? "" : "; ") + subsystem.name() + ": " + subsystem.message();
  return text;
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < k_named; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > k_named) text += " and " + std::to_string(names.size() - k_named) + " more";
  return text;
}

void put_connected(crd::AgentStatus& status, const crd::PillarAgent& agent, const AgentObservation& seen) {
  if (seen.needs_kubernetes) {
    put(status, agent, "AgentConnected", ConditionStatus::no, "AddressUnknown",
        "the address of a nodeRef agent comes from Kubernetes");
  } else if (seen.failure) {
    put(status, agent, "AgentConnected", ConditionStatus::no, "HealthCheckFailed", seen.failure->message);
  } else if (seen.health) {
    const auto failing = failing_subsystems(*seen.health);
    if (failing.empty())
      put(status, agent, "AgentConnected", ConditionStatus::yes, "Dialed", "connected in plaintext");
    else
      put(status, agent, "AgentConnected", ConditionStatus::no, "AgentDegraded", failing);
  }
}

void put_exports(crd::AgentStatus& status, const crd::PillarAgent& agent, const AgentObservation& seen) {
  if (!seen.synchronised)
    put(status, agent, "ExportsReady", ConditionStatus::unknown, "NotSynchronised",
        "the agent's exports were not compared with the records yet");
  else if (seen.not_restored.empty())
    put(status, agent, "ExportsReady", ConditionStatus::yes, "Restored");
  else
    put(status, agent, "ExportsReady", ConditionStatus::no, "ReconcileFailed",
        std::to_string(seen.not_restored.size()) + " volumes: " + some_of(seen.not_restored));
}

void put_ready(crd::AgentStatus& status, const crd::PillarAgent& agent, const AgentObservation& seen) {
  if (!seen.blocked_by.empty())
    return put(status, agent, "Ready", ConditionStatus::no, "DeletionBlocked",
               "still needed by " + seen.blocked_by);
  for (const auto* type : {"NodeExists", "AgentConnected"}) {
    const auto* condition = crd::find_condition(status.conditions, type);
    if (condition != nullptr && condition->status != ConditionStatus::yes)
      return put(status, agent, "Ready", ConditionStatus::no, condition->reason, condition->message);
  }
  if (!seen.synchronised)
    return put(status, agent, "Ready", ConditionStatus::no, "NotSynchronised",
               "the agent is being synchronised");
  put(status, agent, "Ready", ConditionStatus::yes, "Ready");
}

}  // namespace

Result<AgentEndpoint> agent_endpoint(const crd::AgentSpec& spec) {
  if (!spec.external)
    return fail(Reason::dependency_missing,
                "nodeRef needs Kubernetes, which this controller runs without; use spec.external");
  AgentEndpoint endpoint;
  const auto port = std::to_string(spec.external->port);
  if (const auto address = IpAddress::parse(spec.external->address)) {
    endpoint.host = address->text;
    endpoint.literal = true;
    endpoint.target = (address->v6 ? "[" + address->text + "]" : address->text) + ":" + port;
  } else {
    endpoint.host = spec.external->address;
    endpoint.target = endpoint.host + ":" + port;
  }
  return endpoint;
}

std::vector<crd::DiscoveredPool> discovered_pools(const pb::GetCapabilitiesResponse& capabilities) {
  std::vector<crd::DiscoveredPool> pools;
  for (const auto& pool : capabilities.pools()) {
    // A pool that cannot serve is not discovered: the store's condition then says PoolNotFound.
    if (!pool.error().empty()) continue;
    crd::DiscoveredPool discovered;
    discovered.name = pool.name();
    discovered.type = pool.type();
    discovered.total = static_cast<std::int64_t>(pool.total_bytes());
    discovered.available = static_cast<std::int64_t>(pool.available_bytes());
    discovered.parent_dataset = pool.parent_dataset();
    discovered.thin_pool = pool.thin_pool();
    pools.push_back(std::move(discovered));
  }
  return pools;
}

crd::AgentStatus agent_status(const crd::PillarAgent& agent, const AgentObservation& seen) {
  crd::AgentStatus status = agent.status;
  if (const auto endpoint = agent_endpoint(agent.spec)) status.resolved_address = endpoint->target;
  if (seen.needs_kubernetes)
    put(status, agent, "NodeExists", ConditionStatus::no, "KubernetesRequired",
        "spec.nodeRef needs Kubernetes; use spec.external without it");
  if (seen.capabilities) {
    status.agent_version = seen.capabilities->version();
    crd::AgentCapabilities capabilities;
    capabilities.backends.assign(seen.capabilities->backends().begin(), seen.capabilities->backends().end());
    capabilities.protocols.assign(seen.capabilities->protocols().begin(),
                                  seen.capabilities->protocols().end());
    status.capabilities = std::move(capabilities);
    status.discovered_pools = discovered_pools(*seen.capabilities);
  }
  if (seen.health && seen.synchronised) {
    crd::AgentFencing fencing;
    fencing.epoch = seen.health->epoch();
    fencing.sequence = static_cast<std::int64_t>(seen.health->sequence());
    status.fencing = fencing;
  }
  put_connected(status, agent, seen);
  put_exports(status, agent, seen);
  put_ready(status, agent, seen);
  return status;
}

bool is_urgent_change(const crd::AgentStatus& stored, const crd::AgentStatus& fresh) {
  crd::AgentStatus calm = stored;
  if (calm.fencing && fresh.fencing && calm.fencing->epoch == fresh.fencing->epoch)
    calm.fencing->sequence = fresh.fencing->sequence;
  if (calm.discovered_pools.size() == fresh.discovered_pools.size())
    for (std::size_t i = 0; i < calm.discovered_pools.size(); ++i)
      calm.discovered_pools[i].available = fresh.discovered_pools[i].available;
  return !(calm == fresh);
}

}  // namespace pillar::controller
