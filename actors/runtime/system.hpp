#pragma once
// The actor system of a program: configured once, roots kept and stopped in order, waited for with a limit.

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/runtime/cell.hpp"
#include "actors/runtime/metered.hpp"

namespace pillar::runtime {

struct SystemOptions {
  std::size_t threads = 2;
  std::size_t max_throughput = 50;  ///< messages one actor may handle before others get the thread
  Services services = {};
};

/// Owns the caf::actor_system. One per program; tests make one per case.
class System {
 public:
  explicit System(SystemOptions options = {});
  /// Calls shutdown(5 s) if that was not done.
  ~System();
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  caf::actor_system& caf() { return *system_; }
  const Services& services() const { return services_; }
  Metrics& metrics() const { return *services_.metrics; }
  Chaos& chaos() const { return *services_.chaos; }

  /// Spawns an actor function `behavior_type fn(Stateful<State, Handle>* self, args...)` under its name;
  /// yields the typed handle. The caller keeps the handle (or calls keep()): an actor nobody refers to ends.
  template <class Fn, class... Ts>
  auto spawn(ActorOptions options, Fn fn, Ts&&... args) {
    const detail::CellHandover handover(std::make_shared<ActorCell>(std::move(options), services_));
    return system_->spawn(fn, std::forward<Ts>(args)...);
  }

  /// Keeps a root actor alive until shutdown, which stops roots in reverse order of keeping.
  template <class Handle>
  Handle keep(Handle handle) {
    keep_root(caf::actor_cast<caf::strong_actor_ptr>(handle));
    return handle;
  }

  /// Stops the roots (registries stop their children) and waits until every actor is gone. False when some
  /// were still there after `limit`; they are then abandoned. Calls they held were answered UNAVAILABLE.
  bool shutdown(Clock::duration limit);

 private:
  void keep_root(caf::strong_actor_ptr root);

  Services services_;
  std::unique_ptr<caf::actor_system_config> config_;
  std::unique_ptr<caf::actor_system> system_;
  std::mutex mutex_;
  std::vector<caf::strong_actor_ptr> roots_;
  bool stopped_ = false;
};

/// Blocks SIGTERM and SIGINT (and ignores SIGPIPE) for this thread and all it starts. Call first thing in
/// main, before any library starts a thread.
void block_termination_signals();
/// Waits for SIGTERM or SIGINT; yields its number.
int wait_for_termination();
/// Makes wait_for_termination() return, from any thread (a component that cannot go on).
void request_termination();

}  // namespace pillar::runtime
