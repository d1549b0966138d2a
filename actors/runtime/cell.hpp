#pragma once
// What the runtime knows about one actor, without CAF: its path, its executor, its metrics, whether it is
// idle. Runtime classes that live inside an actor are built from its cell, so unit tests can give them a cell
// with a plain executor.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/runtime/chaos.hpp"
#include "actors/runtime/executor.hpp"
#include "actors/runtime/metrics.hpp"

namespace pillar::runtime {

/// Process-wide services that every actor can reach.
struct Services {
  std::shared_ptr<Metrics> metrics = std::make_shared<Metrics>();
  std::shared_ptr<Chaos> chaos = std::make_shared<Chaos>();
};

/// Name of an actor.
struct ActorOptions {
  std::string kind;                ///< metric label, for example "agent/volume"
  std::string path;                ///< kind + "/" + key; the kind itself for an only child
  const void* registry = nullptr;  ///< set by a registry for its children
};

/// Shared by an actor and the runtime objects in its state. Except for the const members, touched only in the
/// actor's context.
class ActorCell {
 public:
  ActorCell(ActorOptions options, Services services, std::shared_ptr<TimedExecutor> executor = {})
      : options_(std::move(options)),
        services_(std::move(services)),
        stats_(services_.metrics->actor(options_.kind)),
        executor_(std::move(executor)) {}

  const std::string& kind() const { return options_.kind; }
  const std::string& path() const { return options_.path; }
  const void* registry() const { return options_.registry; }
  const Services& services() const { return services_; }
  ActorStats& stats() const { return stats_; }
  const std::shared_ptr<TimedExecutor>& executor() const { return executor_; }
  void set_executor(std::shared_ptr<TimedExecutor> executor) { executor_ = std::move(executor); }

  /// An actor is passivated by its registry only while every check says idle.
  void add_idle_check(std::function<bool()> check) { idle_checks_.push_back(std::move(check)); }
  bool idle() const {
    for (const auto& check : idle_checks_) {
      if (!check()) return false;
    }
    return true;
  }

  /// Ends the actor as a crash would, after the current message; used by chaos.
  void kill() const {
    if (kill_) kill_();
  }
  void set_kill(std::function<void()> kill) { kill_ = std::move(kill); }
  /// Called by the actor on its exit: drops what refers back to it.
  void detach() {
    idle_checks_.clear();
    kill_ = {};
  }

 private:
  ActorOptions options_;
  Services services_;
  ActorStats& stats_;
  std::shared_ptr<TimedExecutor> executor_;
  std::vector<std::function<bool()>> idle_checks_;
  std::function<void()> kill_;
};

}  // namespace pillar::runtime
