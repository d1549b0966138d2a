// controller/agent_link/<agent>: runs rounds (link_ops.hpp) at an interval, sooner after a failure or when
// woken.

#include "actors/controller/actors.hpp"
#include "actors/controller/pauses.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {
namespace {

using runtime::ActorBase;
using runtime::ActorOptions;
using runtime::OperationQueue;

/// Decides when the next round runs. Lives in the actor's state, used only in its context.
class LinkLoop : public std::enable_shared_from_this<LinkLoop> {
 public:
  LinkLoop(std::shared_ptr<runtime::ActorCell> cell, LinkPorts ports, LinkTiming timing, std::string agent)
      : queue_(std::move(cell)),
        ports_(std::move(ports)),
        timing_(timing),
        backoff_(timing.retry_first, timing.retry_max),
        agent_(std::move(agent)) {}

  /// Starts the loop if it does not run; with `now` the next round comes at once, but never more often than
  /// the first retry pause allows.
  void wake(bool now) {
    gone_ = false;
    if (running_) {
      again_ = again_ || now;
    } else if (!scheduled_) {
      schedule(Clock::duration::zero());
    } else if (now) {
      const auto since = Clock::now() - last_round_;
      schedule(since >= timing_.retry_first ? Clock::duration::zero() : timing_.retry_first - since);
    }
  }
  bool gone() const { return gone_ && !running_; }

 private:
  void schedule(Clock::duration pause) {
    scheduled_ = true;
    const auto turn = ++turn_;
    ports_.timer->post_after(pause, [weak = weak_from_this(), turn] {
      const auto self = weak.lock();
      if (self && self->turn_ == turn && !self->running_) self->run();
    });
  }

  void run() {
    scheduled_ = false;
    running_ = true;
    last_round_ = Clock::now();
    const bool accepted = queue_.background(
        "link_round", [this](OperationContext context) { return round(this, std::move(context)); });
    if (!accepted) finish(RoundOutcome::unsettled);
  }

  // The queue that runs this belongs to the loop, so `self` lives as long as the coroutine does.
  static Task<Result<void>> round(LinkLoop* self, OperationContext context) {
    auto running = link_round(std::move(context), self->ports_, self->agent_, self->memory_);
    const auto outcome = co_await std::move(running);
    self->finish(outcome);
    co_return Result<void>();
  }

  void finish(RoundOutcome outcome) {
    running_ = false;
    const bool again = std::exchange(again_, false);
    if (outcome == RoundOutcome::steady) backoff_.reset();
    if (again) return schedule(timing_.retry_first);
    switch (outcome) {
      case RoundOutcome::steady:
        return schedule(jittered(timing_.interval));
      case RoundOutcome::unsettled:
        return schedule(backoff_.next());
      case RoundOutcome::agent_gone:
        gone_ = true;
        return;
    }
  }

  OperationQueue queue_;
  LinkPorts ports_;
  LinkTiming timing_;
  Backoff backoff_;
  std::string agent_;
  std::shared_ptr<LinkMemory> memory_ = std::make_shared<LinkMemory>();
  Clock::time_point last_round_{};
  std::uint64_t turn_ = 0;  // of the scheduled round that counts; older timers do nothing
  bool scheduled_ = false;
  bool running_ = false;
  bool again_ = false;
  bool gone_ = false;
};

using LinkActor = caf::typed_actor<caf::reacts_to<Wake>>;
struct LinkState {
  explicit LinkState(ActorBase*) {}
  std::shared_ptr<LinkLoop> loop;
};

LinkActor::behavior_type link_actor(runtime::Stateful<LinkState, LinkActor>* self, LinkPorts ports,
                                    LinkTiming timing, std::string agent) {
  ports.ports.executor = self->cell()->executor();
  ports.timer = self->cell()->executor();
  auto loop = std::make_shared<LinkLoop>(self->cell(), std::move(ports), timing, std::move(agent));
  self->state.loop = loop;
  // A link is never passivated while its agent exists: its rounds are timers, not messages.
  self->cell()->add_idle_check([weak = std::weak_ptr(loop)] {
    const auto alive = weak.lock();
    return !alive || alive->gone();
  });
  return {[self](const Wake& wake) { self->state.loop->wake(wake.now); }};
}

}  // namespace

WakeRegistry spawn_links(runtime::System& system, LinkPorts ports, LinkTiming timing) {
  runtime::RegistryOptions options;
  options.kind = "controller/agent_link";
  return runtime::spawn_registry<Wake>(
      system, options, [&system, ports, timing](ActorOptions child, const std::string& agent) {
        return system.spawn(std::move(child), link_actor, ports, timing, agent);
      });
}

}  // namespace pillar::controller
