#include "hostio/helper_process.hpp"

#include <array>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>

#include "hostio/durable_file.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using pillar::hostio::testing::TempDir;

namespace {

Result<nlohmann::json> call(const std::string& verb, const std::vector<std::string>& args = {},
                            Clock::duration span = 10s) {
  ProcessRunner runner;
  return HelperRunner(runner, PILLAR_HELPER_FIXTURE).run(verb, args, Deadline::after(span));
}

/// False as well for a zombie: who adopts an orphan need not reap it at once.
bool alive(pid_t pid) {
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  return stat && stat->find(") Z ") == std::string::npos;
}

}  // namespace

TEST_SUITE("helper process") {
  TEST_CASE("the value of a verb comes back") {
    const auto result = call("echo", {"/mnt/with space", "--force"});
    REQUIRE(result);
    CHECK(*result == nlohmann::json{"/mnt/with space", "--force"});
  }

  TEST_CASE("the error of a verb comes back unchanged") {
    const auto result = call("refuse");
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::device_busy);
    CHECK(result.error().code == Code::aborted);
    CHECK(result.error().message == "held by dm-7");
    CHECK(result.error().details.at("holder") == "dm-7");
  }

  TEST_CASE("an exception and an unknown verb are errors, bytes that are no UTF-8 are not") {
    CHECK(call("throw").error().message == "helper throw: boom");
    CHECK(call("nonsense").error().reason == Reason::unsupported);
    CHECK(call("bytes").has_value());
  }

  TEST_CASE("a hanging verb ends at the deadline") {
    const auto begin = Clock::now();
    const auto result = call("hang", {}, 200ms);
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::command_timeout);
    CHECK(Clock::now() - begin < 5s);
  }

  TEST_CASE("I05: a helper ends with the process that started it, and does nothing later") {
    const TempDir dir;
    const std::string ready = dir / "ready";
    ProcessRunner runner;
    // The shell stands for our program: it dies once the helper is at work.
    const Command caller{
        "sh",
        {"-c", "\"$0\" --helper announce \"$1\" & while ! [ -s \"$1\" ]; do sleep 0.01; done; kill -9 $$",
         PILLAR_HELPER_FIXTURE, ready},
        Deadline::after(60s)};
    REQUIRE_FALSE(runner.run(caller));
    const pid_t helper = std::stoi(read_file(ready).value());
    const Deadline until = Deadline::after(20s);
    while (alive(helper) && !until.passed()) std::this_thread::sleep_for(5ms);
    CHECK_FALSE(alive(helper));
  }

  TEST_CASE("a program that is no helper is reported") {
    ProcessRunner runner;
    const auto result = HelperRunner(runner, "/bin/echo").run("x", {}, Deadline::after(5s));
    REQUIRE_FALSE(result);
    CHECK(result.error().reason == Reason::internal);
  }

  TEST_CASE("an ordinary start is not taken for a helper") {
    const std::array<const char*, 3> argv{"pillar-agent", "--config", "x"};
    CHECK_FALSE(run_helper_main(3, argv.data()).has_value());
    CHECK_FALSE(run_helper_main(1, argv.data()).has_value());
  }
}
