#include <doctest/doctest.h>

#include <csignal>
#include <future>
#include <thread>

#include <pthread.h>

#include "actors/runtime/registry.hpp"
#include "actors/runtime/system.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

struct Poke {
  std::shared_ptr<std::promise<void>> entered;
  std::shared_future<void> leave;
};

}  // namespace
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Poke)

namespace {

using PokeActor = caf::typed_actor<caf::reacts_to<Poke>>;
struct Empty {
  explicit Empty(ActorBase* self) : cell(self->cell()) {}
  std::shared_ptr<ActorCell> cell;
};

PokeActor::behavior_type poke_actor(Stateful<Empty, PokeActor>*) {
  return {[](const Poke& poke) {
    poke.entered->set_value();
    poke.leave.wait();
  }};
}

}  // namespace

TEST_CASE("system: a stuck handler does not stop the shutdown beyond its limit") {
  std::promise<void> leave;
  System system;
  auto actor = system.keep(system.spawn({"test/poke", "test/poke"}, poke_actor));
  Poke poke{std::make_shared<std::promise<void>>(), leave.get_future().share()};
  auto entered = poke.entered->get_future();
  caf::anon_send(actor, poke);
  entered.wait();
  const auto started = Clock::now();
  CHECK_FALSE(system.shutdown(30ms));
  CHECK(Clock::now() - started < 5s);
  leave.set_value();
}

TEST_CASE("system: unexpected and error messages do not end an actor") {
  System system;
  auto actor = system.keep(system.spawn({"test/poke", "test/poke"}, poke_actor));
  caf::anon_send(caf::actor_cast<caf::actor>(actor), std::string("surprise"));
  caf::anon_send(caf::actor_cast<caf::actor>(actor), caf::make_error(caf::sec::runtime_error));
  std::promise<void> leave;
  leave.set_value();
  Poke poke{std::make_shared<std::promise<void>>(), leave.get_future().share()};
  auto entered = poke.entered->get_future();
  caf::anon_send(actor, poke);
  CHECK(entered.wait_for(10s) == std::future_status::ready);
  CHECK(system.metrics().actor("test/poke").failures.value() == 2);
  CHECK(system.shutdown(10s));
}

TEST_CASE("system: an executor outlives its actor and drops what is posted") {
  System system;
  std::shared_ptr<TimedExecutor> executor;
  {
    auto actor = system.spawn({"test/poke", "test/poke"}, poke_actor);
    auto* base = caf::actor_cast<caf::abstract_actor*>(actor);
    executor = dynamic_cast<ActorBase*>(base)->cell()->executor();
    std::promise<void> ran;
    executor->post([&ran] { ran.set_value(); });
    CHECK(ran.get_future().wait_for(10s) == std::future_status::ready);
    caf::anon_send_exit(actor, caf::exit_reason::kill);
  }
  CHECK(system.shutdown(10s));
  auto token = std::make_shared<int>(1);
  executor->post([token] {});
  executor->post_after(1ms, [token] {});
  // The last reference to the actor may be let go a moment after it counts as ended.
  const auto limit = Clock::now() + 10s;
  while (token.use_count() > 1 && Clock::now() < limit) std::this_thread::sleep_for(1ms);
  CHECK(token.use_count() == 1);
}

TEST_CASE("system: termination is requested from any thread and waited for in one") {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  block_termination_signals();
  std::thread other([] { request_termination(); });
  CHECK(wait_for_termination() == SIGTERM);
  other.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
