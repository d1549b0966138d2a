#pragma once
// Threads for calls that block in the kernel. Actors never block: they await a job here. A job that hangs
// costs one worker until it returns, never more than one per key, and is replaced up to a hard cap.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "actors/runtime/metrics.hpp"
#include "actors/runtime/task.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

struct BlockingPoolOptions {
  std::string name = "blocking";          ///< metric label of the pool
  std::size_t threads = 4;                ///< workers for jobs that are not stuck; started on demand
  std::size_t queue = 256;                ///< jobs that may wait
  std::size_t hard_cap = 16;              ///< most threads, stuck ones included
  std::shared_ptr<Metrics> metrics = {};  ///< empty: no metrics
};

/// What a job is called and what it may collide with.
struct JobOptions {
  /// Constructors keep this from being an aggregate: g++ 12 destroys aggregate temporaries of a co_await
  /// twice.
  JobOptions() = default;
  JobOptions(std::string what_, std::string key_ = {}) : what(std::move(what_)), key(std::move(key_)) {}

  std::string what = "host call";  ///< for error texts: "umount /var/lib/..."
  /// While a job of this key is stuck, further ones are refused with ABORTED; empty: no limit.
  std::string key;
};

/// A bounded thread pool. Thread-safe. Its end waits for running jobs for a short time, then abandons them.
class BlockingPool {
 public:
  explicit BlockingPool(BlockingPoolOptions options = {});
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;
  ~BlockingPool();

  /// `auto fn = [...]{...}; auto r = co_await pool.run<T>(executor, deadline, fn)` runs `fn() -> Result<T>`
  /// on a worker and continues in `executor`. `fn` must be a named local (docs/actors.md, coroutine rules).
  /// Always answers:
  ///  - queue full: UNAVAILABLE/QUEUE_FULL at once;
  ///  - `deadline` passes before the job started: DEADLINE_EXCEEDED, the job never runs;
  ///  - `deadline` passes while it runs: DEADLINE_EXCEEDED; the job goes on and its result is thrown away;
  ///  - another job of the key is stuck like that: ABORTED/OPERATION_PENDING at once;
  ///  - exception: INTERNAL.
  template <class T, class Fn>
  Async<Result<T>> run(std::shared_ptr<Executor> executor, Deadline deadline, Fn fn,
                       JobOptions options = {}) {
    return Async<Result<T>>(std::move(executor),
                            [this, deadline, fn = std::move(fn), options = std::move(options)](
                                typename Async<Result<T>>::Complete complete) mutable {
                              submit<T>(deadline, std::move(fn), options, std::move(complete));
                            });
  }

  /// The callback form: `done` is called once, on a pool thread or, when the job is refused, before return.
  template <class T, class Fn>
  void submit(Deadline deadline, Fn fn, JobOptions options, std::function<void(Result<T>)> done) {
    Job job;
    job.deadline = deadline;
    job.options = std::move(options);
    auto kept = std::make_shared<Fn>(std::move(fn));
    job.run = [kept, done, what = job.options.what]() -> std::function<void()> {
      auto result = std::make_shared<Result<T>>(tl::unexpected<Error>(Error{}));
      try {
        *result = (*kept)();
      } catch (...) {
        *result = tl::unexpected(exception_error(what, std::current_exception()));
      }
      return [result, done] { done(std::move(*result)); };
    };
    job.refuse = [done](Error error) { done(tl::unexpected(std::move(error))); };
    enqueue(std::move(job));
  }

  struct Stats {
    std::size_t threads = 0;  ///< live workers, stuck ones included
    std::size_t stuck = 0;    ///< workers whose job is past its deadline
    std::size_t waiting = 0;
    std::uint64_t expired = 0;   ///< jobs dropped before they started
    std::uint64_t refused = 0;   ///< queue full or key stuck
    std::uint64_t replaced = 0;  ///< workers that got stuck
  };
  Stats stats() const;

 private:
  struct Job {
    Deadline deadline;
    JobOptions options;
    std::function<std::function<void()>()> run;  // yields how to deliver the result
    std::function<void(Error)> refuse;
  };
  struct Shared;

  static Error exception_error(const std::string& what, std::exception_ptr error);
  void enqueue(Job job);

  std::shared_ptr<Shared> shared_;
};

}  // namespace pillar::runtime
