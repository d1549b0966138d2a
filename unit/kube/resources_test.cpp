// What is not our own: Events, Leases, followed collections.

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cluster.hpp"
#include "crd/kube/events.hpp"
#include "crd/kube/lease.hpp"
#include "crd/kube/mirror.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

constexpr const char* k_events = "/apis/events.k8s.io/v1/namespaces/default/events";
constexpr const char* k_leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

json events_of(Client& client, const std::string& name) {
  json out = json::array();
  const auto all = call(client, request("GET", k_events, nullptr));
  if (all)
    for (const auto& one : (*all)["items"])
      if (one["regarding"]["name"] == name) out.push_back(one);
  return out;
}

Event warning(const Object& about, const std::string& reason) {
  Event out;
  out.regarding = subject_of(about);
  out.reason = reason;
  out.action = "Provision";
  out.note = "the pool is full; add a disk";
  return out;
}

/// Who holds a lease, and what was heard of it.
struct Candidate {
  Candidate(std::shared_ptr<Client> client, const std::string& who, const std::string& lease) {
    LeaseOptions options;
    options.name = lease;
    options.identity = who;
    options.duration = 3s;
    options.renew = 200ms;
    options.give_up = 1500ms;
    holder = std::make_unique<LeaseHolder>(
        std::move(client), options,
        LeaseHolder::Handler{[this] { ++acquired; }, [this](const Error&) { ++lost; }});
  }
  std::atomic<int> acquired{0};
  std::atomic<int> lost{0};
  std::unique_ptr<LeaseHolder> holder;
};

}  // namespace

TEST_SUITE_BEGIN("resources");

TEST_CASE("an Event shows under the object in kubectl describe; repetitions join its series") {
  clear_all();
  const auto client = admin();
  KubernetesStore store(client);
  const auto object = create(store, store_object("full")).value();
  EventOptions options;
  options.instance = "test";
  options.series_pause = 50ms;
  EventRecorder recorder(client, options);
  for (int i = 0; i < 20; ++i) recorder.record(warning(object, "PoolFull"));
  recorder.record(warning(object, "Other"));
  REQUIRE(eventually([&] {
    const auto events = events_of(*client, "full");
    return events.size() == 2 && std::any_of(events.begin(), events.end(), [](const json& one) {
             return one.contains("series") && one["series"]["count"] == 20;
           });
  }));
  CHECK(recorder.stats().failed == 0);
  CHECK(recorder.stats().written <= 4);
  const auto described = kubectl("describe pst full");
  CHECK(described.find("PoolFull") != std::string::npos);
  CHECK(described.find("the pool is full; add a disk") != std::string::npos);
}

TEST_CASE("an Event that the server has dropped begins anew; a long note is cut; a storm is bounded") {
  clear_all();
  const auto client = admin();
  KubernetesStore store(client);
  const auto object = create(store, agent_object("stormy")).value();
  EventOptions options;
  options.instance = std::string(300, 'i');
  options.series_pause = 20ms;
  options.burst = 5;
  EventRecorder recorder(client, options);
  auto event = warning(object, "Long");
  event.note = std::string(3000, 'x') + "\u00e9";
  recorder.record(event);
  REQUIRE(eventually([&] { return recorder.stats().written == 1; }));
  const auto first = events_of(*client, "stormy").at(0);
  CHECK(first["note"].get<std::string>().size() <= 1024);
  REQUIRE(call(*client,
               request("DELETE", k_events + ("/" + first["metadata"]["name"].get<std::string>()), nullptr)));
  recorder.record(event);
  REQUIRE(eventually([&] { return recorder.stats().failed == 1; }));
  recorder.record(event);
  CHECK(eventually([&] { return events_of(*client, "stormy").size() == 1; }));
  for (int i = 0; i < 50; ++i) recorder.record(warning(object, "R" + std::to_string(i)));
  CHECK(eventually([&] { return recorder.stats().dropped >= 40; }));
}

TEST_CASE("one of two candidates leads; a released lease is taken at once") {
  const auto client = admin();
  Candidate first(client, "first", "released");
  REQUIRE(eventually([&] { return first.holder->held(); }));
  Candidate second(client, "second", "released");
  std::this_thread::sleep_for(1s);
  CHECK_FALSE(second.holder->held());
  CHECK(first.holder->held());
  const auto begin = std::chrono::steady_clock::now();
  first.holder.reset();
  REQUIRE(eventually([&] { return second.holder->held(); }));
  CHECK(std::chrono::steady_clock::now() - begin < 2500ms);
  CHECK(second.acquired == 1);
  const auto lease = call(*client, request("GET", std::string(k_leases) + "/released", nullptr)).value();
  CHECK(lease["spec"]["holderIdentity"] == "second");
  CHECK(lease["spec"]["leaseTransitions"] == 1);
}

TEST_CASE("a holder whose renewals do not get through stops before another may begin") {
  const auto client = admin();
  auto cut = Candidate(client, "cut", "stolen");
  REQUIRE(eventually([&] { return cut.holder->held(); }));
  // Somebody else takes it, as after a pause longer than the lease.
  REQUIRE(eventually([&] {
    auto lease = call(*client, request("GET", std::string(k_leases) + "/stolen", nullptr)).value();
    lease["spec"]["holderIdentity"] = "thief";
    return call(*client, request("PUT", std::string(k_leases) + "/stolen", lease)).has_value();
  }));
  REQUIRE(eventually([&] { return cut.lost == 1; }));
  CHECK_FALSE(cut.holder->held());
  // The thief never renews: its time runs out, and not before.
  CHECK(eventually([&] { return cut.holder->held(); }));
  CHECK(cut.acquired == 2);
}

TEST_CASE("a followed collection tells what is there, changes and deletions") {
  const auto client = admin();
  const std::string path = "/api/v1/namespaces/default/configmaps";
  const auto config_map = [](const std::string& name, const std::string& value) {
    return json{{"apiVersion", "v1"},
                {"kind", "ConfigMap"},
                {"metadata", {{"name", name}}},
                {"data", {{"v", value}}}};
  };
  for (const char* name : {"stays", "goes"})
    REQUIRE(call(*client, request("POST", path, config_map(name, "1"))));
  std::mutex mutex;
  std::map<std::string, std::string> seen;
  std::atomic<bool> complete{false};
  Mirror mirror(client, path, "configmaps",
                {[&](const json& object) {
                   const std::lock_guard lock(mutex);
                   seen[object["metadata"]["name"]] = object.value("data", json::object()).value("v", "");
                 },
                 [&](const std::string& name) {
                   const std::lock_guard lock(mutex);
                   seen.erase(name);
                 },
                 [&](const std::optional<Error>& error) { complete = !error; }});
  const auto now = [&](const std::string& name) {
    const std::lock_guard lock(mutex);
    const auto it = seen.find(name);
    return it == seen.end() ? std::string("absent") : it->second;
  };
  REQUIRE(eventually([&] { return complete.load(); }));
  CHECK(now("stays") == "1");
  REQUIRE(call(*client, request("PUT", path + "/stays", config_map("stays", "2"))));
  CHECK(eventually([&] { return now("stays") == "2"; }));
  REQUIRE(call(*client, request("DELETE", path + "/goes", nullptr)));
  CHECK(eventually([&] { return now("goes") == "absent"; }));
  REQUIRE(call(*client, request("DELETE", path + "/stays", nullptr)));
  CHECK(eventually([&] { return now("stays") == "absent"; }));
}

TEST_SUITE_END();
