#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "actors/runtime/chaos.hpp"

using namespace pillar;
using namespace pillar::runtime;

TEST_CASE("chaos: glob") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("agent/volume/*", "agent/volume/vg0/pvc-1"));
  CHECK(glob_match("*a*b", "xxaxxb"));
  CHECK(glob_match("?1", "v1"));
  CHECK_FALSE(glob_match("agent/volume/*", "agent/pool/vg0"));
  CHECK_FALSE(glob_match("", "x"));
}

TEST_CASE("chaos: disabled, it refuses every request and does nothing") {
  Chaos chaos;
  CHECK(chaos.add_spec("step=*:*,action=exit").error().code == Code::failed_precondition);
  CHECK_FALSE(chaos.add({}).has_value());
  CHECK_FALSE(chaos.handle_json("{}").has_value());
  CHECK(chaos.hit("a", "b").kind == ChaosKind::none);
  CHECK(chaos.seen_steps().empty());
}

TEST_CASE("chaos: bad specifications are named") {
  Chaos chaos(true);
  for (const char* spec :
       {"nonsense", "step=a,action=kill", "step=a:b", "action=kill", "step=a:b,action=explode",
        "step=a:b,action=kill,after=x", "step=a:b,action=kill,after=", "step=a:b,action=fail,reason=NOPE",
        "step=a:b,action=kill,color=red", "step=a:b,action=kill;bad"}) {
    CAPTURE(spec);
    const auto added = chaos.add_spec(spec);
    REQUIRE_FALSE(added.has_value());
    CHECK(added.error().code == Code::invalid_argument);
    CHECK(chaos.points().empty());
  }
}

TEST_CASE("chaos: exit at the n-th hit of a step") {
  Chaos chaos(true);
  int code = 0;
  chaos.set_exit([&code](int c) { code = c; });
  REQUIRE(chaos.add_spec("step=agent/port/10.0.0.5:4420:link,action=exit,after=2"));
  CHECK(chaos.points().at(0).path == "agent/port/10.0.0.5:4420");
  chaos.hit("agent/port/10.0.0.5:4420", "link");
  CHECK(code == 0);
  chaos.hit("agent/port/10.0.0.5:4420", "other");
  CHECK(code == 0);
  chaos.hit("agent/port/10.0.0.5:4420", "link");
  CHECK(code == 137);
  CHECK(chaos.seen_steps().at("agent/port:link") == 2);
}

TEST_CASE("chaos: times bounds how often a point acts; 0 is always") {
  Chaos chaos(true);
  REQUIRE(chaos.add_spec("step=*:once,action=fail;step=*:always,action=fail,times=0,after=2;"));
  int once = 0;
  int always = 0;
  for (int i = 0; i < 5; ++i) {
    once += chaos.hit("a", "once").kind == ChaosKind::fail;
    always += chaos.hit("a", "always").kind == ChaosKind::fail;
  }
  CHECK(once == 1);
  CHECK(always == 4);
}

TEST_CASE("chaos: JSON requests") {
  Chaos chaos(true);
  auto answer = chaos.handle_json(R"({"add": "step=a/b/*:s,action=delay,ms=5"})");
  REQUIRE(answer);
  auto json = nlohmann::json::parse(*answer);
  CHECK(json["points"][0]["step"] == "a/b/*:s");
  CHECK(json["points"][0]["action"] == "delay");
  const auto id = json["points"][0]["id"].get<std::uint64_t>();
  CHECK(chaos.handle_json("{\"remove\": " + std::to_string(id) + "}").has_value());
  CHECK(chaos.handle_json("{\"remove\": 99}").error().code == Code::not_found);
  CHECK(chaos.handle_json(R"({"clear": true})").has_value());
  for (const char* bad : {"[]", "{", R"({"add": 1})", R"({"dance": true})", "\xff"}) {
    CHECK_FALSE(chaos.handle_json(bad).has_value());
  }
  CHECK(chaos.handle_json("").has_value());
}
