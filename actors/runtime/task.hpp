#pragma once
// Coroutines for multi-step work inside an actor. A Task runs only in its actor's context: what completes
// elsewhere is posted back through an Executor. A Task that is destroyed while suspended releases everything
// it holds, so a dying actor leaves nothing behind. No CAF here: the same code runs under a plain executor in
// unit tests and simulations.

#include <atomic>
#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace pillar::runtime {

template <class T>
class Task;

namespace detail {

struct PromiseBase {
  std::coroutine_handle<> continuation;
  std::exception_ptr exception;

  std::suspend_always initial_suspend() noexcept { return {}; }
  struct Final {
    bool await_ready() noexcept { return false; }
    template <class P>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<P> self) noexcept {
      auto next = self.promise().continuation;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  Final final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { exception = std::current_exception(); }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object() noexcept;
  template <class U>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
  T take() {
    if (exception) std::rethrow_exception(exception);
    return std::move(*value);
  }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() {
    if (exception) std::rethrow_exception(exception);
  }
};

}  // namespace detail

/// A lazily started computation that yields a T. Move-only owner of its coroutine frame. `co_await
/// std::move(task)` runs it to its end; a root task is driven with `start()`.
template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  bool valid() const { return static_cast<bool>(handle_); }
  bool done() const { return handle_ && handle_.done(); }

  /// Runs to the first suspension. Call once, on a root task.
  void start() { handle_.resume(); }
  /// The result of a task that is done; rethrows what the coroutine threw.
  T take() { return handle_.promise().take(); }
  /// Sets what is resumed when the task ends (used by the driver of root tasks).
  void set_continuation(std::coroutine_handle<> next) { handle_.promise().continuation = next; }

  struct Awaiter {
    Handle handle;
    bool await_ready() const noexcept { return handle.done(); }
    /// Runs the task right here and suspends the caller only if it did: a loop over tasks that end at once
    /// needs no stack, also in builds where the compiler does not turn resumption into a jump.
    bool await_suspend(std::coroutine_handle<> caller) {
      handle.resume();
      if (handle.done()) return false;
      handle.promise().continuation = caller;
      return true;
    }
    T await_resume() { return handle.promise().take(); }
  };
  /// The Task must outlive the await expression: a named local or a temporary of the full expression both do.
  Awaiter operator co_await() const& noexcept { return Awaiter{handle_}; }
  Awaiter operator co_await() && noexcept { return Awaiter{handle_}; }

 private:
  void reset() {
    if (handle_) handle_.destroy();
    handle_ = {};
  }
  Handle handle_;
};

template <class T>
Task<T> detail::Promise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> detail::Promise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

/// Where continuations run: one actor's context, or a plain queue in tests.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs `work` later in this context, or destroys it unrun when the context is gone. Callable from any
  /// thread.
  virtual void post(std::function<void()> work) = 0;
};

/// Suspends until `start(complete)`'s callback `complete(T)` has been called from any thread, then continues
/// in `executor`. Only the first call counts. A completion that arrives after the awaiting frame was
/// destroyed is discarded. If every copy of `complete` is destroyed uncalled, the await throws
/// std::runtime_error.
template <class T>
class Async {
 public:
  using Complete = std::function<void(T)>;
  using Start = std::function<void(Complete)>;

  Async(std::shared_ptr<Executor> executor, Start start)
      : executor_(std::move(executor)), start_(std::move(start)) {}
  Async(const Async&) = delete;
  Async& operator=(const Async&) = delete;
  ~Async() {
    if (slot_) slot_->waiter = {};
  }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> caller) {
    slot_ = std::make_shared<Slot>();
    slot_->waiter = caller;
    auto completion = std::make_shared<Completion>(executor_, slot_);
    try {
      start_([completion](T value) { completion->finish(std::move(value)); });
    } catch (...) {
      slot_->waiter = {};  // the exception continues in the awaiting coroutine
      throw;
    }
  }
  T await_resume() {
    if (!slot_->value) throw std::runtime_error("an awaited completion was dropped");
    return std::move(*slot_->value);
  }

 private:
  /// Touched only in the executor's context.
  struct Slot {
    std::optional<T> value;
    std::coroutine_handle<> waiter;
    void resume() {
      if (waiter) std::exchange(waiter, {}).resume();
    }
  };
  /// The producer's end.
  struct Completion {
    Completion(std::shared_ptr<Executor> target, std::shared_ptr<Slot> into)
        : executor(std::move(target)), slot(std::move(into)) {}
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;
    ~Completion() {
      if (!finished.exchange(true)) executor->post([into = slot] { into->resume(); });
    }
    void finish(T value) {
      if (finished.exchange(true)) return;
      // std::function wants copyable captures, hence the box.
      auto box = std::make_shared<T>(std::move(value));
      executor->post([into = slot, box] {
        if (!into->waiter) return;
        into->value.emplace(std::move(*box));
        into->resume();
      });
    }
    const std::shared_ptr<Executor> executor;
    const std::shared_ptr<Slot> slot;
    std::atomic<bool> finished{false};
  };
  std::shared_ptr<Executor> executor_;
  Start start_;
  std::shared_ptr<Slot> slot_;
};

}  // namespace pillar::runtime
