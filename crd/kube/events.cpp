#include "crd/kube/events.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>

#include <nlohmann/json.hpp>

#include "crd/kube/clock.hpp"
#include "crd/kube/http.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t k_max_note = 1024;
constexpr std::size_t k_max_instance = 128;
/// Events about cluster-scoped objects live here; the server insists on it.
constexpr const char* k_cluster_namespace = "default";

/// Cuts at a character's begin.
std::string cut(std::string text, std::size_t longest) {
  if (text.size() <= longest) return text;
  std::size_t end = longest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

std::string key_of(const Event& event) {
  const auto& about = event.regarding;
  std::string out;
  for (const auto& part : {about.kind, about.name_space, about.name, about.uid, event.reason, event.action})
    out += part + "\n";
  return out + (event.warning ? "W" : "N");
}

std::string collection(const std::string& name_space) {
  return "/apis/events.k8s.io/v1/namespaces/" + encode(name_space) + "/events";
}

}  // namespace

EventSubject subject_of(const Object& object) {
  return {std::string(k_api_version), std::string(to_string(object.kind)), object.metadata.name, "",
          object.metadata.uid};
}

/// Lives on the client thread, except for the counters.
class EventRecorder::Impl : public std::enable_shared_from_this<EventRecorder::Impl> {
 public:
  Impl(std::shared_ptr<Client> client, EventOptions options)
      : client_(std::move(client)), options_(std::move(options)), random_(std::random_device{}()) {}

  void record(const Event& event) {
    const auto now = Clock::now();
    const auto key = key_of(event);
    const auto known = series_.find(key);
    if (known == series_.end() || now - known->second.seen > options_.series) return begin(key, event, now);
    auto& series = known->second;
    series.seen = now;
    ++series.count;
    if (!series.scheduled) {
      series.scheduled = true;
      const auto due = series.written + options_.series_pause;
      const auto delay = std::max(Clock::duration::zero(), due - now);
      post_after(std::chrono::duration_cast<std::chrono::milliseconds>(delay),
                 [weak = weak_from_this(), key] {
                   if (const auto self = weak.lock()) self->go_on(key);
                 });
    }
  }

  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> dropped{0};

 private:
  struct Series {
    std::string name;
    std::string name_space;
    int count = 1;
    bool made = false;  ///< the server has the event
    bool scheduled = false;
    Clock::time_point seen;
    Clock::time_point written;
  };

  void begin(const std::string& key, const Event& event, Clock::time_point now) {
    if (!take_token(now)) {
      ++dropped;
      return;
    }
    forget_oldest();
    auto& series = series_[key];
    series = {};
    series.name_space = event.regarding.name_space.empty() ? k_cluster_namespace : event.regarding.name_space;
    series.name = event.regarding.name.substr(0, 200) + "." + token_text();
    series.seen = series.written = now;
    Request request;
    request.method = "POST";
    request.path = collection(series.name_space);
    request.subject = "Event/" + series.name;
    request.body = body_of(event, series).dump(-1, ' ', false, json::error_handler_t::replace);
    client_->call(std::move(request), [weak = weak_from_this(), key](const Result<json>& answer) {
      if (const auto self = weak.lock()) self->answered(key, answer.has_value());
    });
  }

  json body_of(const Event& event, const Series& series) const {
    const auto& about = event.regarding;
    json regarding{{"apiVersion", about.api_version}, {"kind", about.kind}, {"name", about.name}};
    if (!about.uid.empty()) regarding["uid"] = about.uid;
    if (!about.name_space.empty()) regarding["namespace"] = about.name_space;
    return {{"apiVersion", "events.k8s.io/v1"},
            {"kind", "Event"},
            {"metadata", {{"name", series.name}, {"namespace", series.name_space}}},
            {"eventTime", micro_now()},
            {"type", event.warning ? "Warning" : "Normal"},
            {"reason", event.reason},
            {"action", event.action},
            {"note", cut(event.note, k_max_note)},
            {"reportingController", options_.controller},
            {"reportingInstance", cut(options_.instance, k_max_instance)},
            {"regarding", std::move(regarding)}};
  }

  void schedule(const std::string& key, Clock::duration delay) {
    series_[key].scheduled = true;
    const auto wait =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::max(Clock::duration::zero(), delay));
    post_after(wait, [weak = weak_from_this(), key] {
      if (const auto self = weak.lock()) self->go_on(key);
    });
  }

  /// Writes how often it has happened by now.
  void go_on(const std::string& key) {
    const auto known = series_.find(key);
    if (known == series_.end()) return;
    auto& series = known->second;
    if (!series.made) return schedule(key, options_.series_pause);  // its event is still on the way
    series.scheduled = false;
    series.written = Clock::now();
    Request request;
    request.method = "PATCH";
    request.content_type = "application/merge-patch+json";
    request.path = collection(series.name_space) + "/" + encode(series.name);
    request.subject = "Event/" + series.name;
    request.body = json{{"series", {{"count", series.count}, {"lastObservedTime", micro_now()}}}}.dump();
    client_->call(std::move(request), [weak = weak_from_this(), key](const Result<json>& answer) {
      if (const auto self = weak.lock()) self->answered(key, answer.has_value());
    });
  }

  void answered(const std::string& key, bool taken) {
    ++(taken ? written : failed);
    if (const auto known = series_.find(key); known != series_.end()) known->second.made = taken;
    // An event that is not there (the server drops them after an hour) cannot go on: the next one begins
    // anew.
    if (!taken) series_.erase(key);
  }

  bool take_token(Clock::time_point now) {
    const auto full = static_cast<double>(options_.burst);
    const std::chrono::duration<double> since = now - refilled_;
    tokens_ = refilled_ == Clock::time_point{} ? full : std::min(full, tokens_ + since.count());
    refilled_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

  void forget_oldest() {
    if (series_.size() < options_.subjects) return;
    series_.erase(std::min_element(series_.begin(), series_.end(), [](const auto& a, const auto& b) {
      return a.second.seen < b.second.seen;
    }));
  }

  std::string token_text() {
    static constexpr char k_digits[] = "0123456789abcdef";
    std::string out;
    for (int i = 0; i < 16; ++i) out.push_back(k_digits[random_() & 15U]);
    return out;
  }

  std::shared_ptr<Client> client_;
  const EventOptions options_;
  std::mt19937_64 random_;
  std::map<std::string, Series> series_;
  double tokens_ = 0;
  Clock::time_point refilled_{};
};

EventRecorder::EventRecorder(std::shared_ptr<Client> client, EventOptions options)
    : impl_(std::make_shared<Impl>(std::move(client), std::move(options))) {}
EventRecorder::~EventRecorder() = default;

void EventRecorder::record(Event event) {
  post([impl = impl_, event = std::move(event)] { impl->record(event); });
}

EventRecorder::Stats EventRecorder::stats() const { return {impl_->written, impl_->failed, impl_->dropped}; }

}  // namespace pillar::crd::kube
