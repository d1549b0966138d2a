#include "crd/kube/store.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cluster.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using nlohmann::json;

TEST_SUITE_BEGIN("store");

TEST_CASE("the Kubernetes store meets the store conformance suite") {
  admin_options();
  run_conformance([] {
    clear_all();
    auto options = admin_options();
    options.watch_silence = std::chrono::seconds(2);
    return Fixture{[options] { return std::make_unique<KubernetesStore>(Client::make(options).value()); }, 0,
                   "1"};
  });
}

TEST_CASE("a definition removed under us and put back: unavailable, never deleted, then all is well (O05)") {
  clear_all();
  const auto client = admin();
  KubernetesStore store(client);
  REQUIRE(create(store, agent_object("a")));
  Recorder recorder;
  recorder.start(store, Kind::protocol, "");
  REQUIRE(recorder.wait_for(1).size() == 1);
  kubectl("delete crd pillarprotocols.pillar-csi.bhyoo.com");
  const auto end = recorder.wait_for_end();
  REQUIRE(end);
  CHECK(end->code == Code::unavailable);
  recorder.stop();
  const auto missing = list(store, Kind::protocol);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().reason == Reason::store_unavailable);
  CHECK(missing.error().message.find("CustomResourceDefinition") != std::string::npos);
  CHECK(get(store, Kind::protocol, "p").error().reason == Reason::store_unavailable);
  CHECK(remove(store, Kind::protocol, "p").error().reason == Reason::store_unavailable);
  CHECK(list(store, Kind::agent)->items.size() == 1);
  kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/crds");
  kubectl("wait --for=condition=Established --timeout=30s crd --all");
  CHECK(eventually([&] { return list(store, Kind::protocol).has_value(); }));
}

TEST_CASE("a watch goes on over the end that the server gives every watch") {
  clear_all();
  auto options = admin_options();
  options.watch_length = std::chrono::seconds(1);
  KubernetesStore store(Client::make(options).value());
  Recorder recorder;
  recorder.start(store, Kind::agent, "");
  REQUIRE(recorder.wait_for(1).size() == 1);
  const auto before = store.client().stats().watches;
  REQUIRE(eventually([&] { return store.client().stats().watches > before + 1; }));
  REQUIRE(create(store, agent_object("late")));
  CHECK(eventually([&] {
    const auto seen = recorder.wait_for(0);
    return seen.back().starts_with("ADDED late@");
  }));
}

TEST_CASE("calls per operation: one, and two for an object made with a status") {
  clear_all();
  const auto client = admin();
  KubernetesStore store(client);
  const auto calls = [&](const auto& operation) {
    const auto before = client->stats();
    operation();
    const auto after = client->stats();
    return std::pair(after.reads - before.reads, after.writes - before.writes);
  };
  Object made;
  CHECK(calls([&] { made = create(store, agent_object("a")).value(); }) ==
        std::pair<std::uint64_t, std::uint64_t>(0, 1));
  CHECK(calls([&] { CHECK(get(store, Kind::agent, "a")); }) == std::pair<std::uint64_t, std::uint64_t>(1, 0));
  made.status = Doc::of({{"agentVersion", "1"}});
  CHECK(calls([&] { made = update_status(store, made).value(); }) ==
        std::pair<std::uint64_t, std::uint64_t>(0, 1));
  made.metadata.labels["x"] = "y";
  CHECK(calls([&] { made = update(store, made).value(); }) == std::pair<std::uint64_t, std::uint64_t>(0, 1));
  CHECK(calls([&] { CHECK(remove(store, Kind::agent, "a")); }) ==
        std::pair<std::uint64_t, std::uint64_t>(0, 1));
  CHECK(calls([&] { CHECK(create(store, made)); }) == std::pair<std::uint64_t, std::uint64_t>(0, 2));
}

TEST_CASE("ten thousand volumes are listed and watched in a few seconds") {
  clear_all();
  const auto client = admin();
  KubernetesStore store(client);
  constexpr int k_volumes = 10000;
  std::atomic<int> made{0};
  std::atomic<int> answered{0};
  for (int i = 0; i < k_volumes; ++i) {
    const auto name = "pvc-" + std::to_string(i);
    Object object;
    object.kind = Kind::volume;
    object.metadata.name = name;
    object.spec = Doc::of({{"volumeID", "a/nvmeof-tcp/lvm-lv/vg0/" + name},
                           {"agentVolumeID", "vg0/" + name},
                           {"agentRef", "a"},
                           {"backendType", "lvm-lv"},
                           {"protocolType", "nvmeof-tcp"},
                           {"capacityBytes", 1 << 30}});
    while (i - answered > 64) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    store.create(object, [&](const Result<Object>& result) {
      if (result) ++made;
      ++answered;
    });
  }
  REQUIRE(eventually([&] { return answered == k_volumes; }));
  CHECK(made == k_volumes);
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> seen{0};
  std::atomic<bool> complete{false};
  const auto watch = store.watch(Kind::volume, "",
                                 {[&](const WatchEvent& event) {
                                    if (event.type == WatchEvent::Type::bookmark)
                                      complete = true;
                                    else
                                      ++seen;
                                  },
                                  nullptr});
  REQUIRE(eventually([&] { return complete.load(); }));
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(seen == k_volumes);
  CHECK(took < std::chrono::seconds(5));
  MESSAGE("listed in " << std::chrono::duration_cast<std::chrono::milliseconds>(took).count() << " ms");
}

TEST_SUITE_END();
