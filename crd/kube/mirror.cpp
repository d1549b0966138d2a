#include "crd/kube/mirror.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "crd/kube/http.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds k_first_pause{500};
constexpr milliseconds k_longest_pause{30000};

std::string metadata_text(const json& object, const char* key) {
  const auto metadata = object.find("metadata");
  if (metadata == object.end() || !metadata->is_object()) return {};
  const auto it = metadata->find(key);
  return it != metadata->end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

/// Lives on the client thread.
class Mirror::Impl : public std::enable_shared_from_this<Mirror::Impl> {
 public:
  Impl(std::shared_ptr<Client> client, std::string path, std::string subject, Handler handler)
      : client_(std::move(client)),
        path_(std::move(path)),
        subject_(std::move(subject)),
        handler_(std::move(handler)) {}

  void begin() {
    if (stopped_) return;
    watch_.reset();
    version_.empty() ? list() : follow();
  }
  void stop() {
    stopped_ = true;
    watch_.reset();
  }

 private:
  void list() {
    client_->list(path_, subject_, {}, [weak = weak_from_this()](Result<Client::RawPage> page) {
      const auto self = weak.lock();
      if (!self || self->stopped_) return;
      page ? self->listed(*page) : self->failed(page.error());
    });
  }

  /// Tells what differs from what was told before.
  void listed(const Client::RawPage& page) {
    std::map<std::string, std::string> present;
    for (const auto& item : page.items) {
      const auto name = metadata_text(item, "name");
      const auto version = metadata_text(item, "resourceVersion");
      present.emplace(name, version);
      const auto known = known_.find(name);
      if (known == known_.end() || known->second != version) handler_.on_set(item);
    }
    const auto before = std::exchange(known_, std::move(present));
    for (const auto& [name, version] : before)
      if (!known_.contains(name)) handler_.on_removed(name);
    version_ = page.resource_version;
    if (handler_.on_state) handler_.on_state(std::nullopt);
    follow();
  }

  void follow() {
    if (stopped_) return;
    RawWatchHandler raw;
    raw.on_event = [weak = weak_from_this()](std::string_view type, const json& object) {
      const auto self = weak.lock();
      if (self && !self->stopped_) self->happened(type, object);
    };
    raw.on_end = [weak = weak_from_this()](const Error& error) {
      const auto self = weak.lock();
      if (self && !self->stopped_) self->failed(error);
    };
    watch_ = client_->watch(path_, subject_, version_, std::move(raw));
  }

  void happened(std::string_view type, const json& object) {
    pause_ = k_first_pause;
    if (std::exchange(failing_, false) && handler_.on_state) handler_.on_state(std::nullopt);
    version_ = metadata_text(object, "resourceVersion");
    const auto name = metadata_text(object, "name");
    if (type == "DELETED") {
      if (known_.erase(name) != 0) handler_.on_removed(name);
    } else if (type != "BOOKMARK") {
      known_[name] = version_;
      handler_.on_set(object);
    }
  }

  void failed(const Error& error) {
    if (error.reason == Reason::version_expired) {
      version_.clear();
    } else {
      failing_ = true;
      if (handler_.on_state) handler_.on_state(error);
    }
    const auto pause = std::exchange(pause_, std::min(pause_ * 2, k_longest_pause));
    post_after(pause, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->begin();
    });
  }

  std::shared_ptr<Client> client_;
  const std::string path_;
  const std::string subject_;
  const Handler handler_;
  std::map<std::string, std::string> known_;  ///< name -> version, as told
  std::string version_;                       ///< empty: list first
  milliseconds pause_ = k_first_pause;
  bool failing_ = false;
  bool stopped_ = false;
  std::unique_ptr<Watch> watch_;
};

Mirror::Mirror(std::shared_ptr<Client> client, std::string path, std::string subject, Handler handler)
    : impl_(std::make_shared<Impl>(std::move(client), std::move(path), std::move(subject),
                                   std::move(handler))) {
  post([impl = impl_] { impl->begin(); });
}

Mirror::~Mirror() {
  run_on_client_thread([this] { impl_->stop(); });
}

}  // namespace pillar::crd::kube
