#pragma once
// One thing at a time per actor: runs the coroutines of calls one after the other, answers callers at their
// deadline while the work goes on, and turns whatever goes wrong in one call into the answer of that call.

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "actors/runtime/cell.hpp"
#include "actors/runtime/task.hpp"
#include "messages/call.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

namespace detail {

/// What is known of one running operation; shared by its coroutine and the queue.
struct OperationRecord {
  std::string path;
  std::string operation;
  std::string step = "begin";
  Deadline deadline;
  Clock::time_point started = Clock::now();
  std::vector<std::pair<std::string, std::string>> notes;
  std::shared_ptr<TimedExecutor> executor;
  std::shared_ptr<Chaos> chaos;
  std::function<void()> kill;
  std::function<ChaosAction(std::string_view step)> hook;  // detached contexts of unit tests
};

}  // namespace detail

/// `co_await context.step("mark_written")`: announces the step and yields the error injected there, if any.
class [[nodiscard]] StepAwaiter {
 public:
  StepAwaiter(std::shared_ptr<detail::OperationRecord> record, std::string_view step);
  bool await_ready() const noexcept;
  void await_suspend(std::coroutine_handle<> caller);
  Result<void> await_resume();
  StepAwaiter(const StepAwaiter&) = delete;
  StepAwaiter& operator=(const StepAwaiter&) = delete;
  ~StepAwaiter();

 private:
  std::shared_ptr<detail::OperationRecord> record_;
  ChaosAction action_;
  std::shared_ptr<std::coroutine_handle<>> waiter_;
};

/// Handed to every operation. A cheap copyable handle; pass it on by value.
class OperationContext {
 public:
  explicit OperationContext(std::shared_ptr<detail::OperationRecord> record) : record_(std::move(record)) {}
  /// A context without an actor, for unit tests. `hook` decides about each step: fail yields its error, kill
  /// and pause leave the coroutine suspended so that the test can destroy it; empty: every step passes.
  static OperationContext detached(std::string path = "test",
                                   std::function<ChaosAction(std::string_view step)> hook = {});

  /// Announces that the operation has come to `name` (lower_snake, fixed set). Shown in deadline answers and
  /// "operation pending" refusals; a failpoint when chaos is enabled.
  StepAwaiter step(std::string_view name) const { return StepAwaiter(record_, name); }
  /// Name of the last announced step.
  const std::string& current_step() const { return record_->step; }
  /// The caller's deadline. The operation outlives it; use it only to bound waits whose result a repeat of
  /// the call picks up.
  Deadline deadline() const { return record_->deadline; }
  const std::string& path() const { return record_->path; }
  const std::string& operation() const { return record_->operation; }
  /// The actor's executor; empty in a detached context.
  const std::shared_ptr<TimedExecutor>& executor() const { return record_->executor; }
  /// Adds a field to the line logged at the end of the operation. Never pass secrets.
  void note(std::string key, std::string value) const {
    record_->notes.emplace_back(std::move(key), std::move(value));
  }

 private:
  std::shared_ptr<detail::OperationRecord> record_;
};

struct OperationQueueOptions {
  /// Calls that may wait behind the running one. 0: a call that finds the actor busy is refused at once with
  /// ABORTED/OPERATION_PENDING.
  std::size_t waiting = 0;
};

/// Lives in an actor's state; used only in the actor's context. Its end destroys the running coroutine, whose
/// caller then gets UNAVAILABLE/ACTOR_RESTARTED.
class OperationQueue {
 public:
  OperationQueue(std::shared_ptr<ActorCell> cell, OperationQueueOptions options = {});
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;
  ~OperationQueue();

  /// Runs `fn(OperationContext, std::shared_ptr<const Request>)`, a function that yields a
  /// `Task<Result<Response>>`, when its turn comes. `fn` is kept until the task has ended, so it may be a
  /// coroutine lambda with captures. Drops a call whose deadline has passed; answers a call whose deadline
  /// passes later with DEADLINE_EXCEEDED while the operation goes on; an exception becomes INTERNAL.
  template <class Request, class Response, class Fn>
  void submit(const Call<Request, Response>& call, std::string operation, Fn fn) {
    static_assert(
        std::is_invocable_r_v<Task<Result<Response>>, Fn&, OperationContext, std::shared_ptr<const Request>>,
        "fn must be callable as fn(OperationContext, std::shared_ptr<const Request>) and yield a "
        "Task<Result<Response>>");
    enqueue(make_entry(call, std::move(operation), std::move(fn)));
  }

  /// Work without a caller (a reconcile, a timer): `fn(OperationContext)` yields a `Task<Result<void>>`.
  /// False when the queue is full; errors are logged.
  template <class Fn>
  bool background(std::string operation, Fn fn) {
    if (!has_room()) return false;
    const Call<Unit, Done> call{std::make_shared<const Unit>(), Deadline::never(), {}};
    auto kept = std::make_shared<Fn>(std::move(fn));
    auto entry =
        make_entry(call, std::move(operation), [kept](OperationContext context, std::shared_ptr<const Unit>) {
          return background_body<Fn>(kept, std::move(context));
        });
    entry.background = true;
    enqueue(std::move(entry));
    return true;
  }

  /// True when nothing runs and nothing waits.
  bool idle() const;
  /// True when another submit would be accepted.
  bool has_room() const;
  /// Name of the running operation, empty when there is none.
  std::string running() const;

 private:
  /// What came out of an operation: the error for log and metrics, and how to answer.
  struct Outcome {
    std::optional<Error> error;
    std::function<void()> deliver;
  };
  struct Entry {
    std::string operation;
    Deadline deadline;
    bool background = false;
    std::function<void(Error)> refuse;
    std::function<Task<Outcome>(OperationContext)> start;
  };
  struct Impl;

  template <class Request, class Response, class Fn>
  static Entry make_entry(const Call<Request, Response>& call, std::string operation, Fn fn) {
    Entry entry;
    entry.operation = std::move(operation);
    entry.deadline = call.deadline;
    entry.refuse = [reply = call.reply](Error error) { reply(tl::unexpected(std::move(error))); };
    auto kept = std::make_shared<Fn>(std::move(fn));
    entry.start = [kept, request = call.request, reply = call.reply](OperationContext context) {
      return body<Request, Response, Fn>(kept, std::move(context), request, reply);
    };
    return entry;
  }

  static Error internal_error(const OperationContext& context, std::exception_ptr what);

  template <class Request, class Response, class Fn>
  static Task<Outcome> body(std::shared_ptr<Fn> fn, OperationContext context,
                            std::shared_ptr<const Request> request, Reply<Response> reply) {
    auto result = std::make_shared<Result<Response>>(tl::unexpected<Error>(Error{}));
    try {
      Task<Result<Response>> task = (*fn)(context, std::move(request));
      *result = co_await std::move(task);
    } catch (...) {
      *result = tl::unexpected(internal_error(context, std::current_exception()));
    }
    Outcome outcome;
    if (!*result) outcome.error = result->error();
    outcome.deliver = [result, reply = std::move(reply)] { reply(std::move(*result)); };
    co_return outcome;
  }
  template <class Fn>
  static Task<Result<Done>> background_body(std::shared_ptr<Fn> fn, OperationContext context) {
    Task<Result<void>> task = (*fn)(std::move(context));
    Result<void> result = co_await std::move(task);
    if (!result) co_return tl::unexpected(result.error());
    co_return Done{};
  }

  void enqueue(Entry entry);

  std::shared_ptr<Impl> impl_;
};

}  // namespace pillar::runtime
