// The complete pattern of docs/actors.md in one file: messages, port, operation, state, actor, registry. A
// thermostat per room: reads its durable target through a port, changes it in steps, one change at a time.

#include <doctest/doctest.h>

#include <future>
#include <map>
#include <mutex>

#include "actors/runtime/blocking_pool.hpp"
#include "actors/runtime/operation_queue.hpp"
#include "actors/runtime/registry.hpp"
#include "actors/runtime/testing.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

// Messages.
struct SetTarget {
  int degrees = 0;
};
struct TargetSet {
  int before = 0;
};
using SetTargetCall = Call<SetTarget, TargetSet>;

// The port: what operations need of the world.
class RoomHost {
 public:
  virtual ~RoomHost() = default;
  virtual Task<Result<int>> read() = 0;
  virtual Task<Result<void>> write(int degrees) = 0;
};

// The decision: a plain function.
Result<void> check_target(int degrees) {
  if (degrees >= 5 && degrees <= 30) return {};
  return fail(Reason::out_of_range, "target " + std::to_string(degrees) + " is not between 5 and 30 degrees");
}

// The operation: sequential code over the port.
Task<Result<TargetSet>> set_target(OperationContext context, std::shared_ptr<const SetTarget> request,
                                   std::shared_ptr<RoomHost> host) {
  const auto allowed = check_target(request->degrees);
  if (!allowed) co_return tl::unexpected(allowed.error());
  const auto before = co_await host->read();
  if (!before) co_return tl::unexpected(before.error());
  const auto step = co_await context.step("write_target");
  if (!step) co_return tl::unexpected(step.error());
  const auto written = co_await host->write(request->degrees);
  if (!written) co_return tl::unexpected(written.error());
  context.note("degrees", std::to_string(request->degrees));
  co_return TargetSet{*before};
}

// The actor shell: binds messages to operations and ports to the blocking pool.
struct Disk {
  std::mutex mutex;
  std::map<std::string, int> targets;
};

class PoolRoomHost final : public RoomHost {
 public:
  PoolRoomHost(std::shared_ptr<TimedExecutor> executor, std::shared_ptr<BlockingPool> pool,
               std::shared_ptr<Disk> disk, std::string room)
      : executor_(std::move(executor)),
        pool_(std::move(pool)),
        disk_(std::move(disk)),
        room_(std::move(room)) {}
  Task<Result<int>> read() override {
    auto job = [disk = disk_, room = room_]() -> Result<int> {
      const std::lock_guard lock(disk->mutex);
      return disk->targets[room];
    };
    co_return co_await pool_->run<int>(executor_, Deadline::after(5s), job,
                                       JobOptions("read target of " + room_, room_));
  }
  Task<Result<void>> write(int degrees) override {
    auto job = [disk = disk_, room = room_, degrees]() -> Result<void> {
      const std::lock_guard lock(disk->mutex);
      disk->targets[room] = degrees;
      return {};
    };
    co_return co_await pool_->run<void>(executor_, Deadline::after(5s), job,
                                        JobOptions("write target of " + room_, room_));
  }

 private:
  std::shared_ptr<TimedExecutor> executor_;
  std::shared_ptr<BlockingPool> pool_;
  std::shared_ptr<Disk> disk_;
  std::string room_;
};

using RoomActor = caf::typed_actor<caf::reacts_to<SetTargetCall>>;
struct RoomState {
  explicit RoomState(ActorBase* self) : queue(self->cell()) {}
  OperationQueue queue;
};

RoomActor::behavior_type room_actor(Stateful<RoomState, RoomActor>* self, std::string room,
                                    std::shared_ptr<BlockingPool> pool, std::shared_ptr<Disk> disk) {
  auto host = std::make_shared<PoolRoomHost>(self->cell()->executor(), std::move(pool), std::move(disk),
                                             std::move(room));
  return {[self, host](const SetTargetCall& call) {
    self->state.queue.submit(call, "set_target",
                             [host](OperationContext context, std::shared_ptr<const SetTarget> r) {
                               return set_target(std::move(context), std::move(r), host);
                             });
  }};
}

// A fake port for unit tests of the operation.
class FakeRoomHost final : public RoomHost {
 public:
  Task<Result<int>> read() override { co_return target; }
  Task<Result<void>> write(int degrees) override {
    if (broken) co_return fail(Reason::io_error, "disk on fire");
    target = degrees;
    co_return Result<void>();
  }
  int target = 20;
  bool broken = false;
};

}  // namespace

TEST_CASE("example: the operation with a fake port, failures and a crash at a step") {
  QueueExecutor executor;
  auto host = std::make_shared<FakeRoomHost>();
  const auto request = std::make_shared<const SetTarget>(SetTarget{22});
  CHECK(executor.run(set_target(OperationContext::detached(), request, host)).value().before == 20);
  CHECK(host->target == 22);
  host->broken = true;
  CHECK(executor.run(set_target(OperationContext::detached(), request, host)).error().reason ==
        Reason::io_error);
  const auto hot = std::make_shared<const SetTarget>(SetTarget{99});
  CHECK(executor.run(set_target(OperationContext::detached(), hot, host)).error().reason ==
        Reason::out_of_range);
  host->target = 1;
  {
    auto task = set_target(OperationContext::detached(
                               "room", [](std::string_view) { return ChaosAction{.kind = ChaosKind::kill}; }),
                           request, host);
    task.start();
    CHECK_FALSE(task.done());
  }
  CHECK(host->target == 1);
}

TEST_CASE("example: the actor behind its registry, with a kill injected at a step") {
  SystemOptions options;
  options.services.chaos = std::make_shared<Chaos>(true);
  System system(options);
  auto pool = std::make_shared<BlockingPool>();
  auto disk = std::make_shared<Disk>();
  auto registry = spawn_registry<SetTargetCall>(
      system, {.kind = "house/room"}, [&](ActorOptions child, const std::string& key) {
        return system.spawn(std::move(child), room_actor, key, pool, disk);
      });
  const auto ask = [&](int degrees) {
    std::promise<Result<TargetSet>> promise;
    auto future = promise.get_future();
    route(registry, "kitchen",
          SetTargetCall{std::make_shared<const SetTarget>(SetTarget{degrees}), Deadline::after(20s),
                        Reply<TargetSet>([&](Result<TargetSet> r) { promise.set_value(std::move(r)); })});
    return future.get();
  };
  CHECK(ask(21).value().before == 0);
  CHECK(ask(22).value().before == 21);
  REQUIRE(system.chaos().add_spec("step=house/room/kitchen:write_target,action=kill"));
  CHECK(ask(25).error().reason == Reason::actor_restarted);
  Result<TargetSet> again = ask(25);
  while (!again && again.error().code == Code::unavailable) again = ask(25);
  CHECK(again.value().before == 22);
  CHECK(system.chaos().seen_steps().at("house/room:write_target") == 4);
  CHECK(system.shutdown(10s));
}
