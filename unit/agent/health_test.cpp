#include <atomic>
#include <future>
#include <thread>

#include <doctest/doctest.h>

#include "actors/agent/health.hpp"

using namespace pillar;
using namespace pillar::agent;

namespace {

/// A look at the host that lasts until finish().
struct SlowLook {
  std::promise<void> begun;
  std::promise<void> finished;
  std::atomic<int> looks{0};

  std::vector<hostio::HealthItem> operator()() {
    if (looks++ == 0) begun.set_value();
    finished.get_future().wait();
    return {{"lvm", true, ""}};
  }
};

}  // namespace

TEST_SUITE_BEGIN("agent/health");

TEST_CASE("whoever asks during the first look waits for it, within a bound") {
  SlowLook look;
  HealthProbe probe([&look](const AgentContext&) { return look(); });
  AgentContext context;
  auto first = std::async(std::launch::async, [&] { return probe.items(context); });
  look.begun.get_future().wait();

  SUBCASE("and gets its result") {
    context.limits.first_look = std::chrono::minutes(1);
    auto second = std::async(std::launch::async, [&] { return probe.items(context); });
    look.finished.set_value();
    const auto items = second.get();
    REQUIRE(items.size() == 1);
    CHECK(items[0].ok);
  }
  SUBCASE("or is told to ask again") {
    context.limits.first_look = std::chrono::milliseconds(1);
    const auto items = probe.items(context);
    REQUIRE(items.size() == 1);
    CHECK_FALSE(items[0].ok);
    CHECK(items[0].message.find("ask again") != std::string::npos);
    look.finished.set_value();
  }
  CHECK(first.get().size() == 1);
  CHECK(look.looks == 1);
}
