#pragma once
// Deadlines travel with every message; what has passed its deadline is dropped unprocessed.

#include <chrono>

namespace pillar {

using Clock = std::chrono::steady_clock;

/// The instant by which a caller must have its answer. Steady clock: immune to wall-clock steps.
struct Deadline {
  Clock::time_point at = Clock::time_point::max();

  /// `span` from now.
  static Deadline after(Clock::duration span) { return Deadline{Clock::now() + span}; }
  /// No limit: background work that has no caller.
  static Deadline never() { return Deadline{}; }

  bool is_never() const { return at == Clock::time_point::max(); }
  bool passed() const { return !is_never() && Clock::now() >= at; }
  /// Time left, never negative; `cap` when there is no limit.
  Clock::duration left(Clock::duration cap = std::chrono::hours(1)) const {
    if (is_never()) return cap;
    const auto rest = at - Clock::now();
    return rest < Clock::duration::zero() ? Clock::duration::zero() : (rest < cap ? rest : cap);
  }
  /// The earlier of both.
  Deadline earlier(Deadline other) const { return other.at < at ? other : *this; }
};

}  // namespace pillar
