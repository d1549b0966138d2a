#pragma once
// Pauses between tries: doubling, bounded, spread so that many actors do not act in step.

#include "messages/deadline.hpp"

namespace pillar::controller {

/// Doubling pauses from `first` to `max`.
class Backoff {
 public:
  Backoff(Clock::duration first, Clock::duration max) : first_(first), max_(max) {}
  /// The pause before the next try, +-20 %.
  Clock::duration next();
  void reset() { failures_ = 0; }

 private:
  Clock::duration first_;
  Clock::duration max_;
  int failures_ = 0;
};

/// `pause` +-20 %.
Clock::duration jittered(Clock::duration pause);

}  // namespace pillar::controller
