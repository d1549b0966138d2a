#pragma once
// The registry of one kind of actor is its supervisor as well: it finds or starts the actor of a key,
// restarts a crashed one on the next message (with backoff when crashes repeat), and passivates idle ones
// without ever losing a message or having two actors of one key alive.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <caf/all.hpp>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/system.hpp"
#include "messages/actors_caf.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

struct RegistryOptions {
  std::string kind;                                ///< "agent/volume"; children are "<kind>/<key>"
  Clock::duration idle = std::chrono::minutes(5);  ///< passivate after this long without a message
  Clock::duration backoff_first = std::chrono::milliseconds(200);  ///< pause after the second crash in a row
  Clock::duration backoff_max = std::chrono::seconds(30);
  Clock::duration forgive_after =
      std::chrono::minutes(1);  ///< a crash later than this after a start counts as the first
  std::size_t max_live = 0;     ///< most live actors, 0 = no limit
};

/// Handle of a registry that routes messages Ms.
template <class... Ms>
using RegistryActor = caf::typed_actor<caf::reacts_to<Routed<Ms>>...>;

namespace detail {

/// Routing table of a registry; lives in its state.
class RegistryCore {
 public:
  using Factory = std::function<caf::strong_actor_ptr(ActorOptions, const std::string& key)>;
  using Refuse = std::function<void(Error)>;

  explicit RegistryCore(std::shared_ptr<ActorCell> cell);
  ~RegistryCore();
  RegistryCore(const RegistryCore&) = delete;
  RegistryCore& operator=(const RegistryCore&) = delete;

  void start(caf::scheduled_actor* self, RegistryOptions options, Factory factory);
  /// Sends `message` to the actor of `key`; `refuse` answers it when it cannot be sent.
  void route(const std::string& key, caf::message message, Refuse refuse);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct RegistryState {
  explicit RegistryState(ActorBase* self) : core(self->cell()) {}
  RegistryCore core;
};

/// How a message that cannot be delivered is answered: calls carry a reply, other messages are dropped.
template <class M>
RegistryCore::Refuse refuser(const M& message) {
  if constexpr (requires { message.reply; }) {
    return [reply = message.reply](Error error) { reply(tl::unexpected(std::move(error))); };
  } else {
    return [](const Error&) {};
  }
}

template <class... Ms>
typename RegistryActor<Ms...>::behavior_type registry_actor(
    Stateful<RegistryState, RegistryActor<Ms...>>* self, RegistryOptions options,
    RegistryCore::Factory factory) {
  self->state.core.start(self, std::move(options), std::move(factory));
  return {[self](const Routed<Ms>& routed) {
    self->state.core.route(routed.key, caf::make_message(routed.message), refuser(routed.message));
  }...};
}

}  // namespace detail

/// Starts the registry of a kind and keeps it as a root of `system`. `factory(ActorOptions, key)` spawns the
/// actor of a key with `system.spawn(options, ...)` and yields its handle; it runs in the registry and must
/// not block. Send with `route(registry, key, message)`.
template <class... Ms, class Factory>
RegistryActor<Ms...> spawn_registry(System& system, RegistryOptions options, Factory factory) {
  detail::RegistryCore::Factory erased = [factory = std::move(factory)](ActorOptions child,
                                                                        const std::string& key) {
    return caf::actor_cast<caf::strong_actor_ptr>(factory(std::move(child), key));
  };
  const std::string path = options.kind + "/registry";
  return system.keep(system.spawn(ActorOptions{path, path}, detail::registry_actor<Ms...>, std::move(options),
                                  std::move(erased)));
}

/// Sends `message` to the actor of `key`; callable from any thread.
template <class Registry, class M>
void route(const Registry& registry, std::string key, M message) {
  caf::anon_send(registry, Routed<M>{std::move(key), std::move(message)});
}

}  // namespace pillar::runtime
