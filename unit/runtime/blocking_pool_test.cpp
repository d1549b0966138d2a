#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "actors/runtime/blocking_pool.hpp"
#include "actors/runtime/testing.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

/// A kernel call that hangs until released.
class Hang {
 public:
  Result<int> operator()() {
    std::unique_lock lock(state_->mutex);
    ++state_->inside;
    state_->changed.notify_all();
    state_->changed.wait(lock, [this] { return state_->open; });
    --state_->inside;
    return 7;
  }
  void release() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }
  bool wait_inside(int n) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, 5s, [&] { return state_->inside >= n; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int inside = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Collects one answer, with a wait.
struct Got {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<int>> result;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
  std::function<void(Result<int>)> sink() const {
    return [s = state](Result<int> r) {
      const std::lock_guard lock(s->mutex);
      REQUIRE_FALSE(s->result.has_value());
      s->result = std::move(r);
      s->changed.notify_all();
    };
  }
  Result<int> wait() const {
    std::unique_lock lock(state->mutex);
    REQUIRE(state->changed.wait_for(lock, 10s, [&] { return state->result.has_value(); }));
    return *state->result;
  }
};

Got start(BlockingPool& pool, Deadline deadline, std::function<Result<int>()> fn, JobOptions options = {}) {
  Got got;
  pool.submit<int>(deadline, std::move(fn), std::move(options), got.sink());
  return got;
}

Result<int> quick() { return 1; }

/// Gets one more worker stuck in `hang`; yields what the caller was told. On a busy machine the short
/// deadline may pass before the job starts; then it is tried again.
Error make_stuck(BlockingPool& pool, const Hang& hang, const JobOptions& options) {
  const auto before = pool.stats().stuck;
  for (;;) {
    const auto answer = start(pool, Deadline::after(20ms), hang, options).wait();
    if (pool.stats().stuck > before) return answer.error();
  }
}

Task<Result<int>> awaiting(std::shared_ptr<QueueExecutor> executor, BlockingPool* pool) {
  const auto self = std::this_thread::get_id();
  auto other = std::make_shared<std::thread::id>();
  auto job = [other]() -> Result<int> {
    *other = std::this_thread::get_id();
    return 5;
  };
  auto result = co_await pool->run<int>(executor, Deadline::after(5s), job, JobOptions("stat", "v1"));
  CHECK(std::this_thread::get_id() == self);
  CHECK(*other != self);
  co_return result;
}

bool eventually(const std::function<bool()>& check) {
  const auto limit = Clock::now() + 5s;
  while (Clock::now() < limit) {
    if (check()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return check();
}

}  // namespace

TEST_CASE("pool: runs on a worker and continues in the executor") {
  auto executor = std::make_shared<QueueExecutor>();
  BlockingPool pool;
  CHECK(executor->run(awaiting(executor, &pool)).value() == 5);
}

TEST_CASE("pool: an exception becomes INTERNAL and the worker lives") {
  BlockingPool pool({.threads = 1});
  const auto bad = start(pool, Deadline::after(5s), []() -> Result<int> { throw std::runtime_error("boom"); },
                         {"umount /x", ""});
  CHECK(bad.wait().error().code == Code::internal);
  CHECK(bad.wait().error().message.find("umount /x failed: boom") == 0);
  CHECK(start(pool, Deadline::after(5s), quick).wait().value() == 1);
}

TEST_CASE("pool: a full queue refuses at once") {
  Hang hang;
  BlockingPool pool({.threads = 1, .queue = 1});
  const auto first = start(pool, Deadline::never(), hang);
  REQUIRE(hang.wait_inside(1));
  const auto second = start(pool, Deadline::never(), quick);
  const auto third = start(pool, Deadline::never(), quick);
  CHECK(third.wait().error().reason == Reason::queue_full);
  CHECK(third.wait().error().code == Code::unavailable);
  hang.release();
  CHECK(first.wait().value() == 7);
  CHECK(second.wait().value() == 1);
}

TEST_CASE("pool: a job that waits past its deadline never starts and is counted") {
  auto metrics = std::make_shared<Metrics>();
  Hang hang;
  std::atomic<int> ran{0};
  BlockingPool pool({.name = "host", .threads = 1, .hard_cap = 1, .metrics = metrics});
  const auto first = start(pool, Deadline::never(), hang);
  REQUIRE(hang.wait_inside(1));
  const auto counting = [&ran]() -> Result<int> { return ++ran; };
  CHECK(start(pool, Deadline::after(10ms), counting).wait().error().reason == Reason::deadline_exceeded);
  CHECK(start(pool, Deadline::after(-1ms), counting).wait().error().reason == Reason::deadline_exceeded);
  hang.release();
  CHECK(first.wait().value() == 7);
  CHECK(ran == 0);
  CHECK(pool.stats().expired == 2);
  CHECK(metrics->actor("pool/host").dropped_expired.value() == 2);
}

TEST_CASE("E07, I01: a hanging call is answered at its deadline, its worker is replaced, others go on") {
  Hang hang;
  BlockingPool pool({.threads = 1, .hard_cap = 4});
  const auto told = make_stuck(pool, hang, {"umount /dead", "v1"});
  CHECK(told.code == Code::deadline_exceeded);
  CHECK(told.message.find("umount /dead has not returned") == 0);
  CHECK(start(pool, Deadline::after(5s), quick, {"stat", "v2"}).wait().value() == 1);
  CHECK(pool.stats().stuck == 1);
  hang.release();
  CHECK(eventually([&] { return pool.stats().stuck == 0 && pool.stats().threads <= 1; }));
  CHECK(start(pool, Deadline::after(5s), quick, {"stat", "v1"}).wait().value() == 1);
}

TEST_CASE("E07, I01: thread count stays flat over 100 retries of a hanging call") {
  Hang hang;
  BlockingPool pool({.threads = 2, .hard_cap = 8});
  CHECK(make_stuck(pool, hang, {"umount", "v1"}).code == Code::deadline_exceeded);
  for (int i = 0; i < 100; ++i) {
    const auto again = start(pool, Deadline::after(5s), hang, {"umount", "v1"});
    CHECK(again.wait().error().code == Code::aborted);
    CHECK(again.wait().error().reason == Reason::operation_pending);
  }
  CHECK(start(pool, Deadline::after(5s), quick, {"stat", "v2"}).wait().value() == 1);
  CHECK(pool.stats().threads <= 3);
  CHECK(pool.stats().replaced == 1);
  hang.release();
}

TEST_CASE("pool: hanging calls of many keys stop at the hard cap, and the rest still get answers") {
  Hang hang;
  BlockingPool pool({.threads = 2, .queue = 4, .hard_cap = 4});
  for (int i = 0; i < 4; ++i) {
    CHECK(make_stuck(pool, hang, {"statfs", "v" + std::to_string(i)}).code == Code::deadline_exceeded);
  }
  CHECK(hang.wait_inside(4));
  CHECK(pool.stats().threads == 4);
  CHECK(start(pool, Deadline::after(10ms), quick).wait().error().code == Code::deadline_exceeded);
  CHECK(pool.stats().threads == 4);
  hang.release();
  CHECK(start(pool, Deadline::after(5s), quick).wait().value() == 1);
  CHECK(eventually([&] { return pool.stats().threads <= 2; }));
}

TEST_CASE("pool: one slow job does not hold up short ones") {
  Hang hang;
  BlockingPool pool({.threads = 2});
  const auto slow = start(pool, Deadline::never(), hang);
  REQUIRE(hang.wait_inside(1));
  for (int i = 0; i < 20; ++i) CHECK(start(pool, Deadline::after(5s), quick).wait().value() == 1);
  hang.release();
  CHECK(slow.wait().value() == 7);
}

TEST_CASE("pool: its end answers what waits and does not wait for what hangs") {
  Hang hang;
  Got waits;
  {
    BlockingPool pool({.threads = 1, .hard_cap = 1});
    make_stuck(pool, hang, {});
    waits = start(pool, Deadline::after(60s), quick);
  }
  CHECK(waits.wait().error().reason == Reason::shutting_down);
  hang.release();
}

TEST_CASE("pool: many jobs from many threads are each answered once") {
  BlockingPool pool({.threads = 3, .queue = 10000});
  std::atomic<int> answers{0};
  std::vector<std::thread> senders;
  for (int t = 0; t < 4; ++t) {
    senders.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        pool.submit<int>(i % 7 == 0 ? Deadline::after(0ms) : Deadline::after(10s), quick, {},
                         [&answers](const Result<int>&) { ++answers; });
      }
    });
  }
  for (auto& sender : senders) sender.join();
  CHECK(eventually([&] { return answers == 2000; }));
}
