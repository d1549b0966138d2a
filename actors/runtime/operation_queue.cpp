#include "actors/runtime/operation_queue.hpp"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "actors/runtime/logging.hpp"

namespace pillar::runtime {

namespace {

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

Error make_error(Reason reason, std::string message) { return fail(reason, std::move(message)).value(); }

std::string describe(std::exception_ptr what) {
  try {
    std::rethrow_exception(what);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

StepAwaiter::StepAwaiter(std::shared_ptr<detail::OperationRecord> record, std::string_view step)
    : record_(std::move(record)) {
  record_->step = step;
  if (record_->hook) {
    action_ = record_->hook(step);
  } else if (record_->chaos && record_->chaos->enabled()) {
    action_ = record_->chaos->hit(record_->path, step);
  }
}

StepAwaiter::~StepAwaiter() {
  if (waiter_) *waiter_ = {};
}

bool StepAwaiter::await_ready() const noexcept {
  switch (action_.kind) {
    case ChaosKind::kill:
    case ChaosKind::pause:
      return false;
    case ChaosKind::delay:
      return !record_->executor;
    default:
      return true;
  }
}

void StepAwaiter::await_suspend(std::coroutine_handle<> caller) {
  waiter_ = std::make_shared<std::coroutine_handle<>>(caller);
  auto resume = [waiter = waiter_] {
    if (*waiter) std::exchange(*waiter, {}).resume();
  };
  if (action_.kind == ChaosKind::kill) {
    if (record_->kill) record_->kill();
  } else if (action_.kind == ChaosKind::delay) {
    record_->executor->post_after(action_.delay, resume);
  } else if (record_->chaos && record_->executor) {
    record_->chaos->when_removed(action_.point,
                                 [executor = record_->executor, resume] { executor->post(resume); });
  }
}

Result<void> StepAwaiter::await_resume() {
  if (action_.kind == ChaosKind::fail) return tl::unexpected(std::move(action_.error));
  return {};
}

OperationContext OperationContext::detached(std::string path,
                                            std::function<ChaosAction(std::string_view step)> hook) {
  auto record = std::make_shared<detail::OperationRecord>();
  record->path = std::move(path);
  record->operation = "test";
  record->hook = std::move(hook);
  return OperationContext(std::move(record));
}

/// The queue proper. Closures that come back later hold it weakly: they may outlive the actor's state.
struct OperationQueue::Impl : std::enable_shared_from_this<OperationQueue::Impl> {
  struct Running {
    Entry entry;
    std::shared_ptr<detail::OperationRecord> record;
    bool answered = false;
    Task<void> root;
  };

  Impl(std::shared_ptr<ActorCell> c, OperationQueueOptions o) : cell(std::move(c)), options(o) {}

  bool busy() const { return running || !waiting.empty(); }

  void later(Clock::duration delay, void (Impl::*method)()) {
    auto work = [weak = weak_from_this(), method] {
      if (auto self = weak.lock()) (self.get()->*method)();
    };
    if (delay <= Clock::duration::zero()) {
      cell->executor()->post(std::move(work));
    } else {
      cell->executor()->post_after(delay, std::move(work));
    }
  }

  void drop_expired(const Entry& entry) const {
    cell->stats().dropped_expired.add();
    entry.refuse(make_error(Reason::deadline_exceeded,
                            fmt::format("{} of {} was not started: its deadline had passed while it waited; "
                                        "repeat the call",
                                        entry.operation, cell->path())));
  }

  void refuse_busy(const Entry& entry) const {
    std::string what;
    if (running) {
      const auto& record = *running->record;
      what = fmt::format("{} is running at step {} for {:.1f}s", record.operation, record.step,
                         seconds(Clock::now() - record.started));
    } else {
      what = fmt::format("{} is about to start", waiting.front().operation);
    }
    auto error = make_error(
        Reason::operation_pending,
        fmt::format("{} refused: on {} {}; repeat the call later", entry.operation, cell->path(), what));
    error.details["operation"] = running ? running->record->operation : waiting.front().operation;
    entry.refuse(std::move(error));
  }

  void add(Entry entry) {
    if (entry.deadline.passed()) return drop_expired(entry);
    if (busy() && waiting.size() >= options.waiting) return refuse_busy(entry);
    arm(entry.deadline);
    if (busy() || finished) {
      waiting.push_back(std::move(entry));
    } else {
      begin(std::move(entry));
    }
  }

  void begin(Entry entry) {
    auto record = std::make_shared<detail::OperationRecord>();
    record->path = cell->path();
    record->operation = entry.operation;
    record->deadline = entry.deadline;
    record->executor = cell->executor();
    record->chaos = cell->services().chaos;
    record->kill = [weak = std::weak_ptr<ActorCell>(cell)] {
      if (auto c = weak.lock()) c->kill();
    };
    running = std::make_unique<Running>(Running{std::move(entry), record, false, {}});
    running->root = drive(this, OperationContext(record));
    running->root.start();
  }

  static Task<void> drive(Impl* self, OperationContext context) {
    Outcome outcome;
    try {
      Result<void> injected = co_await context.step("begin");
      if (injected) {
        Task<Outcome> body = self->running->entry.start(context);
        outcome = co_await std::move(body);
        if (!outcome.error) injected = co_await context.step("answer");
      }
      if (!injected) outcome = Outcome{injected.error(), {}};
    } catch (...) {
      outcome = Outcome{internal_error(context, std::current_exception()), {}};
    }
    self->finish(std::move(outcome));
  }

  void finish(Outcome outcome) {
    // The frame of the root is still on the stack: it is kept until pump() runs as a message of its own. The
    // queue counts as idle before the caller hears, so that its next call is not refused.
    finished = std::move(running);
    const auto& entry = finished->entry;
    if (outcome.error && outcome.error->reason == Reason::internal) cell->stats().failures.add();
    report(*finished, outcome.error);
    if (outcome.deliver) {
      outcome.deliver();
    } else {
      entry.refuse(*outcome.error);
    }
    later({}, &Impl::pump);
  }

  void pump() {
    finished.reset();
    while (!running && !finished && !waiting.empty()) {
      auto entry = std::move(waiting.front());
      waiting.pop_front();
      if (entry.deadline.passed()) {
        drop_expired(entry);
      } else {
        begin(std::move(entry));
      }
    }
  }

  void arm(Deadline deadline) {
    if (deadline.is_never() || deadline.at >= timer_at) return;
    timer_at = deadline.at;
    later(std::max(deadline.at - Clock::now(), Clock::duration(1)), &Impl::on_timer);
  }

  void on_timer() {
    if (Clock::now() >= timer_at) timer_at = Clock::time_point::max();
    Deadline next = Deadline::never();
    if (running && !running->answered) {
      if (running->entry.deadline.passed()) {
        answer_unfinished();
      } else {
        next = running->entry.deadline;
      }
    }
    std::deque<Entry> kept;
    for (auto& entry : std::exchange(waiting, {})) {
      if (entry.deadline.passed()) {
        drop_expired(entry);
      } else {
        next = next.earlier(entry.deadline);
        kept.push_back(std::move(entry));
      }
    }
    waiting = std::move(kept);
    arm(next);
  }

  void answer_unfinished() {
    running->answered = true;
    const auto& record = *running->record;
    auto error = make_error(
        Reason::deadline_exceeded,
        fmt::format("still working on {} of {}, step {}, for {:.1f}s; repeat the call", record.operation,
                    record.path, record.step, seconds(Clock::now() - record.started)));
    error.details["step"] = record.step;
    running->entry.refuse(std::move(error));
  }

  void report(const Running& done, const std::optional<Error>& error) {
    const auto& record = *done.record;
    const auto severity = error ? info(error->reason).severity : Severity::info;
    std::uint64_t held = 0;
    const bool expected = error && severity != Severity::error;
    if (expected && !throttle.pass(record.operation + '/' + std::string(to_string(error->reason)), held))
      return;
    LogFields fields{{"actor", record.path},
                     {"operation", record.operation},
                     {"duration_ms", fmt::format("{:.1f}", 1000 * seconds(Clock::now() - record.started))},
                     {"code", std::string(to_string(error ? error->code : Code::ok))}};
    if (error) {
      fields.emplace_back("reason", to_string(error->reason));
      fields.emplace_back("step", record.step);
    }
    if (done.answered) fields.emplace_back("answered", "at deadline");
    if (held > 0) fields.emplace_back("repeats_not_logged", std::to_string(held));
    fields.insert(fields.end(), record.notes.begin(), record.notes.end());
    const bool quiet = done.entry.background && !error;
    log(quiet ? spdlog::level::debug : log_level(severity), error ? error->message : "done", fields);
  }

  std::shared_ptr<ActorCell> cell;
  OperationQueueOptions options;
  std::deque<Entry> waiting;
  std::unique_ptr<Running> running;
  std::unique_ptr<Running> finished;
  Clock::time_point timer_at = Clock::time_point::max();
  LogThrottle throttle;
};

OperationQueue::OperationQueue(std::shared_ptr<ActorCell> cell, OperationQueueOptions options)
    : impl_(std::make_shared<Impl>(cell, options)) {
  cell->add_idle_check([weak = std::weak_ptr<Impl>(impl_)] {
    auto impl = weak.lock();
    return !impl || (!impl->busy() && !impl->finished);
  });
}

OperationQueue::~OperationQueue() = default;

bool OperationQueue::idle() const { return !impl_->busy(); }

bool OperationQueue::has_room() const {
  return !impl_->busy() || impl_->waiting.size() < impl_->options.waiting;
}

std::string OperationQueue::running() const {
  return impl_->running ? impl_->running->record->operation : std::string();
}

void OperationQueue::enqueue(Entry entry) { impl_->add(std::move(entry)); }

Error OperationQueue::internal_error(const OperationContext& context, std::exception_ptr what) {
  return make_error(Reason::internal,
                    fmt::format("{} of {} failed at step {}: {}; report this as a bug", context.operation(),
                                context.path(), context.current_step(), describe(std::move(what))));
}

}  // namespace pillar::runtime
