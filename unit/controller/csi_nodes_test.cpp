#include "actors/controller/csi_nodes.hpp"

#include <doctest/doctest.h>

using namespace pillar;
using namespace pillar::controller;

namespace {

constexpr const char* k_nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
constexpr const char* k_other = "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-4222-8222-222222222222";

}  // namespace

TEST_SUITE_BEGIN("csi nodes");

TEST_CASE("a node is known by the host NQN that it has published") {
  NodeTable table;
  table.set("node-a", k_nqn);
  table.set("node-b", k_other);
  table.set_state(std::nullopt);
  CHECK(table.initiator("node-a").value() == k_nqn);
  CHECK(table.initiator("node-c").error().reason == Reason::not_found);
  table.remove("node-a");
  CHECK(table.initiator("node-a").error().reason == Reason::not_found);
}

TEST_CASE("a node without a valid host NQN is said with the annotation that it lacks") {
  NodeTable table;
  table.set_state(std::nullopt);
  for (const char* bad : {"", "not an nqn"}) {
    table.set("node-a", bad);
    const auto refused = table.initiator("node-a");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().reason == Reason::host_nqn_missing);
    CHECK(refused.error().message.find("nvmeof-host-nqn") != std::string::npos);
  }
}

TEST_CASE("B02: two nodes with one host NQN are both refused, naming both") {
  NodeTable table;
  table.set_state(std::nullopt);
  table.set("node-a", k_nqn);
  table.set("node-b", k_nqn);
  for (const char* name : {"node-a", "node-b"}) {
    const auto refused = table.initiator(name);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().reason == Reason::host_nqn_duplicate);
    CHECK(refused.error().message.find("node-a") != std::string::npos);
    CHECK(refused.error().message.find("node-b") != std::string::npos);
  }
  table.set("node-b", k_other);
  CHECK(table.initiator("node-a"));
}

TEST_CASE("an unknown node is not called missing while the nodes cannot be listed; a known one is served") {
  NodeTable table;
  CHECK(table.initiator("node-a").error().reason == Reason::store_unavailable);
  table.set_state(std::nullopt);
  table.set("node-a", k_nqn);
  table.set_state(Error{Code::unavailable, Reason::store_unavailable, "connection refused", {}});
  CHECK(table.initiator("node-a").value() == k_nqn);
  const auto unknown = table.initiator("node-b");
  CHECK(unknown.error().code == Code::unavailable);
  CHECK(unknown.error().message.find("connection refused") != std::string::npos);
}

TEST_SUITE_END();
