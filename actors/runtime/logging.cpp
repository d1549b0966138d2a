#include "actors/runtime/logging.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <ctime>

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <nlohmann/json.hpp>

namespace pillar::runtime {

namespace {

/// Separates message and fields inside a payload; escape() keeps it out of both.
constexpr char k_unit = '\x1f';

/// Makes control characters harmless: a line is one line, and cannot contain our separator.
std::string escape(std::string_view text) {
  static constexpr std::string_view k_hex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += k_hex[byte >> 4];
      out += k_hex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

bool looks_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static constexpr std::array<std::string_view, 4> k_words{"secret", "password", "token", "dhchap"};
  return std::any_of(k_words.begin(), k_words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

std::string timestamp(spdlog::log_clock::time_point at) {
  const auto since = at.time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  const std::time_t whole = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  std::array<char, 32> text{};
  const auto length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text.data(), length), ms % 1000);
}

/// Splits a payload into message, key, value, key, value, ...
std::vector<std::string> split(std::string_view payload) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = payload.find(k_unit);
    parts.emplace_back(payload.substr(0, end));
    if (end == std::string_view::npos) return parts;
    payload.remove_prefix(end + 1);
  }
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    const auto parts = split(std::string_view(msg.payload.data(), msg.payload.size()));
    const auto level = spdlog::level::to_string_view(msg.level);
    const std::string_view level_name(level.data(), level.size());
    const std::string line = json_ ? as_json(msg, level_name, parts) : as_text(msg, level_name, parts);
    out.append(line.data(), line.data() + line.size());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(json_); }

 private:
  static std::string as_json(const spdlog::details::log_msg& msg, std::string_view level,
                             const std::vector<std::string>& parts) {
    nlohmann::ordered_json line{
        {"time", timestamp(msg.time)}, {"level", std::string(level)}, {"message", parts[0]}};
    for (std::size_t i = 1; i + 1 < parts.size(); i += 2) line[parts[i]] = parts[i + 1];
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  /// Quoted when a reader could take it for more than one field.
  static std::string quoted(const std::string& value) {
    if (!value.empty() && value.find_first_of(" =\"") == std::string::npos) return value;
    std::string out = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + '"';
  }
  static std::string as_text(const spdlog::details::log_msg& msg, std::string_view level,
                             const std::vector<std::string>& parts) {
    std::string line = fmt::format("{} {:<7} {}", timestamp(msg.time), level, parts[0]);
    for (std::size_t i = 1; i + 1 < parts.size(); i += 2) line += ' ' + parts[i] + '=' + quoted(parts[i + 1]);
    return line;
  }
  bool json_;
};

}  // namespace

Result<void> setup_logging(std::string_view format, std::string_view level) {
  if (format != "json" && format != "text") {
    return fail(Reason::invalid_argument,
                "log format '" + std::string(format) + "' is not one of json, text");
  }
  static constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 6> k_levels{
      {{"trace", spdlog::level::trace},
       {"debug", spdlog::level::debug},
       {"info", spdlog::level::info},
       {"warning", spdlog::level::warn},
       {"error", spdlog::level::err},
       {"off", spdlog::level::off}}};
  const auto found =
      std::find_if(k_levels.begin(), k_levels.end(), [&](const auto& l) { return l.first == level; });
  if (found == k_levels.end()) {
    return fail(Reason::invalid_argument, "log level '" + std::string(level) +
                                              "' is not one of trace, debug, info, warning, error, off");
  }
  try {
    auto logger =
        std::make_shared<spdlog::logger>("pillar", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_formatter(std::make_unique<LineFormatter>(format == "json"));
    logger->set_level(found->second);
    logger->flush_on(spdlog::level::trace);
    spdlog::set_default_logger(std::move(logger));
  } catch (const std::exception& e) {
    return fail(Reason::internal, std::string("logging could not be set up: ") + e.what());
  }
  return {};
}

void log(spdlog::level::level_enum level, std::string_view message, const LogFields& fields) {
  auto* logger = spdlog::default_logger_raw();
  if (!logger || !logger->should_log(level)) return;
  std::string payload = escape(message);
  for (const auto& [name, value] : fields) {
    payload += k_unit + escape(name);
    payload += k_unit + (looks_secret(name) ? std::string("[redacted]") : escape(value));
  }
  logger->log(level, spdlog::string_view_t(payload.data(), payload.size()));
}

spdlog::level::level_enum log_level(Severity severity) {
  switch (severity) {
    case Severity::debug:
      return spdlog::level::debug;
    case Severity::info:
      return spdlog::level::info;
    case Severity::warning:
      return spdlog::level::warn;
    case Severity::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

bool LogThrottle::pass(const std::string& key, std::uint64_t& suppressed, Clock::time_point now) {
  const auto [it, fresh] = entries_.try_emplace(key, Entry{now, 0});
  auto& entry = it->second;
  if (!fresh && now - entry.last < interval_) {
    ++entry.held;
    return false;
  }
  suppressed = std::exchange(entry.held, 0);
  entry.last = now;
  return true;
}

}  // namespace pillar::runtime
