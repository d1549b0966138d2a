// controller/reconciler: one pass (reconcile_ops.hpp) after changes, gathered for a moment; again after a
// failure.

#include "actors/controller/actors.hpp"
#include "actors/controller/pauses.hpp"
#include "actors/controller/reconcile_ops.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {
namespace {

using runtime::ActorBase;
using runtime::ActorOptions;
using runtime::OperationQueue;

/// Changes that come together (a manifest with several objects) are handled in one pass.
constexpr auto k_gather = std::chrono::milliseconds(20);
constexpr auto k_retry_first = std::chrono::milliseconds(200);
constexpr auto k_retry_max = std::chrono::seconds(30);

class ReconcileLoop : public std::enable_shared_from_this<ReconcileLoop> {
 public:
  ReconcileLoop(std::shared_ptr<runtime::ActorCell> cell, Ports ports, std::shared_ptr<Catalog> catalog)
      : queue_(cell),
        timer_(cell->executor()),
        ports_(std::move(ports)),
        catalog_(std::move(catalog)),
        backoff_(k_retry_first, k_retry_max) {}

  /// With `changed`: something is different. Without: only make sure that a first pass has been made.
  void wake(bool changed) {
    if (started_ && !changed) return;
    started_ = true;
    if (running_)
      again_ = true;
    else if (!scheduled_)
      schedule(k_gather);
  }

 private:
  void schedule(Clock::duration pause) {
    scheduled_ = true;
    timer_->post_after(pause, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->run();
    });
  }

  void run() {
    scheduled_ = false;
    running_ = true;
    const bool accepted = queue_.background(
        "reconcile", [this](OperationContext context) { return pass(this, std::move(context)); });
    if (!accepted) finish(false);
  }

  // The queue that runs this belongs to the loop, so `self` lives as long as the coroutine does.
  static Task<Result<void>> pass(ReconcileLoop* self, OperationContext context) {
    auto running = reconcile_configuration(std::move(context), self->ports_, self->catalog_);
    auto outcome = co_await std::move(running);
    self->finish(outcome.has_value());
    // A lost race is repeated, not reported.
    if (!outcome && outcome.error().reason == Reason::conflict) co_return Result<void>();
    co_return outcome;
  }

  void finish(bool good) {
    running_ = false;
    if (good) backoff_.reset();
    if (!good) return schedule(backoff_.next());
    if (std::exchange(again_, false)) schedule(k_gather);
  }

  OperationQueue queue_;
  std::shared_ptr<runtime::TimedExecutor> timer_;
  Ports ports_;
  std::shared_ptr<Catalog> catalog_;
  Backoff backoff_;
  bool started_ = false;
  bool scheduled_ = false;
  bool running_ = false;
  bool again_ = false;
};

using ReconcilerActor = caf::typed_actor<caf::reacts_to<Wake>>;
struct ReconcilerState {
  explicit ReconcilerState(ActorBase*) {}
  std::shared_ptr<ReconcileLoop> loop;
};

ReconcilerActor::behavior_type reconciler_actor(runtime::Stateful<ReconcilerState, ReconcilerActor>* self,
                                                Ports ports, std::shared_ptr<Catalog> catalog) {
  ports.executor = self->cell()->executor();
  self->state.loop = std::make_shared<ReconcileLoop>(self->cell(), std::move(ports), std::move(catalog));
  self->cell()->add_idle_check([] { return false; });
  return {[self](const Wake& wake) { self->state.loop->wake(wake.now); }};
}

}  // namespace

WakeRegistry spawn_reconciler(runtime::System& system, Ports ports, std::shared_ptr<Catalog> catalog) {
  runtime::RegistryOptions options;
  options.kind = "controller/reconciler";
  return runtime::spawn_registry<Wake>(
      system, options, [&system, ports, catalog](ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), reconciler_actor, ports, catalog);
      });
}

}  // namespace pillar::controller
