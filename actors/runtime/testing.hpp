#pragma once
// A plain executor for unit tests and simulations: a queue that the test thread drains.

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "actors/runtime/executor.hpp"

namespace pillar::runtime {

/// Runs posted work only inside run_*(), on the calling thread. post() and post_after() may be called from
/// any thread.
class QueueExecutor final : public TimedExecutor {
 public:
  void post(std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(work));
    }
    wake_.notify_all();
  }
  void post_after(Clock::duration delay, std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      timers_.emplace(Clock::now() + delay, std::move(work));
    }
    wake_.notify_all();
  }

  /// Runs one piece of work, waiting for it up to `patience`; false when there was none.
  bool run_one(Clock::duration patience = Clock::duration::zero()) {
    const auto limit = Clock::now() + patience;
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
        ready_.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
      if (!ready_.empty()) break;
      if (Clock::now() >= limit) return false;
      wake_.wait_until(lock, timers_.empty() ? limit : std::min(limit, timers_.begin()->first));
    }
    auto work = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    work();
    return true;
  }
  /// Runs until `done()`; false when that did not come true within `patience`.
  bool run_until(const std::function<bool()>& done, Clock::duration patience = std::chrono::seconds(30)) {
    const auto limit = Clock::now() + patience;
    while (!done()) {
      if (!run_one(limit - Clock::now())) return done();
    }
    return true;
  }
  /// Runs everything that is ready now and what that makes ready; timers in the future are left alone.
  void run_ready() {
    while (run_one()) {
    }
  }
  /// Starts `task` and drives it to its end; throws std::runtime_error when it does not end within
  /// `patience`.
  template <class T>
  T run(Task<T> task, Clock::duration patience = std::chrono::seconds(30)) {
    task.start();
    if (!run_until([&task] { return task.done(); }, patience)) throw std::runtime_error("task did not end");
    return task.take();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> ready_;
  std::multimap<Clock::time_point, std::function<void()>> timers_;
};

}  // namespace pillar::runtime
