// The real actors in one process: embedded store, fake agent, calls as a front door sends them.

#include <doctest/doctest.h>

#include <future>
#include <thread>

#include "actors/controller/controller.hpp"
#include "world.hpp"

namespace pillar::controller::testing {
namespace {

using namespace std::chrono_literals;

/// A controller process over a World.
class Process {
 public:
  explicit Process(World& world) : world_(world), system_(options()), app_(system_, config(world)) {}
  ~Process() {
    app_.stop();
    CHECK(system_.shutdown(10s));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  template <class Response, class Request>
  std::future<Result<Response>> start(const Request& request, Deadline deadline = Deadline::after(20s)) {
    auto promise = std::make_shared<std::promise<Result<Response>>>();
    app_.send(
        Call<Request, Response>{std::make_shared<const Request>(request), deadline,
                                Reply<Response>([promise](Result<Response> r) { promise->set_value(r); })});
    return promise->get_future();
  }
  template <class Response, class Request>
  Result<Response> ask(const Request& request) {
    return start<Response>(request).get();
  }
  /// Repeats a call until `good` likes the answer.
  template <class Response, class Request, class Good>
  Result<Response> ask_until(const Request& request, Good good) {
    const auto limit = Deadline::after(20s);
    auto answer = ask<Response>(request);
    while (!good(answer) && !limit.passed()) {
      std::this_thread::sleep_for(10ms);
      answer = ask<Response>(request);
    }
    return answer;
  }
  csi::CreateVolumeResponse create_volume(const std::string& name) {
    const auto made = ask_until<csi::CreateVolumeResponse>(
        create_request(name), [](const auto& answer) { return answer.has_value(); });
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return *made;
  }
  bool wait_ready() {
    const auto limit = Deadline::after(20s);
    while (!app_.ready() && !limit.passed()) std::this_thread::sleep_for(5ms);
    return app_.ready();
  }
  runtime::System& system() { return system_; }
  ControllerApp& app() { return app_; }

 private:
  static runtime::SystemOptions options() {
    runtime::SystemOptions made;
    made.services.chaos = std::make_shared<runtime::Chaos>(true);
    return made;
  }
  static ControllerConfig config(World& world) {
    ControllerConfig made;
    made.store = world.store;
    made.cluster_id = "cluster-1";
    made.version = "1.2.3";
    made.connect = [&world](const std::string&, const std::string&) { return world.agent; };
    made.health_interval = 100ms;
    made.retry_first = 20ms;
    made.retry_max = 100ms;
    return made;
  }
  World& world_;
  runtime::System system_;
  ControllerApp app_;
};

/// Objects as an operator applies them: without any status.
void apply_manifests(World& world) {
  world.put(crd::to_object(agent_object()));
  auto store = store_object();
  store.status = {};
  world.put(crd::to_object(store));
  world.put(crd::to_object(protocol_object()));
  world.put(crd::to_object(class_object()));
}

}  // namespace

TEST_CASE("controller process: from manifests to a volume and back") {
  World world;
  apply_manifests(world);
  Process process(world);
  REQUIRE(process.wait_ready());
  CHECK(process.ask<csi::GetPluginInfoResponse>(csi::GetPluginInfoRequest())->vendor_version() == "1.2.3");
  CHECK(process.ask<csi::ProbeResponse>(csi::ProbeRequest())->ready().value());
  const auto made = process.create_volume("v");
  const auto id = made.volume().volume_id();

  // What was just made is listed at once, with its nodes.
  REQUIRE(
      process.ask<csi::ControllerPublishVolumeResponse>(testing::publish_request(id, k_node_a)).has_value());
  auto list = process.ask<csi::ListVolumesResponse>(csi::ListVolumesRequest());
  REQUIRE(list->entries_size() == 1);
  CHECK(list->entries(0).status().published_node_ids(0) == k_node_a);
  csi::ControllerListVolumeHealthRequest health;
  CHECK(process.ask<csi::ControllerListVolumeHealthResponse>(health)->entries(0).health_statuses_size() == 0);
  csi::ListVolumesRequest bad_token;
  bad_token.set_starting_token("x");
  CHECK(process.ask<csi::ListVolumesResponse>(bad_token).error().code == Code::aborted);

  csi::GetCapacityRequest capacity;
  *capacity.mutable_parameters() = create_request("v").parameters();
  CHECK(process.ask<csi::GetCapacityResponse>(capacity)->available_capacity() == std::int64_t{99} << 30);

  csi::ControllerUnpublishVolumeRequest unpublish;
  unpublish.set_volume_id(id);
  REQUIRE(process.ask<csi::ControllerUnpublishVolumeResponse>(unpublish).has_value());
  csi::DeleteVolumeRequest remove;
  remove.set_volume_id(id);
  REQUIRE(process.ask<csi::DeleteVolumeResponse>(remove).has_value());
  CHECK(process.ask<csi::ListVolumesResponse>(csi::ListVolumesRequest())->entries_size() == 0);
  CHECK(world.agent->backends.empty());
  CHECK(process.system().metrics().text().find("pillar_csi_volumes") != std::string::npos);
}

TEST_CASE("an agent that was restarted unnoticed is synchronised, and the call that found out succeeds") {
  World world;
  apply_manifests(world);
  Process process(world);
  const auto id = process.create_volume("v").volume().volume_id();
  for (int round = 0; round < 5; ++round) {
    {
      const std::lock_guard lock(world.agent->mutex);
      world.agent->gated = true;
    }
    const auto published =
        process.ask<csi::ControllerPublishVolumeResponse>(testing::publish_request(id, k_node_a));
    CHECK_MESSAGE(published.has_value(), (published ? "" : published.error().message));
  }
  {
    const std::lock_guard lock(world.agent->mutex);
    world.agent->seeded = false;
    world.agent->epoch = "e2";
  }
  const auto expanded =
      process.ask<csi::ControllerExpandVolumeResponse>(expand_request(id, std::int64_t{2} << 30));
  CHECK_MESSAGE(expanded.has_value(), (expanded ? "" : expanded.error().message));
}

TEST_CASE("K07: empty ids are refused, malformed ones name no volume") {
  World world;
  Process process(world);
  csi::DeleteVolumeRequest remove;
  CHECK(process.ask<csi::DeleteVolumeResponse>(remove).error().code == Code::invalid_argument);
  remove.set_volume_id("nonsense");
  CHECK(process.ask<csi::DeleteVolumeResponse>(remove).has_value());
  csi::ControllerGetVolumeRequest get;
  get.set_volume_id("nonsense");
  CHECK(process.ask<csi::ControllerGetVolumeResponse>(get).error().code == Code::not_found);
  auto publish = testing::publish_request("nonsense", k_node_a);
  CHECK(process.ask<csi::ControllerPublishVolumeResponse>(publish).error().code == Code::not_found);
  publish.clear_node_id();
  CHECK(process.ask<csi::ControllerPublishVolumeResponse>(publish).error().code == Code::invalid_argument);
  csi::ControllerExpandVolumeRequest expand;
  expand.set_volume_id("nonsense");
  CHECK(process.ask<csi::ControllerExpandVolumeResponse>(expand).error().code == Code::invalid_argument);
}

TEST_CASE("I05, G09: a busy volume answers ABORTED at once, the deadline answers while the work goes on") {
  World world;
  apply_manifests(world);
  Process process(world);
  const auto id = process.create_volume("v").volume().volume_id();
  const auto other = process.create_volume("w").volume().volume_id();
  REQUIRE(
      process.system().chaos().add_spec("step=controller/volume/v:publication_recorded,action=delay,ms=600"));
  auto slow = process.start<csi::ControllerPublishVolumeResponse>(testing::publish_request(id, k_node_a),
                                                                  Deadline::after(200ms));
  std::this_thread::sleep_for(50ms);
  const auto begin = Clock::now();
  CHECK(process.ask<csi::ControllerPublishVolumeResponse>(testing::publish_request(id, k_node_a))
            .error()
            .reason == Reason::operation_pending);
  // Another volume is not held up.
  CHECK(process.ask<csi::ControllerPublishVolumeResponse>(testing::publish_request(other, k_node_a))
            .has_value());
  CHECK(Clock::now() - begin < 500ms);
  CHECK(slow.get().error().code == Code::deadline_exceeded);
  const auto retried = process.ask_until<csi::ControllerPublishVolumeResponse>(
      testing::publish_request(id, k_node_a), [](const auto& answer) { return answer.has_value(); });
  CHECK(retried.has_value());
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
}

TEST_CASE("K06: an actor that is killed in the middle answers UNAVAILABLE and the repeat goes on") {
  World world;
  apply_manifests(world);
  Process process(world);
  process.create_volume("warm");
  for (const auto* step : {"record_claimed", "backend_created", "export_spec_recorded", "exported"}) {
    CAPTURE(step);
    const std::string name = std::string("v-") + std::to_string(std::string_view(step).size());
    REQUIRE(
        process.system().chaos().add_spec("step=controller/volume/*:" + std::string(step) + ",action=kill"));
    const auto killed = process.ask<csi::CreateVolumeResponse>(create_request(name));
    CHECK(killed.error().reason == Reason::actor_restarted);
    process.create_volume(name);
  }
  CHECK(world.agent->backends.size() == 5);
}

TEST_CASE("a controller that is started over finds everything, and a fresh agent is seeded") {
  World world;
  apply_manifests(world);
  std::string id;
  {
    Process first(world);
    id = first.create_volume("v").volume().volume_id();
    REQUIRE(
        first.ask<csi::ControllerPublishVolumeResponse>(testing::publish_request(id, k_node_a)).has_value());
  }
  world.agent->exports.clear();
  world.agent->marks.clear();
  world.agent->seeded = false;
  world.agent->epoch = "e2";
  Process second(world);
  REQUIRE(second.wait_ready());
  CHECK(second.ask<csi::ListVolumesResponse>(csi::ListVolumesRequest())->entries_size() == 1);
  const auto again = second.ask_until<csi::ControllerPublishVolumeResponse>(
      testing::publish_request(id, k_node_a), [](const auto& answer) { return answer.has_value(); });
  CHECK(again.has_value());
  CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
}

TEST_CASE("agents and stores that come and go while the controller runs") {
  World world;
  Process process(world);
  REQUIRE(process.wait_ready());
  CHECK(process.ask<csi::CreateVolumeResponse>(create_request("v")).error().code ==
        Code::failed_precondition);
  apply_manifests(world);
  process.create_volume("v");
  {
    const std::lock_guard lock(world.agent->mutex);
    world.agent->fate = [](const std::string&) { return Fate::unavailable; };
  }
  const auto down = process.ask_until<csi::CreateVolumeResponse>(
      create_request("w"), [](const auto& answer) { return !answer.has_value(); });
  CHECK_FALSE(down.has_value());
  {
    const std::lock_guard lock(world.agent->mutex);
    world.agent->fate = nullptr;
  }
  process.create_volume("w");
}

TEST_CASE("after stop every call is told so") {
  World world;
  Process process(world);
  process.app().stop();
  CHECK(process.ask<csi::CreateVolumeResponse>(create_request("v")).error().reason == Reason::shutting_down);
  CHECK_FALSE(process.ask<csi::ProbeResponse>(csi::ProbeRequest())->ready().value());
}

}  // namespace pillar::controller::testing
