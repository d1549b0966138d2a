#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "actors/runtime/testing.hpp"
#include "messages/error.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

Task<long> add(long a, long b) { co_return a + b; }

Task<long> sum_to(long n) {
  long sum = 0;
  for (long i = 1; i <= n; ++i) sum = co_await add(sum, i);
  co_return sum;
}

Task<int> throwing() {
  throw std::runtime_error("boom");
  co_return 0;
}

Task<int> catching() {
  try {
    co_return co_await throwing();
  } catch (const std::runtime_error&) {
    co_return -1;
  }
}

/// Waits for a value that the test gives through `complete`.
Task<int> waiting(std::shared_ptr<QueueExecutor> executor, std::shared_ptr<Async<int>::Complete> complete,
                  std::shared_ptr<int> held) {
  Async<int> value(executor, [complete](Async<int>::Complete c) { *complete = std::move(c); });
  const int got = co_await value;
  co_return got + *held;
}

Task<int> failing_start(std::shared_ptr<QueueExecutor> executor) {
  Async<int> value(executor, [](const Async<int>::Complete& c) {
    c(1);
    throw std::runtime_error("no thread");
  });
  co_return co_await value;
}

Task<void> sleeping(std::shared_ptr<QueueExecutor> executor) { co_await sleep_for(executor, 5ms); }

}  // namespace

TEST_CASE("task: values pass through nested awaits, in loops of any length") {
  QueueExecutor executor;
  CHECK(executor.run(sum_to(1'000'000)) == 500'000'500'000);
}

TEST_CASE("task: exceptions reach the awaiting coroutine and the driver") {
  QueueExecutor executor;
  CHECK(executor.run(catching()) == -1);
  CHECK_THROWS_AS(executor.run(throwing()), std::runtime_error);
}

TEST_CASE("task: a completion from another thread continues in the executor") {
  auto executor = std::make_shared<QueueExecutor>();
  auto complete = std::make_shared<Async<int>::Complete>();
  auto task = waiting(executor, complete, std::make_shared<int>(1));
  task.start();
  CHECK_FALSE(task.done());
  std::thread other([c = std::exchange(*complete, {})] { c(41); });
  other.join();
  CHECK_FALSE(task.done());
  REQUIRE(executor->run_one());
  REQUIRE(task.done());
  CHECK(task.take() == 42);
}

TEST_CASE("task: only the first completion counts") {
  auto executor = std::make_shared<QueueExecutor>();
  auto complete = std::make_shared<Async<int>::Complete>();
  auto task = waiting(executor, complete, std::make_shared<int>(0));
  task.start();
  (*complete)(1);
  (*complete)(2);
  executor->run_ready();
  CHECK(task.take() == 1);
}

TEST_CASE("task: destroyed while suspended, it releases what it holds and ignores the late completion") {
  auto executor = std::make_shared<QueueExecutor>();
  auto complete = std::make_shared<Async<int>::Complete>();
  auto held = std::make_shared<int>(1);
  {
    auto task = waiting(executor, complete, held);
    task.start();
    CHECK(held.use_count() == 2);
    (*complete)(1);  // on its way when the task dies
  }
  CHECK(held.use_count() == 1);
  executor->run_ready();
  *complete = {};
  executor->run_ready();
}

TEST_CASE("task: a dropped completion is an exception, not a wait for ever") {
  auto executor = std::make_shared<QueueExecutor>();
  auto complete = std::make_shared<Async<int>::Complete>();
  auto task = waiting(executor, complete, std::make_shared<int>(1));
  task.start();
  *complete = {};
  executor->run_ready();
  REQUIRE(task.done());
  CHECK_THROWS_AS(task.take(), std::runtime_error);
}

TEST_CASE("task: an exception while an await is being started continues in the coroutine") {
  auto executor = std::make_shared<QueueExecutor>();
  auto task = failing_start(executor);
  task.start();
  executor->run_ready();
  REQUIRE(task.done());
  CHECK_THROWS_WITH(task.take(), "no thread");
}

TEST_CASE("timer: sleep_for continues after the time") {
  auto executor = std::make_shared<QueueExecutor>();
  const auto started = Clock::now();
  executor->run(sleeping(executor));
  CHECK(Clock::now() - started >= 5ms);
}
