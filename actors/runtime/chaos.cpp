#include "actors/runtime/chaos.hpp"

#include <unistd.h>

#include <array>
#include <charconv>

#include <nlohmann/json.hpp>

namespace pillar::runtime {

namespace {

constexpr std::array<std::pair<std::string_view, ChaosKind>, 5> k_actions{{{"kill", ChaosKind::kill},
                                                                           {"pause", ChaosKind::pause},
                                                                           {"delay", ChaosKind::delay},
                                                                           {"fail", ChaosKind::fail},
                                                                           {"exit", ChaosKind::exit}}};

std::string_view name_of(ChaosKind kind) {
  for (const auto& [name, value] : k_actions) {
    if (value == kind) return name;
  }
  return "none";
}

/// Splits off and returns the text before the next `separator`.
std::string_view next_part(std::string_view& text, char separator) {
  const auto end = text.find(separator);
  const auto part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return part;
}

auto bad_spec(std::string_view part, std::string_view why) {
  return fail(
      Reason::invalid_argument,
      "chaos specification '" + std::string(part) + "': " + std::string(why) +
          "; expected step=<path glob>:<step glob>,action=kill|pause|delay|fail|exit[,after=N][,times=N]"
          "[,ms=N][,reason=NAME]");
}

/// Sets one `key=value` of a specification.
Result<void> set_field(ChaosPoint& point, std::string_view key, std::string_view value,
                       std::string_view part) {
  if (key == "step") {
    const auto colon = value.rfind(':');
    if (colon == std::string_view::npos) return bad_spec(part, "step has no ':'");
    point.path = value.substr(0, colon);
    point.step = value.substr(colon + 1);
    return {};
  }
  if (key == "action") {
    for (const auto& [name, kind] : k_actions) {
      if (name == value) point.kind = kind;
    }
    if (point.kind == ChaosKind::none) return bad_spec(part, "unknown action");
    return {};
  }
  if (key == "reason") {
    point.reason = reason_from_string(value);
    if (to_string(point.reason) != value) return bad_spec(part, "unknown reason");
    return {};
  }
  if (key != "after" && key != "times" && key != "ms") return bad_spec(part, "unknown key");
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) return bad_spec(part, "not a number");
  if (key == "after") point.after = number;
  if (key == "times") point.times = number;
  if (key == "ms") point.delay = std::chrono::milliseconds(number);
  return {};
}

Result<ChaosPoint> parse_point(std::string_view spec) {
  ChaosPoint point;
  for (std::string_view rest = spec; !rest.empty();) {
    const auto part = next_part(rest, ',');
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) return bad_spec(part, "no '='");
    auto set = set_field(point, part.substr(0, equals), part.substr(equals + 1), part);
    if (!set) return tl::unexpected(set.error());
  }
  if (point.step.empty() || point.kind == ChaosKind::none)
    return bad_spec(spec, "step and action are required");
  return point;
}

auto disabled() {
  return fail(Reason::unsupported, Code::failed_precondition,
              "fault injection is not enabled; start the program with --enable-chaos to allow it");
}

/// "agent/volume" of "agent/volume/vg/name": the part that is the same for all actors of a kind.
std::string kind_of(std::string_view path) {
  const auto first = path.find('/');
  return std::string(first == std::string_view::npos ? path : path.substr(0, path.find('/', first + 1)));
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<void> Chaos::add_spec(std::string_view spec) {
  if (!enabled()) return disabled();
  std::vector<ChaosPoint> parsed;
  for (std::string_view rest = spec; !rest.empty();) {
    const auto part = next_part(rest, ';');
    if (part.empty()) continue;
    auto point = parse_point(part);
    if (!point) return tl::unexpected(point.error());
    parsed.push_back(std::move(*point));
  }
  for (auto& point : parsed) {
    auto added = add(std::move(point));
    if (!added) return tl::unexpected(added.error());
  }
  return {};
}

Result<std::uint64_t> Chaos::add(ChaosPoint point) {
  if (!enabled()) return disabled();
  const std::lock_guard lock(mutex_);
  point.id = next_id_++;
  const auto id = point.id;
  points_.emplace(id, std::move(point));
  return id;
}

Result<void> Chaos::remove(std::uint64_t id) {
  std::vector<std::function<void()>> resume;
  {
    const std::lock_guard lock(mutex_);
    if (points_.erase(id) == 0) {
      return fail(Reason::not_found, "there is no failpoint " + std::to_string(id) + "; list them first");
    }
    const auto [begin, end] = waiting_.equal_range(id);
    for (auto it = begin; it != end; ++it) resume.push_back(std::move(it->second));
    waiting_.erase(begin, end);
  }
  for (auto& each : resume) each();
  return {};
}

void Chaos::clear() {
  std::multimap<std::uint64_t, std::function<void()>> resume;
  {
    const std::lock_guard lock(mutex_);
    points_.clear();
    resume.swap(waiting_);
  }
  for (auto& [id, each] : resume) each();
}

ChaosAction Chaos::hit(std::string_view path, std::string_view step) {
  ChaosAction action;
  if (!enabled()) return action;
  std::function<void(int)> leave;
  {
    const std::lock_guard lock(mutex_);
    ++steps_[kind_of(path) + ":" + std::string(step)];
    for (auto& [id, point] : points_) {
      if (!glob_match(point.path, path) || !glob_match(point.step, step)) continue;
      ++point.hits;
      if (action.kind != ChaosKind::none || point.hits < point.after) continue;
      if (point.times != 0 && point.acted >= point.times) continue;
      ++point.acted;
      action = {point.kind, point.delay, {}, id};
      if (point.kind == ChaosKind::fail) {
        action.error =
            fail(point.reason, "fault injected at step " + std::string(step) + " of " + std::string(path))
                .value();
      }
    }
    leave = exit_;
  }
  if (action.kind == ChaosKind::exit) {
    if (!leave) _exit(137);
    leave(137);
    action.kind = ChaosKind::none;
  }
  return action;
}

void Chaos::when_removed(std::uint64_t point, std::function<void()> resume) {
  {
    const std::lock_guard lock(mutex_);
    if (points_.count(point) > 0) {
      waiting_.emplace(point, std::move(resume));
      return;
    }
  }
  resume();
}

std::vector<ChaosPoint> Chaos::points() const {
  const std::lock_guard lock(mutex_);
  std::vector<ChaosPoint> all;
  for (const auto& [id, point] : points_) all.push_back(point);
  return all;
}

std::map<std::string, std::uint64_t> Chaos::seen_steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

Result<std::string> Chaos::handle_json(const std::string& body) {
  if (!enabled()) return disabled();
  const auto request = nlohmann::json::parse(body.empty() ? "{}" : body, nullptr, false);
  if (!request.is_object()) return fail(Reason::invalid_argument, "the request is not a JSON object");
  for (const auto& [key, value] : request.items()) {
    Result<void> done;
    if (key == "add" && value.is_string()) {
      done = add_spec(value.get<std::string>());
    } else if (key == "remove" && value.is_number_unsigned()) {
      done = remove(value.get<std::uint64_t>());
    } else if (key == "clear" && value.is_boolean()) {
      if (value.get<bool>()) clear();
    } else {
      done = fail(Reason::invalid_argument,
                  "unknown request '" + key +
                      R"('; expected {"add": "<spec>"}, {"remove": <id>} or {"clear": true})");
    }
    if (!done) return tl::unexpected(done.error());
  }
  nlohmann::json answer{{"points", nlohmann::json::array()}, {"steps", seen_steps()}};
  for (const auto& point : points()) {
    answer["points"].push_back({{"id", point.id},
                                {"step", point.path + ":" + point.step},
                                {"action", name_of(point.kind)},
                                {"after", point.after},
                                {"times", point.times},
                                {"hits", point.hits},
                                {"acted", point.acted}});
  }
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void Chaos::set_exit(std::function<void(int)> exit) {
  const std::lock_guard lock(mutex_);
  exit_ = std::move(exit);
}

}  // namespace pillar::runtime
