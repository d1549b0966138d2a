#include <doctest/doctest.h>

#include "actors/node/volume_ops.hpp"
#include "requests_fixture.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace pillar::node::testing;
using Mode = ::csi::v1::VolumeCapability::AccessMode;

TEST_SUITE_BEGIN("node/volume_ops");

namespace {

/// One node and its operations; calls run to their end at once.
struct Node {
  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  VolumeOps ops{std::make_shared<FakeHost>(machine), NodeSettings{rules(), "boot-1", true}};

  explicit Node(const std::vector<Volume>& volumes = {Volume()}) {
    for (const auto& each : volumes) machine->exports[each.nqn] = FakeExport();
  }
  template <class Request>
  auto call(Request request) {
    auto shared = std::make_shared<const Request>(std::move(request));
    const auto context = runtime::OperationContext::detached();
    auto task = start(context, shared);
    task.start();
    REQUIRE(task.done());
    return task.take();
  }
  template <class Request>
  Code code(Request request) {
    const auto result = call(std::move(request));
    return result ? Code::ok : result.error().code;
  }
  StageRecord record(const Volume& volume = Volume()) {
    return decode(machine->records.at(record_file_name(volume.id))).value();
  }

 private:
  using C = runtime::OperationContext;
  template <class R>
  using P = std::shared_ptr<const R>;
  auto start(C c, P<::csi::v1::NodeStageVolumeRequest> r) { return ops.stage(c, r); }
  auto start(C c, P<::csi::v1::NodeUnstageVolumeRequest> r) { return ops.unstage(c, r); }
  auto start(C c, P<::csi::v1::NodePublishVolumeRequest> r) { return ops.publish(c, r); }
  auto start(C c, P<::csi::v1::NodeUnpublishVolumeRequest> r) { return ops.unpublish(c, r); }
  auto start(C c, P<::csi::v1::NodeExpandVolumeRequest> r) { return ops.expand(c, r); }
  auto start(C c, P<::csi::v1::NodeGetVolumeStatsRequest> r) { return ops.stats(c, r); }
  auto start(C c, P<::csi::v1::NodeGetVolumeHealthRequest> r) { return ops.health(c, r); }
};

::csi::v1::NodeGetVolumeStatsRequest stats_of(const Volume& volume, const std::string& path) {
  ::csi::v1::NodeGetVolumeStatsRequest request;
  request.set_volume_id(volume.id);
  request.set_volume_path(path);
  return request;
}

::csi::v1::NodeExpandVolumeRequest expand_of(const Volume& volume, const std::string& path,
                                             std::int64_t bytes) {
  ::csi::v1::NodeExpandVolumeRequest request;
  request.set_volume_id(volume.id);
  request.set_volume_path(path);
  request.mutable_capacity_range()->set_required_bytes(bytes);
  return request;
}

const Volume vol;

}  // namespace

TEST_CASE("a life: stage, publish, unpublish, unstage leaves nothing but the data") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  CHECK(node.machine->layers(vol.staging()) == 1);
  CHECK(node.record().phase == Phase::mounted);
  CHECK(node.record().marker.empty());
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  CHECK(node.machine->layers(Volume::target("a")) == 1);
  REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
  CHECK_FALSE(node.machine->paths.contains(Volume::target("a")));
  REQUIRE(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->mounts.empty());
  CHECK(node.machine->sessions.empty());
  CHECK(node.machine->records.empty());
  REQUIRE(node.code(vol.stage()) == Code::ok);
  CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
}

TEST_CASE(
    "every order of steps follows the table: intent before connect, attached before mount, unstaging first") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  const auto& log = node.machine->log;
  const auto at = [&](const char* name) { return std::find(log.begin(), log.end(), name) - log.begin(); };
  CHECK(at("write_record") < at("connect"));
  CHECK(at("connect") < at("wait_device"));
  CHECK(at("probe") < at("mkfs"));
  CHECK(at("mkfs") < at("fsck"));
  CHECK(at("fsck") < at("mount"));
  node.machine->log.clear();
  REQUIRE(node.code(vol.unstage()) == Code::ok);
  CHECK(at("write_record") < at("flush"));
  CHECK(at("flush") < at("unmount_all"));
  CHECK(at("unmount_all") < at("disconnect"));
  CHECK(at("disconnect") < at("remove_record"));
}

TEST_CASE("D14: the same request again changes nothing; another is ALREADY_EXISTS") {
  Node node;
  for (int i = 0; i < 3; ++i) REQUIRE(node.code(vol.stage()) == Code::ok);
  CHECK(node.machine->count("mount") == 1);
  CHECK(node.machine->count("connect") == 1);
  auto other = vol.stage();
  other.mutable_volume_capability()->mutable_mount()->set_fs_type("xfs");
  CHECK(node.code(other) == Code::already_exists);
  CHECK(node.machine->layers(vol.staging()) == 1);
}

TEST_CASE("a failed stage leaves no session, no mount and no record") {
  for (const char* step : {"connect", "wait_device", "probe", "fsck", "make_directory", "mount"}) {
    Node node;
    node.machine->failures[step] = Error{Code::unavailable, Reason::io_error, "no", {}};
    CHECK_MESSAGE(node.code(vol.stage()) == Code::unavailable, step);
    CHECK_MESSAGE(node.machine->sessions.empty(), step);
    CHECK_MESSAGE(node.machine->mounts.empty(), step);
    CHECK_MESSAGE(node.machine->records.empty(), step);
    node.machine->failures.clear();
    CHECK_MESSAGE(node.code(vol.stage()) == Code::ok, step);
    CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
  }
}

TEST_CASE("a failed mkfs keeps the record, so that it may be done again") {
  Node node;
  node.machine->failures["mkfs"] = Error{Code::internal, Reason::command_failed, "no", {}};
  CHECK(node.code(vol.stage()) == Code::internal);
  CHECK(node.record().phase == Phase::formatting);
  CHECK_FALSE(node.record().marker.empty());
  node.machine->failures.clear();
  CHECK(node.code(vol.stage()) == Code::ok);
  CHECK(node.record().phase == Phase::mounted);
}

TEST_CASE("G01: a device that cannot be read, or holds something, is never formatted") {
  for (const auto kind :
       {hostio::ContentKind::unreadable, hostio::ContentKind::foreign, hostio::ContentKind::ambiguous}) {
    Node node;
    node.machine->exports.at(vol.nqn).content.kind = kind;
    CHECK(node.code(vol.stage()) != Code::ok);
    CHECK(node.machine->count("mkfs") == 0);
    CHECK(node.machine->sessions.empty());
    // Raw block volumes may hold anything.
    CHECK(node.code(vol.stage(true)) == Code::ok);
  }
}

TEST_CASE("a blank device of a volume that was formatted is DATA_LOSS, never mkfs") {
  Node node;
  auto request = vol.stage();
  (*request.mutable_publish_context())["pillar-csi.bhyoo.com/formatted"] = "true";
  CHECK(node.code(request) == Code::data_loss);
  CHECK(node.machine->count("mkfs") == 0);
}

TEST_CASE("A03: with each mode: one target, a second target") {
  for (const auto mode :
       {Mode::SINGLE_NODE_WRITER, Mode::SINGLE_NODE_MULTI_WRITER, Mode::SINGLE_NODE_SINGLE_WRITER}) {
    Node node;
    REQUIRE(node.code(vol.stage(false, mode)) == Code::ok);
    CHECK(node.code(vol.publish("a", false, false, mode)) == Code::ok);
    CHECK(node.code(vol.publish("a", false, false, mode)) == Code::ok);
    CHECK(node.code(vol.publish("b", false, false, mode)) ==
          (mode == Mode::SINGLE_NODE_SINGLE_WRITER ? Code::failed_precondition : Code::ok));
    CHECK(node.code(vol.unpublish("a")) == Code::ok);
    CHECK(node.code(vol.publish("b", false, false, mode)) == Code::ok);
  }
}

TEST_CASE("H05: read-only is per target, in either order; H06: exactly one layer") {
  for (const bool first : {false, true}) {
    Node node;
    REQUIRE(node.code(vol.stage()) == Code::ok);
    for (int i = 0; i < 5; ++i) {
      REQUIRE(node.code(vol.publish("a", false, first)) == Code::ok);
      REQUIRE(node.code(vol.publish("b", false, !first)) == Code::ok);
    }
    CHECK(node.machine->layers(Volume::target("a")) == 1);
    for (const auto& each : node.machine->mounts) {
      if (each.target == Volume::target("a")) CHECK(each.readonly == first);
      if (each.target == Volume::target("b")) CHECK(each.readonly == !first);
      if (each.target == vol.staging()) CHECK_FALSE(each.readonly);
    }
    CHECK(node.code(vol.publish("a", false, !first)) == Code::already_exists);
    REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
    REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
    CHECK(node.machine->layers(Volume::target("a")) == 0);
  }
}

TEST_CASE("H03: a read-only access mode sets the device and both mounts read-only, and never formats") {
  Node node;
  auto& content = node.machine->exports.at(vol.nqn).content;
  CHECK(node.code(vol.stage(false, Mode::MULTI_NODE_READER_ONLY)) == Code::failed_precondition);
  CHECK(node.machine->count("mkfs") == 0);
  content = {hostio::ContentKind::filesystem, "ext4", "u", "ext4", 1 << 30, 1 << 30};
  REQUIRE(node.code(vol.stage(false, Mode::MULTI_NODE_READER_ONLY)) == Code::ok);
  CHECK(node.machine->sessions.at(vol.nqn).device.read_only);
  CHECK(node.machine->count("fsck") == 0);
  REQUIRE(node.code(vol.publish("a", false, false, Mode::MULTI_NODE_READER_ONLY)) == Code::ok);
  for (const auto& each : node.machine->mounts) CHECK(each.readonly);
}

TEST_CASE("D07: publish without a stage binds nothing and leaves no directory") {
  Node node;
  CHECK(node.code(vol.publish("a")) == Code::failed_precondition);
  CHECK(node.machine->paths.empty());
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->mounts.clear();
  CHECK(node.code(vol.publish("a")) == Code::failed_precondition);
  CHECK_FALSE(node.machine->paths.contains(Volume::target("a")));
}

TEST_CASE("a raw block volume is published as its device node") {
  Node node;
  REQUIRE(node.code(vol.stage(true)) == Code::ok);
  CHECK(node.machine->mounts.empty());
  CHECK(node.machine->count("probe") == 0);
  REQUIRE(node.code(vol.publish("a", true)) == Code::ok);
  REQUIRE(node.code(vol.publish("a", true)) == Code::ok);
  CHECK(node.machine->layers(Volume::target("a")) == 1);
  CHECK(node.code(vol.unstage()) == Code::failed_precondition);
  REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
  REQUIRE(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->sessions.empty());
  SUBCASE("read-only sets the device flag") {
    REQUIRE(node.code(vol.stage(true)) == Code::ok);
    REQUIRE(node.code(vol.publish("a", true, true)) == Code::ok);
    CHECK(node.machine->sessions.at(vol.nqn).device.read_only);
    REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
    REQUIRE(node.code(vol.publish("b", true)) == Code::ok);
    CHECK_FALSE(node.machine->sessions.at(vol.nqn).device.read_only);
  }
}

TEST_CASE("A07: two staging paths of one volume; the device stays until the last user") {
  Node node;
  auto second_stage = vol.stage();
  second_stage.set_staging_target_path("/var/lib/kubelet/second");
  auto second_unstage = vol.unstage();
  second_unstage.set_staging_target_path("/var/lib/kubelet/second");
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  REQUIRE(node.code(second_stage) == Code::ok);
  CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
  CHECK(node.machine->count("fsck") == 1);
  auto second_publish = vol.publish("b");
  second_publish.set_staging_target_path("/var/lib/kubelet/second");
  REQUIRE(node.code(second_publish) == Code::ok);
  REQUIRE(node.code(vol.unpublish("b")) == Code::ok);
  REQUIRE(node.code(second_unstage) == Code::ok);
  CHECK(node.machine->sessions.size() == 1);
  CHECK(node.machine->layers(Volume::target("a")) == 1);
  CHECK(node.machine->layers(vol.staging()) == 1);
  REQUIRE(node.code(vol.unpublish("a")) == Code::ok);
  REQUIRE(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->sessions.empty());
  CHECK(node.machine->records.empty());
}

TEST_CASE("D16: unstage of one volume leaves the sessions of others alone") {
  const Volume other("pvc-2");
  Node node({vol, other});
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(other.stage()) == Code::ok);
  REQUIRE(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->sessions.size() == 1);
  CHECK(node.machine->sessions.contains(other.nqn));
  CHECK(node.machine->layers(other.staging()) == 1);
}

TEST_CASE("D01: a disconnect that fails, or leaves the device behind, is an error and the record stays") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->failures["disconnect"] = Error{Code::failed_precondition, Reason::device_busy, "held", {}};
  CHECK(node.code(vol.unstage()) == Code::failed_precondition);
  CHECK(node.record().phase == Phase::unstaging);
  node.machine->failures.clear();
  CHECK(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->records.empty());
}

TEST_CASE("D18, E07: data that cannot be flushed in time keeps the volume connected") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->failures["flush"] = Error{Code::unavailable, Reason::command_timeout, "slow", {}};
  CHECK(node.code(vol.unstage()) == Code::unavailable);
  CHECK(node.machine->layers(vol.staging()) == 1);
  CHECK(node.machine->sessions.size() == 1);
  SUBCASE("and is tried again") {
    node.machine->failures.clear();
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
  SUBCASE("a filesystem that is dead is unmounted all the same") {
    node.machine->failures["flush"] = Error{Code::internal, Reason::io_error, "EIO", {}};
    CHECK(node.code(vol.unstage()) == Code::ok);
    CHECK(node.machine->mounts.empty());
  }
  SUBCASE("while the storage node is away nothing is started that would hang") {
    node.machine->failures.clear();
    node.machine->log.clear();
    node.machine->sessions.at(vol.nqn).state = hostio::ControllerState::connecting;
    CHECK(node.code(vol.unstage()) == Code::unavailable);
    CHECK(node.machine->count("flush") + node.machine->count("unmount_all") == 0);
    node.machine->lose_device(vol.nqn);
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
  SUBCASE("a superblock that is still active elsewhere keeps the session") {
    node.machine->failures.clear();
    node.machine->active_superblocks.insert(vol.nqn);
    CHECK(node.code(vol.unstage()) == Code::unavailable);
    CHECK(node.machine->sessions.size() == 1);
    node.machine->active_superblocks.clear();
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
}

TEST_CASE("a stage after a cut-off unstage finishes the unstage first") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->failures["disconnect"] = Error{Code::failed_precondition, Reason::device_busy, "held", {}};
  CHECK(node.code(vol.unstage()) == Code::failed_precondition);
  CHECK(node.code(vol.stage()) == Code::failed_precondition);
  node.machine->failures.clear();
  CHECK(node.code(vol.stage()) == Code::ok);
  CHECK(node.record().phase == Phase::mounted);
  CHECK(node.machine->layers(vol.staging()) == 1);
}

TEST_CASE("D03, D12: a dead filesystem is not accepted on restage but mounted again") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  SUBCASE("the superblock turned read-only") {
    node.machine->mounts[0].superblock_readonly = true;
    REQUIRE(node.code(vol.stage()) == Code::ok);
    CHECK_FALSE(node.machine->mounts[0].superblock_readonly);
    CHECK(node.machine->count("mount") == 2);
  }
  SUBCASE("the journal is aborted") {
    node.machine->dead_filesystems.insert(vol.nqn);
    REQUIRE(node.code(vol.stage()) == Code::ok);
    CHECK(node.machine->count("mount") == 2);
  }
  SUBCASE("E03: the device is gone for good") {
    node.machine->lose_device(vol.nqn);
    REQUIRE(node.code(vol.stage()) == Code::ok);
    CHECK(node.machine->layers(vol.staging()) == 1);
    CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
  SUBCASE("D12: a target that was bound when the device went away is bound again") {
    REQUIRE(node.code(vol.publish("a")) == Code::ok);
    node.machine->lose_device(vol.nqn);
    REQUIRE(node.code(vol.stage()) == Code::ok);
    REQUIRE(node.code(vol.publish("a")) == Code::ok);
    CHECK(node.machine->layers(Volume::target("a")) == 1);
    CHECK_FALSE(node.machine->gone.contains(node.machine->mounts.back().device));
    CHECK(node.code(vol.unpublish("a")) == Code::ok);
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
  SUBCASE("but not under running pods") {
    REQUIRE(node.code(vol.publish("a")) == Code::ok);
    node.machine->dead_filesystems.insert(vol.nqn);
    CHECK(node.code(vol.stage()) == Code::failed_precondition);
    CHECK(node.machine->layers(vol.staging()) == 1);
  }
  SUBCASE("a stalled one is neither accepted nor touched") {
    node.machine->sessions.at(vol.nqn).state = hostio::ControllerState::connecting;
    CHECK(node.code(vol.stage()) == Code::unavailable);
    CHECK(node.machine->layers(vol.staging()) == 1);
  }
}

TEST_CASE("D10: unpublish and unstage work after the device is gone for good") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  node.machine->lose_device(vol.nqn);
  CHECK(node.code(vol.unpublish("a")) == Code::ok);
  CHECK(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->mounts.empty());
  CHECK(node.machine->records.empty());
}

TEST_CASE("a publish that fails because another volume took the target leaves that one mounted") {
  Node node({Volume(), Volume("pvc-2")});
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(Volume("pvc-2").stage()) == Code::ok);
  const auto other = node.machine->sessions.at(Volume("pvc-2").nqn).device.number;
  node.machine->failures["bind"] = Error{Code::already_exists, Reason::target_occupied, "occupied", {}};
  const auto context = runtime::OperationContext::detached("test", [&](std::string_view step) {
    if (step == "publication_written")
      node.machine->mounts.push_back(FakeMount{Volume::target("a"), "/dev/nvme", "/", "ext4", other});
    return runtime::ChaosAction();
  });
  auto task = node.ops.publish(context,
                               std::make_shared<const ::csi::v1::NodePublishVolumeRequest>(vol.publish("a")));
  task.start();
  REQUIRE(task.done());
  CHECK(task.take().error().code == Code::already_exists);
  CHECK(node.machine->layers(Volume::target("a")) == 1);
  CHECK(node.record().publications.empty());
}

TEST_CASE("an unstage that was cut off leaves alone what another volume has mounted there since") {
  Node node({Volume(), Volume("pvc-2")});
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(Volume("pvc-2").stage()) == Code::ok);
  const auto other = node.machine->sessions.at(Volume("pvc-2").nqn).device.number;
  node.machine->failures["flush"] = Error{Code::unavailable, Reason::command_timeout, "late", {}};
  REQUIRE(node.code(vol.unstage()) == Code::unavailable);
  node.machine->failures.clear();
  for (auto& each : node.machine->mounts)
    if (each.target == vol.staging()) each.device = other;
  for (const Code code : {node.code(vol.stage()), node.code(vol.unstage())})
    CHECK(code == Code::failed_precondition);
  CHECK(node.machine->layers(vol.staging()) == 1);
}

TEST_CASE("D04: unstage and unpublish take every layer away") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  node.machine->mounts.push_back(FakeMount{Volume::target("a"), "tmpfs", "/", "tmpfs", {0, 44}});
  node.machine->mounts.push_back(FakeMount{vol.staging(), "tmpfs", "/", "tmpfs", {0, 45}});
  CHECK(node.code(vol.unpublish("a")) == Code::ok);
  CHECK(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->mounts.empty());
}

TEST_CASE("a corrupt record is set aside as evidence and treated as missing") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  auto& text = node.machine->records.begin()->second;
  text.replace(text.find("4420"), 4, "4421");
  CHECK(node.code(vol.unstage()) == Code::ok);  // rebuilt: the NQN leads back to the volume
  CHECK(node.machine->set_aside.size() == 1);
  CHECK(node.machine->mounts.empty());
  CHECK(node.machine->sessions.empty());
}

TEST_CASE("a stale session to another address is replaced unless it is in use") {
  Node node;
  FakeSession stale;
  stale.device.number = {259, 77};
  stale.device.uuid = export_identity_of_nqn(vol.nqn).namespace_uuid;
  stale.address = "10.0.0.99";
  stale.state = hostio::ControllerState::connecting;
  node.machine->sessions[vol.nqn] = stale;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.5");
}

namespace {

/// The storage node listens elsewhere now, and publish_context says so.
::csi::v1::NodeStageVolumeRequest moved(::csi::v1::NodeStageVolumeRequest request) {
  (*request.mutable_publish_context())["pillar-csi.bhyoo.com/address"] = "10.0.0.6";
  return request;
}

}  // namespace

TEST_CASE("C12: the address of the publication is where the node connects") {
  Node node;
  node.machine->exports.at(vol.nqn).address = "10.0.0.6";
  CHECK(node.code(vol.stage()) == Code::unavailable);  // the address where the volume was made
  REQUIRE(node.code(moved(vol.stage())) == Code::ok);
  CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.6");
  CHECK(node.record().session.address == "10.0.0.6");
  CHECK(node.code(moved(vol.stage())) == Code::ok);
  CHECK(node.machine->count("connect") == 2);
  CHECK(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->sessions.empty());
}

TEST_CASE("C12: a storage node that moves under a staged volume") {
  const bool block = false;
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->exports.at(vol.nqn).address = "10.0.0.6";
  SUBCASE("a live session stays where it goes") {
    REQUIRE(node.code(vol.publish("a")) == Code::ok);
    CHECK(node.code(moved(vol.stage())) == Code::ok);
    CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.5");
    CHECK(node.machine->count("connect") == 1);
    CHECK(node.machine->count("disconnect") == 0);
    CHECK(node.record().session.address == "10.0.0.5");
    // Also for a second staging path.
    auto second = moved(vol.stage(block));
    second.set_staging_target_path(vol.staging() + "-2");
    CHECK(node.code(second) == Code::ok);
    CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.5");
  }
  SUBCASE("one that waits for the old address is ended and made anew") {
    node.machine->sessions.at(vol.nqn).state = hostio::ControllerState::connecting;
    REQUIRE(node.code(moved(vol.stage())) == Code::ok);
    CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.6");
    CHECK(node.machine->count("disconnect") == 1);
    CHECK(node.machine->layers(vol.staging()) == 1);
    CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
    CHECK(node.record().session.address == "10.0.0.6");
    CHECK(node.code(vol.unstage()) == Code::ok);
  }
  SUBCASE("but not under running pods") {
    REQUIRE(node.code(vol.publish("a")) == Code::ok);
    node.machine->sessions.at(vol.nqn).state = hostio::ControllerState::connecting;
    const auto refused = node.call(moved(vol.stage()));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().reason == Reason::device_busy);
    CHECK(refused.error().message.find("10.0.0.6") != std::string::npos);
    CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.5");
    CHECK(node.code(vol.unpublish("a")) == Code::ok);
    CHECK(node.code(moved(vol.stage())) == Code::ok);
  }
  SUBCASE("one that was given up is replaced") {
    node.machine->lose_device(vol.nqn);
    REQUIRE(node.code(moved(vol.stage())) == Code::ok);
    CHECK(node.machine->sessions.at(vol.nqn).address == "10.0.0.6");
    CHECK(node.machine->layers(vol.staging()) == 1);
  }
}

TEST_CASE("a full state folder refuses what needs a record and lets volumes be taken down") {
  Node node;
  const Error full{Code::unavailable, Reason::state_unwritable, "no space left; free space", {}};
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  node.machine->failures["write_record"] = full;
  const auto refused = node.call(vol.publish("b"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().reason == Reason::state_unwritable);
  CHECK(node.machine->layers(Volume::target("b")) == 0);
  CHECK(node.code(stats_of(vol, vol.staging())) == Code::ok);
  CHECK(node.code(vol.unpublish("a")) == Code::ok);
  CHECK(node.code(vol.unstage()) == Code::ok);
  CHECK(node.machine->mounts.empty());
  CHECK(node.machine->sessions.empty());
  CHECK(node.machine->records.empty());
  CHECK(node.code(vol.stage()) == Code::unavailable);
  CHECK(node.machine->sessions.empty());
  CHECK(node.machine->count("connect") == 1);
  node.machine->failures.clear();
  CHECK(node.code(vol.stage()) == Code::ok);
}

TEST_CASE("H09: nothing is mounted where nobody would see it, and everything can be taken down") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  node.machine->hidden = Error{Code::failed_precondition, Reason::dependency_missing, "Bidirectional", {}};
  for (const auto& refused : {node.code(vol.publish("b")), node.code(Volume("pvc-2").stage())})
    CHECK(refused == Code::failed_precondition);
  CHECK(node.machine->records.size() == 1);
  CHECK(node.code(stats_of(vol, vol.staging())) == Code::ok);
  CHECK(node.code(vol.unpublish("a")) == Code::ok);
  CHECK(node.code(vol.unstage()) == Code::ok);
}

TEST_CASE("N04: symbolic links in the kubelet directory are resolved before anything is compared") {
  Node node;
  node.machine->links["/var/lib/kubelet"] = "/mnt/kubelet";
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.stage()) == Code::ok);
  CHECK(node.machine->mounts[0].target.starts_with("/mnt/kubelet/"));
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  CHECK(node.code(vol.unpublish("a")) == Code::ok);
  CHECK(node.code(vol.unstage()) == Code::ok);
}

TEST_CASE("a link does not lead out of the directories that paths may be in") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->links["/var/lib/kubelet/pods/a"] = "/etc/systemd";
  CHECK(node.code(vol.publish("a")) == Code::invalid_argument);
  CHECK(node.code(vol.unpublish("a")) == Code::invalid_argument);
  node.machine->links["/var/lib/kubelet/plugins"] = "/usr";
  CHECK(node.code(vol.unstage()) == Code::invalid_argument);
  CHECK(node.code(vol.stage()) == Code::invalid_argument);
  CHECK(node.machine->count("remove_target") == 0);
  CHECK(node.machine->mounts.size() == 1);
}

TEST_CASE("K07: unknown and malformed ids") {
  Node node;
  const std::string path = "/var/lib/kubelet/nothing";
  for (const std::string& id : {std::string("nonsense"), Volume("pvc-9").id}) {
    ::csi::v1::NodeUnstageVolumeRequest unstage;
    unstage.set_volume_id(id);
    unstage.set_staging_target_path(path);
    CHECK(node.code(unstage) == Code::ok);
    ::csi::v1::NodeUnpublishVolumeRequest unpublish;
    unpublish.set_volume_id(id);
    unpublish.set_target_path(path);
    CHECK(node.code(unpublish) == Code::ok);
    auto publish = vol.publish("a");
    publish.set_volume_id(id);
    CHECK(node.code(publish) == Code::failed_precondition);
    auto stats = stats_of(vol, path);
    stats.set_volume_id(id);
    CHECK(node.code(stats) == Code::not_found);
    auto expand = expand_of(vol, path, 1);
    expand.set_volume_id(id);
    CHECK(node.code(expand) == Code::not_found);
    ::csi::v1::NodeGetVolumeHealthRequest health;
    health.set_volume_id(id);
    CHECK(node.code(health) == Code::not_found);
  }
  for (const bool with_path : {false, true}) {
    const std::string use = with_path ? path : "";
    const Volume& volume = vol;
    auto stats = stats_of(volume, use);
    auto expand = expand_of(volume, use, 1);
    if (with_path) {
      stats.clear_volume_id();
      expand.clear_volume_id();
    }
    CHECK(node.code(stats) == Code::invalid_argument);
    CHECK(node.code(expand) == Code::invalid_argument);
  }
  CHECK(node.code(::csi::v1::NodeUnstageVolumeRequest()) == Code::invalid_argument);
  CHECK(node.code(::csi::v1::NodeUnpublishVolumeRequest()) == Code::invalid_argument);
  CHECK(node.code(::csi::v1::NodeGetVolumeHealthRequest()) == Code::invalid_argument);
}

TEST_CASE("I06: stats of filesystem, block device, missing and foreign path") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  auto stats = node.call(stats_of(vol, Volume::target("a")));
  REQUIRE(stats);
  REQUIRE(stats->usage_size() == 2);
  CHECK(stats->usage(0).unit() == ::csi::v1::VolumeUsage::BYTES);
  CHECK(stats->usage(1).unit() == ::csi::v1::VolumeUsage::INODES);
  CHECK_FALSE(stats->volume_condition().abnormal());
  CHECK(node.code(stats_of(vol, "/var/lib/kubelet/other")) == Code::not_found);
  node.machine->mounts.push_back(FakeMount{"/var/lib/kubelet/foreign", "tmpfs", "/", "tmpfs", {0, 44}});
  CHECK(node.code(stats_of(vol, "/var/lib/kubelet/foreign")) == Code::not_found);

  Node block;
  REQUIRE(block.code(vol.stage(true)) == Code::ok);
  REQUIRE(block.code(vol.publish("a", true)) == Code::ok);
  stats = block.call(stats_of(vol, Volume::target("a")));
  REQUIRE(stats);
  REQUIRE(stats->usage_size() == 1);
  CHECK(stats->usage(0).total() == 1 << 30);
  CHECK(block.machine->count("stats") == 0);
}

TEST_CASE("I01: stats of a filesystem that does not answer: an abnormal condition, not an error") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  node.machine->failures["stats"] = Error{Code::unavailable, Reason::command_timeout, "no answer", {}};
  auto stats = node.call(stats_of(vol, vol.staging()));
  REQUIRE(stats);
  CHECK(stats->volume_condition().abnormal());
  CHECK(stats->volume_condition().message().find("FilesystemNotResponding") != std::string::npos);
  node.machine->failures.clear();
  node.machine->lose_device(vol.nqn);
  stats = node.call(stats_of(vol, vol.staging()));
  REQUIRE(stats);
  CHECK(stats->volume_condition().message().find("DeviceGone") != std::string::npos);
}

TEST_CASE("NodeGetVolumeHealth asks the filesystem only when nothing else is wrong") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  ::csi::v1::NodeGetVolumeHealthRequest request;
  request.set_volume_id(vol.id);
  auto health = node.call(request);
  REQUIRE(health);
  CHECK(health->volume_health().health_statuses_size() == 0);
  node.machine->dead_filesystems.insert(vol.nqn);
  health = node.call(request);
  REQUIRE(health->volume_health().health_statuses_size() == 1);
  CHECK(health->volume_health().health_statuses(0).reason() == "FilesystemDead");
  CHECK(health->volume_health().health_statuses(0).status() == ::csi::v1::INACCESSIBLE);
}

TEST_CASE("L01, L03, L04: expansion waits for the size, then grows; block volumes are only verified") {
  Node node;
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(vol.publish("a")) == Code::ok);
  CHECK(node.code(expand_of(vol, Volume::target("a"), 2LL << 30)) == Code::failed_precondition);
  CHECK(node.machine->count("grow") == 0);
  node.machine->exports.at(vol.nqn).size = 2ULL << 30U;
  auto grown = node.call(expand_of(vol, Volume::target("a"), 2LL << 30));
  REQUIRE(grown);
  CHECK(grown->capacity_bytes() == 2LL << 30);
  CHECK(node.machine->exports.at(vol.nqn).content.filesystem_bytes == 2ULL << 30U);
  grown = node.call(expand_of(vol, vol.staging(), 1LL << 30));
  REQUIRE(grown);
  CHECK(grown->capacity_bytes() == 2LL << 30);
  CHECK(node.code(expand_of(vol, "/var/lib/kubelet/other", 1)) == Code::not_found);
  auto limited = expand_of(vol, vol.staging(), 1);
  limited.mutable_capacity_range()->set_limit_bytes(1 << 20);
  CHECK(node.code(limited) == Code::out_of_range);
  CHECK(node.code(expand_of(vol, vol.staging(), -1)) == Code::invalid_argument);

  Node block;
  REQUIRE(block.code(vol.stage(true)) == Code::ok);
  REQUIRE(block.code(vol.publish("a", true)) == Code::ok);
  for (const auto& path : {Volume::target("a"), vol.staging()}) {
    grown = block.call(expand_of(vol, path, 1LL << 30));
    REQUIRE(grown);
    CHECK(grown->capacity_bytes() == 1LL << 30);
  }
  CHECK(block.machine->count("grow") == 0);
}

TEST_CASE("D06: the start of the process drops dead records and connects nothing") {
  Node node({vol, Volume("pvc-2")});
  REQUIRE(node.code(vol.stage()) == Code::ok);
  REQUIRE(node.code(Volume("pvc-2").stage()) == Code::ok);
  node.machine->records["bad.json"] = "{";
  auto host = std::make_shared<FakeHost>(node.machine);
  const auto reconcile = [&](const std::string& boot) {
    auto task = reconcile_records(host, boot);
    task.start();
    REQUIRE(task.done());
    return task.take().value();
  };
  auto report = reconcile("boot-1");
  CHECK(report.kept == 2);
  CHECK(report.corrupt == 1);
  node.machine->reboot();
  node.machine->log.clear();
  report = reconcile("boot-2");
  CHECK(report.dropped == 2);
  CHECK(node.machine->records.empty());
  CHECK(node.machine->count("connect") + node.machine->count("disconnect") == 0);
}

TEST_SUITE_END();
