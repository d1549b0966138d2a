#pragma once
// Log lines: one per completed call, with fixed fields, as JSON or text on stderr. Secrets never reach a
// line: fields whose name looks like one are replaced, and callers do not pass secrets in messages.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

using LogFields = std::vector<std::pair<std::string, std::string>>;

/// Sets up the default spdlog logger: `format` is "json" or "text"; `level` is trace, debug, info, warning,
/// error or off. INVALID_ARGUMENT naming the wrong value otherwise.
Result<void> setup_logging(std::string_view format, std::string_view level);

/// Logs `message` with `fields`. Control characters are escaped; fields whose name contains "secret",
/// "password", "token" or "dhchap" are written as "[redacted]".
void log(spdlog::level::level_enum level, std::string_view message, const LogFields& fields = {});

/// The spdlog level for a severity of the error table.
spdlog::level::level_enum log_level(Severity severity);

/// Lets the first line of a key pass and then one per `interval`, so that an expected, repeated refusal does
/// not flood the log (reported-faults row O12). Not thread-safe.
class LogThrottle {
 public:
  explicit LogThrottle(Clock::duration interval = std::chrono::minutes(1)) : interval_(interval) {}
  /// Whether to log now; `suppressed` gets the number of lines held back since the last one.
  bool pass(const std::string& key, std::uint64_t& suppressed, Clock::time_point now = Clock::now());

 private:
  struct Entry {
    Clock::time_point last;
    std::uint64_t held = 0;
  };
  Clock::duration interval_;
  std::map<std::string, Entry> entries_;
};

}  // namespace pillar::runtime
