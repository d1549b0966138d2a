// The operations on one volume, over the embedded store and a fake agent.

#include <doctest/doctest.h>

#include "world.hpp"

namespace pillar::controller::testing {
using Mode = csi::VolumeCapability::AccessMode;

namespace {
constexpr std::int64_t k_mib = std::int64_t{1} << 20;
constexpr std::int64_t k_gib = std::int64_t{1} << 30;
}  // namespace

TEST_CASE("the life of a volume: create, publish, unpublish, delete leave nothing") {
  World world;
  world.configure();
  const auto id = created_id(world, "pvc-1");
  CHECK(id == "store-1/nvmeof-tcp/lvm-lv/vg0/pvc-1");
  auto record = world.record("pvc-1").value();
  CHECK(record.status.phase == crd::VolumePhase::ready);
  CHECK(record.status.capacity_bytes == k_gib);
  CHECK(record.status.export_spec->acl_enabled);
  CHECK(record.status.export_info->address == "10.0.0.5");
  CHECK(record.metadata.has_finalizer(k_volume_finalizer));
  CHECK(world.agent->marks["vg0/pvc-1"].uid == record.metadata.uid);

  const auto granted = publish(world, id, k_node_a);
  REQUIRE(granted.has_value());
  CHECK(granted->publish_context().at("pillar-csi.bhyoo.com/initiator-id") == k_nqn_a);
  CHECK(world.agent->hosts("vg0/pvc-1") == std::set<std::string>{k_nqn_a});
  CHECK(remove(world, id).error().reason == Reason::still_published);
  REQUIRE(unpublish(world, id, k_node_a).has_value());
  CHECK(world.agent->hosts("vg0/pvc-1").empty());
  REQUIRE(remove(world, id).has_value());
  CHECK(world.record("pvc-1").error().reason == Reason::not_found);
  CHECK(world.agent->backends.empty());
  CHECK(world.agent->exports.empty());
  CHECK(world.index->page(std::nullopt, 10).items.empty());
  CHECK(world.agent->marks["vg0/pvc-1"].state == FakeAgent::MarkState::ended);
}

TEST_CASE("K09: repeats answer the same from the stored record, also after an expansion") {
  World world;
  world.configure();
  const auto first = create(world, create_request("v", 10 * k_mib + 1));
  const auto calls = world.agent->log.size();
  world.restart();
  const auto again = create(world, create_request("v", 10 * k_mib + 1));
  REQUIRE(again.has_value());
  CHECK(first->DebugString() == again->DebugString());
  CHECK(first->volume().capacity_bytes() == 12 * k_mib);
  CHECK(world.agent->log.size() == calls);
  REQUIRE(expand(world, first->volume().volume_id(), 20 * k_mib).has_value());
  CHECK(create(world, create_request("v", 10 * k_mib + 1))->volume().capacity_bytes() == 20 * k_mib);
}

TEST_CASE("K10, J06: what differs makes a repeat another volume, what does not matter does not") {
  World world;
  world.configure();
  world.put(crd::to_object(store_object("slow")));
  auto slow = class_object("silver");
  slow.spec.store_ref = "slow";
  world.put(crd::to_object(slow));
  const auto base = create_request("v", k_gib + 1);
  REQUIRE(create(world, base).has_value());
  const auto repeat = [&](auto change) {
    auto request = base;
    change(request);
    const auto answer = create(world, request);
    return answer ? Code::ok : answer.error().code;
  };
  CHECK(repeat([](auto&) {}) == Code::ok);
  CHECK(repeat([](auto& r) { r.mutable_capacity_range()->set_required_bytes(k_gib); }) == Code::ok);
  CHECK(repeat([](auto& r) { (*r.mutable_parameters())["csi.storage.k8s.io/pvc/name"] = "x"; }) == Code::ok);
  CHECK(repeat([](auto& r) { *r.add_volume_capabilities() = capability(); }) == Code::ok);
  CHECK(repeat([](auto& r) { r.mutable_capacity_range()->set_required_bytes(2 * k_gib); }) ==
        Code::already_exists);
  CHECK(repeat([](auto& r) { r.mutable_capacity_range()->set_limit_bytes(k_gib + 1); }) ==
        Code::already_exists);
  CHECK(repeat([](auto& r) { (*r.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "silver"; }) ==
        Code::already_exists);
  CHECK(repeat([](auto& r) {
          *r.mutable_volume_capabilities(0) = capability(Mode::MULTI_NODE_READER_ONLY);
        }) == Code::already_exists);
  CHECK(repeat([](auto& r) {
          *r.mutable_volume_capabilities(0) = capability(Mode::SINGLE_NODE_WRITER, "xfs");
        }) == Code::already_exists);
  CHECK(repeat([](auto& r) { r.mutable_volume_content_source()->mutable_volume()->set_volume_id("x"); }) ==
        Code::not_found);
}

TEST_CASE("K11, Q05: wrong requests are refused before anything is made") {
  World world;
  world.configure();
  const auto code = [&](auto change) {
    auto request = create_request("v");
    change(request);
    const auto answer = create(world, request);
    CAPTURE(answer.has_value());
    return answer ? Code::ok : answer.error().code;
  };
  CHECK(code([](auto& r) { r.set_name(""); }) == Code::invalid_argument);
  CHECK(code([](auto& r) { r.set_name("a\nb"); }) == Code::invalid_argument);
  CHECK(code([](auto& r) { r.clear_volume_capabilities(); }) == Code::invalid_argument);
  CHECK(code([](auto& r) { (*r.mutable_parameters())["typo"] = "x"; }) == Code::invalid_argument);
  CHECK(code([](auto& r) { (*r.mutable_parameters())["FSTYPE"] = "xfs"; }) == Code::invalid_argument);
  CHECK(code([](auto& r) { (*r.mutable_parameters())["csi.storage.k8s.io/fstype"] = "ext5"; }) ==
        Code::invalid_argument);
  CHECK(code([](auto& r) { r.mutable_parameters()->clear(); }) == Code::invalid_argument);
  CHECK(code([](auto& r) { (*r.mutable_mutable_parameters())["iops"] = "1"; }) == Code::invalid_argument);
  CHECK(code([](auto& r) {
          r.mutable_volume_capabilities(0)->mutable_mount()->add_mount_flags("dev=/etc/passwd");
        }) == Code::invalid_argument);
  // Alone each is fine; the node would find that they contradict each other.
  CHECK(code([](auto& r) {
          (*r.mutable_parameters())["pillar-csi.bhyoo.com/filesystem"] = R"({"mountOptions": ["noatime"]})";
          r.mutable_volume_capabilities(0)->mutable_mount()->add_mount_flags("relatime");
        }) == Code::invalid_argument);
  CHECK(code([](auto& r) { (*r.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "none"; }) ==
        Code::failed_precondition);
  CHECK(code([](auto& r) {
          auto* topology = r.mutable_accessibility_requirements()->add_requisite();
          (*topology->mutable_segments())["zone"] = "mars";
        }) == Code::resource_exhausted);
  CHECK(world.agent->log.empty());
  CHECK(world.record("v").error().reason == Reason::not_found);
}

TEST_CASE("a store that is not ready stops new volumes and not the answer for finished ones") {
  World world;
  world.put(crd::to_object(agent_object()));
  auto store = store_object();
  world.put(crd::to_object(store));
  world.put(crd::to_object(protocol_object()));
  world.put(crd::to_object(class_object()));
  created_id(world, "v");
  auto stored = world.run(get_typed<crd::PillarStore>(world.ports(), "fast")).value();
  stored.status.conditions.clear();
  REQUIRE(world.run(update_object_status(world.ports(), crd::to_object(stored))).has_value());
  CHECK(create(world, create_request("v")).has_value());
  const auto refused = create(world, create_request("w"));
  CHECK(refused.error().reason == Reason::store_not_ready);
  CHECK(refused.error().message.find("PillarStore/fast") != std::string::npos);
}

TEST_CASE(
    "K01: an agent out of reach makes a create UNAVAILABLE, and what was begun goes on when it is back") {
  World world;
  world.configure();
  world.agent->refuse["Export"] = fail(Reason::agent_unavailable, "the agent died").value();
  CHECK(create(world, create_request("v")).error().code == Code::unavailable);
  world.agent->refuse.clear();
  auto store = world.run(get_typed<crd::PillarStore>(world.ports(), "fast")).value();
  crd::Condition ready;
  ready.type = "Ready";
  ready.status = crd::ConditionStatus::no;
  ready.reason = "AgentNotReady";
  crd::set_condition(store.status.conditions, ready);
  REQUIRE(world.run(update_object_status(world.ports(), crd::to_object(store))).has_value());
  world.agents->down = "connection refused";
  CHECK(create(world, create_request("v")).error().code == Code::unavailable);
  CHECK(create(world, create_request("w")).error().code == Code::unavailable);
  world.agents->down.clear();
  CHECK(create(world, create_request("v")).has_value());
  CHECK(create(world, create_request("w")).error().reason == Reason::store_not_ready);
}

TEST_CASE("J01, K01: a request that cannot be met for good is undone and can be made again smaller") {
  World world;
  world.configure();
  const auto refused = create(world, create_request("v", 10 * k_mib + 1, 10 * k_mib + 1));
  CHECK(refused.error().code == Code::out_of_range);
  CHECK(world.record("v").error().reason == Reason::not_found);
  CHECK(create(world, create_request("huge", 200 * k_gib)).error().code == Code::resource_exhausted);
  CHECK(world.record("huge").error().reason == Reason::not_found);
  CHECK(create(world, create_request("v", 10 * k_mib + 1, 12 * k_mib))->volume().capacity_bytes() ==
        12 * k_mib);
}

TEST_CASE(
    "K01: a half-made volume stays visible with its failure and the retry finishes it under the same id") {
  World world;
  world.configure();
  world.agent->refuse["Export"] = fail(Reason::port_conflict, "port 4420 is taken").value();
  CHECK(create(world, create_request("v")).error().reason == Reason::port_conflict);
  auto record = world.record("v").value();
  CHECK(record.status.phase == crd::VolumePhase::create_partial);
  REQUIRE(record.status.partial_failure.has_value());
  CHECK(record.status.partial_failure->failed_operation == "Export");
  CHECK(record.status.partial_failure->backend_created);
  CHECK(world.index->page(std::nullopt, 10).items.size() == 1);
  const auto version = record.metadata.resource_version;
  world.agent->refuse.clear();
  REQUIRE(create(world, create_request("v")).has_value());
  record = world.record("v").value();
  CHECK(record.status.phase == crd::VolumePhase::ready);
  CHECK_FALSE(record.status.partial_failure.has_value());
  CHECK(world.agent->backends.size() == 1);
}

TEST_CASE("K03: a name that is created again is a new life with its own uid") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  const auto uid = world.record("v")->metadata.uid;
  REQUIRE(remove(world, id).has_value());
  CHECK(created_id(world, "v") == id);
  CHECK(world.record("v")->metadata.uid != uid);
  CHECK(world.agent->marks["vg0/v"].retired.contains(uid));
}

TEST_CASE("K07: unknown volumes are fine to delete and unpublish and NOT_FOUND to everything else") {
  World world;
  world.configure();
  for (const auto& id : {std::string("nonsense"), std::string("store-1/nvmeof-tcp/lvm-lv/vg0/none"),
                         std::string("store-1/nvmeof-tcp/lvm-lv/vg0/../x")}) {
    CAPTURE(id);
    CHECK(remove(world, id).has_value());
    CHECK(unpublish(world, id, k_node_a).has_value());
    CHECK(publish(world, id, k_node_a).error().code == Code::not_found);
    CHECK(expand(world, id, k_gib).error().code == Code::not_found);
    csi::ControllerGetVolumeRequest get;
    get.set_volume_id(id);
    CHECK(world.run(operation(world, get, get_volume)).error().code == Code::not_found);
  }
  // Another store under the same CO name is another volume.
  created_id(world, "v");
  CHECK(remove(world, "store-2/nvmeof-tcp/lvm-lv/vg0/v").has_value());
  CHECK(world.record("v").has_value());
}

TEST_CASE("A01: a second node is refused while the first holds the volume, and the hosts stay as they are") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  const auto refused = publish(world, id, k_node_b);
  CHECK(refused.error().code == Code::failed_precondition);
  CHECK(refused.error().message.find(k_node_a) != std::string::npos);
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
  CHECK(publish(world, id, k_node_a).has_value());
  CHECK(publish(world, id, k_node_a, Mode::SINGLE_NODE_WRITER, true).error().code == Code::already_exists);
  CHECK(publish(world, id, "worker-x").error().code == Code::not_found);
}

TEST_CASE("a re-issued publication goes out under a new generation") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  const auto key = "pillar-csi.bhyoo.com/publication-generation";
  const auto one = publish(world, id, k_node_a)->publish_context().at(key);
  const auto two = publish(world, id, k_node_a)->publish_context().at(key);
  CHECK(std::stoll(two) == std::stoll(one) + 1);
}

TEST_CASE("M01: unpublish works from the record, for one node and for all of a ROX volume") {
  World world;
  world.configure();
  auto request = create_request("v");
  *request.mutable_volume_capabilities(0) = capability(Mode::MULTI_NODE_READER_ONLY);
  const auto id = create(world, request)->volume().volume_id();
  const auto nqn_c = std::string("nqn.2014-08.org.nvmexpress:uuid:cccccccc-0000-4000-8000-000000000003");
  for (const auto& node : {k_node_a, k_node_b, "worker-c/" + nqn_c})
    REQUIRE(publish(world, id, node, Mode::MULTI_NODE_READER_ONLY).has_value());
  REQUIRE(unpublish(world, id, k_node_b).has_value());
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a, nqn_c});
  CHECK(unpublish(world, id, k_node_b).has_value());
  REQUIRE(unpublish(world, id, "").has_value());
  CHECK(world.agent->hosts("vg0/v").empty());
  CHECK(world.record("v")->status.published_nodes.empty());
}

TEST_CASE("A09: access that has not ended keeps its entry and is never reported as ended") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  world.agent->refuse["Deny"] = fail(Reason::access_not_ended, "I/O is still in flight").value();
  CHECK(unpublish(world, id, k_node_a).error().code == Code::unavailable);
  const auto record = world.record("v").value();
  REQUIRE(record.status.published_nodes.size() == 1);
  CHECK(record.status.published_nodes[0].revoking);
  CHECK(publish(world, id, k_node_b).error().reason == Reason::published_elsewhere);
  CHECK(publish(world, id, k_node_a).error().code == Code::aborted);
  CHECK(remove(world, id).error().reason == Reason::still_published);
  world.agent->refuse.clear();
  CHECK(unpublish(world, id, k_node_a).has_value());
  CHECK(publish(world, id, k_node_b).has_value());
}

TEST_CASE("an agent that is away: UNAVAILABLE, and nothing is recorded or forgotten") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  REQUIRE(publish(world, id, k_node_a).has_value());
  const auto before = world.record("v").value();
  world.agents->down = "connection refused";
  CHECK(unpublish(world, id, k_node_a).error().code == Code::unavailable);
  CHECK(remove(world, id).error().reason == Reason::still_published);
  CHECK(create(world, create_request("w")).error().code == Code::unavailable);
  CHECK(expand(world, id, 2 * k_gib).error().code == Code::unavailable);
  CHECK(world.record("v").value() == before);
  CHECK(world.record("w").error().reason == Reason::not_found);
}

TEST_CASE("B02, R03: duplicate host NQNs and full nodes are refused across volumes") {
  World world;
  world.configure();
  world.limits.max_volumes_per_node = 1;
  const auto v = created_id(world, "v");
  const auto w = created_id(world, "w");
  REQUIRE(publish(world, v, k_node_a).has_value());
  CHECK(publish(world, v, k_node_a).has_value());
  CHECK(publish(world, w, k_node_a).error().code == Code::resource_exhausted);
  const auto clone = publish(world, w, "clone/" + k_nqn_a);
  CHECK(clone.error().reason == Reason::host_nqn_duplicate);
  REQUIRE(unpublish(world, v, k_node_a).has_value());
  CHECK(publish(world, w, k_node_a).has_value());
}

TEST_CASE("L02, L03: expansion never shrinks and always tells the node of a file system to grow") {
  World world;
  world.configure();
  const auto id = created_id(world, "v", 2 * k_gib);
  const auto same = expand(world, id, 2 * k_gib);
  CHECK(same->capacity_bytes() == 2 * k_gib);
  CHECK(same->node_expansion_required());
  CHECK(expand(world, id, k_gib)->capacity_bytes() == 2 * k_gib);
  CHECK(expand(world, id, k_gib, k_gib).error().code == Code::out_of_range);
  CHECK(expand(world, id, 3 * k_gib)->capacity_bytes() == 3 * k_gib);
  CHECK(expand(world, id, 3 * k_gib)->node_expansion_required());
  CHECK_FALSE(world.record("v")->status.resize_required);
  auto block = expand_request(id, 3 * k_gib);
  *block.mutable_volume_capability() = block_capability();
  CHECK_FALSE(world.run(operation(world, block, expand_volume))->node_expansion_required());
  REQUIRE(publish(world, id, k_node_a).has_value());
  CHECK(world.run(operation(world, block, expand_volume))->node_expansion_required());
}

TEST_CASE("L06: an unreachable size is OUT_OF_RANGE and a smaller one works afterwards") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  world.agents->bound = static_cast<std::uint64_t>(100 * k_gib);
  CHECK(expand(world, id, std::int64_t{10} << 50).error().code == Code::out_of_range);
  CHECK(expand(world, id, 100 * k_gib).has_value());
  CHECK(expand(world, id, 101 * k_gib).error().code == Code::out_of_range);
  world.agents->bound.reset();
  CHECK(expand(world, id, 101 * k_gib).error().code == Code::resource_exhausted);
  CHECK_FALSE(world.record("v")->status.resize_required);
}

TEST_CASE("L09: an interrupted expansion is finished by the next publish") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  world.agent->fate = [](const std::string& rpc) {
    return rpc == "Expand" ? Fate::lost_after : Fate::normal;
  };
  {
    auto lost = operation(world, expand_request(id, 2 * k_gib), expand_volume);
    lost.start();
    CHECK(world.executor->run_until([&] { return !world.agent->unanswered.empty(); }));
    CHECK_FALSE(lost.done());
  }
  world.agent->fate = nullptr;
  CHECK(world.record("v")->status.resize_required);
  SUBCASE("by the publish") {
    const auto granted = publish(world, id, k_node_a);
    REQUIRE(granted.has_value());
    CHECK(granted->publish_context().at("pillar-csi.bhyoo.com/capacity-bytes") == std::to_string(2 * k_gib));
  }
  SUBCASE("or the publish is refused while that fails") {
    world.agent->refuse["Expand"] = fail(Reason::io_error, "disk on fire").value();
    CHECK(publish(world, id, k_node_a).error().reason == Reason::resize_pending);
    CHECK(world.agent->hosts("vg0/v").empty());
    world.agent->refuse.clear();
    CHECK(publish(world, id, k_node_a).has_value());
  }
  CHECK_FALSE(world.record("v")->status.resize_required);
  CHECK(world.record("v")->status.capacity_bytes == 2 * k_gib);
}

TEST_CASE("O06: conflicts are read again and decided again, and nothing is lost") {
  World world;
  world.configure();
  int n = 0;
  world.store->fate = [&](const std::string& what) {
    return what != "create" && n++ % 2 == 0 ? FlakyStore::Write::conflict : FlakyStore::Write::normal;
  };
  const auto id = created_id(world, "v");
  for (int i = 1; i <= 20; ++i) {
    REQUIRE(publish(world, id, k_node_a).has_value());
    REQUIRE(expand(world, id, k_gib + i * 4 * k_mib).has_value());
    REQUIRE(unpublish(world, id, k_node_a).has_value());
  }
  CHECK(world.record("v")->status.capacity_bytes == k_gib + 80 * k_mib);
  CHECK(remove(world, id).has_value());
  world.store->fate = [](const std::string& what) {
    return what == "status" ? FlakyStore::Write::conflict : FlakyStore::Write::normal;
  };
  CHECK(create(world, create_request("w")).error().code == Code::aborted);
}

TEST_CASE("a stale generation is a lost race when the record went on, and FenceAhead when it did not") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  // The store was restored: the agent has seen generations that the record does not know.
  world.agent->marks["vg0/v"].generation = 40;
  const auto refused = publish(world, id, k_node_a);
  CHECK(refused.error().reason == Reason::fence_ahead);
  const auto record = world.record("v").value();
  CHECK(crd::find_condition(record.status.conditions, "ExportReconciled")->reason == "FenceAhead");
  const auto generation = record.status.publication_generation;
  // Repeats must not creep up to the mark.
  for (int i = 0; i < 50; ++i) CHECK(publish(world, id, k_node_a).error().reason == Reason::fence_ahead);
  CHECK(world.record("v")->status.publication_generation == generation);
  CHECK(world.agent->hosts("vg0/v").empty());
}

TEST_CASE(
    "a record restored to before its deletion: the agent's tombstone of this life is what a delete wants") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  auto& mark = world.agent->marks["vg0/v"];
  mark.generation = 50;
  mark.state = FakeAgent::MarkState::ended;
  world.agent->backends.clear();
  CHECK(publish(world, id, k_node_a).error().reason == Reason::lifecycle_ended);
  SUBCASE("a tombstone") {
    CHECK(unpublish(world, id, "").has_value());
    CHECK(remove(world, id).has_value());
    CHECK(world.record("v").error().reason == Reason::not_found);
  }
  SUBCASE("a later life") {
    mark.uid = "another";
    mark.state = FakeAgent::MarkState::open;
    mark.retired.insert(world.record("v")->metadata.uid);
    CHECK(unpublish(world, id, "").has_value());
    CHECK(remove(world, id).has_value());
    CHECK(mark.uid == "another");
  }
  SUBCASE("a later life that knows nothing of this one") {
    mark.uid = "another";
    mark.state = FakeAgent::MarkState::open;
    CHECK(unpublish(world, id, "").error().reason == Reason::foreign_lifecycle);
  }
}

TEST_CASE("marks that the agent has lost: UNAVAILABLE, and its link is asked to look") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  world.agent->seeded = false;
  const auto refused = publish(world, id, k_node_a);
  CHECK(refused.error().reason == Reason::epoch_unknown);
  CHECK(refused.error().code == Code::unavailable);
  CHECK(world.agents->checks == 1);
}

TEST_CASE("C12: a volume that nobody holds follows its agent to a new address") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  CHECK(create(world, create_request("v"))->volume().volume_context().at("address") == "10.0.0.5");
  world.agents->bind_address = "10.0.0.6";
  const auto moved = publish(world, id, k_node_a);
  REQUIRE(moved.has_value());
  CHECK(moved->publish_context().at("pillar-csi.bhyoo.com/address") == "10.0.0.6");
  CHECK(world.agent->exports["vg0/v"].spec.bind_address() == "10.0.0.6");
  world.agents->bind_address = "10.0.0.7";
  const auto held = publish(world, id, k_node_a);
  REQUIRE(held.has_value());
  CHECK(held->publish_context().at("pillar-csi.bhyoo.com/address") == "10.0.0.6");
  CHECK(world.agent->exports["vg0/v"].spec.bind_address() == "10.0.0.6");
}

TEST_CASE("acl false is carried out and leaves a warning condition") {
  World world;
  world.put(crd::to_object(agent_object()));
  world.put(crd::to_object(store_object()));
  auto open = protocol_object();
  open.spec.protocol.nvmeof_tcp->acl = false;
  world.put(crd::to_object(open));
  world.put(crd::to_object(class_object()));
  created_id(world, "v");
  CHECK_FALSE(world.agent->exports["vg0/v"].spec.acl_enabled());
  const auto record = world.record("v").value();
  CHECK(crd::find_condition(record.status.conditions, "AccessControlled")->reason == "AnyHostMayConnect");
}

TEST_CASE("a volume without exportSpec is not published and nothing is guessed") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  auto record = world.record("v").value();
  record.status.export_spec.reset();
  REQUIRE(world.run(update_object_status(world.ports(), crd::to_object(record))).has_value());
  CHECK(publish(world, id, k_node_a).error().reason == Reason::export_spec_missing);
}

TEST_CASE("validate: confirms what the volume is, says why it does not confirm the rest") {
  World world;
  world.configure();
  const auto made = create(world, create_request("v"));
  csi::ValidateVolumeCapabilitiesRequest request;
  request.set_volume_id(made->volume().volume_id());
  *request.add_volume_capabilities() = capability();
  *request.mutable_volume_context() = made->volume().volume_context();
  (*request.mutable_volume_context())["storage.kubernetes.io/csiProvisionerIdentity"] = "x";
  *request.mutable_parameters() = create_request("v").parameters();
  CHECK(world.run(operation(world, request, validate_capabilities))->has_confirmed());
  auto wrong_mode = request;
  *wrong_mode.add_volume_capabilities() = capability(Mode::MULTI_NODE_MULTI_WRITER);
  auto answer = world.run(operation(world, wrong_mode, validate_capabilities));
  CHECK_FALSE(answer->has_confirmed());
  CHECK(answer->message().find("MULTI_NODE_MULTI_WRITER") != std::string::npos);
  auto wrong_context = request;
  (*wrong_context.mutable_volume_context())["port"] = "1";
  CHECK_FALSE(world.run(operation(world, wrong_context, validate_capabilities))->has_confirmed());
  auto wrong_parameter = request;
  (*wrong_parameter.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "silver";
  CHECK_FALSE(world.run(operation(world, wrong_parameter, validate_capabilities))->has_confirmed());
}

TEST_CASE("A06: every RPC of the controller answers alike for every access mode") {
  World world;
  world.configure();
  for (int mode = 0; mode <= 7; ++mode) {
    const auto wire = static_cast<Mode::Mode>(mode);
    const bool offered = check_capability(mode, VolumeMode::mount, "").has_value();
    for (const bool block : {false, true}) {
      CAPTURE(mode);
      CAPTURE(block);
      const auto wanted = block ? block_capability(wire) : capability(wire);
      auto request = create_request("v" + std::to_string(mode) + (block ? "b" : "m"));
      *request.mutable_volume_capabilities(0) = wanted;
      const auto made = create(world, request);
      CHECK(made.has_value() == offered);
      const auto id = made ? made->volume().volume_id() : created_id(world, "plain");
      csi::ValidateVolumeCapabilitiesRequest validate;
      validate.set_volume_id(id);
      *validate.add_volume_capabilities() = wanted;
      CHECK(world.run(operation(world, validate, validate_capabilities))->has_confirmed() == offered);
      auto granting = testing::publish_request(id, k_node_a);
      *granting.mutable_volume_capability() = wanted;
      const auto granted = world.run(operation(world, granting, publish_volume));
      CHECK(granted.has_value() == offered);
      if (!granted) CHECK(granted.error().code == Code::invalid_argument);
      CHECK(unpublish(world, id, k_node_a).has_value());
    }
  }
}

TEST_CASE("formatted: recorded once, told to the node with the next publish") {
  World world;
  world.configure();
  const auto id = created_id(world, "v");
  const auto request = std::make_shared<const MarkFormatted>(MarkFormatted{id, crd::FsType::ext4});
  REQUIRE(world.run(mark_formatted(OperationContext::detached(), world.ports(), request)).has_value());
  const auto first = world.record("v")->status.formatted;
  REQUIRE(world.run(mark_formatted(OperationContext::detached(), world.ports(), request)).has_value());
  CHECK(world.record("v")->status.formatted == first);
  CHECK(publish(world, id, k_node_a)->publish_context().at("pillar-csi.bhyoo.com/formatted") == "true");
}

TEST_CASE("capacity: per class from the agent, in total from the stores, unknown class NOT_FOUND") {
  World world;
  world.put(crd::to_object(agent_object()));
  auto store = store_object();
  store.status.capacity = crd::Capacity{100, 40, 60};
  world.put(crd::to_object(store));
  world.put(crd::to_object(protocol_object()));
  world.put(crd::to_object(class_object()));
  csi::GetCapacityRequest request;
  CHECK(world.run(operation(world, request, get_capacity))->available_capacity() == 40);
  *request.mutable_parameters() = create_request("v").parameters();
  const auto answer = world.run(operation(world, request, get_capacity));
  CHECK(answer->available_capacity() == 100 * k_gib);
  CHECK(answer->maximum_volume_size().value() == 100 * k_gib);
  (*request.mutable_accessible_topology()->mutable_segments())["zone"] = "mars";
  CHECK(world.run(operation(world, request, get_capacity))->available_capacity() == 0);
  (*request.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "none";
  CHECK(world.run(operation(world, request, get_capacity)).error().code == Code::not_found);
}

}  // namespace pillar::controller::testing
