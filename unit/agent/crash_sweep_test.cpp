// For every operation and every durable or kernel-visible point in it: the agent dies there, starts again,
// the call is repeated, and the outcome is the one of a run that was not interrupted.

#include <doctest/doctest.h>

#include <functional>

#include "unit/agent/fake_host.hpp"

using namespace pillar;
using namespace pillar::agent;
using namespace pillar::agent::testing;

TEST_SUITE_BEGIN("agent/crash_sweep");

namespace {

/// The answer of an operation, as text.
using Operation = std::function<std::optional<std::string>(const HostPtr& host)>;

template <class T>
std::string answer_text(const Result<T>& result) {
  if (!result) return std::string(to_string(result.error().reason)) + " " + result.error().message;
  if constexpr (requires { result->SerializeAsString(); })
    return "OK " + result->SerializeAsString();
  else
    return "OK";
}

template <class Function, class Request>
Operation operation_of(Function function, std::shared_ptr<Request> request) {
  return [function, request](const HostPtr& host) -> std::optional<std::string> {
    auto result = run(function(host, request));
    if (!result) return std::nullopt;
    return answer_text(*result);
  };
}

struct Scenario {
  const char* name;
  std::function<void(World&)> before;
  Operation operation;
  std::function<void(World&)> after = {};  ///< what must hold once the call has answered OK
};

void created(World& world) { (void)run_on(world, create_volume, create_request(1)); }
void exported(World& world) {
  created(world);
  (void)run_on(world, export_volume, export_request(2));
}
void published(World& world) {
  exported(world);
  (void)run_on(world, allow_initiator, allow_request(3, k_host_a));
  REQUIRE(world.configfs.connect(k_host_a, k_nqn));
}
void published_to_both(World& world) {
  published(world);
  (void)run_on(world, allow_initiator, allow_request(4, k_host_b));
  REQUIRE(world.configfs.connect(k_host_b, k_nqn));
}
void open_to_any(World& world) {
  created(world);
  (void)run_on(world, export_volume, export_request(2, false));
  (void)run_on(world, allow_initiator, allow_request(3, k_host_a, false));
  REQUIRE(world.configfs.connect(k_host_a, k_nqn));
}
void rebooted(World& world) {
  published(world);
  world.configfs.reboot();
}
void denied(World& world) {
  published(world);
  (void)run_on(world, deny_initiator, deny_request(4, k_host_a));
}

void a_has_ended(World& world) {
  CHECK(world.configfs.access_ended(k_host_a, k_nqn));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
}
void a_has_ended_b_has_not(World& world) {
  CHECK_FALSE(world.configfs.can_write(k_host_a, k_nqn));
  CHECK_FALSE(world.configfs.connect(k_host_a, k_nqn));
  CHECK(world.configfs.connect(k_host_b, k_nqn));
}
void nothing_left(World& world) {
  CHECK(world.volumes.empty());
  CHECK(world.records.empty());
  CHECK(world.configfs.dump().find(k_nqn) == std::string::npos);
}

std::vector<Scenario> scenarios() {
  auto expand = request_of<v1::ExpandVolumeRequest>(9);
  expand->set_required_bytes(2U << 30U);
  expand->set_nqn(k_nqn);
  auto unexport = request_of<v1::UnexportVolumeRequest>(9);
  unexport->set_nqn(k_nqn);
  auto adopt = request_of<v1::AdoptLifecycleRequest>(1, "u2");
  adopt->set_old_uid("u1");
  adopt->set_old_generation(4);
  return {
      {"create", [](World&) {}, operation_of(create_volume, create_request(9))},
      {"export", created, operation_of(export_volume, export_request(9))},
      {"allow", exported, operation_of(allow_initiator, allow_request(9, k_host_a))},
      {"allow after deny", denied, operation_of(allow_initiator, allow_request(9, k_host_b))},
      {"allow a second", published, operation_of(allow_initiator, allow_request(9, k_host_b))},
      {"expand", published, operation_of(expand_volume, expand)},
      {"deny the last", published, operation_of(deny_initiator, deny_request(9, k_host_a)), a_has_ended},
      {"deny one of two", published_to_both, operation_of(deny_initiator, deny_request(9, k_host_a)),
       a_has_ended_b_has_not},
      {"deny all", published_to_both, operation_of(deny_initiator, deny_request(9, "")), a_has_ended},
      {"deny without acl", open_to_any, operation_of(deny_initiator, deny_request(9, k_host_a)), a_has_ended},
      {"unexport", published, operation_of(unexport_volume, unexport), a_has_ended},
      {"delete", published, operation_of(delete_volume, delete_request(9)), nothing_left},
      {"adopt", denied, operation_of(adopt_lifecycle, adopt)},
      {"reconcile after reboot", rebooted, operation_of(reconcile_volume, reconcile_request(3, {k_host_a}))},
      {"reconcile to another host", published,
       operation_of(reconcile_volume, reconcile_request(9, {k_host_b})), a_has_ended},
      {"reconcile one less", published_to_both,
       operation_of(reconcile_volume, reconcile_request(9, {k_host_b})), a_has_ended_b_has_not},
      {"reconcile to none", published, operation_of(reconcile_volume, reconcile_request(9, {})), a_has_ended},
  };
}

struct Uninterrupted {
  std::string answer;
  std::string world;
  int points = 0;
  int calls = 0;
};

Uninterrupted run_whole(const Scenario& scenario) {
  World world;
  scenario.before(world);
  auto host = std::make_shared<FakeHost>(world);
  const auto answer = scenario.operation(host);
  REQUIRE(answer.has_value());
  REQUIRE_MESSAGE(answer->starts_with("OK"), scenario.name << ": " << *answer);
  Uninterrupted out{*answer, world.dump(), host->points(), host->calls()};
  if (scenario.after) scenario.after(world);
  return out;
}

}  // namespace

TEST_CASE("crash at every point, restart, repeat: the outcome is that of an uninterrupted run") {
  int swept = 0;
  for (const Scenario& scenario : scenarios()) {
    const Uninterrupted whole = run_whole(scenario);
    REQUIRE(whole.points > 0);
    for (int at = 0; at < whole.points; ++at) {
      CAPTURE(std::string(scenario.name));
      CAPTURE(at);
      World world;
      scenario.before(world);
      {
        auto host = std::make_shared<FakeHost>(world);
        host->stop_at = at;
        REQUIRE_FALSE(scenario.operation(host).has_value());
      }
      const auto answer = scenario.operation(std::make_shared<FakeHost>(world));
      REQUIRE(answer.has_value());
      CHECK(*answer == whole.answer);
      CHECK(world.dump() == whole.world);
      if (scenario.after) scenario.after(world);
      ++swept;
    }
  }
  MESSAGE(swept << " crash points");
}

TEST_CASE("crash twice in a row, then repeat") {
  for (const Scenario& scenario : scenarios()) {
    const Uninterrupted whole = run_whole(scenario);
    for (int first = 0; first < whole.points; first += 2) {
      for (int second = 0; second < whole.points; second += 3) {
        CAPTURE(std::string(scenario.name));
        CAPTURE(first);
        CAPTURE(second);
        World world;
        scenario.before(world);
        for (const int at : {first, second}) {
          auto host = std::make_shared<FakeHost>(world);
          host->stop_at = at;
          (void)scenario.operation(host);
        }
        const auto answer = scenario.operation(std::make_shared<FakeHost>(world));
        REQUIRE(answer.has_value());
        CHECK(*answer == whole.answer);
        CHECK(world.dump() == whole.world);
        if (scenario.after) scenario.after(world);
      }
    }
  }
}

TEST_CASE("an error at every call: the error is answered, and the repeat ends like an uninterrupted run") {
  for (const Scenario& scenario : scenarios()) {
    const Uninterrupted whole = run_whole(scenario);
    for (int at = 0; at < whole.calls; ++at) {
      CAPTURE(std::string(scenario.name));
      CAPTURE(at);
      World world;
      scenario.before(world);
      auto host = std::make_shared<FakeHost>(world);
      host->fail_at = at;
      const auto failed = scenario.operation(host);
      REQUIRE(failed.has_value());
      const auto answer = scenario.operation(std::make_shared<FakeHost>(world));
      REQUIRE(answer.has_value());
      CHECK(*answer == whole.answer);
      CHECK(world.dump() == whole.world);
      if (scenario.after) scenario.after(world);
    }
  }
}
