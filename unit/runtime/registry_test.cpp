#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <future>
#include <random>
#include <thread>

#include "actors/runtime/operation_queue.hpp"
#include "actors/runtime/registry.hpp"

using namespace pillar;
using namespace pillar::runtime;
using namespace std::chrono_literals;

namespace {

struct Count {
  enum class How : std::uint8_t { plain, suspended, crash_handler, die_suspended } how = How::plain;
};
struct Counted {
  int value = 0;
};
using CountCall = Call<Count, Counted>;
using CounterActor = caf::typed_actor<caf::reacts_to<CountCall>>;

/// What an actor of a key may do only alone, and what it would keep in a store.
struct Store {
  std::array<std::atomic<int>, 64> live{};
  std::array<std::atomic<int>, 64> value{};
  std::atomic<int> overlaps{0};
  std::atomic<int> spawned{0};
};

struct CounterState {
  explicit CounterState(ActorBase* self) : queue(self->cell(), {.waiting = 64}), cell(self->cell()) {}
  ~CounterState() {
    if (store) --store->live[key];
  }
  CounterState(const CounterState&) = delete;
  CounterState& operator=(const CounterState&) = delete;

  OperationQueue queue;
  std::shared_ptr<ActorCell> cell;
  std::shared_ptr<Store> store;
  std::size_t key = 0;
};
using CounterImpl = Stateful<CounterState, CounterActor>;

Task<Result<Counted>> count(OperationContext context, std::shared_ptr<const Count> request,
                            std::shared_ptr<Store> store, std::size_t key, std::shared_ptr<ActorCell> cell) {
  if (request->how == Count::How::suspended) co_await sleep_for(context.executor(), 1ms);
  if (request->how == Count::How::die_suspended) {
    co_await sleep_for(context.executor(), 1ms);
    cell->kill();
    co_await sleep_for(context.executor(), 1h);
  }
  co_return Counted{++store->value[key]};
}

CounterActor::behavior_type counter(CounterImpl* self, std::size_t key, std::shared_ptr<Store> store) {
  self->state.store = store;
  self->state.key = key;
  if (++store->live[key] != 1) ++store->overlaps;
  ++store->spawned;
  return {[self, store, key](const CountCall& call) {
    if (call.request->how == Count::How::crash_handler) throw std::runtime_error("injected crash");
    self->state.queue.submit(call, "count",
                             [store, key, cell = self->state.cell](OperationContext context,
                                                                   std::shared_ptr<const Count> request) {
                               return count(std::move(context), std::move(request), store, key, cell);
                             });
  }};
}

struct Fixture {
  explicit Fixture(RegistryOptions options = {.kind = "test/counter"}) {
    registry = spawn_registry<CountCall>(
        system, std::move(options), [this](ActorOptions child, const std::string& key) {
          return system.spawn(std::move(child), counter, static_cast<std::size_t>(std::stoul(key)), store);
        });
  }
  ~Fixture() {
    CHECK(system.shutdown(10s));
    CHECK(system.metrics().actor("test/counter").mailbox_depth == 0);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  Result<Counted> ask(const std::string& key, Count::How how = Count::How::plain) {
    auto promise = std::make_shared<std::promise<Result<Counted>>>();
    auto future = promise->get_future();
    route(registry, key,
          CountCall{std::make_shared<const Count>(Count{how}), Deadline::after(30s),
                    Reply<Counted>([promise](Result<Counted> r) { promise->set_value(std::move(r)); })});
    REQUIRE(future.wait_for(20s) == std::future_status::ready);
    return future.get();
  }
  bool all_passivated() const {
    for (const auto& live : store->live) {
      if (live != 0) return false;
    }
    return true;
  }

  System system;
  std::shared_ptr<Store> store = std::make_shared<Store>();
  RegistryActor<CountCall> registry;
};

bool eventually(const std::function<bool()>& check) {
  const auto limit = Clock::now() + 10s;
  while (Clock::now() < limit) {
    if (check()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return check();
}

}  // namespace

TEST_CASE("registry: starts the actor of a key on first use and finds it again") {
  Fixture f;
  CHECK(f.ask("1").value().value == 1);
  CHECK(f.ask("1").value().value == 2);
  CHECK(f.ask("2").value().value == 1);
  CHECK(f.store->spawned == 2);
}

TEST_CASE("registry: an idle actor is passivated, a busy one is not, and it comes back") {
  Fixture f({.kind = "test/counter", .idle = 4ms});
  CHECK(f.ask("1").value().value == 1);
  CHECK(eventually([&] { return f.all_passivated(); }));
  CHECK(f.ask("1", Count::How::suspended).value().value == 2);
  CHECK(eventually([&] { return f.all_passivated(); }));
  CHECK(f.store->spawned == 2);
  CHECK(f.system.metrics().actor("test/counter").restarts.value() == 0);
}

TEST_CASE("registry: a crash answers UNAVAILABLE to every caller, and the next message starts a new actor") {
  Fixture f;
  CHECK(f.ask("1").value().value == 1);
  const auto crashed = f.ask("1", Count::How::crash_handler);
  CHECK(crashed.error().code == Code::unavailable);
  CHECK(crashed.error().reason == Reason::actor_restarted);
  CHECK(eventually([&] { return f.all_passivated(); }));
  CHECK(eventually([&] { return f.ask("1").has_value(); }));
  CHECK(f.system.metrics().actor("test/counter").restarts.value() == 1);
  CHECK(f.system.metrics().actor("test/counter").failures.value() == 1);
  CHECK(f.ask("2").value().value == 1);
}

TEST_CASE("registry: killed in the middle of a suspended operation, its callers get UNAVAILABLE") {
  Fixture f;
  CHECK(f.ask("1", Count::How::die_suspended).error().reason == Reason::actor_restarted);
  CHECK(f.store->value[1] == 0);
}

TEST_CASE("registry: repeated crashes back off; callers are told how long; then it is tried again") {
  Fixture f({.kind = "test/counter", .backoff_first = 150ms, .backoff_max = 150ms});
  for (int i = 0; i < 2; ++i) {
    f.ask("1", Count::How::crash_handler);
    REQUIRE(eventually([&] { return f.all_passivated(); }));
    std::this_thread::sleep_for(5ms);  // the registry's down message
  }
  const auto refused = f.ask("1");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().reason == Reason::actor_restarted);
  CHECK(refused.error().message.find("test/counter/1 crashed 2 times in a row and rests") == 0);
  CHECK(f.ask("2").has_value());
  CHECK(eventually([&] { return f.ask("1").has_value(); }));
}

TEST_CASE("registry: the bound on live actors refuses new keys, not known ones") {
  Fixture f({.kind = "test/counter", .max_live = 1});
  CHECK(f.ask("1").has_value());
  CHECK(f.ask("2").error().reason == Reason::queue_full);
  CHECK(f.ask("1").has_value());
}

TEST_CASE("registry: shutdown with calls in flight answers them all") {
  std::promise<Result<Counted>> promise;
  auto future = promise.get_future();
  {
    Fixture f;
    f.ask("1");
    route(f.registry, "1",
          CountCall{std::make_shared<const Count>(Count{Count::How::die_suspended}), Deadline::after(30s),
                    Reply<Counted>([&promise](Result<Counted> r) { promise.set_value(std::move(r)); })});
  }
  REQUIRE(future.wait_for(10s) == std::future_status::ready);
  CHECK(future.get().error().code == Code::unavailable);
}

namespace {

/// Calls from several threads to random keys while actors are passivated every few milliseconds. `crashes` of
/// 1000 calls crash the actor in its handler, as many kill it in the middle of an operation. Yields how many
/// calls were answered with a value; checks everything that must hold in any case.
int storm(unsigned crashes, int& calls) {
  constexpr int k_senders = 3;
  constexpr int k_calls = 3000;
  calls = k_senders * k_calls;
  Fixture f({.kind = "test/counter", .idle = 2ms, .backoff_first = 1ms, .backoff_max = 2ms});
  std::atomic<int> answered{0};
  std::atomic<int> counted{0};
  std::barrier pause(k_senders);
  const auto send = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int i = 0; i < k_calls; ++i) {
      const auto dice = random() % 1000;
      const auto how = dice < crashes       ? Count::How::crash_handler
                       : dice < 2 * crashes ? Count::How::die_suspended
                       : dice < 200         ? Count::How::suspended
                                            : Count::How::plain;
      Reply<Counted> reply([&](const Result<Counted>& r) {
        if (r) ++counted;
        ++answered;
      });
      route(f.registry, std::to_string(random() % 64),
            CountCall{std::make_shared<const Count>(Count{how}), Deadline::after(60s), std::move(reply)});
      if (i % 20 == 0) std::this_thread::sleep_for(1ms);
      if (i % 500 == 0) {
        pause.arrive_and_wait();
        std::this_thread::sleep_for(10ms);  // long enough for all to be found idle
      }
    }
  };
  std::vector<std::thread> senders;
  for (unsigned t = 1; t <= k_senders; ++t) senders.emplace_back(send, t);
  for (auto& sender : senders) sender.join();
  CHECK(eventually([&] { return answered == calls; }));
  CHECK(f.store->overlaps == 0);
  int stored = 0;
  for (const auto& value : f.store->value) stored += value;
  CHECK(stored >= counted);
  CHECK(f.store->spawned > 64);
  CHECK(eventually([&] { return f.all_passivated(); }));
  return counted;
}

}  // namespace

TEST_CASE("registry: passivation storm: no call is lost, never two actors of one key") {
  int calls = 0;
  const int counted = storm(0, calls);
  CHECK(counted == calls);
}

TEST_CASE("registry: passivation and crash storm: every call is answered, never two actors of one key") {
  int calls = 0;
  const int counted = storm(5, calls);
  CHECK(counted > calls / 2);
}
