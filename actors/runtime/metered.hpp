#pragma once
// The base class of every actor: hardened, measured, and able to run closures in its own context. A closure
// (Work) is how coroutines and timers come back into the actor; it is handled before the actor's behaviour,
// so actor interfaces list only their own messages.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include <caf/all.hpp>

#include "actors/runtime/cell.hpp"
#include "actors/runtime/harden.hpp"
#include "actors/runtime/tsan.hpp"
#include "messages/actors_caf.hpp"

namespace pillar::runtime {

/// A closure to run in the receiving actor's context.
struct Work {
  std::function<void()> run;
};

/// A registry asks its child whether it may be passivated: `answer` is called (in the child's context) when
/// the child is idle and has seen `forwarded` messages of the registry.
struct RetireQuery {
  std::uint64_t forwarded = 0;
  std::function<void()> answer;
};

/// Posts closures to an actor without keeping it alive.
class ActorExecutor final : public TimedExecutor {
 public:
  explicit ActorExecutor(caf::weak_actor_ptr actor) : actor_(std::move(actor)) {}
  void post(std::function<void()> work) override;
  void post_after(Clock::duration delay, std::function<void()> work) override;

 private:
  const caf::weak_actor_ptr actor_;
};

namespace detail {

/// Hands the cell from System::spawn to the actor's constructor, which CAF calls on the same thread.
class CellHandover {
 public:
  explicit CellHandover(std::shared_ptr<ActorCell> cell);
  ~CellHandover();
  CellHandover(const CellHandover&) = delete;
  CellHandover& operator=(const CellHandover&) = delete;
  /// The cell handed over, or one of kind "unnamed".
  static std::shared_ptr<ActorCell> take();
};

/// True when `e` was a runtime message and has been handled.
bool consume_runtime_message(caf::mailbox_element& e, ActorCell& cell, std::uint64_t& seen);

}  // namespace detail

/// What State constructors take: `explicit VolumeState(ActorBase* self)`.
class ActorBase {
 public:
  const std::shared_ptr<ActorCell>& cell() const { return cell_; }

 protected:
  ActorBase() : cell_(detail::CellHandover::take()) {}
  ~ActorBase() = default;

 private:
  std::shared_ptr<ActorCell> cell_;
};

/// Base is a CAF actor class, for example `VolumeActor::base`. Actors are made with System::spawn.
template <class Base>
class Metered : public Base, public ActorBase {
 public:
  template <class... Ts>
  explicit Metered(caf::actor_config& config, Ts&&... xs) : Base(config, std::forward<Ts>(xs)...) {
    harden(this, cell());
    cell()->set_executor(std::make_shared<ActorExecutor>(caf::actor_cast<caf::weak_actor_ptr>(this)));
    cell()->set_kill([this] { this->quit(caf::exit_reason::kill); });
    detail::happens_before(this);
  }
  ~Metered() override { detail::happens_after(this); }
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;

  using Base::consume;
  using Base::enqueue;

  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override {
    if (pending_.fetch_add(1) >= 0) cell()->stats().mailbox_depth.fetch_add(1);
    detail::happens_before(this);
    Base::enqueue(std::move(element), unit);
  }

  void initialize() override {
    detail::happens_after(this);
    Base::initialize();
    detail::happens_before(this);
  }

  caf::invoke_message_result consume(caf::mailbox_element& element) override {
    detail::happens_after(this);
    const Handling guard(*this);
    if (detail::consume_runtime_message(element, *cell(), seen_)) return caf::invoke_message_result::consumed;
    return Base::consume(element);
  }

  bool cleanup(caf::error&& reason, caf::execution_unit* host) override {
    detail::happens_after(this);
    cell()->detach();
    const bool result = Base::cleanup(std::move(reason), host);
    const auto rest = pending_.exchange(k_closed);
    if (rest > 0) cell()->stats().mailbox_depth.fetch_sub(rest);
    detail::happens_before(this);
    return result;
  }

 private:
  static constexpr std::int64_t k_closed = std::numeric_limits<std::int64_t>::min() / 2;

  /// Measures one message.
  class Handling {
   public:
    explicit Handling(Metered& actor) : actor_(actor), started_(Clock::now()) {}
    ~Handling() {
      auto& stats = actor_.cell()->stats();
      stats.messages.add();
      stats.handling.observe(std::chrono::duration<double>(Clock::now() - started_).count());
      if (actor_.pending_.fetch_sub(1) > 0) stats.mailbox_depth.fetch_sub(1);
      detail::happens_before(&actor_);
    }
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;

   private:
    Metered& actor_;
    Clock::time_point started_;
  };

  std::atomic<std::int64_t> pending_{0};
  std::uint64_t seen_ = 0;
};

/// The implementation type of an actor: `using VolumeImpl = Stateful<VolumeState, VolumeActor>;`.
template <class State, class Handle>
using Stateful = caf::stateful_actor<State, Metered<typename Handle::base>>;

}  // namespace pillar::runtime

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(pillar::runtime::Work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(pillar::runtime::RetireQuery)
