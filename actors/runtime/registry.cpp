#include "actors/runtime/registry.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "actors/runtime/logging.hpp"

namespace pillar::runtime::detail {

namespace {

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

/// An actor that ended without fault: stopped or passivated.
bool is_clean(const caf::error& reason) { return !reason || reason == caf::exit_reason::user_shutdown; }

}  // namespace

struct RegistryCore::Impl : std::enable_shared_from_this<RegistryCore::Impl> {
  struct Stashed {
    caf::message message;
    Refuse refuse;
  };
  struct Slot {
    caf::strong_actor_ptr actor;
    std::uint64_t forwarded = 0;  ///< messages sent to this actor; it counts what it saw
    Clock::time_point used;
    Clock::time_point started;
    bool retiring = false;  ///< told to end; messages wait for its successor
    std::vector<Stashed> stash;
    unsigned crashes = 0;  ///< in a row
    Clock::time_point not_before;
  };

  explicit Impl(std::shared_ptr<ActorCell> c) : cell(std::move(c)) {}

  void route(const std::string& key, caf::message message, const Refuse& refuse) {
    auto& slot = slots[key];
    if (slot.retiring) {
      slot.stash.push_back({std::move(message), refuse});
      return;
    }
    if (!slot.actor && !start_actor(key, slot, refuse)) return;
    ++slot.forwarded;
    slot.used = Clock::now();
    slot.actor->enqueue(self->ctrl(), caf::make_message_id(), std::move(message), self->context());
  }

  /// Starts the actor of a slot; false: refused.
  bool start_actor(const std::string& key, Slot& slot, const Refuse& refuse) {
    const auto now = Clock::now();
    const std::string path = options.kind + "/" + key;
    if (now < slot.not_before) {
      refuse(fail(Reason::actor_restarted,
                  fmt::format(
                      "{} crashed {} times in a row and rests for another {:.1f}s; repeat the call, and see "
                      "the log of this program for the cause",
                      path, slot.crashes, seconds(slot.not_before - now)))
                 .value());
      return false;
    }
    if (options.max_live > 0 && by_id.size() >= options.max_live) {
      refuse(fail(Reason::queue_full,
                  fmt::format("{} not started: {} actors of its kind are active, the most allowed; "
                              "repeat the call later",
                              path, by_id.size()))
                 .value());
      return false;
    }
    try {
      slot.actor = factory(ActorOptions{options.kind, path, self->ctrl()}, key);
    } catch (const std::exception& e) {
      refuse(fail(Reason::internal, fmt::format("{} could not be started: {}", path, e.what())).value());
      return false;
    }
    self->monitor(caf::actor_cast<caf::actor>(slot.actor));
    by_id.emplace(slot.actor->id(), key);
    slot.forwarded = 0;
    slot.started = now;
    if (slot.crashes > 0) child_stats->restarts.add();
    return true;
  }

  void on_down(const caf::down_msg& down) {
    const auto found = by_id.find(down.source.id());
    if (found == by_id.end()) return;
    const auto key = std::move(found->second);
    by_id.erase(found);
    auto& slot = slots[key];
    slot.actor.reset();
    slot.retiring = false;
    if (is_clean(down.reason)) {
      slot.crashes = 0;
    } else {
      note_crash(key, slot, down.reason);
    }
    auto stash = std::exchange(slot.stash, {});
    if (stash.empty() && slot.crashes == 0) slots.erase(key);
    for (auto& waiting : stash) route(key, std::move(waiting.message), waiting.refuse);
  }

  void note_crash(const std::string& key, Slot& slot, const caf::error& reason) {
    const auto now = Clock::now();
    slot.crashes = now - slot.started > options.forgive_after ? 1 : slot.crashes + 1;
    if (slot.crashes > 1) {
      const auto doublings = std::min(slot.crashes - 2, 20U);
      slot.not_before =
          now + std::min<Clock::duration>(options.backoff_max, options.backoff_first * (1U << doublings));
    }
    log(spdlog::level::err, "actor crashed: " + self->system().render(reason),
        {{"actor", options.kind + "/" + key}, {"crashes_in_a_row", std::to_string(slot.crashes)}});
  }

  void schedule_sweep() {
    const auto period = std::max<Clock::duration>(options.idle / 2, std::chrono::milliseconds(2));
    cell->executor()->post_after(period, [weak = weak_from_this()] {
      if (auto impl = weak.lock()) impl->sweep();
    });
  }

  void sweep() {
    const auto now = Clock::now();
    for (auto it = slots.begin(); it != slots.end();) {
      auto& slot = it->second;
      const bool forgotten =
          !slot.actor && now > slot.not_before && now - slot.started > options.forgive_after;
      if (forgotten) {
        it = slots.erase(it);
        continue;
      }
      if (slot.actor && !slot.retiring && now - slot.used >= options.idle) ask_to_retire(it->first, slot);
      ++it;
    }
    schedule_sweep();
  }

  void ask_to_retire(const std::string& key, const Slot& slot) {
    // Two steps: the actor says that it saw everything we sent and has nothing to do; we check that we sent
    // nothing since. Without the counters a message could meet the exit on its way.
    RetireQuery query;
    query.forwarded = slot.forwarded;
    query.answer = [executor = cell->executor(), weak = weak_from_this(), key, id = slot.actor->id(),
                    seen = slot.forwarded] {
      executor->post([weak, key, id, seen] {
        if (auto impl = weak.lock()) impl->retire(key, id, seen);
      });
    };
    slot.actor->enqueue(self->ctrl(), caf::make_message_id(), caf::make_message(std::move(query)),
                        self->context());
  }

  void retire(const std::string& key, caf::actor_id id, std::uint64_t seen) {
    const auto found = slots.find(key);
    if (found == slots.end()) return;
    auto& slot = found->second;
    if (!slot.actor || slot.actor->id() != id || slot.forwarded != seen || slot.retiring) return;
    slot.retiring = true;
    caf::anon_send_exit(caf::actor_cast<caf::actor>(slot.actor), caf::exit_reason::user_shutdown);
  }

  void stop(const caf::error& reason) {
    for (auto& [key, slot] : slots) {
      if (slot.actor)
        caf::anon_send_exit(caf::actor_cast<caf::actor>(slot.actor), caf::exit_reason::user_shutdown);
    }
    self->quit(reason);
  }

  std::shared_ptr<ActorCell> cell;
  caf::scheduled_actor* self = nullptr;
  ActorStats* child_stats = nullptr;
  RegistryOptions options;
  Factory factory;
  std::unordered_map<std::string, Slot> slots;
  std::unordered_map<caf::actor_id, std::string> by_id;
};

RegistryCore::RegistryCore(std::shared_ptr<ActorCell> cell)
    : impl_(std::make_shared<Impl>(std::move(cell))) {}

RegistryCore::~RegistryCore() = default;

void RegistryCore::start(caf::scheduled_actor* self, RegistryOptions options, Factory factory) {
  impl_->self = self;
  impl_->child_stats = &impl_->cell->services().metrics->actor(options.kind);
  impl_->options = std::move(options);
  impl_->factory = std::move(factory);
  self->set_down_handler([weak = std::weak_ptr<Impl>(impl_)](caf::scheduled_actor*, caf::down_msg& down) {
    if (auto impl = weak.lock()) impl->on_down(down);
  });
  self->set_exit_handler([weak = std::weak_ptr<Impl>(impl_)](caf::scheduled_actor*, caf::exit_msg& exit) {
    if (auto impl = weak.lock()) impl->stop(exit.reason);
  });
  impl_->schedule_sweep();
}

void RegistryCore::route(const std::string& key, caf::message message, Refuse refuse) {
  impl_->route(key, std::move(message), refuse);
}

}  // namespace pillar::runtime::detail
