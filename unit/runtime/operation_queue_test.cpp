#include <doctest/doctest.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

#include "actors/runtime/operation_queue.hpp"
#include "actors/runtime/testing.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

struct Ask {
  int value = 0;
};
struct Answer {
  int value = 0;
};
using Slot = std::shared_ptr<std::optional<Result<Answer>>>;

/// An actor's surroundings without an actor.
struct Fixture {
  explicit Fixture(std::size_t waiting = 0, bool chaos = false) {
    services.chaos = std::make_shared<Chaos>(chaos);
    cell = std::make_shared<ActorCell>(ActorOptions{"test/volume", "test/volume/v1"}, services, executor);
    cell->set_kill([this] { killed = true; });
    queue.emplace(cell, OperationQueueOptions{waiting});
  }
  Slot send(std::function<Task<Result<Answer>>(OperationContext, std::shared_ptr<const Ask>)> fn,
            Deadline deadline = Deadline::after(10s), std::string operation = "stage") {
    auto slot = std::make_shared<std::optional<Result<Answer>>>();
    Call<Ask, Answer> call{std::make_shared<const Ask>(Ask{20}), deadline,
                           Reply<Answer>([slot](Result<Answer> r) { *slot = std::move(r); })};
    queue->submit(call, std::move(operation), std::move(fn));
    return slot;
  }
  bool wait(const Slot& slot) {
    return executor->run_until([&] { return slot->has_value(); }, 5s);
  }

  Services services;
  std::shared_ptr<QueueExecutor> executor = std::make_shared<QueueExecutor>();
  std::shared_ptr<ActorCell> cell;
  bool killed = false;
  std::optional<OperationQueue> queue;
};

Task<Result<Answer>> twice(OperationContext context, std::shared_ptr<const Ask> ask) {
  auto step = co_await context.step("half");
  if (!step) co_return tl::unexpected(step.error());
  co_return Answer{ask->value * 2};
}

/// Waits until the test opens the gate.
struct Gate {
  std::vector<Async<Unit>::Complete> waiters;
  void open() {
    for (auto& waiter : std::exchange(waiters, {})) waiter(Unit{});
  }
};
Task<Result<Answer>> gated(OperationContext context, std::shared_ptr<const Ask> ask,
                           std::shared_ptr<Gate> gate) {
  auto step = co_await context.step("formatting");
  if (!step) co_return tl::unexpected(step.error());
  Async<Unit> wait(context.executor(),
                   [gate](Async<Unit>::Complete c) { gate->waiters.push_back(std::move(c)); });
  co_await wait;
  co_return Answer{ask->value};
}
auto behind(std::shared_ptr<Gate> gate) {
  return [gate](OperationContext context, std::shared_ptr<const Ask> ask) {
    return gated(std::move(context), std::move(ask), gate);
  };
}

}  // namespace

TEST_CASE("queue: answers a call and is idle again before the caller hears") {
  Fixture f;
  auto slot = f.send(twice);
  REQUIRE(slot->has_value());
  CHECK((*slot)->value().value == 40);
  CHECK(f.queue->idle());
  // The frame of the first operation is still unreclaimed; the next call must not be refused.
  auto second = f.send(twice);
  CHECK(f.wait(second));
  CHECK((*second)->has_value());
  f.executor->run_ready();
  CHECK(f.cell->idle());
}

TEST_CASE("queue: a call made from inside the answer of the previous one runs") {
  Fixture f;
  auto inner = std::make_shared<std::optional<Result<Answer>>>();
  Call<Ask, Answer> second{std::make_shared<const Ask>(Ask{1}), Deadline::after(5s),
                           Reply<Answer>([inner](Result<Answer> r) { *inner = std::move(r); })};
  Call<Ask, Answer> first{
      std::make_shared<const Ask>(Ask{1}), Deadline::after(5s),
      Reply<Answer>([&](const Result<Answer>&) { f.queue->submit(second, "second", twice); })};
  f.queue->submit(first, "first", twice);
  second.reply = {};
  CHECK(f.wait(inner));
  CHECK((*inner)->has_value());
}

TEST_CASE("I05, G09: a call that finds the actor busy is refused at once, naming operation, step and age") {
  Fixture f;
  auto gate = std::make_shared<Gate>();
  auto first = f.send(behind(gate));
  auto second = f.send(twice, Deadline::after(2s), "unstage");
  REQUIRE(second->has_value());
  const auto error = (*second)->error();
  CHECK(error.code == Code::aborted);
  CHECK(error.reason == Reason::operation_pending);
  CHECK(error.message.find("stage is running at step formatting for 0.") != std::string::npos);
  CHECK(error.details.at("operation") == "stage");
  gate->open();
  CHECK(f.wait(first));
  CHECK((*first)->has_value());
}

TEST_CASE("queue: up to `waiting` calls wait their turn, in order") {
  Fixture f(2);
  auto gate = std::make_shared<Gate>();
  std::vector<Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(f.send(behind(gate)));
  CHECK((*slots[3])->error().reason == Reason::operation_pending);
  CHECK_FALSE(f.queue->has_room());
  for (int i = 0; i < 3; ++i) {
    f.executor->run_ready();
    CHECK(gate->waiters.size() == 1);
    gate->open();
    CHECK(f.wait(slots[static_cast<std::size_t>(i)]));
  }
}

TEST_CASE("G09: the caller is answered at its deadline, the operation goes on and completes") {
  Fixture f;
  auto gate = std::make_shared<Gate>();
  auto ran = std::make_shared<bool>(false);
  auto slot = f.send(
      [gate, ran](OperationContext context, std::shared_ptr<const Ask> ask) -> Task<Result<Answer>> {
        Task<Result<Answer>> inner = gated(context, ask, gate);
        auto result = co_await std::move(inner);
        *ran = true;
        co_return result;
      },
      Deadline::after(20ms));
  REQUIRE(f.wait(slot));
  CHECK((*slot)->error().code == Code::deadline_exceeded);
  CHECK((*slot)->error().message.find("still working on stage of test/volume/v1, step formatting") == 0);
  CHECK_FALSE(*ran);
  CHECK(f.queue->running() == "stage");
  gate->open();
  f.executor->run_ready();
  CHECK(*ran);
  CHECK(f.queue->idle());
}

TEST_CASE("queue: what expired before its turn is dropped unprocessed and counted") {
  Fixture f(4);
  auto gate = std::make_shared<Gate>();
  int started = 0;
  const auto counting = [&started](OperationContext context, std::shared_ptr<const Ask> ask) {
    ++started;
    return twice(std::move(context), std::move(ask));
  };
  auto late = f.send(counting, Deadline::after(-1ms));
  REQUIRE(late->has_value());
  CHECK((*late)->error().code == Code::deadline_exceeded);
  auto first = f.send(behind(gate));
  auto waits = f.send(counting, Deadline::after(15ms));
  REQUIRE(f.wait(waits));
  CHECK((*waits)->error().reason == Reason::deadline_exceeded);
  gate->open();
  CHECK(f.wait(first));
  f.executor->run_ready();
  CHECK(started == 0);
  CHECK(f.cell->stats().dropped_expired.value() == 2);
}

TEST_CASE("O13: an exception becomes INTERNAL of that call; the next one works") {
  Fixture f;
  auto thrown = f.send([](OperationContext context, std::shared_ptr<const Ask>) -> Task<Result<Answer>> {
    auto step = co_await context.step("parsing");
    (void)step;
    throw std::runtime_error("boom");
  });
  REQUIRE(f.wait(thrown));
  CHECK((*thrown)->error().code == Code::internal);
  CHECK((*thrown)->error().message.find("step parsing: boom") != std::string::npos);
  auto before = f.send(
      [](OperationContext, std::shared_ptr<const Ask>) -> Task<Result<Answer>> { throw std::bad_alloc(); });
  REQUIRE(f.wait(before));
  CHECK((*before)->error().code == Code::internal);
  auto good = f.send(twice);
  CHECK(f.wait(good));
  CHECK((*good)->has_value());
  CHECK(f.cell->stats().failures.value() == 2);
}

TEST_CASE(
    "queue: destroyed with calls in flight, all callers get UNAVAILABLE and late completions are ignored") {
  Fixture f(4);
  auto gate = std::make_shared<Gate>();
  auto first = f.send(behind(gate));
  auto second = f.send(behind(gate));
  f.queue.reset();
  for (const auto& slot : {first, second}) {
    REQUIRE(slot->has_value());
    CHECK((*slot)->error().code == Code::unavailable);
    CHECK((*slot)->error().reason == Reason::actor_restarted);
  }
  gate->open();
  f.executor->run_ready();
}

TEST_CASE("queue: background work runs once and is refused when there is no room") {
  Fixture f;
  int runs = 0;
  const auto work = [&runs](OperationContext) -> Task<Result<void>> {
    ++runs;
    co_return fail(Reason::agent_unavailable, "agent a1 does not answer");
  };
  CHECK(f.queue->background("reconcile", work));
  f.executor->run_ready();
  auto gate = std::make_shared<Gate>();
  auto first = f.send(behind(gate));
  CHECK_FALSE(f.queue->background("reconcile", work));
  CHECK(runs == 1);
  gate->open();
  CHECK(f.wait(first));
}

TEST_CASE("chaos: fail, delay, pause and kill act at the named step") {
  Fixture f(0, true);
  auto& chaos = *f.services.chaos;
  SUBCASE("fail") {
    REQUIRE(chaos.add_spec("step=test/volume/*:half,action=fail,reason=IO_ERROR"));
    auto slot = f.send(twice);
    CHECK((*slot)->error().reason == Reason::io_error);
  }
  SUBCASE("fail before the operation and before the answer") {
    REQUIRE(chaos.add_spec("step=*:begin,action=fail;step=*:answer,action=fail"));
    CHECK((*f.send(twice))->error().reason == Reason::injected_fault);
    f.executor->run_ready();
    CHECK((*f.send(twice))->error().message.find("step answer") != std::string::npos);
  }
  SUBCASE("delay") {
    REQUIRE(chaos.add_spec("step=*:half,action=delay,ms=10"));
    const auto started = Clock::now();
    auto slot = f.send(twice);
    CHECK_FALSE(slot->has_value());
    CHECK(f.wait(slot));
    CHECK(Clock::now() - started >= 10ms);
  }
  SUBCASE("pause") {
    auto id = chaos.add(ChaosPoint{.path = "*", .step = "half", .kind = ChaosKind::pause});
    REQUIRE(id);
    auto slot = f.send(twice);
    f.executor->run_ready();
    CHECK_FALSE(slot->has_value());
    CHECK(chaos.remove(*id));
    CHECK(f.wait(slot));
    CHECK((*slot)->has_value());
  }
  SUBCASE("kill") {
    REQUIRE(chaos.add_spec("step=*:half,action=kill"));
    auto slot = f.send(twice);
    CHECK(f.killed);
    f.queue.reset();  // what the dying actor does
    CHECK((*slot)->error().reason == Reason::actor_restarted);
  }
  SUBCASE("pause outlived by nothing: the queue may go first") {
    REQUIRE(chaos.add_spec("step=*:half,action=pause"));
    auto slot = f.send(twice);
    f.queue.reset();
    chaos.clear();
    f.executor->run_ready();
    CHECK((*slot)->error().reason == Reason::actor_restarted);
  }
}

TEST_CASE("context: detached contexts let a test fail or crash any step") {
  QueueExecutor executor;
  auto ask = std::make_shared<const Ask>(Ask{1});
  CHECK(executor.run(twice(OperationContext::detached(), ask)).value().value == 2);
  const auto hook = [](std::string_view step) {
    ChaosAction action;
    if (step == "half") action.kind = ChaosKind::kill;
    return action;
  };
  auto task = twice(OperationContext::detached("v1", hook), ask);
  task.start();
  CHECK_FALSE(task.done());
}
