#pragma once
// Named failpoints inside operations, for tests and for game days. Off unless the program was started with
// --enable-chaos: then every step that an operation announces (OperationContext::step) asks here what to do.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

enum class ChaosKind : std::uint8_t {
  none,
  kill,   ///< the actor dies as if it had crashed
  pause,  ///< the operation waits until the point is removed
  delay,  ///< the operation waits `delay`
  fail,   ///< the step returns an error
  exit,   ///< the process ends with _exit(137), as if killed
};

/// One failpoint.
struct ChaosPoint {
  std::string path;  ///< glob over actor paths; '*' matches any text, '?' one character
  std::string step;  ///< glob over step names
  ChaosKind kind = ChaosKind::none;
  std::uint64_t after = 1;                 ///< acts from this matching hit on (1 = the first)
  std::uint64_t times = 1;                 ///< how many hits it acts on; 0 = all
  Clock::duration delay{};                 ///< for ChaosKind::delay
  Reason reason = Reason::injected_fault;  ///< for ChaosKind::fail
  std::uint64_t id = 0;                    ///< given by Chaos::add
  std::uint64_t hits = 0;                  ///< matching steps so far
  std::uint64_t acted = 0;                 ///< times it acted
};

/// What a step has to do now.
struct ChaosAction {
  ChaosKind kind = ChaosKind::none;
  Clock::duration delay{};
  Error error;
  std::uint64_t point = 0;  ///< id of the point; for waiting on a pause
};

/// The failpoints of a process. Thread-safe.
class Chaos {
 public:
  explicit Chaos(bool enabled = false) : enabled_(enabled) {}

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  /// Adds points from `spec`: `step=<path glob>:<step glob>,action=<kind>[,after=N][,times=N][,ms=N]
  /// [,reason=NAME]`, several separated by ';'. INVALID_ARGUMENT names the part that is wrong;
  /// FAILED_PRECONDITION when chaos is not enabled.
  Result<void> add_spec(std::string_view spec);
  /// Adds one point; yields its id. FAILED_PRECONDITION when chaos is not enabled.
  Result<std::uint64_t> add(ChaosPoint point);
  /// Removes a point and resumes what it paused. NOT_FOUND when there is none.
  Result<void> remove(std::uint64_t id);
  /// Removes all points and resumes everything paused.
  void clear();

  /// What the step has to do; counts the hit. Does not return for ChaosKind::exit.
  ChaosAction hit(std::string_view path, std::string_view step);
  /// Calls `resume` once, when `point` is removed; at once when it is already gone. Any thread.
  void when_removed(std::uint64_t point, std::function<void()> resume);

  std::vector<ChaosPoint> points() const;
  /// Every step seen since the start, "<actor kind part of the path>:<step>" -> count; how crash sweeps learn
  /// what there is to crash at. Only counted while enabled.
  std::map<std::string, std::uint64_t> seen_steps() const;

  /// Request and answer of the admin endpoint, both JSON: `{"add": "<spec>"}`, `{"remove": <id>}`,
  /// `{"clear": true}` or `{}`; answers `{"points": [...], "steps": {...}}`.
  Result<std::string> handle_json(const std::string& body);

  /// Replaces the process exit of ChaosKind::exit; for tests.
  void set_exit(std::function<void(int)> exit);

 private:
  std::atomic<bool> enabled_;
  mutable std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, ChaosPoint> points_;
  std::multimap<std::uint64_t, std::function<void()>> waiting_;
  std::map<std::string, std::uint64_t> steps_;
  std::function<void(int)> exit_;
};

/// Glob match: '*' any text (also '/'), '?' one character.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace pillar::runtime
