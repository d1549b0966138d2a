// Rounds of an agent link: synchronisation, conditions, and nothing written while nothing changes.

#include <doctest/doctest.h>

#include "actors/controller/link_ops.hpp"
#include "world.hpp"

namespace pillar::controller::testing {
namespace {

/// A link to the fake agent with the real table.
struct Link {
  explicit Link(World& surroundings) : world(surroundings) {}

  LinkPorts ports() {
    LinkPorts made;
    made.ports = world.ports();
    made.ports.agents = table;
    made.table = table;
    made.catalog = std::make_shared<Catalog>();
    made.connect = [this](const std::string&, const std::string& target) {
      targets.push_back(target);
      return world.agent;
    };
    made.resolve = [this](const std::string& host, const std::function<void(Result<std::string>)>& done) {
      CHECK(host == "store-1.lan");
      done(resolved);
    };
    made.timer = world.executor;
    return made;
  }
  RoundOutcome round(const std::string& name = "store-1") {
    return world.run(link_round(OperationContext::detached(), ports(), name, memory));
  }
  crd::PillarAgent agent() {
    return world.run(get_typed<crd::PillarAgent>(world.ports(), "store-1")).value();
  }
  std::string reason(const std::string& type) {
    const auto status = agent().status;
    const auto* condition = crd::find_condition(status.conditions, type);
    return condition == nullptr ? "" : condition->reason;
  }
  int count(const std::string& what) const {
    int n = 0;
    for (const auto& line : world.agent->log) n += line.starts_with(what) ? 1 : 0;
    return n;
  }

  World& world;
  std::shared_ptr<AgentTable> table = std::make_shared<AgentTable>();
  std::shared_ptr<LinkMemory> memory = std::make_shared<LinkMemory>();
  std::vector<std::string> targets;
  std::string resolved = "10.0.0.9";
};

}  // namespace

TEST_CASE("a link connects, synchronises and then writes nothing more") {
  World world;
  world.configure();
  Link link(world);
  CHECK(link.table->lease("store-1").error().code == Code::unavailable);
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.targets == std::vector<std::string>{"10.0.0.5:9500"});
  CHECK(link.reason("AgentConnected") == "Dialed");
  CHECK(link.reason("ExportsReady") == "Restored");
  CHECK(link.reason("Ready") == "Ready");
  const auto agent = link.agent();
  CHECK(agent.status.resolved_address == "10.0.0.5:9500");
  CHECK(agent.status.discovered_pools.size() == 1);
  CHECK(agent.status.fencing->epoch == "e1");
  CHECK(link.table->lease("store-1")->bind_address() == "10.0.0.5");
  CHECK(link.table->size_bound("store-1", "vg0").value() == world.agent->pool_bytes);
  for (int i = 0; i < 5; ++i) CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.agent().metadata.resource_version == agent.metadata.resource_version);
  CHECK(link.targets.size() == 1);
}

TEST_CASE("an agent that does not answer is reported, and its exports are restored when it is back") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  world.agent->fate = [](const std::string&) { return Fate::unavailable; };
  CHECK(link.round() == RoundOutcome::unsettled);
  CHECK(link.reason("AgentConnected") == "HealthCheckFailed");
  CHECK(link.reason("Ready") == "HealthCheckFailed");
  CHECK(link.table->problem("store-1").find("cannot be reached") != std::string::npos);
  // A reboot: the exports are gone and the ports wait.
  world.agent->fate = nullptr;
  world.agent->exports.clear();
  world.agent->gated = true;
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
  CHECK_FALSE(world.agent->gated);
  CHECK(link.reason("Ready") == "Ready");
}

TEST_CASE("a slow answer does not cut an agent off, several in a row do") {
  World world;
  world.configure();
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  world.agent->refuse["GetCapabilities"] = fail(Reason::deadline_exceeded, "too slow").value();
  for (int i = 0; i < 2; ++i) {
    CHECK(link.round() == RoundOutcome::unsettled);
    CHECK(link.table->lease("store-1").has_value());
  }
  CHECK(link.round() == RoundOutcome::unsettled);
  CHECK(link.table->lease("store-1").error().code == Code::unavailable);
  world.agent->refuse.clear();
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.table->lease("store-1").has_value());
}

TEST_CASE("lost marks are seeded from the records before anything else is done") {
  World world;
  world.configure();
  created_id(world, "v");
  const auto half = created_id(world, "w");
  world.agent->refuse["Delete"] = fail(Reason::io_error, "busy").value();
  CHECK_FALSE(remove(world, half).has_value());
  world.agent->refuse.clear();
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  world.agent->marks.clear();
  world.agent->log.clear();
  world.agent->seeded = false;
  world.agent->epoch = "e2";
  CHECK(link.round() == RoundOutcome::steady);
  REQUIRE_FALSE(world.agent->log.empty());
  CHECK(world.agent->log.front() == "Seed 2");
  CHECK(world.agent->marks["vg0/v"].uid == world.record("v")->metadata.uid);
  CHECK(link.agent().status.fencing->epoch == "e2");
  // Only the living one is exported again.
  CHECK(link.count("Reconcile vg0/v") == 1);
  CHECK(world.agent->exports.contains("vg0/v"));
  CHECK_FALSE(world.agent->exports.contains("vg0/w"));
  CHECK(remove(world, half).has_value());
}

TEST_CASE("a record that nothing was sent under yet does not keep an agent from being seeded") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  auto bare = *world.record("v");
  bare.metadata = {};
  bare.metadata.name = "bare";
  bare.spec.volume_id += "-bare";
  bare.spec.agent_volume_id += "-bare";
  bare.status = {};
  world.put(crd::to_object(bare));
  world.agent->marks.clear();
  world.agent->log.clear();
  world.agent->seeded = false;
  Link link(world);
  CHECK(link.round() == RoundOutcome::steady);
  REQUIRE_FALSE(world.agent->log.empty());
  CHECK(world.agent->log.front() == "Seed 1");
  CHECK(world.agent->marks["vg0/v"].uid == world.record("v")->metadata.uid);
}

TEST_CASE("a revoking publication is not restored") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  world.agent->refuse["Deny"] = fail(Reason::access_not_ended, "busy").value();
  CHECK_FALSE(unpublish(world, id, k_node_a).has_value());
  world.agent->exports.clear();
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  CHECK(world.agent->hosts("vg0/v").empty());
}

TEST_CASE("a complete list names every record, so that what it does not name is nobody's") {
  World world;
  world.configure();
  created_id(world, "v");
  world.agent->refuse["Export"] = fail(Reason::io_error, "busy").value();
  CHECK_FALSE(create(world, create_request("half")).has_value());
  world.agent->refuse.clear();
  world.agent->exports["vg0/stray"].hosts.insert(k_nqn_b);
  Link link(world);
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.count("Reconcile vg0/v") == 1);
  CHECK(link.count("Reconcile vg0/half") == 1);
  CHECK_FALSE(world.agent->exports.contains("vg0/stray"));
  CHECK(create(world, create_request("half")).has_value());
}

TEST_CASE("one export that cannot be restored is named, retried alone, and cleared when it works") {
  World world;
  world.configure();
  created_id(world, "v");
  created_id(world, "w");
  const auto mark = world.agent->marks["vg0/w"];
  world.agent->marks["vg0/w"].uid = "somebody-else";
  Link link(world);
  CHECK(link.round() == RoundOutcome::unsettled);
  CHECK(link.reason("ExportsReady") == "ReconcileFailed");
  CHECK(link.reason("Ready") == "Ready");
  auto record = world.record("w").value();
  const auto* condition = crd::find_condition(record.status.conditions, "ExportReconciled");
  CHECK(condition->reason == "ReconcileFailed");
  CHECK(condition->message.find("FOREIGN_LIFECYCLE") != std::string::npos);
  CHECK(link.count("Reconcile vg0/v") == 1);
  world.agent->marks["vg0/w"] = mark;
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.count("Reconcile vg0/v") == 1);
  record = world.record("w").value();
  CHECK(crd::condition_true(record.status.conditions, "ExportReconciled"));
  CHECK(link.reason("ExportsReady") == "Restored");
}

TEST_CASE("a store restored to the past is noticed when the agent is synchronised") {
  World world;
  world.configure();
  created_id(world, "v");
  world.agent->marks["vg0/v"].generation = 99;
  Link link(world);
  CHECK(link.round() == RoundOutcome::unsettled);
  const auto record = world.record("v").value();
  CHECK(crd::find_condition(record.status.conditions, "ExportReconciled")->reason == "FenceAhead");
  CHECK(publish(world, record.spec.volume_id, k_node_a).error().reason == Reason::fence_ahead);
}

TEST_CASE(
    "an accepted rollback: nothing is granted before access is what the record says, then the volume goes "
    "on") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  world.agent->marks["vg0/v"].generation = 99;
  world.agent->exports["vg0/v"].hosts.insert(k_nqn_b);  // granted after the backup of the store
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::unsettled);
  CHECK(unpublish(world, id, k_node_a).error().reason == Reason::fence_ahead);
  auto record = world.record("v").value();
  const auto* behind = crd::find_condition(record.status.conditions, "ExportReconciled");
  CHECK(behind->message.find("stale generation") != std::string::npos);
  // As pillarctl fence accept-rollback does.
  record.status.publication_generation = 100;
  set_condition(record.status, k_export_reconciled, crd::ConditionStatus::no, k_rollback_accepted);
  record = crd::from_object<crd::VolumeState>(
               world.run(update_object_status(world.ports(), crd::to_object(record))).value())
               .value();
  world.index->apply(record);
  const auto early = unpublish(world, id, k_node_a).error();
  CHECK(early.reason == Reason::restore_pending);
  CHECK(early.details.at("agent") == "store-1");
  CHECK(world.agent->hosts("vg0/v").contains(k_nqn_b));
  SUBCASE("by the next round") { link.round(); }
  SUBCASE("by a synchronisation") {
    world.agent->gated = true;
    link.round();
  }
  SUBCASE("not while the agent refuses") {
    world.agent->marks["vg0/v"].generation = 200;
    CHECK(link.round() == RoundOutcome::unsettled);
    CHECK(unpublish(world, id, k_node_a).error().reason == Reason::fence_ahead);
    world.agent->marks["vg0/v"].generation = 99;
    set_condition(record.status, k_export_reconciled, crd::ConditionStatus::no, k_rollback_accepted);
    auto again = world.record("v").value();
    again.status.conditions = record.status.conditions;
    world.index->apply(crd::from_object<crd::VolumeState>(
                           world.run(update_object_status(world.ports(), crd::to_object(again))).value())
                           .value());
    link.round();
  }
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
  CHECK(unpublish(world, id, k_node_a).has_value());
  CHECK(publish(world, id, k_node_b).has_value());
}

TEST_CASE("a synchronisation waits for operations in flight and keeps new ones out") {
  World world;
  world.configure();
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  auto held = std::make_shared<AgentLease>(link.table->lease("store-1").value());
  world.agent->gated = true;
  auto round = link_round(OperationContext::detached(), link.ports(), "store-1", link.memory);
  round.start();
  world.executor->run_until([&] { return round.done(); }, std::chrono::milliseconds(150));
  CHECK_FALSE(round.done());
  CHECK(link.table->lease("store-1").error().code == Code::unavailable);
  held.reset();
  CHECK(world.executor->run_until([&] { return round.done(); }));
  CHECK(link.table->lease("store-1").has_value());
}

TEST_CASE("an operation waits for the end of a synchronisation, without a lease, and not without bound") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  Link link(world);
  auto ports = world.ports();
  ports.agents = link.table;
  auto record = std::make_shared<runtime::detail::OperationRecord>();
  const auto request =
      std::make_shared<const csi::ControllerPublishVolumeRequest>(publish_request(id, k_node_a));
  const auto start = [&] {
    auto task = publish_volume(OperationContext(record), ports, request);
    task.start();
    world.executor->run_until([&] { return task.done(); }, std::chrono::milliseconds(100));
    return task;
  };
  link.table->set_syncing("store-1");
  const auto finish = [&](Task<Result<csi::ControllerPublishVolumeResponse>>& task) {
    REQUIRE(world.executor->run_until([&] { return task.done(); }));
    return task.take();
  };
  {
    auto waiting = start();
    CHECK_FALSE(waiting.done());
    CHECK(link.table->leases("store-1") == 0);
    CHECK(record->step == "waiting_for_agent");
    link.table->set_up("store-1", world.agent, "10.0.0.5", {});
    CHECK(finish(waiting).has_value());
    CHECK(link.table->leases("store-1") == 0);
  }
  link.table->set_syncing("store-1");
  {
    auto waiting = start();
    CHECK_FALSE(waiting.done());
    link.table->set_down("store-1", "it burns");
    CHECK(finish(waiting).error().message.find("it burns") != std::string::npos);
  }
  link.table->set_syncing("store-1");
  {
    auto waiting = start();
    CHECK_FALSE(waiting.done());
    link.table->remove("store-1");
    CHECK(finish(waiting).error().code == Code::unavailable);
  }
  link.table->set_syncing("store-1");
  SUBCASE("it gives up after a while") {
    ports.sync_patience = std::chrono::milliseconds(20);
    auto waiting = start();
    CHECK(finish(waiting).error().message.find("still being synchronised") != std::string::npos);
  }
  SUBCASE("it gives up at its caller's deadline") {
    record->deadline = Deadline::after(std::chrono::milliseconds(20));
    auto waiting = start();
    CHECK(finish(waiting).error().message.find("still being synchronised") != std::string::npos);
  }
  SUBCASE("one that was given up is not leased to") {
    { auto abandoned = start(); }
    link.table->set_up("store-1", world.agent, "10.0.0.5", {});
    world.executor->run_ready();
    CHECK(link.table->leases("store-1") == 0);
  }
}

TEST_CASE("an agent that says it needs a synchronisation leases to nobody until it was looked at") {
  World world;
  world.configure();
  std::vector<std::string> woken;
  const auto table = std::make_shared<AgentTable>([&](const std::string& agent) { woken.push_back(agent); });
  table->set_up("store-1", world.agent, "10.0.0.5", {});
  table->check_soon("store-1");
  CHECK(woken == std::vector<std::string>{"store-1"});
  CHECK(table->lease("store-1").error().message.find("being synchronised") != std::string::npos);
  table->set_up("store-1", world.agent, "10.0.0.5", {});
  CHECK(table->lease("store-1").has_value());
  table->set_down("store-1", "gone");
  table->check_soon("store-1");
  CHECK(table->problem("store-1") == "gone");
}

TEST_CASE("C12: host names are resolved for the exports, IPv6 gets its brackets") {
  World world;
  world.put(crd::to_object(agent_object("store-1", "store-1.lan")));
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  CHECK(link.targets.back() == "store-1.lan:9500");
  CHECK(link.table->lease("store-1")->bind_address() == "10.0.0.9");
  link.resolved = "10.0.0.10";
  world.agent->gated = true;
  REQUIRE(link.round() == RoundOutcome::steady);
  crd::AgentSpec spec;
  for (const auto* text : {"fd00::1", "FD00:0:0::1", "[fd00::1]"}) {
    spec.external = crd::ExternalAddress{text, 9500};
    CHECK(agent_endpoint(spec)->target == "[fd00::1]:9500");
    CHECK(agent_endpoint(spec)->host == "fd00::1");
  }
}

TEST_CASE("an agent on a Kubernetes node cannot be dialled without Kubernetes, and says so") {
  World world;
  crd::PillarAgent agent;
  agent.metadata.name = "store-1";
  agent.spec.node_ref = crd::NodeRef{};
  agent.spec.node_ref->name = "node-1";
  world.put(crd::to_object(agent));
  Link link(world);
  CHECK(link.round() == RoundOutcome::unsettled);
  CHECK(link.reason("NodeExists") == "KubernetesRequired");
  CHECK(link.reason("Ready") == "KubernetesRequired");
  CHECK(link.targets.empty());
}

TEST_CASE("a second PillarAgent for the same agent does not close what the first one exports") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  Link first(world);
  REQUIRE(first.round() == RoundOutcome::steady);
  world.put(crd::to_object(agent_object("twin")));
  Link twin(world);
  CHECK(twin.round("twin") == RoundOutcome::unsettled);
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
  const auto refused = twin.table->lease("twin");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("PillarAgent/store-1") != std::string::npos);
  // Both known with the epoch, as after two first rounds at once: one of them goes on.
  auto both = world.run(get_typed<crd::PillarAgent>(world.ports(), "twin")).value();
  both.status.fencing = first.agent().status.fencing;
  REQUIRE(world.run(update_object_status(world.ports(), crd::to_object(both))).has_value());
  first.memory->synchronised = false;
  CHECK(first.round() == RoundOutcome::steady);
  CHECK(twin.round("twin") == RoundOutcome::unsettled);
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
}

TEST_CASE("a synchronised agent gets a complete list again after hours, without being taken from anybody") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  Link link(world);
  REQUIRE(link.round() == RoundOutcome::steady);
  REQUIRE(link.count("Reconcile vg0/v") == 1);
  world.agent->exports["vg0/stray"].hosts.insert(k_nqn_b);
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.count("Reconcile vg0/v") == 1);
  link.memory->complete_at -= std::chrono::hours(7);
  {
    const auto in_use = link.table->lease("store-1");
    REQUIRE(in_use.has_value());
    CHECK(link.round() == RoundOutcome::steady);
  }
  CHECK(link.count("Reconcile vg0/v") == 2);
  CHECK_FALSE(world.agent->exports.contains("vg0/stray"));
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
  CHECK(link.round() == RoundOutcome::steady);
  CHECK(link.count("Reconcile vg0/v") == 2);
}

TEST_CASE("a link ends with its PillarAgent") {
  World world;
  Link link(world);
  CHECK(link.round() == RoundOutcome::agent_gone);
}

}  // namespace pillar::controller::testing
