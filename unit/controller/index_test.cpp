// The in-memory index of volume records.

#include <doctest/doctest.h>

#include "actors/controller/records.hpp"
#include "actors/controller/volume_index.hpp"

using namespace pillar;
using namespace pillar::controller;

namespace {

crd::VolumeState volume(const std::string& name, int version, std::vector<std::string> nodes = {}) {
  crd::VolumeState state;
  state.metadata.name = name;
  state.metadata.uid = "uid-" + name;
  state.metadata.resource_version = std::to_string(version);
  state.spec.volume_id = "store-1/nvmeof-tcp/lvm-lv/vg0/" + name;
  state.spec.agent_ref = "store-1";
  state.metadata.annotations[std::string(k_origin_store)] = "fast";
  for (const auto& node : nodes)
    state.status.published_nodes.push_back({node, "nqn.of." + node, "SINGLE_NODE_WRITER", false, false});
  return state;
}

std::string id_of(const std::string& name) { return "store-1/nvmeof-tcp/lvm-lv/vg0/" + name; }

std::vector<std::string> names(const VolumePage& page) {
  std::vector<std::string> found;
  for (const auto& state : page.items) found.push_back(state->metadata.name);
  return found;
}

}  // namespace

TEST_CASE("index: pages are sorted and stay right while volumes come and go") {
  const auto index = std::make_shared<VolumeIndex>();
  for (const auto* name : {"d", "b", "a", "c"}) index->apply(volume(name, 1));
  const auto first = index->page(std::nullopt, 2);
  CHECK(names(first) == std::vector<std::string>{"a", "b"});
  CHECK(first.more);
  const auto after = first.items.back()->spec.volume_id;
  index->erase("b", "uid-b");
  index->apply(volume("aa", 2));
  CHECK(names(index->page(after, 10)) == std::vector<std::string>{"c", "d"});
  CHECK_FALSE(index->page(after, 2).more);
}

TEST_CASE("index: late news never undo what is known") {
  const auto index = std::make_shared<VolumeIndex>();
  index->apply(volume("a", 5, {"n1"}));
  index->apply(volume("a", 4));
  CHECK(index->find("store-1/nvmeof-tcp/lvm-lv/vg0/a")->status.published_nodes.size() == 1);
  index->erase("a", "uid-a");
  index->apply(volume("a", 6));  // a modification that the watch reports after the removal
  CHECK(index->page(std::nullopt, 10).items.empty());
  auto next_life = volume("a", 7);
  next_life.metadata.uid = "uid-2";
  index->apply(next_life);
  index->erase("a", "uid-a");
  CHECK(index->page(std::nullopt, 10).items.size() == 1);
}

TEST_CASE("index: volumes of an agent are found by the state of their export, without a scan") {
  const auto index = std::make_shared<VolumeIndex>();
  const auto exported = [](crd::VolumeState state, const std::string& reason) {
    crd::Condition condition;
    condition.type = k_export_reconciled;
    condition.reason = reason;
    crd::set_condition(state.status.conditions, condition);
    return state;
  };
  index->apply(volume("plain", 1));
  index->apply(exported(volume("behind", 1), "FenceAhead"));
  CHECK(index->with_export_reason("store-1", "FenceAhead") == std::set<std::string>{id_of("behind")});
  CHECK(index->with_export_reason("store-2", "FenceAhead").empty());
  index->apply(exported(volume("behind", 2), "Reconciled"));
  CHECK(index->with_export_reason("store-1", "FenceAhead").empty());
  CHECK(index->with_export_reason("store-1", "Reconciled").size() == 1);
  index->erase("behind", "uid-behind");
  CHECK(index->with_export_reason("store-1", "Reconciled").empty());
}

TEST_CASE("O03: a fresh list drops what has gone, but not what was made meanwhile") {
  const auto index = std::make_shared<VolumeIndex>();
  index->apply(volume("old", 1));
  index->apply(volume("kept", 1));
  index->begin_resync();
  index->apply(volume("kept", 1));
  index->apply(volume("new", 9));
  index->finish_resync({"kept"});
  CHECK(names(index->page(std::nullopt, 10)) == std::vector<std::string>{"kept", "new"});
}

TEST_CASE("R03: the limit per node counts other volumes only, and a held place counts") {
  const auto index = std::make_shared<VolumeIndex>();
  index->apply(volume("a", 1, {"n1"}));
  auto held = index->reserve(id_of("b"), "n1", "nqn.of.n1", 2);
  CHECK(held.has_value());
  CHECK(index->reserve(id_of("a"), "n1", "nqn.of.n1", 2).has_value());
  CHECK(index->reserve(id_of("c"), "n1", "nqn.of.n1", 2).error().code == Code::resource_exhausted);
  CHECK(index->reserve(id_of("c"), "n1", "nqn.of.n1", 0).has_value());
  held = tl::unexpected(Error());
  CHECK(index->reserve(id_of("c"), "n1", "nqn.of.n1", 2).has_value());
}

TEST_CASE("B02: one host NQN under two node ids is refused across volumes, naming both") {
  const auto index = std::make_shared<VolumeIndex>();
  index->apply(volume("a", 1, {"n1"}));
  const auto refused = index->reserve(id_of("b"), "n2", "nqn.of.n1", 0);
  CHECK(refused.error().reason == Reason::host_nqn_duplicate);
  CHECK(refused.error().message.find("n1") != std::string::npos);
  CHECK(refused.error().message.find("n2") != std::string::npos);
  index->apply(volume("a", 2));
  CHECK(index->reserve(id_of("b"), "n2", "nqn.of.n1", 0).has_value());
}

TEST_CASE("index: dependents and counts") {
  const auto index = std::make_shared<VolumeIndex>();
  for (const auto* name : {"a", "b", "c"}) index->apply(volume(name, 1));
  CHECK(index->made_from(k_origin_store, "fast", 2).count == 3);
  CHECK(index->made_from(k_origin_store, "fast", 2).names.size() == 2);
  CHECK(index->made_from(k_origin_store, "slow", 2).count == 0);
  CHECK(index->on_agent_names("store-1", 10).names.size() == 3);
  auto broken = volume("c", 2);
  set_condition(broken.status, k_export_reconciled, crd::ConditionStatus::no, "FenceAhead");
  index->apply(broken);
  CHECK(index->counts().unreconciled.at("FenceAhead") == 1);
}
