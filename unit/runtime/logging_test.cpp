#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include "actors/runtime/logging.hpp"

using namespace pillar;
using namespace pillar::runtime;

namespace {

/// What is written to stderr while it exists.
class CaptureStderr {
 public:
  CaptureStderr() : file_(std::tmpfile()), saved_(dup(2)) { dup2(fileno(file_), 2); }
  ~CaptureStderr() { restore(); }
  CaptureStderr(const CaptureStderr&) = delete;
  CaptureStderr& operator=(const CaptureStderr&) = delete;
  std::string text() {
    restore();
    std::rewind(file_);
    std::string out;
    for (int c = 0; (c = std::fgetc(file_)) != EOF;) out += static_cast<char>(c);
    return out;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    dup2(saved_, 2);
    close(saved_);
    saved_ = -1;
  }
  std::FILE* file_;
  int saved_;
};

}  // namespace

TEST_CASE("logging: wrong format or level is refused by name") {
  CHECK(setup_logging("xml", "info").error().message.find("'xml'") != std::string::npos);
  CHECK(setup_logging("json", "loud").error().message.find("'loud'") != std::string::npos);
}

TEST_CASE("logging: one line per event, fields kept, secrets and control characters not") {
  const auto previous = spdlog::default_logger();
  std::string text;
  SUBCASE("json") {
    {
      CaptureStderr capture;
      REQUIRE(setup_logging("json", "info"));
      log(spdlog::level::info, "a \"quoted\"\nline\x1f",
          {{"actor", "agent/volume/v"}, {"dhchap_key", "DHHC-1:00:x"}});
      log(spdlog::level::debug, "not shown");
      spdlog::warn("plain {}", 5);
      text = capture.text();
    }
    std::istringstream lines(text);
    std::string line;
    REQUIRE(std::getline(lines, line));
    const auto first = nlohmann::json::parse(line);
    CHECK(first["message"] == "a \"quoted\"\\nline\\x1f");
    CHECK(first["level"] == "info");
    CHECK(first["actor"] == "agent/volume/v");
    CHECK(first["dhchap_key"] == "[redacted]");
    REQUIRE(std::getline(lines, line));
    CHECK(nlohmann::json::parse(line)["message"] == "plain 5");
    CHECK_FALSE(std::getline(lines, line));
  }
  SUBCASE("text") {
    {
      CaptureStderr capture;
      REQUIRE(setup_logging("text", "debug"));
      log(spdlog::level::err, "broken", {{"volume", "v 1"}, {"code", "INTERNAL"}, {"empty", ""}});
      log(spdlog::level::err, "hostile", {{"volume", "x\" code=OK y=\"\\"}, {"code", "INTERNAL"}});
      text = capture.text();
    }
    CHECK(text.find(" error   broken volume=\"v 1\" code=INTERNAL empty=\"\"\n") != std::string::npos);
    CHECK(text.find(R"(hostile volume="x\" code=OK y=\"\\" code=INTERNAL)"
                    "\n") != std::string::npos);
  }
  spdlog::set_default_logger(previous);
}

TEST_CASE("O12: repeated expected lines are held back and counted") {
  LogThrottle throttle(std::chrono::seconds(60));
  const auto now = Clock::now();
  std::uint64_t held = 0;
  CHECK(throttle.pass("a", held, now));
  CHECK_FALSE(throttle.pass("a", held, now + std::chrono::seconds(1)));
  CHECK_FALSE(throttle.pass("a", held, now + std::chrono::seconds(59)));
  CHECK(throttle.pass("b", held, now));
  CHECK(throttle.pass("a", held, now + std::chrono::seconds(61)));
  CHECK(held == 2);
}
