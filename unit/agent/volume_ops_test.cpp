#include <doctest/doctest.h>

#include <algorithm>

#include "unit/agent/fake_host.hpp"

using namespace pillar;
using namespace pillar::agent;
using namespace pillar::agent::testing;

TEST_SUITE_BEGIN("agent/volume_ops");

namespace {

template <class T>
void require_ok(const Result<T>& result) {
  REQUIRE_MESSAGE(result.has_value(), (result ? std::string() : result.error().message));
}
template <class T>
Reason reason_of(const Result<T>& result) {
  REQUIRE_FALSE(result.has_value());
  return result.error().reason;
}

/// A volume that host A (and, with `both`, host B) may use and is connected to. Generations 1 to 4 are spent.
void publish(World& world, bool both = false, bool acl = true) {
  require_ok(run_on(world, create_volume, create_request(1)));
  require_ok(run_on(world, export_volume, export_request(2, acl)));
  require_ok(run_on(world, allow_initiator, allow_request(3, k_host_a, acl)));
  REQUIRE(world.configfs.connect(k_host_a, k_nqn));
  if (!both) return;
  require_ok(run_on(world, allow_initiator, allow_request(4, k_host_b, acl)));
  REQUIRE(world.configfs.connect(k_host_b, k_nqn));
}

nvmet::LiveSubsystem live_of(World& world) {
  auto live = nvmet::read_subsystem(world.configfs, k_nqn);
  REQUIRE(live.has_value());
  REQUIRE(live->has_value());
  return **live;
}

bool is_closed(World& world) {
  const auto live = live_of(world);
  return !live.enabled() && live.ports.empty() && live.hosts.empty() && !live.allow_any_host;
}

}  // namespace

TEST_CASE("life of a volume: create, export, allow, expand, deny, unexport, delete leave nothing behind") {
  World world;
  const std::string empty = world.configfs.dump();
  publish(world);
  CHECK(world.configfs.can_write(k_host_a, k_nqn));
  auto expand = request_of<v1::ExpandVolumeRequest>(5);
  expand->set_required_bytes(2U << 30U);
  expand->set_nqn(k_nqn);
  const auto grown = run_on(world, expand_volume, expand);
  require_ok(grown);
  CHECK(grown->capacity_bytes() == 2U << 30U);
  CHECK(world.configfs.can_write(k_host_a, k_nqn));
  require_ok(run_on(world, deny_initiator, deny_request(6, k_host_a)));
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  auto unexport = request_of<v1::UnexportVolumeRequest>(7);
  unexport->set_nqn(k_nqn);
  require_ok(run_on(world, unexport_volume, unexport));
  CHECK_FALSE(nvmet::read_subsystem(world.configfs, k_nqn)->has_value());
  require_ok(run_on(world, delete_volume, delete_request(8)));
  CHECK(world.volumes.empty());
  CHECK(world.records.empty());
  CHECK(world.marks.at(k_volume).state == LifeState::ended);
  CHECK(world.configfs.dump().find(k_nqn) == std::string::npos);
}

TEST_CASE(
    "create: the answer is that of the real volume, repeats agree, J01 a limit below the rounded size is "
    "refused") {
  World world;
  const auto first = run_on(world, create_volume, create_request(1, (10U << 20U) + 1));
  require_ok(first);
  CHECK(first->capacity_bytes() == 12U << 20U);
  CHECK(first->device_path() == "/dev/vg0/pvc-1");
  const auto repeat = run_on(world, create_volume, create_request(1, (10U << 20U) + 1));
  require_ok(repeat);
  CHECK(repeat->SerializeAsString() == first->SerializeAsString());
  World other;
  auto limited = create_request(1, (10U << 20U) + 1);
  limited->set_limit_bytes((10U << 20U) + 1);
  CHECK(reason_of(run_on(other, create_volume, limited)) == Reason::out_of_range);
}

TEST_CASE("create: an object under the name that is not ours is left alone") {
  World world;
  world.volumes[k_volume] = {k_volume, "", 1U << 30U, true, true, "/dev/vg0/pvc-1"};
  const std::string before = world.configfs.dump();
  CHECK(reason_of(run_on(world, create_volume, create_request(1))) == Reason::not_owned);
  CHECK(world.volumes.at(k_volume).uid.empty());
  require_ok(run_on(world, delete_volume, delete_request(2)));
  CHECK(world.volumes.count(k_volume) == 1);
}

TEST_CASE("requests outside the allowlists are INVALID_ARGUMENT and touch nothing") {
  World world;
  const std::string before = world.dump();
  auto foreign_pool = create_request(1);
  foreign_pool->mutable_volume()->set_agent_volume_id("vg9/x");
  CHECK(reason_of(run_on(world, create_volume, foreign_pool)) == Reason::invalid_argument);
  auto bad_id = create_request(1);
  bad_id->mutable_volume()->set_agent_volume_id("vg0/../x");
  CHECK(reason_of(run_on(world, create_volume, bad_id)) == Reason::invalid_argument);
  auto thin = create_request(1);
  thin->mutable_settings()->mutable_lvm()->set_provisioning_mode("thin");
  CHECK(reason_of(run_on(world, create_volume, thin)) == Reason::invalid_argument);
  auto address = export_request(1);
  address->mutable_spec()->set_bind_address("10.9.9.9");
  CHECK(reason_of(run_on(world, export_volume, address)) == Reason::invalid_argument);
  auto name = export_request(1);
  name->mutable_spec()->set_nqn("nqn.2019-01.org.example:x");
  CHECK(reason_of(run_on(world, export_volume, name)) == Reason::invalid_argument);
  auto serial = export_request(1);
  serial->mutable_spec()->set_serial("xyz");
  CHECK(reason_of(run_on(world, export_volume, serial)) == Reason::invalid_argument);
  CHECK(reason_of(run_on(world, allow_initiator, allow_request(1, "not an nqn"))) ==
        Reason::invalid_argument);
  CHECK(world.dump() == before);
}

TEST_CASE("a subsystem name of another volume is refused") {
  World world;
  publish(world);
  const AgentVolumeId other{"vg0", "pvc-2"};
  auto create = request_of<v1::CreateVolumeRequest>(1, "u2", other);
  create->set_required_bytes(1);
  require_ok(run_on(world, create_volume, create));
  auto steal = request_of<v1::UnexportVolumeRequest>(2, "u2", other);
  steal->set_nqn(k_nqn);
  CHECK(reason_of(run_on(world, unexport_volume, steal)) == Reason::invalid_argument);
  CHECK(world.configfs.can_write(k_host_a, k_nqn));
}

TEST_CASE(
    "A09 B09: denying the last initiator ends its session before OK, the export stays configured and shut") {
  World world;
  publish(world);
  require_ok(run_on(world, deny_initiator, deny_request(4, k_host_a)));
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK(is_closed(world));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  const auto identity = live_of(world).namespaces.at("1").uuid;
  require_ok(run_on(world, allow_initiator, allow_request(5, k_host_b)));
  CHECK(world.configfs.connect(k_host_b, k_nqn));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  CHECK(live_of(world).namespaces.at("1").uuid == identity);
}

TEST_CASE(
    "B09: denying one of two readers tears its session down, the other comes back, and no barrier waits") {
  World world;
  publish(world, true);
  auto host = std::make_shared<FakeHost>(world);
  const auto denied = *run(deny_initiator(host, deny_request(5, k_host_a)));
  require_ok(denied);
  REQUIRE(denied->remaining_host_nqns_size() == 1);
  CHECK(denied->remaining_host_nqns(0) == k_host_b);
  CHECK(host->barriers_started == 0);
  CHECK_FALSE(world.configfs.can_write(k_host_a, k_nqn));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  CHECK(world.configfs.connect(k_host_b, k_nqn));
}

TEST_CASE("deny: a repeat that finds the access gone does not disturb the readers that stay") {
  World world;
  publish(world, true);
  require_ok(run_on(world, deny_initiator, deny_request(5, k_host_a)));
  REQUIRE(world.configfs.connect(k_host_b, k_nqn));
  require_ok(run_on(world, deny_initiator, deny_request(5, k_host_a)));
  require_ok(run_on(world, deny_initiator, deny_request(6, k_host_a)));
  CHECK(world.configfs.can_write(k_host_b, k_nqn));
}

TEST_CASE("I1: a host whose deny could not be put on record does not come back with a later record") {
  const auto hosts = [](const World& world) {
    std::set<std::string> names;
    for (const auto& entry : world.records.at(k_volume).initiators) names.insert(entry.host_nqn);
    return names;
  };
  World undisturbed;
  publish(undisturbed);
  auto counting = std::make_shared<FakeHost>(undisturbed);
  require_ok(*run(deny_initiator(counting, deny_request(4, k_host_a))));
  World world;
  publish(world);
  auto host = std::make_shared<FakeHost>(world);
  host->fail_at = counting->calls() - 1;  // the record comes last
  require_ok(*run(deny_initiator(host, deny_request(4, k_host_a))));
  REQUIRE(world.configfs.access_ended(k_host_a, k_nqn));
  REQUIRE(world.records.at(k_volume).token.generation == 3);
  SUBCASE("allow") {
    require_ok(run_on(world, allow_initiator, allow_request(5, k_host_b)));
    CHECK(hosts(world) == std::set<std::string>{k_host_b});
  }
  SUBCASE("expand, then allow") {
    auto expand = request_of<v1::ExpandVolumeRequest>(5);
    expand->set_required_bytes(2U << 30U);
    SUBCASE("with a look at the export") { expand->set_nqn(k_nqn); }
    SUBCASE("without") {}
    require_ok(run_on(world, expand_volume, expand));
    const bool usable = world.records.at(k_volume).token.generation == 5;
    CHECK((!usable || hosts(world).empty()));
    require_ok(run_on(world, allow_initiator, allow_request(6, k_host_b)));
    CHECK(hosts(world) == std::set<std::string>{k_host_b});
  }
  SUBCASE("export") {
    require_ok(run_on(world, export_volume, export_request(5)));
    CHECK(hosts(world).empty());
  }
  SUBCASE("deny of another one") {
    require_ok(run_on(world, deny_initiator, deny_request(5, k_host_b)));
    CHECK(hosts(world).empty());
  }
}

TEST_CASE("a record that a cut short operation left behind is made anew from who is let in") {
  World world;
  publish(world, true);
  auto host = std::make_shared<FakeHost>(world);
  host->fail_at = 1;  // the mark of generation 5 is durable, its expansion fails
  auto expand = request_of<v1::ExpandVolumeRequest>(5);
  expand->set_required_bytes(2U << 30U);
  expand->set_nqn(k_nqn);
  CHECK(reason_of(*run(expand_volume(host, expand))) == Reason::injected_fault);
  expand->mutable_token()->set_generation(6);
  require_ok(run_on(world, expand_volume, expand));
  const ExportRecord& record = world.records.at(k_volume);
  CHECK(record.token.generation == 6);
  REQUIRE(record.initiators.size() == 2);
  CHECK(record.initiators[0].host_nqn == k_host_a);
  CHECK(record.initiators[1].host_nqn == k_host_b);
}

TEST_CASE("M01: an empty host name ends every access") {
  World world;
  publish(world, true);
  require_ok(run_on(world, deny_initiator, deny_request(5, "")));
  CHECK(is_closed(world));
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK(world.configfs.access_ended(k_host_b, k_nqn));
  CHECK(world.records.at(k_volume).initiators.empty());
}

TEST_CASE("acl false: open to any host while published, shut like any other after the last publication") {
  World world;
  publish(world, true, false);
  CHECK(live_of(world).allow_any_host);
  require_ok(run_on(world, deny_initiator, deny_request(5, k_host_a)));
  CHECK(live_of(world).allow_any_host);
  CHECK(world.configfs.can_write(k_host_b, k_nqn));
  require_ok(run_on(world, deny_initiator, deny_request(6, k_host_b)));
  CHECK(is_closed(world));
  CHECK(world.configfs.access_ended(k_host_b, k_nqn));
}

TEST_CASE("B06: a subsystem left with allow_any_host converges to exactly the allowed host") {
  World world;
  require_ok(run_on(world, create_volume, create_request(1)));
  REQUIRE(world.configfs.make_dir("subsystems/" + k_nqn).has_value());
  REQUIRE(world.configfs.write("subsystems/" + k_nqn + "/attr_allow_any_host", "1").has_value());
  require_ok(run_on(world, export_volume, export_request(2)));
  require_ok(run_on(world, allow_initiator, allow_request(3, k_host_a)));
  CHECK_FALSE(live_of(world).allow_any_host);
  CHECK(live_of(world).host_nqns() == std::set<std::string>{k_host_a});
  CHECK_FALSE(world.configfs.connect(k_host_b, k_nqn));
}

TEST_CASE("access not ended: never OK while the disable hangs, a repeat starts no second one, then OK") {
  World world;
  publish(world);
  auto host = std::make_shared<FakeHost>(world);
  host->barrier_hangs = true;
  for (std::uint64_t generation = 4; generation < 7; ++generation) {
    const auto denied = *run(deny_initiator(host, deny_request(generation, k_host_a)));
    CHECK(reason_of(denied) == Reason::access_not_ended);
    CHECK(denied.error().code == Code::unavailable);
  }
  CHECK(reason_of(*run(allow_initiator(host, allow_request(7, k_host_b)))) == Reason::access_not_ended);
  CHECK(reason_of(*run(delete_volume(host, delete_request(8)))) == Reason::access_not_ended);
  CHECK(host->barriers_started == 1);
  CHECK(world.volumes.count(k_volume) == 1);
  host->barrier_hangs = false;
  host->finish_barrier(k_nqn);
  require_ok(*run(delete_volume(host, delete_request(8))));
  CHECK(world.volumes.empty());
}

TEST_CASE("I2: a delayed request of an older generation changes nothing") {
  World world;
  publish(world);
  require_ok(run_on(world, deny_initiator, deny_request(9, k_host_a)));
  const std::string before = world.dump();
  CHECK(reason_of(run_on(world, allow_initiator, allow_request(3, k_host_a))) == Reason::stale_generation);
  CHECK(reason_of(run_on(world, delete_volume, delete_request(8))) == Reason::stale_generation);
  CHECK(reason_of(run_on(world, create_volume, create_request(8, 1U << 20U, "u9"))) ==
        Reason::foreign_lifecycle);
  CHECK(reason_of(run_on(world, create_volume, create_request(0))) == Reason::token_missing);
  CHECK(world.dump() == before);
}

TEST_CASE("K03: a late delete of an ended life does not touch the volume that took its name") {
  World world;
  require_ok(run_on(world, create_volume, create_request(1)));
  require_ok(run_on(world, delete_volume, delete_request(2)));
  require_ok(run_on(world, create_volume, create_request(1, 1U << 30U, "u2")));
  const std::string before = world.dump();
  CHECK(reason_of(run_on(world, delete_volume, delete_request(2))) == Reason::lifecycle_retired);
  CHECK(reason_of(run_on(world, delete_volume, delete_request(3))) == Reason::lifecycle_retired);
  CHECK(world.dump() == before);
}

TEST_CASE("the mark is durable before anything is done, and ended only after everything is") {
  World world;
  publish(world);
  world.trace.clear();
  require_ok(run_on(world, delete_volume, delete_request(9)));
  REQUIRE(world.trace.size() > 3);
  CHECK(world.trace.front() == "mark vg0/pvc-1");
  CHECK(world.trace.back() == "mark vg0/pvc-1");
  CHECK(std::count(world.trace.begin(), world.trace.end(), "mark vg0/pvc-1") == 2);
  CHECK(world.trace[world.trace.size() - 2] == "lvremove vg0/pvc-1");
}

TEST_CASE(
    "an unwritable state directory: nothing is granted or destroyed, but a revoke still ends the access") {
  World world;
  publish(world);
  world.writable = false;
  const std::string before = world.dump();
  CHECK(reason_of(run_on(world, allow_initiator, allow_request(4, k_host_b))) == Reason::state_unwritable);
  CHECK(reason_of(run_on(world, delete_volume, delete_request(4))) == Reason::state_unwritable);
  auto expand = request_of<v1::ExpandVolumeRequest>(4);
  expand->set_required_bytes(2U << 30U);
  CHECK(reason_of(run_on(world, expand_volume, expand)) == Reason::state_unwritable);
  CHECK(world.dump() == before);
  const auto denied = run_on(world, deny_initiator, deny_request(4, k_host_a));
  CHECK(reason_of(denied) == Reason::state_unwritable);
  CHECK(denied.error().message.find("access was taken away") != std::string::npos);
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK(is_closed(world));
  CHECK(reason_of(run_on(world, deny_initiator, deny_request(2, k_host_a))) == Reason::stale_generation);
  world.writable = true;
  require_ok(run_on(world, deny_initiator, deny_request(4, k_host_a)));
}

TEST_CASE(
    "an object of ours without a mark is EPOCH_UNKNOWN until seeded, and so is everything on an unseeded "
    "agent") {
  World world;
  world.volumes[k_volume] = {k_volume, "u1", 1U << 30U, true, true, "/dev/vg0/pvc-1"};
  CHECK(reason_of(run_on(world, create_volume, create_request(1))) == Reason::epoch_unknown);
  CHECK(reason_of(run_on(world, deny_initiator, deny_request(1, k_host_a))) == Reason::epoch_unknown);
  CHECK(reason_of(run_on(world, delete_volume, delete_request(1))) == Reason::epoch_unknown);
  CHECK(world.marks.empty());
  World unseeded;
  unseeded.seeded = false;
  CHECK(reason_of(run_on(unseeded, create_volume, create_request(1))) == Reason::epoch_unknown);
  CHECK(unseeded.marks.empty());
}

TEST_CASE("L09: a repeat of an expand that stopped after the backend grew still tells the initiators") {
  World world;
  publish(world);
  world.volumes.at(k_volume).size_bytes = 2U << 30U;
  auto expand = request_of<v1::ExpandVolumeRequest>(4);
  expand->set_required_bytes(2U << 30U);
  expand->set_nqn(k_nqn);
  world.configfs.log.clear();
  require_ok(run_on(world, expand_volume, expand));
  REQUIRE(world.configfs.log.size() == 1);
  CHECK(world.configfs.log.front().find("revalidate_size") != std::string::npos);
  expand->set_required_bytes(1U << 30U);
  const auto smaller = run_on(world, expand_volume, expand);
  require_ok(smaller);
  CHECK(smaller->capacity_bytes() == 2U << 30U);
}

TEST_CASE("drain refuses new grants and lets revokes and deletes through; a gated agent does not allow") {
  World world;
  publish(world);
  auto host = std::make_shared<FakeHost>(world);
  host->drained_flag = true;
  CHECK(reason_of(*run(allow_initiator(host, allow_request(4, k_host_b)))) == Reason::drained);
  CHECK(reason_of(*run(export_volume(host, export_request(4)))) == Reason::drained);
  CHECK(reason_of(*run(create_volume(host, create_request(4)))) == Reason::drained);
  require_ok(*run(deny_initiator(host, deny_request(4, k_host_a))));
  host->drained_flag = false;
  host->gated_flag = true;
  CHECK(reason_of(*run(allow_initiator(host, allow_request(5, k_host_a)))) == Reason::restore_pending);
  require_ok(*run(delete_volume(host, delete_request(5))));
}

TEST_CASE("adopt: refused while access exists, then the object and the mark belong to the new life") {
  World world;
  publish(world);
  auto adopt = request_of<v1::AdoptLifecycleRequest>(1, "u2");
  adopt->set_old_uid("u1");
  adopt->set_old_generation(3);
  CHECK(reason_of(run_on(world, adopt_lifecycle, adopt)) == Reason::still_published);
  require_ok(run_on(world, deny_initiator, deny_request(4, k_host_a)));
  CHECK(reason_of(run_on(world, adopt_lifecycle, adopt)) == Reason::foreign_lifecycle);
  adopt->set_old_generation(4);
  require_ok(run_on(world, adopt_lifecycle, adopt));
  require_ok(run_on(world, adopt_lifecycle, adopt));
  CHECK(world.volumes.at(k_volume).uid == "u2");
  CHECK(world.marks.at(k_volume).uid == "u2");
  CHECK(reason_of(run_on(world, deny_initiator, deny_request(5, k_host_a))) == Reason::lifecycle_retired);
  auto expand = request_of<v1::ExpandVolumeRequest>(2, "u2");
  expand->set_required_bytes(1);
  require_ok(run_on(world, expand_volume, expand));
}

TEST_CASE("B08: reconcile of what is already so writes nothing, neither to configfs nor to disk") {
  World world;
  publish(world, true);
  auto first = run_on(world, reconcile_volume, reconcile_request(4, {k_host_a, k_host_b}));
  require_ok(first);
  CHECK_FALSE(first->changed);
  world.configfs.log.clear();
  const int writes = world.mark_writes + world.record_writes;
  for (int i = 0; i < 10; ++i) {
    const auto again = run_on(world, reconcile_volume, reconcile_request(4, {k_host_b, k_host_a}));
    require_ok(again);
    CHECK_FALSE(again->changed);
  }
  CHECK(world.configfs.log.empty());
  CHECK(world.mark_writes + world.record_writes == writes);
  CHECK(world.configfs.can_write(k_host_a, k_nqn));
}

TEST_CASE("reconcile: access beyond the record is closed, missing access is opened") {
  World world;
  publish(world, true);
  auto shrunk = run_on(world, reconcile_volume, reconcile_request(5, {k_host_b}));
  require_ok(shrunk);
  CHECK(shrunk->changed);
  CHECK_FALSE(world.configfs.can_write(k_host_a, k_nqn));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  CHECK(world.configfs.connect(k_host_b, k_nqn));
  require_ok(run_on(world, reconcile_volume, reconcile_request(6, {})));
  CHECK(is_closed(world));
  CHECK(world.configfs.access_ended(k_host_b, k_nqn));
  require_ok(run_on(world, reconcile_volume, reconcile_request(7, {k_host_a})));
  CHECK(world.configfs.connect(k_host_a, k_nqn));
}

TEST_CASE("reconcile: a volume without an export is shut and its data kept") {
  World world;
  publish(world);
  auto request = reconcile_request(4, {});
  request->desired.clear_spec();
  const auto closed = run_on(world, reconcile_volume, request);
  require_ok(closed);
  CHECK(closed->changed);
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK(world.volumes.count(k_volume) == 1);
  CHECK_FALSE(run_on(world, reconcile_volume, request)->changed);
}

TEST_CASE(
    "C10 F01: after a reboot the export comes back byte-equal, linked last, and only when told to link") {
  World world;
  publish(world);
  const std::string before = world.configfs.dump();
  world.configfs.reboot();
  auto request = reconcile_request(3, {k_host_a});
  request->hold_links = true;
  const auto prepared = run_on(world, reconcile_volume, request);
  require_ok(prepared);
  REQUIRE(prepared->link.has_value());
  CHECK(prepared->link->endpoint.key() == "10.0.0.5:4420");
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  CHECK(live_of(world).enabled());
  nvmet::Executor executor(world.configfs);
  for (const auto& result : executor.open_all({prepared->link->open})) CHECK(result.has_value());
  CHECK(world.configfs.connect(k_host_a, k_nqn));
  CHECK(world.configfs.dump() == before);
}

TEST_CASE("stray: closed without a record, but not when the volume moved on after the list was made") {
  World world;
  publish(world);
  auto stray = std::make_shared<CloseStray>();
  stray->nqn = k_nqn;
  stray->volume = k_volume;
  stray->known_sequence = world.marks.at(k_volume).sequence - 1;
  CHECK_FALSE(run_on(world, close_stray, stray)->changed);
  CHECK(world.configfs.can_write(k_host_a, k_nqn));
  stray->known_sequence = world.sequence;
  CHECK(run_on(world, close_stray, stray)->changed);
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK(world.volumes.count(k_volume) == 1);
}

TEST_CASE("decisions are counted by operation and outcome") {
  World world;
  auto host = std::make_shared<FakeHost>(world);
  require_ok(*run(create_volume(host, create_request(5))));
  (void)run(create_volume(host, create_request(4)));
  CHECK(host->decisions["create run"] == 1);
  CHECK(host->decisions["create stale_generation"] == 1);
}
