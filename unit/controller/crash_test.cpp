// Crashes at every point where something becomes durable or the agent acts, and two controllers at once
// (docs/fencing.md sections 3 and 8).

#include <doctest/doctest.h>

#include <random>

#include "world.hpp"

namespace pillar::controller::testing {

namespace {

/// Stops the world at the n-th point: before or after a store write or an agent call.
class CrashPlan {
 public:
  CrashPlan(World& world, int at) : world_(world), at_(at) {
    world.store->fate = [this](const std::string&) {
      if (hit()) return FlakyStore::Write::lost_before;
      if (hit()) return FlakyStore::Write::lost_after;
      return FlakyStore::Write::normal;
    };
    world.agent->fate = [this](const std::string&) {
      if (hit()) return Fate::lost_before;
      if (hit()) return Fate::lost_after;
      return Fate::normal;
    };
  }
  ~CrashPlan() {
    world_.store->fate = nullptr;
    world_.agent->fate = nullptr;
  }
  CrashPlan(const CrashPlan&) = delete;
  CrashPlan& operator=(const CrashPlan&) = delete;
  bool crashed() const { return crashed_; }

 private:
  bool hit() {
    crashed_ = crashed_ || seen_++ == at_;
    return crashed_;
  }
  World& world_;
  const int at_;
  int seen_ = 0;
  bool crashed_ = false;
};

/// Runs `make()` until it crashes at point `at`; false when it ended before that.
template <class Make>
bool crash_at(World& world, int at, Make make) {
  CrashPlan plan(world, at);
  auto task = make();
  task.start();
  world.executor->run_until([&] { return task.done() || plan.crashed(); });
  // Writes that were lost after they were carried out need their moment.
  if (plan.crashed()) world.executor->run_until([] { return false; }, std::chrono::milliseconds(2));
  return plan.crashed();
}

/// Sweeps every crash point of an operation: after each crash a new process repeats the operation and must
/// end where an undisturbed run ends.
template <class Prepare, class Make, class Verify>
void sweep(Prepare prepare, Make make, Verify verify) {
  int at = 0;
  for (bool more = true; more; ++at) {
    CAPTURE(at);
    World world;
    world.configure();
    prepare(world);
    more = crash_at(world, at, [&] { return make(world); });
    world.restart();
    const auto repeated = world.run(make(world));
    CHECK_MESSAGE(repeated.has_value(), (repeated ? "" : repeated.error().message));
    verify(world);
    REQUIRE(at < 200);
  }
  CHECK(at > 4);
}

const std::string k_id = "store-1/nvmeof-tcp/lvm-lv/vg0/v";
constexpr std::int64_t k_gib = std::int64_t{1} << 30;

template <class Request, class Response>
auto again(const Request& request,
           Task<Result<Response>> (*fn)(OperationContext, Ports, std::shared_ptr<const Request>)) {
  return [request, fn](World& world) { return operation(world, request, fn); };
}

}  // namespace

TEST_CASE("crash sweep: create") {
  sweep([](World&) {}, again(create_request("v"), create_volume),
        [](World& world) {
          const auto record = world.record("v").value();
          CHECK(record.status.phase == crd::VolumePhase::ready);
          CHECK(world.agent->backends.size() == 1);
          CHECK(world.agent->backends["vg0/v"].uid == record.metadata.uid);
          CHECK(world.agent->exports.size() == 1);
          CHECK(world.agent->hosts("vg0/v").empty());
          CHECK(publish(world, k_id, k_node_a).has_value());
        });
}

TEST_CASE("crash sweep: publish") {
  sweep([](World& world) { created_id(world, "v"); },
        again(testing::publish_request(k_id, k_node_a), publish_volume),
        [](World& world) {
          CHECK(world.record("v")->status.published_nodes.size() == 1);
          CHECK(world.agent->hosts("vg0/v") == std::set<std::string>{k_nqn_a});
        });
}

TEST_CASE("crash sweep: unpublish; access is gone before the entry is") {
  csi::ControllerUnpublishVolumeRequest request;
  request.set_volume_id(k_id);
  request.set_node_id(k_node_a);
  sweep(
      [](World& world) {
        created_id(world, "v");
        REQUIRE(publish(world, k_id, k_node_a).has_value());
      },
      [request](World& world) {
        // Whenever the record is empty, so is the agent's list.
        if (world.record("v")->status.published_nodes.empty()) CHECK(world.agent->hosts("vg0/v").empty());
        return operation(world, request, unpublish_volume);
      },
      [](World& world) {
        CHECK(world.record("v")->status.published_nodes.empty());
        CHECK(world.agent->hosts("vg0/v").empty());
        CHECK(publish(world, k_id, k_node_b).has_value());
      });
}

TEST_CASE("crash sweep: expand") {
  sweep([](World& world) { created_id(world, "v"); },
        again(expand_request(k_id, std::int64_t{2} << 30), expand_volume),
        [](World& world) {
          CHECK(world.record("v")->status.capacity_bytes == std::int64_t{2} << 30);
          CHECK_FALSE(world.record("v")->status.resize_required);
          CHECK(world.agent->backends["vg0/v"].bytes == std::uint64_t{2} << 30U);
        });
}

TEST_CASE("crash sweep: delete, and the name can be used again at once") {
  csi::DeleteVolumeRequest request;
  request.set_volume_id(k_id);
  sweep([](World& world) { created_id(world, "v"); }, again(request, delete_volume),
        [](World& world) {
          CHECK(world.record("v").error().reason == Reason::not_found);
          CHECK(world.agent->backends.empty());
          CHECK(world.agent->exports.empty());
          CHECK(world.index->page(std::nullopt, 10).items.empty());
          CHECK(create(world, create_request("v")).has_value());
        });
}

TEST_CASE("crash sweep: a create after a delete that was cut short finishes both") {
  for (int at = 0; at < 8; ++at) {
    CAPTURE(at);
    World world;
    world.configure();
    created_id(world, "v");
    const auto uid = world.record("v")->metadata.uid;
    csi::DeleteVolumeRequest request;
    request.set_volume_id(k_id);
    crash_at(world, at, [&] { return operation(world, request, delete_volume); });
    world.restart();
    REQUIRE(create(world, create_request("v")).has_value());
    CHECK(world.agent->backends.size() == 1);
    CHECK(world.agent->backends["vg0/v"].uid == world.record("v")->metadata.uid);
    if (at >= 2) CHECK(world.record("v")->metadata.uid != uid);
  }
}

/// Runs `other` on the ports of a second controller.
template <class Other>
void as_second_controller(World& world, Other other) {
  Ports ports = world.ports();
  auto executor = std::make_shared<runtime::QueueExecutor>();
  ports.executor = executor;
  ports.index = std::make_shared<VolumeIndex>();
  other(ports, *executor);
}

/// Lets a second controller run between a read of the first one and its next status write.
template <class Other>
void before_next_status_write(World& world, Other other) {
  const auto once = std::make_shared<bool>(true);
  world.store->fate = [&world, other, once](const std::string& what) {
    if (what == "status" && std::exchange(*once, false)) as_second_controller(world, other);
    return FlakyStore::Write::normal;
  };
}

/// Lets a second controller run between the first and the second read of an operation.
template <class Other>
void before_second_read(World& world, Other other) {
  const auto reads = std::make_shared<int>(0);
  world.store->before_get = [&world, other, reads] {
    if (++*reads == 2) as_second_controller(world, other);
  };
}

/// A deletion by `ports` whose destroy the agent carries out, and whose answer nobody hears any more.
void delete_unheard(World& world, const Ports& ports, runtime::QueueExecutor& executor) {
  world.agent->fate = [](const std::string& rpc) {
    return rpc == "Delete" ? Fate::lost_after : Fate::normal;
  };
  csi::DeleteVolumeRequest request;
  request.set_volume_id(k_id);
  auto unheard = delete_volume(OperationContext::detached(), ports,
                               std::make_shared<const csi::DeleteVolumeRequest>(request));
  unheard.start();
  CHECK(executor.run_until([&] { return !world.agent->unanswered.empty(); }));
  CHECK_FALSE(unheard.done());
  world.agent->fate = nullptr;
}

TEST_CASE("two controllers delete at once: the second goes on under the generation the agent destroys with") {
  World world;
  world.configure();
  created_id(world, "v");
  before_next_status_write(world, [&world](const Ports& ports, runtime::QueueExecutor& executor) {
    delete_unheard(world, ports, executor);
  });
  const auto removed = remove(world, k_id);
  CHECK_MESSAGE(removed.has_value(), (removed ? "" : removed.error().message));
  CHECK(world.record("v").error().reason == Reason::not_found);
}

TEST_CASE("a publish that finishes an expansion does not move a record that is being deleted") {
  World world;
  world.configure();
  created_id(world, "v");
  auto record = *world.record("v");
  record.status.resize_required = true;
  REQUIRE(world.run(update_object_status(world.ports(), crd::to_object(record))).has_value());
  before_next_status_write(world, [&world](const Ports& ports, runtime::QueueExecutor& executor) {
    delete_unheard(world, ports, executor);
  });
  CHECK_FALSE(publish(world, k_id, k_node_a).has_value());
  const auto removed = remove(world, k_id);
  CHECK_MESSAGE(removed.has_value(), (removed ? "" : removed.error().message));
  CHECK(world.record("v").error().reason == Reason::not_found);
}

TEST_CASE("I2, K03: a delayed call of a former leader leaves the next life under the name alone") {
  const auto replace = [](const Ports& ports, runtime::QueueExecutor& executor) {
    csi::DeleteVolumeRequest request;
    request.set_volume_id(k_id);
    CHECK(executor
              .run(delete_volume(OperationContext::detached(), ports,
                                 std::make_shared<const csi::DeleteVolumeRequest>(request)))
              .has_value());
    CHECK(executor
              .run(create_volume(
                  OperationContext::detached(), ports,
                  std::make_shared<const csi::CreateVolumeRequest>(testing::create_request("v"))))
              .has_value());
  };
  const auto code_of = [](const auto& answer) { return answer ? Code::ok : answer.error().code; };
  const std::function<Code(World&)> calls[] = {
      [&](World& world) { return code_of(remove(world, k_id)); },
      [&](World& world) { return code_of(publish(world, k_id, k_node_a)); },
      [&](World& world) { return code_of(expand(world, k_id, 2 * k_gib)); }};
  for (const bool by_conflict : {true, false})
    for (const auto& call : calls) {
      CAPTURE(by_conflict);
      World world;
      world.configure();
      created_id(world, "v");
      const auto first_life = world.record("v")->metadata.uid;
      if (by_conflict)
        before_next_status_write(world, replace);
      else
        before_second_read(world, replace);
      CHECK(call(world) == Code::aborted);
      world.store->before_get = nullptr;
      REQUIRE(world.record("v").has_value());
      CHECK(world.record("v")->metadata.uid != first_life);
      CHECK_FALSE(world.record("v")->status.deleting);
      CHECK(world.record("v")->status.published_nodes.empty());
      CHECK(world.agent->backends.at("vg0/v").bytes == static_cast<std::uint64_t>(k_gib));
    }
}

TEST_CASE("I2: two controllers at once never leave two writers, and a lost race is told as ABORTED") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    World world;
    world.configure();
    created_id(world, "v");
    std::minstd_rand random(seed);
    // Two processes with their own memory and executors over one store and one agent, stepped at random.
    struct Process {
      std::shared_ptr<runtime::QueueExecutor> executor = std::make_shared<runtime::QueueExecutor>();
      std::shared_ptr<VolumeIndex> index = std::make_shared<VolumeIndex>();
    };
    Process processes[2];
    const auto ports_of = [&](int i) {
      auto ports = world.ports();
      ports.executor = processes[i].executor;
      ports.index = processes[i].index;
      return ports;
    };
    const std::string nodes[2] = {k_node_a, k_node_b};
    for (int round = 0; round < 4; ++round) {
      std::optional<Task<Result<csi::ControllerPublishVolumeResponse>>> publishing[2];
      std::optional<Task<Result<csi::ControllerUnpublishVolumeResponse>>> ending[2];
      for (int i = 0; i < 2; ++i) {
        if (random() % 3 != 0) {
          publishing[i] = publish_volume(OperationContext::detached(), ports_of(i),
                                         std::make_shared<const csi::ControllerPublishVolumeRequest>(
                                             testing::publish_request(k_id, nodes[random() % 2])));
          publishing[i]->start();
        } else {
          csi::ControllerUnpublishVolumeRequest request;
          request.set_volume_id(k_id);
          ending[i] =
              unpublish_volume(OperationContext::detached(), ports_of(i),
                               std::make_shared<const csi::ControllerUnpublishVolumeRequest>(request));
          ending[i]->start();
        }
      }
      const auto done = [&](int i) { return publishing[i] ? publishing[i]->done() : ending[i]->done(); };
      while (!done(0) || !done(1)) {
        const int i = static_cast<int>(random() % 2);
        if (!done(i)) processes[i].executor->run_one(std::chrono::milliseconds(2));
        CHECK(world.agent->hosts("vg0/v").size() <= 1);
      }
      for (auto& task : publishing) {
        if (!task) continue;
        const auto answer = task->take();
        if (!answer) {
          const auto code = answer.error().code;
          CAPTURE(answer.error().message);
          CHECK((code == Code::aborted || code == Code::failed_precondition));
          CHECK(answer.error().reason != Reason::fence_ahead);
        }
      }
      for (auto& task : ending)
        if (task) {
          const auto answer = task->take();
          if (!answer) CHECK(answer.error().code == Code::aborted);
        }
    }
    // One process alone brings it to rest.
    world.restart();
    REQUIRE(unpublish(world, k_id, "").has_value());
    CHECK(world.agent->hosts("vg0/v").empty());
    CHECK(remove(world, k_id).has_value());
  }
}

}  // namespace pillar::controller::testing
