#include <cerrno>
#include <functional>
#include <random>

#include <doctest/doctest.h>

#include "fake_configfs.hpp"
#include "hostio/configfs/nvmet_executor.hpp"
#include "hostio/configfs/nvmet_planner.hpp"
#include "hostio/configfs/nvmet_reader.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace pillar::hostio::nvmet;
using pillar::hostio::testing::FakeConfigfs;

namespace {

const std::string k_nqn = "nqn.2026-01.com.bhyoo.pillar-csi:c1.agent-1.vg0.v1";
const std::string k_foreign = "nqn.2014-08.org.example:theirs";
const std::string k_host_a = "nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-4000-8000-000000000001";
const std::string k_host_b = "nqn.2014-08.org.nvmexpress:uuid:bbbbbbbb-0000-4000-8000-000000000002";
const std::string k_host_c = "nqn.2014-08.org.nvmexpress:uuid:cccccccc-0000-4000-8000-000000000003";
constexpr std::uint16_t k_port = 7;

DesiredExport desired_export(const std::string& nqn = k_nqn) {
  DesiredExport d;
  d.nqn = nqn;
  d.serial = "0123456789abcdef0123";
  d.uuid = "11111111-2222-5333-8444-555555555555";
  d.nguid = "11111111-2222-5333-8444-555555555555";
  d.device.path = "/dev/vg0/v1";
  d.access.port_id = k_port;
  return d;
}

DesiredExport published_to(std::set<std::string> hosts, bool acl = true) {
  DesiredExport d = desired_export();
  d.access.published = true;
  d.access.acl_enabled = acl;
  d.access.hosts = std::move(hosts);
  return d;
}

Result<void> any_device(const std::string&, const std::string&) { return {}; }

Executor executor(FakeConfigfs& fs, StepHook before = {}) {
  return Executor(fs, Executor::Hooks{std::move(before), {}, any_device});
}

std::optional<LiveSubsystem> live(FakeConfigfs& fs, const std::string& nqn = k_nqn) {
  const auto result = read_subsystem(fs, nqn);
  REQUIRE(result);
  return *result;
}

void must(const Result<void>& result) {
  if (!result) FAIL(result.error().message);
}

/// A target with devices, one port of ours at k_port and things of somebody else.
void set_up(FakeConfigfs& fs) {
  fs.devices = {"/dev/vg0/v1", "/dev/vg0/other"};
  const Executor run = executor(fs);
  LivePort port;
  const Plan foreign{{ActionKind::make_dir, "hosts/" + k_host_c, ""},
                     {ActionKind::make_dir, "subsystems/" + k_foreign, ""},
                     {ActionKind::link, "subsystems/" + k_foreign + "/allowed_hosts/x", "hosts/" + k_host_c},
                     {ActionKind::make_dir, "ports/1", ""},
                     {ActionKind::write, "ports/1/addr_trtype", "tcp"},
                     {ActionKind::write, "ports/1/addr_adrfam", "ipv4"},
                     {ActionKind::write, "ports/1/addr_traddr", "127.0.0.1"},
                     {ActionKind::write, "ports/1/addr_trsvcid", "4420"},
                     {ActionKind::link, "ports/1/subsystems/" + k_foreign, "subsystems/" + k_foreign}};
  must(run.run(foreign));
  const Plan ours{{ActionKind::make_dir, "ports/7", ""},
                  {ActionKind::write, "ports/7/addr_trtype", "tcp"},
                  {ActionKind::write, "ports/7/addr_adrfam", "ipv4"},
                  {ActionKind::write, "ports/7/addr_traddr", "10.0.0.5"},
                  {ActionKind::write, "ports/7/addr_trsvcid", "4420"},
                  // A listening port keeps its in-line size in dumps whoever is linked first.
                  {ActionKind::write, "ports/7/param_inline_data_size", "16384"}};
  must(run.run(ours));
  fs.log.clear();
}

void apply(FakeConfigfs& fs, const ExportPlan& plan) { must(executor(fs).run(plan)); }

/// The paths of the changing operations, in order.
std::vector<std::string> paths(const ExportPlan& plan) {
  std::vector<std::string> result;
  for (const Plan* part : {&plan.close, &plan.barrier, &plan.prepare, &plan.open})
    for (const Action& action : *part) result.push_back(describe(action));
  return result;
}

std::size_t position(const std::vector<std::string>& list, const std::string& part) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].find(part) != std::string::npos) return i;
  FAIL("not in the plan: " << part);
  return 0;
}

}  // namespace

TEST_SUITE("nvmet plans") {
  TEST_CASE("order up: identity, hosts, device, enable; the port link comes last") {
    const auto plan = plan_export(published_to({k_host_a}), std::nullopt);
    CHECK(plan.close.empty());
    CHECK(plan.barrier.empty());
    const auto list = paths(plan);
    const std::size_t enable = position(list, "enable = 1");
    CHECK(position(list, "attr_serial") < enable);
    CHECK(position(list, "device_uuid") < enable);
    CHECK(position(list, "allowed_hosts") < enable);
    CHECK(position(list, "check device /dev/vg0/v1") == enable - 1);
    CHECK(position(list, "link ports/7") == list.size() - 1);
  }

  TEST_CASE("order down: port, hosts, barrier, then directories") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_export(published_to({k_host_a}), std::nullopt));
    const auto plan = plan_remove(*live(fs));
    const auto list = paths(plan);
    CHECK(list.front() == "unlink ports/7/subsystems/" + k_nqn);
    CHECK(position(list, "allowed_hosts") < position(list, "enable = 0"));
    CHECK(position(list, "enable = 0") < position(list, "rmdir subsystems/" + k_nqn + "/namespaces/1"));
    CHECK(list.back() == "rmdir subsystems/" + k_nqn);
    CHECK(plan.barrier.size() == 1);
    apply(fs, plan);
    CHECK_FALSE(live(fs));
    CHECK(fs.list("hosts").value() == std::vector<std::string>{k_host_c});
  }

  TEST_CASE("an unpublished export is configured, disabled, unlinked and lets nobody in") {
    for (const bool acl : {true, false}) {
      FakeConfigfs fs;
      set_up(fs);
      DesiredExport desired = published_to({k_host_a}, acl);
      desired.access.published = false;
      apply(fs, plan_export(desired, std::nullopt));
      const auto now = live(fs);
      REQUIRE(now);
      CHECK_FALSE(now->enabled());
      CHECK_FALSE(now->allow_any_host);
      CHECK(now->ports.empty());
      CHECK(now->hosts.empty());
      CHECK_FALSE(fs.connect(k_host_a, k_nqn));
      CHECK(now->namespaces.at("1").uuid == desired.uuid);
    }
  }

  TEST_CASE("B07: only the published host gets in; with acl off everybody does") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_prepare(desired_export(), std::nullopt));
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    CHECK(fs.connect(k_host_a, k_nqn));
    CHECK_FALSE(fs.connect(k_host_b, k_nqn));
    apply(fs, plan_close(*live(fs)));
    DesiredExport open = desired_export();
    open.access.acl_enabled = false;
    apply(fs, plan_allow(open, k_host_a, live(fs)));
    CHECK(fs.connect(k_host_b, k_nqn));
    apply(fs, plan_close(*live(fs)));
    CHECK(fs.access_ended(k_host_b, k_nqn));
    CHECK_FALSE(live(fs)->allow_any_host);
  }

  TEST_CASE("B08: steady state plans nothing and writes nothing, in whatever order hosts are listed") {
    FakeConfigfs fs;
    set_up(fs);
    const std::vector<std::string> hosts{k_host_c, k_host_a, k_host_b};
    for (const std::string& host : hosts) apply(fs, plan_allow(desired_export(), host, live(fs)));
    fs.log.clear();
    const auto now = live(fs);
    CHECK(plan_export(published_to({k_host_a, k_host_b, k_host_c}), now).empty());
    CHECK(plan_prepare(desired_export(), now).empty());
    CHECK(plan_allow(desired_export(), k_host_b, now).empty());
    apply(fs, plan_close(*now));
    CHECK(plan_close(*live(fs)).empty());
    CHECK(plan_export(desired_export(), live(fs)).empty());
    CHECK(plan_prepare(desired_export(), live(fs)).empty());
  }

  TEST_CASE("reading one subsystem costs the same with 5 and with 500 exports") {
    std::size_t costs[2]{};
    for (const int n : {5, 500}) {
      FakeConfigfs fs;
      set_up(fs);
      for (int i = 0; i < n; ++i)
        apply(fs, plan_export(desired_export(k_nqn + std::to_string(i)), std::nullopt));
      fs.reads = 0;
      REQUIRE(live(fs, k_nqn + "3"));
      costs[n == 500] = fs.reads;
      CHECK(read_our_subsystems(fs)->size() == static_cast<std::size_t>(n));
    }
    CHECK(costs[0] == costs[1]);
  }

  TEST_CASE("B06: a subsystem left with allow_any_host=1 converges to 0 and one link") {
    FakeConfigfs fs;
    set_up(fs);
    must(executor(fs).run(Plan{{ActionKind::make_dir, "subsystems/" + k_nqn, ""},
                               {ActionKind::write, "subsystems/" + k_nqn + "/attr_allow_any_host", "1"},
                               {ActionKind::link, "ports/7/subsystems/" + k_nqn, "subsystems/" + k_nqn}}));
    CHECK(fs.connect(k_host_b, k_nqn));
    const auto plan = plan_allow(desired_export(), k_host_a, live(fs));
    const auto list = paths(plan);
    CHECK(position(list, "attr_allow_any_host = 0") < position(list, "link subsystems/"));
    // The stranger was connected, so the kernel has fixed serial and model: the export cannot be ours as it
    // is.
    const auto result = executor(fs).run(plan);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::incompatible);
    CHECK(fs.access_ended(k_host_b, k_nqn));
    apply(fs, plan_remove(*live(fs)));
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    CHECK_FALSE(live(fs)->allow_any_host);
    CHECK(live(fs)->host_nqns() == std::set<std::string>{k_host_a});
  }

  TEST_CASE("B09, A09: denying the last host ends its session and its I/O, not only its permission") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    REQUIRE(fs.connect(k_host_a, k_nqn));
    // Baseline: removing the link alone ends nothing.
    must(executor(fs).run(
        Plan{{ActionKind::unlink, "subsystems/" + k_nqn + "/allowed_hosts/" + k_host_a, ""}}));
    CHECK(fs.can_write(k_host_a, k_nqn));
    const auto plan = plan_deny(desired_export(), k_host_a, *live(fs));
    must(executor(fs).run(plan.close));
    CHECK_FALSE(fs.can_write(k_host_a, k_nqn));
    CHECK_FALSE(fs.access_ended(k_host_a, k_nqn));  // I/O in flight
    must(executor(fs).run(plan.barrier));
    CHECK(fs.access_ended(k_host_a, k_nqn));
    must(executor(fs).run(plan.prepare));
    CHECK(plan.open.empty());
    CHECK(live(fs)->ports.empty());
  }

  TEST_CASE(
      "denying one of several readers cuts it; the others may return, and other volumes notice nothing "
      "(A11)") {
    FakeConfigfs fs;
    set_up(fs);
    const std::string other = k_nqn + "-other";
    apply(fs, plan_allow(desired_export(other), k_host_a, live(fs, other)));
    for (const auto& host : {k_host_a, k_host_b}) apply(fs, plan_allow(desired_export(), host, live(fs)));
    REQUIRE(fs.connect(k_host_a, k_nqn));
    REQUIRE(fs.connect(k_host_b, k_nqn));
    REQUIRE(fs.connect(k_host_a, other));
    const auto plan = plan_deny(desired_export(), k_host_a, *live(fs));
    CHECK(plan.barrier.empty());
    apply(fs, plan);
    CHECK_FALSE(fs.can_write(k_host_a, k_nqn));
    CHECK_FALSE(fs.connect(k_host_a, k_nqn));
    CHECK(fs.connect(k_host_b, k_nqn));
    CHECK(fs.can_write(k_host_b, k_nqn));
    CHECK(fs.can_write(k_host_a, other));
    // A repeat recycles again: a permission removed by hand before the call must not leave a session behind.
    CHECK_FALSE(plan_deny(desired_export(), k_host_a, *live(fs)).close.empty());
  }

  TEST_CASE("moving a single-writer export from A to B waits for A's I/O, also after a crash in between") {
    for (std::size_t crash_at = 0; crash_at < 12; ++crash_at) {
      FakeConfigfs fs;
      set_up(fs);
      apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
      REQUIRE(fs.connect(k_host_a, k_nqn));
      std::size_t steps = 0;
      (void)executor(fs, [&](const Action&) -> Result<void> {
        if (steps++ == crash_at) return fail(Reason::injected_fault, "crash");
        return {};
      }).run(plan_export(published_to({k_host_b}), live(fs)));
      fs.before = [&](const std::string& op) {
        // Whenever B can get in, nothing of A may be under way.
        if (fs.connect(k_host_b, k_nqn)) CHECK_MESSAGE(fs.access_ended(k_host_a, k_nqn), op);
      };
      apply(fs, plan_export(published_to({k_host_b}), live(fs)));
      CHECK(fs.connect(k_host_b, k_nqn));
      CHECK(fs.access_ended(k_host_a, k_nqn));
    }
  }

  TEST_CASE("C10: uuid, nguid, serial and model are the same after a reboot of the target") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_export(published_to({k_host_a}), live(fs)));
    const auto first = live(fs);
    fs.reboot();
    set_up(fs);
    apply(fs, plan_export(published_to({k_host_a}), live(fs)));
    CHECK(live(fs) == first);
  }

  TEST_CASE("an enabled namespace with a foreign device is closed, corrected and opened again") {
    FakeConfigfs fs;
    set_up(fs);
    DesiredExport wrong = published_to({k_host_a});
    wrong.device.path = "/dev/vg0/other";
    apply(fs, plan_export(wrong, live(fs)));
    REQUIRE(fs.connect(k_host_a, k_nqn));
    apply(fs, plan_export(published_to({k_host_a}), live(fs)));
    CHECK(live(fs)->namespaces.at("1").device_path == "/dev/vg0/v1");
    CHECK(live(fs)->enabled());
    CHECK(fs.connect(k_host_a, k_nqn));
  }

  TEST_CASE("stray namespaces, a second port and oddly named links are removed") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_export(published_to({k_host_a}), live(fs)));
    must(executor(fs).run(
        Plan{{ActionKind::make_dir, "subsystems/" + k_nqn + "/namespaces/2", ""},
             {ActionKind::write, "subsystems/" + k_nqn + "/namespaces/2/device_path", "/dev/vg0/other"},
             {ActionKind::write, "subsystems/" + k_nqn + "/namespaces/2/enable", "1"},
             {ActionKind::make_dir, "hosts/" + k_host_b, ""},
             {ActionKind::link, "subsystems/" + k_nqn + "/allowed_hosts/odd", "hosts/" + k_host_b},
             {ActionKind::link, "ports/1/subsystems/odd", "subsystems/" + k_nqn}}));
    const auto all = read_our_subsystems(fs);
    REQUIRE(all);
    REQUIRE(all->size() == 1);
    CHECK(all->front().ports.size() == 2);
    apply(fs, plan_export(published_to({k_host_a}), all->front()));
    const auto now = read_our_subsystems(fs)->front();
    CHECK(now.ports.size() == 1);
    CHECK(now.namespaces.size() == 1);
    CHECK(now.host_nqns() == std::set<std::string>{k_host_a});
    CHECK(plan_export(published_to({k_host_a}), now).empty());
  }

  TEST_CASE("revalidate writes once, only while enabled") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_prepare(desired_export(), live(fs)));
    CHECK(plan_revalidate(*live(fs)).empty());
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    fs.log.clear();
    must(executor(fs).run(plan_revalidate(*live(fs))));
    CHECK(fs.log ==
          std::vector<std::string>{"write subsystems/" + k_nqn + "/namespaces/1/revalidate_size=1"});
  }
}

namespace {

/// One operation of the agent as a function from live state to plan.
struct Operation {
  std::string name;
  std::function<ExportPlan(const std::optional<LiveSubsystem>&)> plan;
};

ExportPlan none_if_missing(const std::optional<LiveSubsystem>& now,
                           const std::function<ExportPlan(const LiveSubsystem&)>& f) {
  return now ? f(*now) : ExportPlan{};
}

std::vector<Operation> operations() {
  std::vector<Operation> list;
  list.push_back({"prepare", [](const auto& now) { return plan_prepare(desired_export(), now); }});
  for (const std::string& host : {k_host_a, k_host_b}) {
    list.push_back(
        {"allow " + host, [host](const auto& now) { return plan_allow(desired_export(), host, now); }});
    list.push_back({"deny " + host, [host](const auto& now) {
                      return none_if_missing(
                          now, [&](const LiveSubsystem& l) { return plan_deny(desired_export(), host, l); });
                    }});
  }
  list.push_back({"open to all", [](const auto& now) { return plan_export(published_to({}, false), now); }});
  list.push_back({"to B", [](const auto& now) { return plan_export(published_to({k_host_b}), now); }});
  list.push_back({"to A and B", [](const auto& now) {
                    return plan_export(published_to({k_host_a, k_host_b}), now);
                  }});
  list.push_back({"unpublish", [](const auto& now) { return plan_export(desired_export(), now); }});
  list.push_back({"close", [](const auto& now) { return none_if_missing(now, plan_close); }});
  list.push_back({"remove", [](const auto& now) { return none_if_missing(now, plan_remove); }});
  return list;
}

std::size_t count(const ExportPlan& plan) {
  return plan.close.size() + plan.barrier.size() + plan.prepare.size() + plan.open.size();
}

StepHook crash_before(std::size_t step) {
  return [left = step](const Action&) mutable -> Result<void> {
    if (left-- == 0) return fail(Reason::injected_fault, "crash");
    return {};
  };
}

}  // namespace

TEST_SUITE("nvmet crash sweep") {
  TEST_CASE("F11: after a crash at any step of any operation, planning again reaches the same tree") {
    const auto list = operations();
    for (const Operation& before : list)
      for (const Operation& op : list) {
        FakeConfigfs reference;
        set_up(reference);
        apply(reference, before.plan(live(reference)));
        const std::size_t steps = count(op.plan(live(reference)));
        apply(reference, op.plan(live(reference)));
        for (std::size_t step = 0; step < steps; ++step) {
          FakeConfigfs fs;
          set_up(fs);
          apply(fs, before.plan(live(fs)));
          CHECK_FALSE(executor(fs, crash_before(step)).run(op.plan(live(fs))));
          apply(fs, op.plan(live(fs)));
          // Random default identifiers are all overwritten, so the dumps must agree in every byte.
          CHECK_MESSAGE(fs.dump() == reference.dump(), before.name << ", " << op.name << " step " << step);
        }
      }
  }

  TEST_CASE("F11: two crashes in a row, then planning again") {
    const auto list = operations();
    for (const Operation& op : list) {
      FakeConfigfs reference;
      set_up(reference);
      apply(reference, list[1].plan(live(reference)));
      apply(reference, op.plan(live(reference)));
      for (std::size_t one = 0; one < 10; ++one)
        for (std::size_t two = 0; two < 10; ++two) {
          FakeConfigfs fs;
          set_up(fs);
          apply(fs, list[1].plan(live(fs)));
          (void)executor(fs, crash_before(one)).run(op.plan(live(fs)));
          (void)executor(fs, crash_before(two)).run(op.plan(live(fs)));
          apply(fs, op.plan(live(fs)));
          CHECK_MESSAGE(fs.dump() == reference.dump(), op.name << " " << one << " " << two);
        }
    }
  }

  TEST_CASE("F02, F11: random operations, crashes and failures; then every state is reached exactly") {
    const auto list = operations();
    for (unsigned seed = 1; seed <= 200; ++seed) {
      std::mt19937 random(seed);
      FakeConfigfs fs;
      set_up(fs);
      for (int i = 0; i < 30; ++i) {
        const Operation& op = list[random() % list.size()];
        (void)executor(fs, crash_before(random() % 14)).run(op.plan(live(fs)));
        (void)fs.connect(random() % 2 == 0 ? k_host_a : k_host_b, k_nqn);
        // Denying must end the session, whatever happened before.
        if (random() % 5 == 0 && live(fs)) {
          apply(fs, plan_deny(desired_export(), k_host_a, *live(fs)));
          CHECK_MESSAGE(!fs.can_write(k_host_a, k_nqn), "seed " << seed);
          CHECK_FALSE(fs.connect(k_host_a, k_nqn));
        }
      }
      if (live(fs)) apply(fs, plan_remove(*live(fs)));
      CHECK(fs.access_ended(k_host_a, k_nqn));
      CHECK(fs.access_ended(k_host_b, k_nqn));
      apply(fs, plan_export(published_to({k_host_b}), live(fs)));
      FakeConfigfs reference;
      set_up(reference);
      apply(reference, plan_export(published_to({k_host_b}), live(reference)));
      CHECK_MESSAGE(fs.dump() == reference.dump(), "seed " << seed);
    }
  }

  TEST_CASE("a host entry left by a crash is removed by the retry of the same denial") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    must(executor(fs).run(plan_deny(desired_export(), k_host_a, *live(fs)).close));
    CHECK(fs.list("hosts")->size() == 2);
    apply(fs, plan_deny(desired_export(), k_host_a, *live(fs)));
    CHECK(fs.list("hosts").value() == std::vector<std::string>{k_host_c});
  }

  TEST_CASE("F04: a step that fails once is finished by the retry, with the tree gone") {
    FakeConfigfs fs;
    set_up(fs);
    const std::string clean = fs.dump();
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    const auto list = paths(plan_remove(*live(fs)));
    for (const std::string& step : list) {
      if (!live(fs)) apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
      fs.fail_once[step.substr(0, step.find(" = "))] = EIO;
      const auto result = executor(fs).run(plan_remove(*live(fs)));
      REQUIRE_FALSE(result);
      CHECK(result.error().reason == Reason::io_error);
      CHECK(result.error().message.find(step.substr(0, step.find(" = "))) != std::string::npos);
      apply(fs, plan_remove(*live(fs)));
      CHECK(fs.dump() == clean);
    }
  }
}

TEST_SUITE("nvmet ports") {
  const DesiredPort k_desired{"10.0.0.5", false, 4420, 0};

  Result<PortPlan> plan_now(FakeConfigfs & fs, const DesiredPort& desired) {
    const auto ports = read_ports(fs);
    REQUIRE(ports);
    return plan_port(desired, *ports);
  }

  TEST_CASE("a port is made at its derived id and found again without writes") {
    FakeConfigfs fs;
    const auto plan = plan_now(fs, k_desired);
    REQUIRE(plan);
    CHECK(plan->id == derived_port_id("10.0.0.5", 4420));
    CHECK(plan->id != derived_port_id("10.0.0.5", 4421));
    must(executor(fs).run(plan->actions));
    const auto again = plan_now(fs, k_desired);
    REQUIRE(again);
    CHECK(again->id == plan->id);
    CHECK(again->actions.empty());
  }

  TEST_CASE("F11: a crash at any step of making a port is finished at the same id") {
    const DesiredPort desired{"fd00::1", true, 4420, 8192};
    for (std::size_t step = 0; step < 6; ++step) {
      FakeConfigfs fs;
      CHECK_FALSE(executor(fs, crash_before(step)).run(plan_now(fs, desired)->actions));
      const auto plan = plan_now(fs, desired);
      REQUIRE(plan);
      CHECK(plan->id == derived_port_id("fd00::1", 4420));
      must(executor(fs).run(plan->actions));
      CHECK(plan_now(fs, desired)->actions.empty());
    }
  }

  TEST_CASE("an id taken by another port is passed over, and ours is found when that port goes away") {
    FakeConfigfs fs;
    const std::uint16_t id = derived_port_id("10.0.0.5", 4420);
    const std::string base = "ports/" + std::to_string(id);
    must(executor(fs).run(Plan{{ActionKind::make_dir, base, ""},
                               {ActionKind::write, base + "/addr_trtype", "tcp"},
                               {ActionKind::write, base + "/addr_traddr", "127.0.0.1"}}));
    const auto plan = plan_now(fs, k_desired);
    REQUIRE(plan);
    CHECK(plan->id == id + 1);
    must(executor(fs).run(plan->actions));
    CHECK(fs.read(base + "/addr_traddr").value() == "127.0.0.1\n");
    REQUIRE(fs.remove_dir(base));
    CHECK(plan_now(fs, k_desired)->id == id + 1);
    CHECK(plan_now(fs, k_desired)->actions.empty());
  }

  TEST_CASE("a port of somebody else on the same address is a conflict, and is not touched") {
    FakeConfigfs fs;
    const std::uint16_t far = static_cast<std::uint16_t>(derived_port_id("10.0.0.5", 4420) ^ 0x4000U);
    const std::string base = "ports/" + std::to_string(far);
    must(executor(fs).run(Plan{{ActionKind::make_dir, base, ""},
                               {ActionKind::write, base + "/addr_trtype", "tcp"},
                               {ActionKind::write, base + "/addr_traddr", "10.0.0.5"},
                               {ActionKind::write, base + "/addr_trsvcid", "4420"}}));
    const auto plan = plan_now(fs, k_desired);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().reason == Reason::port_conflict);
    CHECK(plan.error().message.find("port " + std::to_string(far)) != std::string::npos);
  }

  TEST_CASE("attributes of a port in use are never written; another in-line size is a conflict") {
    FakeConfigfs fs;
    fs.devices = {"/dev/vg0/v1"};
    const auto plan = plan_now(fs, k_desired);
    must(executor(fs).run(plan->actions));
    DesiredExport desired = published_to({k_host_a});
    desired.access.port_id = plan->id;
    apply(fs, plan_export(desired, live(fs)));
    fs.log.clear();
    CHECK(plan_now(fs, k_desired)->actions.empty());
    CHECK(plan_now(fs, DesiredPort{"10.0.0.5", false, 4420, 16384})->actions.empty());
    const auto other = plan_now(fs, DesiredPort{"10.0.0.5", false, 4420, 8192});
    REQUIRE_FALSE(other);
    CHECK(other.error().reason == Reason::port_conflict);
    CHECK(fs.log.empty());
  }

  TEST_CASE("listening errors are explained") {
    struct Row {
      const char* address;
      const char* taken;
      const char* text;
    };
    for (const Row& row : {Row{"10.0.0.5", "10.0.0.5:4420", "listens there"},
                           Row{"10.9.9.9", "", "not configured on this host"}}) {
      FakeConfigfs fs;
      fs.devices = {"/dev/vg0/v1"};
      fs.taken = {row.taken};
      const auto plan = plan_now(fs, DesiredPort{row.address, false, 4420, 0});
      must(executor(fs).run(plan->actions));
      DesiredExport desired = published_to({k_host_a});
      desired.access.port_id = plan->id;
      const auto result = executor(fs).run(plan_export(desired, live(fs)));
      REQUIRE_FALSE(result);
      CHECK(result.error().reason == Reason::port_conflict);
      CHECK(result.error().message.find(row.text) != std::string::npos);
      CHECK(result.error().details.contains("errno"));
    }
  }
}

TEST_SUITE("nvmet executor") {
  TEST_CASE("no nvmet tree is an error, never an empty target") {
    FakeConfigfs fs;
    fs.loaded = false;
    CHECK(read_subsystem(fs, k_nqn).error().reason == Reason::module_missing);
    CHECK(read_our_subsystems(fs).error().reason == Reason::module_missing);
    CHECK(read_ports(fs).error().reason == Reason::module_missing);
    const auto made = executor(fs).run(plan_export(desired_export(), std::nullopt));
    CHECK(made.error().reason == Reason::module_missing);
  }

  TEST_CASE("names that could leave the tree are refused") {
    FakeConfigfs fs;
    CHECK(read_subsystem(fs, "nqn.2026-01.com.x:../../../etc").error().reason == Reason::invalid_argument);
    CHECK(read_subsystem(fs, "").error().reason == Reason::invalid_argument);
  }

  TEST_CASE("errors name object, attribute, value and errno, and are observed") {
    FakeConfigfs fs;
    set_up(fs);
    std::string observed;
    Executor::Hooks hooks;
    hooks.check_device = any_device;
    hooks.on_error = [&](std::string_view op, int e) {
      observed = std::string(op) + " " + std::to_string(e);
    };
    fs.devices.clear();
    const auto result = Executor(fs, hooks).run(plan_export(published_to({k_host_a}), std::nullopt));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::device_missing);
    CHECK(result.error().message.find(k_nqn + "/namespaces/1/enable = 1") != std::string::npos);
    CHECK(result.error().details.at("errno") == std::to_string(ENOENT));
    CHECK(observed == "write " + std::to_string(ENOENT));
    CHECK(live(fs)->ports.empty());
  }

  TEST_CASE("a value that does not read back is an error") {
    class Forgetful : public FakeConfigfs {
     public:
      ErrnoResult<std::string> read(const std::string& path) override {
        if (path.ends_with("attr_serial")) return std::string("something else\n");
        return FakeConfigfs::read(path);
      }
    };
    Forgetful fs;
    set_up(fs);
    const auto result = executor(fs).run(plan_export(desired_export(), std::nullopt));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::io_error);
    CHECK(result.error().message.find("reads something else after writing") != std::string::npos);
  }

  TEST_CASE("the wrong device is not enabled") {
    FakeConfigfs fs;
    set_up(fs);
    DesiredExport desired = published_to({k_host_a});
    desired.device.number = {253, 9};
    std::string asked;
    Executor::Hooks hooks;
    hooks.check_device = [&](const std::string& path, const std::string& number) -> Result<void> {
      asked = path + " " + number;
      return fail(Reason::device_mismatch, "other device");
    };
    CHECK_FALSE(Executor(fs, hooks).run(plan_export(desired, live(fs))));
    CHECK(asked == "/dev/vg0/v1 253:9");
    CHECK_FALSE(live(fs)->enabled());
    CHECK(check_block_device("/dev/null", "0:0").error().reason == Reason::device_mismatch);
    CHECK(check_block_device("/dev/no-such-device", "0:0").error().reason == Reason::device_missing);
  }

  TEST_CASE("a host entry removed by another volume between mkdir and link is made again") {
    FakeConfigfs fs;
    set_up(fs);
    int races = 3;
    fs.before = [&](const std::string& op) {
      if (op.starts_with("link subsystems/") && races-- > 0) (void)fs.remove_dir("hosts/" + k_host_a);
    };
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    CHECK(live(fs)->host_nqns() == std::set<std::string>{k_host_a});
  }

  TEST_CASE("a host entry that another volume still uses stays") {
    FakeConfigfs fs;
    set_up(fs);
    const std::string other = k_nqn + "-other";
    apply(fs, plan_allow(desired_export(), k_host_a, live(fs)));
    apply(fs, plan_allow(desired_export(other), k_host_a, live(fs, other)));
    apply(fs, plan_remove(*live(fs)));
    CHECK(live(fs, other)->host_nqns() == std::set<std::string>{k_host_a});
  }

  TEST_CASE("gated restore: nothing is linked until all is ready, one broken export holds nobody up (F01)") {
    FakeConfigfs fs;
    set_up(fs);
    fs.devices.clear();
    std::vector<Plan> opens;
    for (int i = 0; i < 8; ++i) {
      DesiredExport desired = published_to({k_host_a});
      desired.nqn += std::to_string(i);
      desired.device.path = "/dev/vg0/n" + std::to_string(i);
      if (i != 3) fs.devices.insert(desired.device.path);
      const ExportPlan plan = plan_export(desired, live(fs, desired.nqn));
      const Executor run = executor(fs);
      const bool prepared = run.run(plan.close) && run.run(plan.barrier) && run.run(plan.prepare);
      CHECK(prepared == (i != 3));
      if (prepared) opens.push_back(plan.open);
      CHECK_FALSE(fs.connect(k_host_a, desired.nqn));
    }
    fs.log.clear();
    fs.fail_once["link " + opens[2].front().path] = EIO;
    const auto results = executor(fs).open_all(opens);
    REQUIRE(results.size() == 7);
    CHECK_FALSE(results[2]);
    CHECK(fs.log.size() == 7);  // nothing but the links
    for (const int i : {0, 1, 4, 5, 6, 7}) CHECK(fs.connect(k_host_a, k_nqn + std::to_string(i)));
  }
}

TEST_SUITE("fake configfs") {
  TEST_CASE("it refuses what the kernel refuses") {
    FakeConfigfs fs;
    set_up(fs);
    apply(fs, plan_export(published_to({k_host_a}), live(fs)));
    const std::string s = "subsystems/" + k_nqn;
    CHECK(fs.read(s + "/attr_serial").value() == "0123456789abcdef0123\n");
    CHECK(fs.write(s + "/attr_allow_any_host", "1").error() == EINVAL);
    CHECK(fs.write(s + "/namespaces/1/device_path", "/dev/x").error() == EBUSY);
    CHECK(fs.write(s + "/namespaces/1/device_uuid", "x").error() == EBUSY);
    CHECK(fs.write("ports/7/addr_traddr", "10.0.0.5").error() == EACCES);
    CHECK(fs.write(s + "/attr_serial", "").error() == EFAULT);
    CHECK(fs.link("hosts/" + k_host_a, s + "/allowed_hosts/again").error() == EEXIST);
    CHECK(fs.link("hosts/nobody", s + "/allowed_hosts/nobody").error() == ENOENT);
    CHECK(fs.link(s, s + "/allowed_hosts/wrong").error() == EINVAL);
    CHECK(fs.remove_dir(s).error() == EBUSY);
    CHECK(fs.remove_dir("ports/7").error() == ENOTEMPTY);
    CHECK(fs.remove_dir("ports/7/subsystems").error() == EPERM);
    CHECK(fs.remove_dir("hosts/" + k_host_a).error() == EBUSY);
    CHECK(fs.make_dir(s).error() == EEXIST);
    CHECK(fs.make_dir(s + "/namespaces/0").error() == EINVAL);
    CHECK(fs.make_dir("ports/65536").error() == EINVAL);
    REQUIRE(fs.unlink("ports/7/subsystems/" + k_nqn));
    CHECK(fs.remove_dir(s).error() == ENOTEMPTY);
  }
}
