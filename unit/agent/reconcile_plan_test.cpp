#include <doctest/doctest.h>

#include "actors/agent/reconcile_plan.hpp"

using namespace pillar;
using namespace pillar::agent;

TEST_SUITE_BEGIN("agent/reconcile_plan");

namespace {

v1::DesiredVolume& add(v1::ReconcileStateRequest& request, const std::string& volume,
                       const std::string& nqn) {
  v1::DesiredVolume& desired = *request.add_volumes();
  desired.mutable_volume()->set_agent_volume_id(volume);
  if (!nqn.empty()) desired.mutable_spec()->set_nqn(nqn);
  return desired;
}

hostio::nvmet::LiveSubsystem live(const std::string& nqn, bool linked) {
  hostio::nvmet::LiveSubsystem subsystem;
  subsystem.nqn = nqn;
  if (linked) subsystem.ports[1] = nqn;
  return subsystem;
}

}  // namespace

TEST_CASE("a list that contradicts itself is refused") {
  v1::ReconcileStateRequest request;
  add(request, "vg0/a", "nqn-a");
  add(request, "vg0/b", "");
  CHECK(check_reconcile_list(request).has_value());
  add(request, "vg0/c", "nqn-a");
  CHECK(check_reconcile_list(request).error().reason == Reason::invalid_argument);
  request.mutable_volumes()->RemoveLast();
  add(request, "vg0/a", "nqn-x");
  CHECK(check_reconcile_list(request).error().reason == Reason::invalid_argument);
}

TEST_CASE("strays are the open subsystems that the list does not name") {
  v1::ReconcileStateRequest request;
  add(request, "vg0/a", "nqn-a");
  add(request, "vg0/b", "");
  CHECK(stray_exports(request, {live("nqn-a", true), live("nqn-b", true), live("nqn-c", false)}) ==
        std::vector<std::string>{"nqn-b"});
  CHECK(stray_exports(request, {}).empty());
}

TEST_CASE("results carry reason and message; only passing conditions are retried") {
  const v1::ReconcileResult good = reconcile_result("vg0/a", ReconcileOutcome{true, std::nullopt});
  CHECK(good.ok());
  CHECK(good.changed());
  const v1::ReconcileResult bad = reconcile_result("vg0/a", fail(Reason::stale_generation, "older"));
  CHECK_FALSE(bad.ok());
  CHECK(bad.reason() == "STALE_GENERATION");
  CHECK(bad.message() == "older");
  CHECK_FALSE(worth_retrying(fail(Reason::stale_generation, "").value()));
  CHECK(worth_retrying(fail(Reason::device_missing, "").value()));
  CHECK(worth_retrying(fail(Reason::deadline_exceeded, "").value()));
}

TEST_CASE("excluded volumes are remembered by id until dropped or replaced") {
  Excluded excluded;
  v1::ReconcileStateRequest request;
  excluded.put(add(request, "vg0/a", "nqn-a"));
  excluded.put(add(request, "vg0/a", "nqn-a2"));
  REQUIRE(excluded.all().size() == 1);
  CHECK(excluded.all()[0].spec().nqn() == "nqn-a2");
  excluded.drop("vg0/a");
  CHECK(excluded.empty());
}
