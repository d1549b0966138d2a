#include "actors/controller/pauses.hpp"

#include <algorithm>
#include <random>

namespace pillar::controller {

Clock::duration jittered(Clock::duration pause) {
  thread_local std::minstd_rand random{std::random_device{}()};
  std::uniform_real_distribution<double> spread(0.8, 1.2);
  return std::chrono::duration_cast<Clock::duration>(pause * spread(random));
}

Clock::duration Backoff::next() {
  constexpr int k_most_doublings = 16;
  const auto pause = std::min<Clock::duration>(max_, first_ * (1 << std::min(failures_, k_most_doublings)));
  ++failures_;
  return jittered(pause);
}

}  // namespace pillar::controller
