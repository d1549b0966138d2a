// The pure rules of the controller, row by row.

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

#include "actors/controller/create_params.hpp"
#include "actors/controller/paging.hpp"
#include "actors/controller/ports.hpp"
#include "actors/controller/publications.hpp"
#include "actors/controller/records.hpp"
#include "actors/controller/sizes.hpp"
#include "actors/controller/topology.hpp"
#include "messages/access_modes.hpp"

using namespace pillar;
using namespace pillar::controller;
using Mode = ::csi::v1::VolumeCapability::AccessMode;

TEST_CASE("A06: one table of access modes, and every number of the wire has a row or is refused") {
  struct Row {
    int wire;
    bool offered;
    bool readonly;
    bool multi_node;
    bool single_target;
  };
  const Row rows[] = {
      {Mode::UNKNOWN, false, false, false, false},
      {Mode::SINGLE_NODE_WRITER, true, false, false, false},
      {Mode::SINGLE_NODE_READER_ONLY, true, true, false, false},
      {Mode::MULTI_NODE_READER_ONLY, true, true, true, false},
      {Mode::MULTI_NODE_SINGLE_WRITER, false, false, true, false},
      {Mode::MULTI_NODE_MULTI_WRITER, false, false, true, false},
      {Mode::SINGLE_NODE_SINGLE_WRITER, true, false, false, true},
      {Mode::SINGLE_NODE_MULTI_WRITER, true, false, false, false},
      {8, false, false, false, false},
      {-1, false, false, false, false},
      {256 + 1, false, false, false, false},
  };
  for (const auto& row : rows) {
    CAPTURE(row.wire);
    for (const auto mode : {VolumeMode::mount, VolumeMode::block}) {
      const auto checked = check_capability(row.wire, mode, "");
      CHECK(checked.has_value() == row.offered);
      if (!checked) {
        CHECK(checked.error().code == Code::invalid_argument);
        continue;
      }
      CHECK(checked->info().readonly == row.readonly);
      CHECK(checked->info().multi_node == row.multi_node);
      CHECK(checked->info().single_target == row.single_target);
      CHECK(access_mode_from(to_string(checked->access)) == checked->access);
    }
  }
}

TEST_CASE("A06: capabilities from the wire need an access type and a file system that can be made") {
  ::csi::v1::VolumeCapability wire;
  wire.mutable_access_mode()->set_mode(Mode::SINGLE_NODE_WRITER);
  CHECK(parse_capability(wire).error().code == Code::invalid_argument);
  wire.mutable_mount()->set_fs_type("xfs");
  CHECK(parse_capability(wire).value().fs_type == "xfs");
  wire.mutable_mount()->set_fs_type("ext5");
  CHECK(parse_capability(wire).error().message.find("ext5") != std::string::npos);
  wire.mutable_block();
  CHECK(parse_capability(wire).value().mode == VolumeMode::block);
}

TEST_CASE("J04: sizes that cannot be are refused, missing ones become 1 GiB") {
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  CHECK(parse_size_range(0, 0).value() == SizeRange{std::uint64_t{1} << 30U, 0});
  CHECK(parse_size_range(0, gib / 2).value().required == static_cast<std::uint64_t>(gib / 2));
  CHECK(parse_size_range(0, 2 * gib).value().required == static_cast<std::uint64_t>(gib));
  CHECK(parse_size_range(-1, 0).error().code == Code::invalid_argument);
  CHECK(parse_size_range(0, -1).error().code == Code::invalid_argument);
  CHECK(parse_size_range(2 * gib, gib).error().code == Code::out_of_range);
  CHECK(parse_size_range(std::numeric_limits<std::int64_t>::max(), 0).error().code == Code::out_of_range);
  CHECK(parse_size_range(1, 1).value().required == 1);
  CHECK(parse_expand_range(0, 0).error().code == Code::invalid_argument);
  CHECK(parse_expand_range(0, gib).value().required == 1);
}

TEST_CASE("J06: an existing size is right when it lies between required and limit") {
  CHECK(SizeRange{10, 0}.admits(10));
  CHECK(SizeRange{10, 0}.admits(11));
  CHECK_FALSE(SizeRange{10, 0}.admits(9));
  CHECK(SizeRange{10, 12}.admits(12));
  CHECK_FALSE(SizeRange{10, 12}.admits(13));
}

TEST_CASE("page tokens: our own come back, anything else is ABORTED") {
  CHECK_FALSE(parse_page_token("").value().has_value());
  CHECK(parse_page_token(page_token("a/b c")).value() == "a/b c");
  for (const auto* bad : {"invalid-token", ":", "00000000:x", "12345678:"})
    CHECK(parse_page_token(bad).error().code == Code::aborted);
  CHECK(page_size(-1).error().code == Code::invalid_argument);
  CHECK(page_size(0).value() == k_max_page);
  CHECK(page_size(3).value() == 3);
}

TEST_CASE("R01: topology is honoured") {
  const auto topology = [](const std::string& key, const std::string& value) {
    ::csi::v1::Topology made;
    if (!key.empty()) (*made.mutable_segments())[key] = value;
    return made;
  };
  const std::string key = "topology.pillar-csi.bhyoo.com/nvmeof";
  CHECK(accessible_topology("nvmeof-tcp").segments().at(key) == "true");
  ::csi::v1::TopologyRequirement none;
  CHECK(check_topology(none, "nvmeof-tcp").has_value());
  ::csi::v1::TopologyRequirement some;
  *some.add_requisite() = topology(key, "false");
  CHECK(check_topology(some, "nvmeof-tcp").error().code == Code::resource_exhausted);
  *some.add_requisite() = topology(key, "true");
  CHECK(check_topology(some, "nvmeof-tcp").has_value());
  ::csi::v1::TopologyRequirement preferred;
  *preferred.add_preferred() = topology("zone", "a");
  CHECK(check_topology(preferred, "nvmeof-tcp").error().code == Code::resource_exhausted);
  *preferred.add_preferred() = topology("", "");
  CHECK(check_topology(preferred, "nvmeof-tcp").has_value());
}

namespace {

crd::PublishedNode entry(const std::string& node, AccessMode mode = AccessMode::single_node_writer,
                         bool readonly = false, bool revoking = false) {
  return {node, "nqn.2014-08.org.example:" + node, std::string(to_string(mode)), readonly, revoking};
}
PublishRequest asks(const std::string& node, AccessMode mode = AccessMode::single_node_writer,
                    bool readonly = false) {
  return {node, "nqn.2014-08.org.example:" + node, mode, readonly};
}

}  // namespace

TEST_CASE("publications: every row of the table") {
  const auto rox = AccessMode::multi_node_reader_only;
  struct Row {
    const char* name;
    std::vector<crd::PublishedNode> entries;
    PublishRequest request;
    bool deleting;
    std::optional<PublishGrant> granted;
    Reason refused;
    Code code;
  };
  auto changed_host = asks("a");
  changed_host.initiator_id = "nqn.2014-08.org.example:other";
  auto same_host = asks("b", rox);
  same_host.initiator_id = "nqn.2014-08.org.example:a";
  const std::vector<Row> rows{
      {"nobody has it", {}, asks("a"), false, PublishGrant::add, {}, {}},
      {"other node has it",
       {entry("a")},
       asks("b"),
       false,
       {},
       Reason::published_elsewhere,
       Code::failed_precondition},
      {"other node, ROX asked of RWO",
       {entry("a")},
       asks("b", rox),
       false,
       {},
       Reason::published_elsewhere,
       Code::failed_precondition},
      {"other node, RWO asked of ROX",
       {entry("a", rox)},
       asks("b"),
       false,
       {},
       Reason::published_elsewhere,
       Code::failed_precondition},
      {"other node, both ROX", {entry("a", rox)}, asks("b", rox), false, PublishGrant::add, {}, {}},
      {"other node, both ROX, first revoking",
       {entry("a", rox, false, true)},
       asks("b", rox),
       false,
       PublishGrant::add,
       {},
       {}},
      {"other node revoking still counts",
       {entry("a", AccessMode::single_node_writer, false, true)},
       asks("b"),
       false,
       {},
       Reason::published_elsewhere,
       Code::failed_precondition},
      {"SINGLE_NODE_READER_ONLY is exclusive",
       {entry("a", AccessMode::single_node_reader_only)},
       asks("b", AccessMode::single_node_reader_only),
       false,
       {},
       Reason::published_elsewhere,
       Code::failed_precondition},
      {"same node, identical", {entry("a")}, asks("a"), false, PublishGrant::reissue, {}, {}},
      {"same node, identical, others ROX",
       {entry("b", rox), entry("a", rox)},
       asks("a", rox),
       false,
       PublishGrant::reissue,
       {},
       {}},
      {"same node, other mode",
       {entry("a")},
       asks("a", AccessMode::single_node_multi_writer),
       false,
       {},
       Reason::already_exists,
       Code::already_exists},
      {"same node, other readonly",
       {entry("a")},
       asks("a", AccessMode::single_node_writer, true),
       false,
       {},
       Reason::already_exists,
       Code::already_exists},
      {"same node, host identity changed",
       {entry("a")},
       changed_host,
       false,
       {},
       Reason::still_published,
       Code::failed_precondition},
      {"same node, revoking",
       {entry("a", AccessMode::single_node_writer, false, true)},
       asks("a"),
       false,
       {},
       Reason::revoking,
       Code::aborted},
      {"deleting", {}, asks("a"), true, {}, Reason::lifecycle_ending, Code::failed_precondition},
      {"B02: one NQN under two nodes, even ROX",
       {entry("a", rox)},
       same_host,
       false,
       {},
       Reason::host_nqn_duplicate,
       Code::failed_precondition},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    crd::VolumeStatus status;
    status.published_nodes = row.entries;
    status.deleting = row.deleting;
    const auto decided = decide_publish("v", status, row.request);
    REQUIRE(decided.has_value() == row.granted.has_value());
    if (decided) {
      CHECK(*decided == *row.granted);
      record_publish(status, row.request);
      CHECK(status.published_nodes.size() == row.entries.size() + (*decided == PublishGrant::add ? 1 : 0));
    } else {
      CHECK(decided.error().reason == row.refused);
      CHECK(decided.error().code == row.code);
      if (!row.entries.empty()) CHECK(decided.error().message.find("node") != std::string::npos);
    }
  }
}

TEST_CASE("publications: revoking marks and drops exactly the chosen ones") {
  crd::VolumeStatus status;
  const auto rox = AccessMode::multi_node_reader_only;
  status.published_nodes = {entry("a", rox), entry("b", rox), entry("c", rox)};
  CHECK(mark_revoking(status, "nobody").empty());
  const auto one = mark_revoking(status, "b");
  REQUIRE(one.size() == 1);
  CHECK(node_list(status) == "a, b, c");
  drop_revoked(status, one);
  CHECK(node_list(status) == "a, c");
  const auto all = mark_revoking(status, "");
  CHECK(all.size() == 2);
  status.published_nodes[0].revoking = false;
  drop_revoked(status, all);
  CHECK(node_list(status) == "a");
}

TEST_CASE("record names: valid, injective, and one per CO name") {
  CHECK(record_name("pvc-1234") == "pvc-1234");
  CHECK(is_object_name(record_name("Upper_Case")));
  CHECK(record_name("Upper_Case") != record_name("upper_case"));
  CHECK(record_name(record_name("Upper_Case")) != record_name("Upper_Case"));
}

TEST_CASE("contexts: only what is set, option lists as JSON, no formatted flag unless known") {
  crd::VolumeState state;
  state.spec.volume_id = "store-1/nvmeof-tcp/lvm-lv/vg0/v";
  state.spec.agent_ref = "store-1";
  state.spec.agent_volume_id = "vg0/v";
  state.spec.protocol_type = "nvmeof-tcp";
  crd::Resolved resolved;
  resolved.protocol.nvmeof_tcp = crd::NvmeofTcp{};
  resolved.protocol.nvmeof_tcp->max_queue_size = 64;
  resolved.filesystem.mkfs_options = {"-m", "0"};
  state.spec.resolved = resolved;
  state.status.export_info = crd::ExportInfo{"nqn.x:y", "10.0.0.5", 4420, "vg0/v"};
  state.status.publication_generation = 7;
  state.status.capacity_bytes = 4096;
  const auto volume = volume_context(state);
  CHECK(volume.at("target_id") == "nqn.x:y");
  CHECK(volume.at("port") == "4420");
  CHECK(volume.at("pillar-csi.bhyoo.com/volume-ref") == "vg0/v");
  CHECK(volume.at("pillar-csi.bhyoo.com/nvmeof-max-queue-size") == "64");
  CHECK(volume.at("pillar-csi.bhyoo.com/mkfs-options") == R"(["-m","0"])");
  CHECK(volume.find("pillar-csi.bhyoo.com/mount-options") == volume.end());
  CHECK(volume.find("pillar-csi.bhyoo.com/nvmeof-ctrl-loss-tmo") == volume.end());
  auto publish = publish_context(state, "nqn.host");
  CHECK(publish.at("pillar-csi.bhyoo.com/publication-generation") == "7");
  CHECK(publish.at("pillar-csi.bhyoo.com/initiator-id") == "nqn.host");
  CHECK(publish.find("pillar-csi.bhyoo.com/formatted") == publish.end());
  state.status.formatted = crd::Formatted{};
  CHECK(publish_context(state, "nqn.host").at("pillar-csi.bhyoo.com/formatted") == "true");
}

TEST_CASE("K10: bookkeeping keys are not part of the wishes, the rest survives storing") {
  ::csi::v1::CreateVolumeRequest request;
  request.set_name("v");
  auto* wanted = request.add_volume_capabilities();
  wanted->mutable_mount();
  wanted->mutable_access_mode()->set_mode(Mode::SINGLE_NODE_WRITER);
  (*request.mutable_parameters())["csi.storage.k8s.io/pvc/name"] = "data";
  (*request.mutable_parameters())["csi.storage.k8s.io/pv/name"] = "pvc-1";
  (*request.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "gold";
  const auto wishes = check_create_request(request);
  REQUIRE(wishes.has_value());
  CHECK(wishes->parameters.size() == 1);
  CHECK(wishes_from_text(to_text(*wishes)).value() == *wishes);
  CHECK(wishes_from_text("{").error().reason == Reason::state_corrupt);
}

TEST_CASE("node ids: a valid NQN after the name, or the node does not exist") {
  const EncodedNodeIds nodes;
  CHECK(nodes.initiator("w/nqn.2014-08.org.nvmexpress:uuid:1").value() ==
        "nqn.2014-08.org.nvmexpress:uuid:1");
  for (const auto& bad : {std::string("w"), std::string("w/"), std::string("/nqn.2014-08.org.example:1"),
                          std::string("w/iqn.x:1"), "w/nqn.2014-08.org.example:" + std::string(260, 'x')})
    CHECK(nodes.initiator(bad).error().code == Code::not_found);
}

TEST_CASE("volume health: reasons are unique and the 1.12 condition follows") {
  crd::VolumeState state;
  state.spec.volume_id = "v";
  state.spec.agent_ref = "store-1";
  CHECK(volume_health(state, "").health_statuses().empty());
  CHECK_FALSE(legacy_condition(volume_health(state, "")).abnormal());
  set_condition(state.status, k_export_reconciled, crd::ConditionStatus::no, "FenceAhead", "x");
  state.status.resize_required = true;
  const auto health = volume_health(state, "connection refused");
  CHECK(health.health_statuses_size() == 3);
  CHECK(health.health_statuses(0).reason() == "AgentUnavailable");
  CHECK(legacy_condition(health).abnormal());
}
