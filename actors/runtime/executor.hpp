#pragma once
// Executors with time. An executor is one actor's context as seen by coroutines and by completions that come
// from other threads; nothing here knows CAF.

#include <functional>
#include <memory>
#include <utility>

#include "actors/runtime/task.hpp"
#include "messages/deadline.hpp"

namespace pillar::runtime {

/// An Executor that can also run work after a delay.
class TimedExecutor : public Executor {
 public:
  /// Runs `work` in this context once `delay` has passed, or destroys it unrun when the context is gone by
  /// then.
  virtual void post_after(Clock::duration delay, std::function<void()> work) = 0;
};

/// The value of an await that yields nothing.
struct Unit {};

/// `co_await sleep_for(executor, 100ms)`: continues in `executor` after `delay`.
inline Async<Unit> sleep_for(std::shared_ptr<TimedExecutor> executor, Clock::duration delay) {
  auto timer = executor;
  return Async<Unit>(std::move(executor), [timer, delay](Async<Unit>::Complete complete) {
    timer->post_after(delay, [complete] { complete(Unit{}); });
  });
}

/// `co_await sleep_until(executor, deadline)`; at once when it has passed, an hour at most for `never`.
inline Async<Unit> sleep_until(std::shared_ptr<TimedExecutor> executor, Deadline deadline) {
  return sleep_for(std::move(executor), deadline.left());
}

}  // namespace pillar::runtime
