// Conditions and deletion protection of the configuration objects.

#include <doctest/doctest.h>

#include "actors/controller/config_status.hpp"
#include "actors/controller/reconcile_ops.hpp"
#include "world.hpp"

namespace pillar::controller::testing {
namespace {

std::string reason(const crd::Conditions& conditions, std::string_view type) {
  const auto* condition = crd::find_condition(conditions, type);
  return condition == nullptr ? "" : condition->reason;
}

crd::PillarAgent reporting_agent() {
  auto agent = agent_object();
  agent.status.conditions = ready_conditions();
  agent.status.capabilities = crd::AgentCapabilities{{"lvm-lv"}, {"nvmeof-tcp"}};
  crd::DiscoveredPool pool;
  pool.name = "vg0";
  pool.type = "lvm";
  pool.total = 100;
  pool.available = 30;
  agent.status.discovered_pools.push_back(pool);
  return agent;
}

CatalogView full_view() {
  CatalogView view;
  view.agents["store-1"] = reporting_agent();
  view.stores["fast"] = store_object();
  view.protocols["nvme"] = protocol_object();
  view.protocols["nvme"].status.conditions = ready_conditions();
  view.classes["gold"] = class_object();
  return view;
}

}  // namespace

TEST_CASE("store conditions: what is missing decides, the rest is still told") {
  const VolumeIndex none;
  auto view = full_view();
  auto store = store_object();
  store.status.conditions.clear();
  auto status = wanted_status(store, view, none);
  CHECK(reason(status.conditions, "Ready") == "Ready");
  CHECK(status.capacity == crd::Capacity{100, 30, 70});

  view.agents["store-1"].status.conditions.clear();
  status = wanted_status(store, view, none);
  CHECK(reason(status.conditions, "AgentReady") == "AgentNotReady");
  CHECK(reason(status.conditions, "PoolDiscovered") == "PoolDiscovered");
  CHECK(reason(status.conditions, "Ready") == "AgentNotReady");

  view = full_view();
  view.agents["store-1"].status.discovered_pools.clear();
  CHECK(reason(wanted_status(store, view, none).conditions, "Ready") == "PoolNotFound");
  view.agents["store-1"].status.capabilities.reset();
  CHECK(reason(wanted_status(store, view, none).conditions, "Ready") == "WaitingForAgentData");
  view = full_view();
  view.agents["store-1"].status.discovered_pools[0].thin_pool = "pool0";
  CHECK(reason(wanted_status(store, view, none).conditions, "Ready") == "BackendLayoutMismatch");
  view = full_view();
  view.agents["store-1"].status.capabilities->backends = {"zfs-zvol"};
  CHECK(reason(wanted_status(store, view, none).conditions, "Ready") == "NotSupported");
  view.agents.clear();
  CHECK(reason(wanted_status(store, view, none).conditions, "Ready") == "AgentNotFound");
}

TEST_CASE("class and protocol conditions follow their references") {
  const VolumeIndex none;
  auto view = full_view();
  const auto gold = class_object();
  CHECK(reason(wanted_status(gold, view, none).conditions, "Ready") == "Ready");
  auto protocol_status = wanted_status(view.protocols["nvme"], view, none);
  CHECK(protocol_status.storage_class_count == 1);
  CHECK(protocol_status.active_agents == std::vector<std::string>{"store-1"});
  view.stores["fast"].status.conditions.clear();
  CHECK(reason(wanted_status(gold, view, none).conditions, "Ready") == "StoreNotReady");
  view.stores.clear();
  CHECK(reason(wanted_status(gold, view, none).conditions, "StoreReady") == "StoreNotFound");
  view = full_view();
  view.protocols.clear();
  CHECK(reason(wanted_status(gold, view, none).conditions, "ProtocolValid") == "ProtocolNotFound");
  view = full_view();
  view.protocols["nvme"].spec.protocol.nvmeof_tcp.reset();
  view.protocols["nvme"].spec.protocol.nfs = crd::Nfs{};
  CHECK(reason(wanted_status(gold, view, none).conditions, "Compatible") == "Incompatible");
  CHECK(reason(wanted_status(view.protocols["nvme"], view, none).conditions, "Ready") == "NotServed");
}

TEST_CASE("deletion protection: held with up to ten names, released with the last dependent") {
  const auto volumes = std::make_shared<VolumeIndex>();
  auto view = full_view();
  auto store = store_object();
  CHECK(wanted_protection(store.metadata, k_store_finalizer, true) == Protection::add);
  store.metadata.add_finalizer(k_store_finalizer);
  CHECK(wanted_protection(store.metadata, k_store_finalizer, false) == Protection::keep);
  store.metadata.deletion_timestamp = "2026-01-01T00:00:00Z";
  for (int i = 0; i < 12; ++i) {
    crd::VolumeState state;
    state.metadata.name = "v" + std::to_string(i);
    state.spec.volume_id = state.metadata.name;
    state.metadata.annotations[std::string(k_origin_store)] = "fast";
    volumes->apply(state);
  }
  const auto dependents = dependents_of(store, view, *volumes);
  CHECK(dependents.count == 13);
  CHECK(dependents.names.size() == k_named_dependents);
  CHECK(dependents.names.front() == "PillarStorageClass/gold");
  CHECK(describe(dependents).find("and 3 more") != std::string::npos);
  CHECK(wanted_protection(store.metadata, k_store_finalizer, true) == Protection::keep);
  CHECK(reason(wanted_status(store, view, *volumes).conditions, "Ready") == "DeletionBlocked");
  CHECK(wanted_protection(store.metadata, k_store_finalizer, false) == Protection::release);
}

TEST_CASE("a pass over the objects settles, and then writes nothing") {
  World world;
  auto agent = reporting_agent();
  world.put(crd::to_object(agent));
  auto store = store_object();
  store.status.conditions.clear();
  world.put(crd::to_object(store));
  world.put(crd::to_object(protocol_object()));
  world.put(crd::to_object(class_object()));
  const auto load = [&] {
    auto catalog = std::make_shared<Catalog>();
    for (const auto kind :
         {crd::Kind::agent, crd::Kind::store, crd::Kind::protocol, crd::Kind::storage_class}) {
      const auto objects = world.run(list_objects(world.ports(), kind)).value();
      for (const auto& object : objects) catalog->apply(object);
    }
    return catalog;
  };
  int writes = 0;
  world.store->fate = [&](const std::string&) {
    ++writes;
    return FlakyStore::Write::normal;
  };
  for (int i = 0; i < 4; ++i)
    REQUIRE(
        world.run(reconcile_configuration(OperationContext::detached(), world.ports(), load())).has_value());
  const auto gold = world.run(get_typed<crd::PillarStorageClass>(world.ports(), "gold")).value();
  CHECK(reason(gold.status.conditions, "Ready") == "Ready");
  CHECK(gold.metadata.has_finalizer(k_class_finalizer));
  CHECK(writes > 0);
  writes = 0;
  REQUIRE(
      world.run(reconcile_configuration(OperationContext::detached(), world.ports(), load())).has_value());
  CHECK(writes == 0);
  // Deleting the store is held back by the class and goes through after it.
  REQUIRE(world.run(remove_object(world.ports(), crd::Kind::store, "fast", {})).has_value());
  for (int i = 0; i < 2; ++i)
    REQUIRE(
        world.run(reconcile_configuration(OperationContext::detached(), world.ports(), load())).has_value());
  const auto held = world.run(get_typed<crd::PillarStore>(world.ports(), "fast")).value();
  CHECK(reason(held.status.conditions, "Ready") == "DeletionBlocked");
  REQUIRE(world.run(remove_object(world.ports(), crd::Kind::storage_class, "gold", {})).has_value());
  for (int i = 0; i < 3; ++i)
    REQUIRE(
        world.run(reconcile_configuration(OperationContext::detached(), world.ports(), load())).has_value());
  CHECK(world.run(get_typed<crd::PillarStorageClass>(world.ports(), "gold")).error().reason ==
        Reason::not_found);
  CHECK(world.run(get_typed<crd::PillarStore>(world.ports(), "fast")).error().reason == Reason::not_found);
}

TEST_CASE("Q01: an object that cannot be read is left out and the others go on") {
  Catalog catalog;
  auto broken = crd::to_object(store_object("broken"));
  broken.spec = crd::Doc();
  broken.status = crd::Doc::parse(R"({"capacity": 7})").value();
  CHECK(catalog.apply(crd::to_object(store_object())));
  CHECK_FALSE(catalog.apply(broken));
  CHECK(catalog.view().stores.size() == 1);
}

}  // namespace pillar::controller::testing
