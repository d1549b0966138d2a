#include "actors/runtime/blocking_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace pillar::runtime {

namespace {

Error make_error(Reason reason, std::string message) { return fail(reason, std::move(message)).value(); }

}  // namespace

/// Outlives the pool object while a stuck worker still refers to it.
struct BlockingPool::Shared : std::enable_shared_from_this<BlockingPool::Shared> {
  struct Running {
    Deadline deadline;
    std::string key;
    std::string what;
    std::function<void(Error)> refuse;
    bool stuck = false;  ///< past its deadline; the caller has been answered
  };
  /// Answers to give once the lock is released.
  using Answers = std::vector<std::function<void()>>;

  explicit Shared(BlockingPoolOptions o) : options(std::move(o)) {
    if (!options.metrics) return;
    expired_metric = &options.metrics->actor("pool/" + options.name).dropped_expired;
    stuck_metric =
        &options.metrics->gauge("pillar_csi_blocking_stuck_workers", "Workers whose job is past its deadline",
                                {{"pool", options.name}});
    seconds_metric = &options.metrics->histogram("pillar_csi_blocking_job_seconds",
                                                 "Run time of blocking jobs", {{"pool", options.name}});
  }

  static void give(Answers& answers) {
    for (auto& answer : answers) answer();
    answers.clear();
  }

  void note_expired() {
    ++expired;
    if (expired_metric) expired_metric->add();
  }
  void note_stuck(int change) {
    stuck = change > 0 ? stuck + 1 : stuck - 1;
    if (stuck_metric) stuck_metric->add(change);
  }

  /// The refusal of a job that may not wait or start, if any. Lock held.
  std::optional<Error> objection(const Job& job, bool leaves_queue) {
    const auto& what = job.options.what;
    if (stopping) return make_error(Reason::shutting_down, what + " not started: the program is stopping");
    if (job.deadline.passed()) {
      note_expired();
      return make_error(
          Reason::deadline_exceeded,
          what + " not started: its deadline passed while it waited for a worker; repeat the call");
    }
    if (!job.options.key.empty() && stuck_keys.count(job.options.key) > 0) {
      ++refused;
      return make_error(Reason::operation_pending,
                        fmt::format("{} not started: an earlier host call for {} hangs in the kernel; it is "
                                    "tried again once that returns",
                                    what, job.options.key));
    }
    if (!leaves_queue && queue.size() >= options.queue) {
      ++refused;
      return make_error(Reason::queue_full, fmt::format("{} not started: {} host calls wait and {} of {} "
                                                        "workers hang; repeat the call later",
                                                        what, queue.size(), stuck, threads));
    }
    return std::nullopt;
  }

  void add(Job job) {
    std::unique_lock lock(mutex);
    if (auto error = objection(job, false)) {
      lock.unlock();
      return job.refuse(std::move(*error));
    }
    queue.push_back(std::move(job));
    start_threads();
    if (threads > 0) {
      lock.unlock();
      work_ready.notify_one();
      deadlines_changed.notify_one();
      return;
    }
    Job refused_job = std::move(queue.back());
    queue.pop_back();
    lock.unlock();
    refused_job.refuse(make_error(
        Reason::queue_full, refused_job.options.what + " not started: no thread could be created; raise the "
                                                       "process's thread limit"));
  }

  /// Starts what is needed for the queue within the limits. Lock held.
  void start_threads() {
    try {
      if (!monitoring) {
        std::thread([self = shared_from_this()] { self->monitor(); }).detach();
        monitoring = true;
      }
      while (idle + starting < queue.size() && threads - stuck < options.threads &&
             threads < options.hard_cap) {
        std::thread([self = shared_from_this()] { self->work(); }).detach();
        ++threads;
        ++starting;
      }
    } catch (const std::system_error&) {
      // No thread to be had: the queue waits for those that exist.
    }
  }

  void work() {
    std::unique_lock lock(mutex);
    --starting;
    while (!stopping && threads - stuck <= options.threads) {
      if (queue.empty()) {
        ++idle;
        work_ready.wait(lock, [this] { return stopping || !queue.empty(); });
        --idle;
        continue;
      }
      Job job = std::move(queue.front());
      queue.pop_front();
      if (auto error = objection(job, true)) {
        lock.unlock();
        job.refuse(std::move(*error));
        job = {};
        lock.lock();
        continue;
      }
      run_one(std::move(job), lock);
    }
    --threads;
    gone.notify_all();
  }

  void run_one(Job job, std::unique_lock<std::mutex>& lock) {
    const auto me = running.insert(
        running.end(), {job.deadline, job.options.key, job.options.what, std::move(job.refuse), false});
    lock.unlock();
    deadlines_changed.notify_one();
    const auto started = Clock::now();
    auto deliver = job.run();
    job = {};  // what the job holds is released before the answer and outside the lock
    if (seconds_metric)
      seconds_metric->observe(std::chrono::duration<double>(Clock::now() - started).count());
    lock.lock();
    Running mine = std::move(*me);
    running.erase(me);
    if (mine.stuck) {
      note_stuck(-1);
      const auto key = stuck_keys.find(mine.key);
      if (key != stuck_keys.end() && --key->second == 0) stuck_keys.erase(key);
    }
    lock.unlock();
    if (!mine.stuck) deliver();
    deliver = {};
    mine.refuse = {};
    lock.lock();
  }

  /// Answers jobs at their deadline, running or waiting, and replaces the workers that got stuck.
  void monitor() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      Answers answers;
      const auto next = expire(answers);
      if (!answers.empty()) {
        start_threads();
        lock.unlock();
        give(answers);
        lock.lock();
        continue;
      }
      if (next.is_never()) {
        deadlines_changed.wait(lock);
      } else {
        deadlines_changed.wait_until(lock, next.at);
      }
    }
    monitoring = false;
    gone.notify_all();
  }

  /// Collects the answers for what has passed its deadline; yields the next deadline. Lock held.
  Deadline expire(Answers& answers) {
    Deadline next = Deadline::never();
    for (auto& run : running) {
      if (run.stuck) continue;
      if (!run.deadline.passed()) {
        next = next.earlier(run.deadline);
        continue;
      }
      run.stuck = true;
      ++replaced;
      note_stuck(+1);
      if (!run.key.empty()) ++stuck_keys[run.key];
      answers.push_back([refuse = run.refuse, what = run.what] {
        refuse(make_error(
            Reason::deadline_exceeded,
            what + " has not returned by its deadline and goes on in the kernel; repeat the call"));
      });
    }
    std::deque<Job> kept;
    for (auto& job : std::exchange(queue, {})) {
      if (!job.deadline.passed()) {
        next = next.earlier(job.deadline);
        kept.push_back(std::move(job));
        continue;
      }
      note_expired();
      answers.push_back([job = std::make_shared<Job>(std::move(job))] {
        job->refuse(make_error(
            Reason::deadline_exceeded,
            job->options.what +
                " not started: its deadline passed while it waited for a worker; repeat the call"));
      });
    }
    queue = std::move(kept);
    return next;
  }

  void stop() {
    std::unique_lock lock(mutex);
    stopping = true;
    auto left = std::exchange(queue, {});
    lock.unlock();
    work_ready.notify_all();
    deadlines_changed.notify_all();
    for (auto& job : left) {
      job.refuse(
          make_error(Reason::shutting_down, job.options.what + " not started: the program is stopping"));
    }
    left.clear();
    lock.lock();
    gone.wait_for(lock, std::chrono::seconds(2), [this] { return threads == stuck && !monitoring; });
  }

  const BlockingPoolOptions options;
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable deadlines_changed;
  std::condition_variable gone;
  std::deque<Job> queue;
  std::list<Running> running;
  std::map<std::string, std::size_t> stuck_keys;
  std::size_t threads = 0;
  std::size_t starting = 0;
  std::size_t idle = 0;
  std::size_t stuck = 0;
  std::uint64_t expired = 0;
  std::uint64_t refused = 0;
  std::uint64_t replaced = 0;
  bool monitoring = false;
  bool stopping = false;
  Counter* expired_metric = nullptr;
  Gauge* stuck_metric = nullptr;
  Histogram* seconds_metric = nullptr;
};

BlockingPool::BlockingPool(BlockingPoolOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))) {}

BlockingPool::~BlockingPool() { shared_->stop(); }

void BlockingPool::enqueue(Job job) { shared_->add(std::move(job)); }

BlockingPool::Stats BlockingPool::stats() const {
  const std::lock_guard lock(shared_->mutex);
  return {shared_->threads, shared_->stuck,   shared_->queue.size(),
          shared_->expired, shared_->refused, shared_->replaced};
}

Error BlockingPool::exception_error(const std::string& what, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return make_error(Reason::internal, fmt::format("{} failed: {}; report this as a bug", what, e.what()));
  } catch (...) {
    return make_error(Reason::internal, what + " failed: unknown exception; report this as a bug");
  }
}

}  // namespace pillar::runtime
