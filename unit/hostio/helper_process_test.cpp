#include "hostio/helper_process.hpp"

#include <array>

#include <doctest/doctest.h>

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;

namespace {

Result<nlohmann::json> call(const std::string& verb, const std::vector<std::string>& args = {},
                            Clock::duration span = 10s) {
  ProcessRunner runner;
  return HelperRunner(runner, PILLAR_HELPER_FIXTURE).run(verb, args, Deadline::after(span));
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
