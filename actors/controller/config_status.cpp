#include "actors/controller/config_status.hpp"

#include <algorithm>

#include "crd/settings.hpp"

namespace pillar::controller {
namespace {

using crd::ConditionStatus;

/// Sets conditions of one object in order and remembers the first that is not True, which decides Ready.
class Judge {
 public:
  Judge(crd::Conditions& conditions, const crd::Metadata& metadata)
      : conditions_(conditions), metadata_(metadata) {}

  bool set(std::string_view type, bool good, std::string_view reason, std::string message = {}) {
    put(type, good ? ConditionStatus::yes : ConditionStatus::no, reason, message);
    if (!good && why_not_.empty()) {
      why_not_ = std::string(reason);
      detail_ = std::move(message);
    }
    return good;
  }

  void finish(const VolumeIndex::Dependents& dependents) {
    if (metadata_.deleting() && dependents.count > 0)
      put("Ready", ConditionStatus::no, "DeletionBlocked", "still needed by " + describe(dependents));
    else if (why_not_.empty())
      put("Ready", ConditionStatus::yes, "Ready", {});
    else
      put("Ready", ConditionStatus::no, why_not_, detail_);
  }

 private:
  void put(std::string_view type, ConditionStatus value, std::string_view reason, std::string message) {
    crd::Condition condition;
    condition.type = std::string(type);
    condition.status = value;
    condition.reason = std::string(reason);
    condition.message = std::move(message);
    condition.observed_generation = metadata_.generation;
    crd::set_condition(conditions_, std::move(condition));
  }

  crd::Conditions& conditions_;
  const crd::Metadata& metadata_;
  std::string why_not_;
  std::string detail_;
};

template <class Map>
auto find(const Map& map, const std::string& name) -> decltype(&map.begin()->second) {
  const auto found = map.find(name);
  return found == map.end() ? nullptr : &found->second;
}

/// Reason and message of an object's Ready condition, for those that build on it.
std::string readiness(const crd::Conditions& conditions) {
  const auto* ready = crd::find_condition(conditions, "Ready");
  if (ready == nullptr) return "not checked yet";
  return ready->reason + (ready->message.empty() ? "" : ": " + ready->message);
}

void judge_agent(Judge& judge, const crd::PillarStore& store, const crd::PillarAgent* agent) {
  const auto name = crd::subject(crd::Kind::agent, store.spec.agent_ref);
  if (agent == nullptr)
    judge.set("AgentReady", false, "AgentNotFound", name + " does not exist");
  else if (!crd::condition_true(agent->status.conditions, "Ready"))
    judge.set("AgentReady", false, k_agent_not_ready,
              name + " is not ready (" + readiness(agent->status.conditions) + ")");
  else
    judge.set("AgentReady", true, "AgentReady");
}

const crd::DiscoveredPool* find_pool(const crd::PillarAgent& agent, const crd::Backend& backend) {
  const auto& pools = agent.status.discovered_pools;
  const std::string type = backend.lvm ? "lvm" : "zfs";
  const auto found = std::find_if(pools.begin(), pools.end(), [&](const auto& pool) {
    return pool.name == backend.pool() && pool.type == type;
  });
  return found == pools.end() ? nullptr : &*found;
}

/// Empty when the agent is configured as the store says.
std::string layout_mismatch(const crd::Backend& backend, const crd::DiscoveredPool& pool) {
  const auto differs = [](const std::string& field, const std::string& wanted, const std::string& has) {
    return wanted == has ? std::string()
                         : field + " is '" + wanted + "' here but '" + has + "' in the agent's configuration";
  };
  if (backend.lvm) return differs("thinPool", backend.lvm->thin_pool, pool.thin_pool);
  if (backend.zfs) return differs("parentDataset", backend.zfs->parent_dataset, pool.parent_dataset);
  return {};
}

void judge_pool(Judge& judge, crd::StoreStatus& status, const crd::PillarStore& store,
                const crd::PillarAgent* agent) {
  const std::string pool_name(store.spec.backend.pool());
  if (agent == nullptr || !agent->status.capabilities) {
    judge.set("PoolDiscovered", false, "WaitingForAgentData", "the agent has not reported its pools yet");
    return;
  }
  const auto* pool = find_pool(*agent, store.spec.backend);
  if (pool == nullptr) {
    judge.set("PoolDiscovered", false, "PoolNotFound",
              "agent " + store.spec.agent_ref + " does not serve pool " + pool_name +
                  "; see the backends in its configuration and the pool's state");
    return;
  }
  status.capacity = crd::Capacity{pool->total, pool->available, pool->total - pool->available};
  const auto mismatch = layout_mismatch(store.spec.backend, *pool);
  if (mismatch.empty())
    judge.set("PoolDiscovered", true, "PoolDiscovered");
  else
    judge.set("PoolDiscovered", false, "BackendLayoutMismatch", mismatch);
}

void judge_backend(Judge& judge, const crd::PillarStore& store, const crd::PillarAgent* agent) {
  const std::string type(store.spec.backend.type());
  if (agent == nullptr || !agent->status.capabilities) {
    judge.set("BackendSupported", false, "WaitingForAgentData",
              "the agent has not reported its capabilities yet");
    return;
  }
  const auto& backends = agent->status.capabilities->backends;
  if (std::find(backends.begin(), backends.end(), type) != backends.end())
    judge.set("BackendSupported", true, "Supported");
  else
    judge.set("BackendSupported", false, "NotSupported",
              "agent " + store.spec.agent_ref + " does not support " + type);
}

/// Condition type and reasons for a reference to another object.
struct ReferenceWords {
  std::string_view type;
  std::string_view good;
  std::string_view absent;
  std::string_view not_ready;
};

/// `conditions` are those of the object referred to, null when it does not exist.
void judge_reference(Judge& judge, const ReferenceWords& words, const std::string& object,
                     const crd::Conditions* conditions) {
  if (conditions == nullptr)
    judge.set(words.type, false, words.absent, object + " does not exist");
  else if (!crd::condition_true(*conditions, "Ready"))
    judge.set(words.type, false, words.not_ready, object + " is not ready (" + readiness(*conditions) + ")");
  else
    judge.set(words.type, true, words.good);
}

void judge_overrides(Judge& judge, const crd::PillarStorageClass& each, const crd::PillarStore& store,
                     const crd::PillarProtocol& protocol) {
  if (const auto why = crd::incompatibility(store.spec.backend, protocol.spec.protocol)) {
    judge.set("Compatible", false, "Incompatible", *why);
    return;
  }
  const auto merged = crd::resolve(store.spec.backend, protocol.spec.protocol, {crd::layer_of(each)});
  if (merged)
    judge.set("Compatible", true, "Compatible");
  else
    judge.set("Compatible", false, "InvalidOverrides", merged.error().message);
}

}  // namespace

crd::StoreStatus wanted_status(const crd::PillarStore& store, const CatalogView& view,
                               const VolumeIndex& volumes) {
  crd::StoreStatus status = store.status;
  Judge judge(status.conditions, store.metadata);
  const auto* agent = find(view.agents, store.spec.agent_ref);
  judge_agent(judge, store, agent);
  judge_pool(judge, status, store, agent);
  judge_backend(judge, store, agent);
  judge.finish(dependents_of(store, view, volumes));
  return status;
}

crd::ProtocolStatus wanted_status(const crd::PillarProtocol& protocol, const CatalogView& view,
                                  const VolumeIndex& volumes) {
  crd::ProtocolStatus status = protocol.status;
  status.protocol_type = protocol.spec.protocol.type();
  status.storage_class_count = 0;
  std::set<std::string> agents;
  for (const auto& [name, each] : view.classes) {
    if (each.spec.protocol_ref != protocol.metadata.name) continue;
    ++status.storage_class_count;
    if (const auto* store = find(view.stores, each.spec.store_ref)) agents.insert(store->spec.agent_ref);
  }
  status.active_agents.assign(agents.begin(), agents.end());
  Judge judge(status.conditions, protocol.metadata);
  const bool served = protocol.spec.protocol.kind() == crd::ProtocolKind::nvmeof_tcp &&
                      protocol.spec.protocol.nvmeof_tcp->auth.type == crd::NvmeAuth::none;
  judge.set("Served", served, served ? "Served" : "NotServed",
            served ? std::string() : "only nvmeofTcp without in-band authentication is served");
  judge.finish(dependents_of(protocol, view, volumes));
  return status;
}

crd::StorageClassStatus wanted_status(const crd::PillarStorageClass& storage_class, const CatalogView& view,
                                      const VolumeIndex& volumes) {
  crd::StorageClassStatus status = storage_class.status;
  Judge judge(status.conditions, storage_class.metadata);
  const auto* store = find(view.stores, storage_class.spec.store_ref);
  const auto* protocol = find(view.protocols, storage_class.spec.protocol_ref);
  const auto store_name = crd::subject(crd::Kind::store, storage_class.spec.store_ref);
  const auto protocol_name = crd::subject(crd::Kind::protocol, storage_class.spec.protocol_ref);
  judge_reference(judge, {"StoreReady", "StoreReady", "StoreNotFound", "StoreNotReady"}, store_name,
                  store == nullptr ? nullptr : &store->status.conditions);
  judge_reference(judge, {"ProtocolValid", "ProtocolValid", "ProtocolNotFound", "ProtocolNotReady"},
                  protocol_name, protocol == nullptr ? nullptr : &protocol->status.conditions);
  if (store != nullptr && protocol != nullptr)
    judge_overrides(judge, storage_class, *store, *protocol);
  else
    judge.set("Compatible", false, "WaitingForReferences", "store or protocol does not exist");
  judge.finish(dependents_of(storage_class, view, volumes));
  return status;
}

std::string_view protection_finalizer(crd::Kind kind) {
  switch (kind) {
    case crd::Kind::agent:
      return k_agent_finalizer;
    case crd::Kind::store:
      return k_store_finalizer;
    case crd::Kind::protocol:
      return k_protocol_finalizer;
    case crd::Kind::storage_class:
      return k_class_finalizer;
    case crd::Kind::volume:
      break;
  }
  return {};
}

Protection wanted_protection(const crd::Metadata& metadata, std::string_view finalizer, bool has_dependents) {
  const bool has = metadata.has_finalizer(finalizer);
  if (metadata.deleting()) return has && !has_dependents ? Protection::release : Protection::keep;
  return has ? Protection::keep : Protection::add;
}

}  // namespace pillar::controller
