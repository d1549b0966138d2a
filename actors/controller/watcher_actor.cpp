// controller/watcher/<kind>: follows one kind in the store and feeds the index or the catalogue. A watch that
// ends is resumed; what was deleted meanwhile is found by comparing with a fresh list (reported-faults row
// O03). A store that cannot be reached is never read as "everything was deleted" (row O05).

#include <set>

#include "actors/controller/actors.hpp"
#include "actors/controller/pauses.hpp"
#include "actors/controller/records.hpp"
#include "actors/runtime/logging.hpp"

namespace pillar::controller {
namespace {

using runtime::ActorBase;
using runtime::ActorOptions;

constexpr auto k_retry_first = std::chrono::milliseconds(500);
constexpr auto k_retry_max = std::chrono::seconds(30);

class WatchLoop : public std::enable_shared_from_this<WatchLoop> {
 public:
  WatchLoop(std::shared_ptr<runtime::TimedExecutor> executor, WatchTargets targets, crd::Kind kind)
      : executor_(std::move(executor)),
        targets_(std::move(targets)),
        kind_(kind),
        backoff_(k_retry_first, k_retry_max) {}

  void wake() {
    if (!watch_ && !waiting_) start();
  }
  /// Waits for a handler that is running; nothing is delivered afterwards.
  void stop() {
    ++turn_;
    watch_.reset();
  }

 private:
  void start() {
    waiting_ = false;
    listing_ = version_.empty();
    if (listing_) {
      present_.clear();
      if (kind_ == crd::Kind::volume) targets_.index->begin_resync();
    } else {
      targets_.state->set(kind_, true);
    }
    const auto turn = ++turn_;
    crd::WatchHandler handler;
    handler.on_event = [weak = weak_from_this(), executor = executor_, turn](const crd::WatchEvent& event) {
      executor->post([weak, turn, event] {
        const auto self = weak.lock();
        if (self && self->turn_ == turn) self->take(event);
      });
    };
    handler.on_end = [weak = weak_from_this(), executor = executor_, turn](const Error& error) {
      executor->post([weak, turn, error] {
        const auto self = weak.lock();
        if (self && self->turn_ == turn) self->ended(error);
      });
    };
    watch_ = targets_.store->watch(kind_, version_, std::move(handler));
  }

  void take(const crd::WatchEvent& event) {
    backoff_.reset();
    switch (event.type) {
      case crd::WatchEvent::Type::added:
      case crd::WatchEvent::Type::modified:
        if (listing_) present_.insert(event.object.metadata.name);
        apply(event.object);
        break;
      case crd::WatchEvent::Type::deleted:
        present_.erase(event.object.metadata.name);
        erase(event.object);
        break;
      case crd::WatchEvent::Type::bookmark:
        if (listing_) listed();
        break;
    }
    // Resuming is only possible from a point where the whole state was seen.
    if (!listing_) version_ = event.object.metadata.resource_version;
  }

  void listed() {
    listing_ = false;
    if (kind_ == crd::Kind::volume)
      targets_.index->finish_resync(present_);
    else
      targets_.catalog->keep_only(kind_, present_);
    present_.clear();
    targets_.state->set(kind_, true);
    targets_.configuration_changed();
  }

  void apply(const crd::Object& object) {
    if (kind_ == crd::Kind::volume) return apply_volume(object);
    if (!targets_.catalog->apply(object))
      runtime::log(spdlog::level::warn, "object cannot be read and is left out",
                   {{"object", crd::subject(object)}});
    if (kind_ == crd::Kind::agent) tell_link(object);
    targets_.configuration_changed();
  }

  void apply_volume(const crd::Object& object) {
    const auto state = crd::from_object<crd::VolumeState>(object);
    if (!state) {
      runtime::log(spdlog::level::err, "volume record cannot be read",
                   {{"object", crd::subject(object)}, {"error", state.error().message}});
      return;
    }
    targets_.index->apply(*state);
  }

  void erase(const crd::Object& object) {
    if (kind_ == crd::Kind::volume) {
      targets_.index->erase(object.metadata.name, object.metadata.uid);
      // What this volume held back may go now.
      if (targets_.catalog->any_deleting()) targets_.configuration_changed();
      return;
    }
    targets_.catalog->erase(kind_, object.metadata.name);
    if (kind_ == crd::Kind::agent) {
      links_.erase(object.metadata.name);
      targets_.agent_changed(object.metadata.name);
    }
    targets_.configuration_changed();
  }

  /// A link writes the status of its agent itself; only other changes wake it.
  void tell_link(const crd::Object& object) {
    const auto& metadata = object.metadata;
    const std::string shape =
        metadata.uid + "/" + std::to_string(metadata.generation) + (metadata.deleting() ? "/deleting" : "");
    auto& known = links_[metadata.name];
    if (std::exchange(known, shape) != shape) targets_.agent_changed(metadata.name);
  }

  void ended(const Error& error) {
    watch_.reset();
    ++turn_;
    if (error.reason == Reason::version_expired) version_.clear();
    // A list that was cut short must start over.
    if (listing_) version_.clear();
    targets_.state->set(kind_, false, error.message);
    waiting_ = true;
    executor_->post_after(backoff_.next(), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->start();
    });
  }

  std::shared_ptr<runtime::TimedExecutor> executor_;
  WatchTargets targets_;
  crd::Kind kind_;
  Backoff backoff_;
  std::unique_ptr<crd::Watch> watch_;
  std::string version_;  // resume point, empty: list first
  std::uint64_t turn_ = 0;
  bool waiting_ = false;
  bool listing_ = false;
  std::set<std::string> present_;
  std::map<std::string, std::string> links_;  // agents: what their links were told last
};

using WatcherActor = caf::typed_actor<caf::reacts_to<Wake>>;
struct WatcherState {
  explicit WatcherState(ActorBase*) {}
  ~WatcherState() {
    if (loop) loop->stop();
  }
  WatcherState(const WatcherState&) = delete;
  WatcherState& operator=(const WatcherState&) = delete;
  std::shared_ptr<WatchLoop> loop;
};

WatcherActor::behavior_type watcher_actor(runtime::Stateful<WatcherState, WatcherActor>* self,
                                          WatchTargets targets, std::string kind) {
  self->cell()->add_idle_check([] { return false; });
  if (const auto known = crd::kind_from_string(kind))
    self->state.loop = std::make_shared<WatchLoop>(self->cell()->executor(), std::move(targets), *known);
  return {[self](const Wake&) {
    if (self->state.loop) self->state.loop->wake();
  }};
}

}  // namespace

void WatchState::set(crd::Kind kind, bool running, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  running_[kind] = running ? std::string() : (problem.empty() ? "ended" : problem);
}

bool WatchState::all_running() const { return problems().empty(); }

std::string WatchState::problems() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto kind : crd::k_kinds) {
    const auto found = running_.find(kind);
    if (found != running_.end() && found->second.empty()) continue;
    text += (text.empty() ? "" : "; ") + std::string(crd::to_string(kind)) + ": " +
            (found == running_.end() ? "not read yet" : found->second);
  }
  return text;
}

WakeRegistry spawn_watchers(runtime::System& system, WatchTargets targets) {
  runtime::RegistryOptions options;
  options.kind = "controller/watcher";
  return runtime::spawn_registry<Wake>(system, options,
                                       [&system, targets](ActorOptions child, const std::string& kind) {
                                         return system.spawn(std::move(child), watcher_actor, targets, kind);
                                       });
}

}  // namespace pillar::controller
