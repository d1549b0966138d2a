#include <doctest/doctest.h>

#include "requests_fixture.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace pillar::node::testing;
using hostio::Content;
using hostio::ContentKind;
using hostio::FormatDecision;

TEST_SUITE_BEGIN("node/decisions");

namespace {

const Volume vol;

StageRequest request_of(const ::csi::v1::NodeStageVolumeRequest& wire) {
  return parse_stage(wire, rules()).value();
}

/// A node where `vol` is connected as 259:1 and, if asked, mounted.
struct Scene {
  FakeMachine machine;
  StageRecord record;
  StageRequest request = request_of(vol.stage());

  explicit Scene(bool connected = true) {
    if (connected) connect();
    record.volume_id = vol.id;
    record.phase = Phase::mounted;
    record.usage = request.usage;
    record.session = request.context.session;
    record.device = RecordedDevice{"/dev/nvme1n1", {259, 1}};
    record.stagings = {{vol.staging(), StagingState::staged, hostio::DeviceNumber{259, 1}}};
    record.boot_id = "boot-1";
  }
  void connect(const std::string& nqn = vol.nqn, unsigned minor = 1) {
    FakeSession session;
    session.device.name = "nvme" + std::to_string(minor) + "n1";
    session.device.node = "/dev/" + session.device.name;
    session.device.number = {259, minor};
    session.device.uuid = export_identity_of_nqn(nqn).namespace_uuid;
    machine.sessions[nqn] = session;
  }
  void mount(const std::string& path, unsigned minor = 1, bool readonly = false,
             const std::string& fs = "ext4") {
    machine.mounts.push_back(FakeMount{path, "/dev/nvme", "/", fs, {259, minor}, readonly, false, ",nodev"});
  }
  void tmpfs(const std::string& path) {
    machine.mounts.push_back(FakeMount{path, "tmpfs", "/", "tmpfs", {0, 40}});
  }
  Result<StageStep> plan() const { return plan_stage(record, request, machine.view()); }
};

PublishRequest publish_of(const ::csi::v1::NodePublishVolumeRequest& wire) {
  return parse_publish(wire, rules()).value();
}

}  // namespace

TEST_CASE("stage: every row of the table of docs/fencing.md section 5") {
  SUBCASE("no record, nothing mounted: start over") {
    Scene scene(false);
    CHECK(plan_stage(std::nullopt, scene.request, scene.machine.view()).value() == StageStep::fresh);
  }
  SUBCASE("intent, attached, formatting: resume") {
    for (const auto phase : {Phase::intent, Phase::attached, Phase::formatting}) {
      Scene scene;
      scene.record.phase = phase;
      scene.record.stagings[0].state = StagingState::staging;
      CHECK(scene.plan().value() == StageStep::resume);
    }
  }
  SUBCASE("attached and mounted: mountinfo decides") {
    Scene scene;
    scene.record.phase = Phase::attached;
    scene.record.stagings[0].state = StagingState::staging;
    scene.mount(vol.staging());
    CHECK(scene.plan().value() == StageStep::adopt_mount);
    scene.machine.mounts[0].readonly = true;
    CHECK(scene.plan().value() == StageStep::mount_again);
  }
  SUBCASE("the record was lost but the mount is provably ours") {
    Scene scene;
    scene.mount(vol.staging());
    CHECK(plan_stage(std::nullopt, scene.request, scene.machine.view()).value() == StageStep::adopt_mount);
  }
  SUBCASE("mounted: the same request is checked and answered") {
    Scene scene;
    scene.mount(vol.staging());
    CHECK(scene.plan().value() == StageStep::check_health);
  }
  SUBCASE("mounted, but the mount is gone: mount again") {
    Scene scene;
    CHECK(scene.plan().value() == StageStep::resume);
  }
  SUBCASE("D12: mounted, but its device is gone") {
    Scene scene;
    scene.mount(vol.staging());
    scene.machine.lose_device(vol.nqn);
    CHECK(scene.plan().value() == StageStep::mount_again);
  }
  SUBCASE("D04: two layers of ours are unwound") {
    Scene scene;
    scene.mount(vol.staging());
    scene.mount(vol.staging());
    CHECK(scene.plan().value() == StageStep::mount_again);
  }
  SUBCASE("an unfinished stage of another export is replaced") {
    Scene scene;
    scene.record.phase = Phase::intent;
    scene.record.stagings[0].state = StagingState::staging;
    scene.record.session.address = "10.0.0.9";
    CHECK(scene.plan().value() == StageStep::replace_session);
  }
}

TEST_CASE("D04: something else mounted at the staging path is refused and named") {
  Scene scene;
  scene.tmpfs(vol.staging());
  for (const auto& step : {plan_stage(std::nullopt, scene.request, scene.machine.view()), scene.plan()}) {
    REQUIRE_FALSE(step);
    CHECK(step.error().code == Code::failed_precondition);
    CHECK(step.error().message.find("tmpfs") != std::string::npos);
  }
}

TEST_CASE("D14: another capability or context than what is staged is ALREADY_EXISTS") {
  using Mode = ::csi::v1::VolumeCapability::AccessMode;
  std::vector<::csi::v1::NodeStageVolumeRequest> others;
  others.push_back(vol.stage());
  others.back().mutable_volume_capability()->mutable_mount()->set_fs_type("xfs");
  others.push_back(vol.stage());
  others.back().mutable_volume_capability()->mutable_mount()->add_mount_flags("noatime");
  others.push_back(vol.stage(true));
  others.push_back(vol.stage(false, Mode::SINGLE_NODE_MULTI_WRITER));
  others.push_back(vol.stage());
  (*others.back().mutable_volume_context())["address"] = "10.0.0.6";
  for (const auto& other : others) {
    Scene scene;
    scene.mount(vol.staging());
    scene.request = request_of(other);
    const auto step = scene.plan();
    REQUIRE_MESSAGE(!step, other.ShortDebugString());
    CHECK(step.error().code == Code::already_exists);
  }
}

TEST_CASE("A07: a second staging path of the same volume is staged beside the first") {
  Scene scene;
  scene.mount(vol.staging());
  scene.request.path = "/var/lib/kubelet/other";
  CHECK(scene.plan().value() == StageStep::resume);
}

TEST_CASE("format: every row of docs/fencing.md section 6") {
  const auto request = request_of(vol.stage());
  auto formatted = request;
  formatted.publish.formatted = true;
  auto readonly = request;
  readonly.usage.readonly = true;
  const Content blank{ContentKind::blank, "", "", "blank", 1 << 30};
  Content ext4{ContentKind::filesystem, "ext4", "u", "ext4", 1 << 30, 1 << 30};
  ext4.signature = true;
  Content half = ext4;
  half.type = "ext4";
  half.incomplete = true;
  Content lvm{ContentKind::foreign, "LVM2_member", "", "LVM", 1 << 30};
  lvm.signature = true;
  const Content plain{ContentKind::foreign, "", "", "plain data", 1 << 30};
  const Content two{ContentKind::ambiguous, "", "", "two", 1 << 30};
  const Content broken{ContentKind::unreadable, "", "", "EIO", 1 << 30};

  CHECK(plan_format(blank, false, request).value() == FormatDecision::format);
  CHECK(plan_format(ext4, false, request).value() == FormatDecision::use);
  CHECK(plan_format(ext4, false, formatted).value() == FormatDecision::use);
  CHECK(plan_format(ext4, false, readonly).value() == FormatDecision::use);
  CHECK(plan_format(ext4, true, request).value() == FormatDecision::use);
  CHECK(plan_format(half, true, request).value() == FormatDecision::clear_and_format);
  CHECK(plan_format(plain, true, request).value() == FormatDecision::clear_and_format);
  CHECK(plan_format(blank, true, request).value() == FormatDecision::format);

  const auto code = [](const Result<FormatDecision>& result) {
    return result ? Code::ok : result.error().code;
  };
  CHECK(code(plan_format(blank, false, formatted)) == Code::data_loss);
  CHECK(code(plan_format(blank, true, formatted)) == Code::data_loss);
  CHECK(code(plan_format(blank, false, readonly)) == Code::failed_precondition);
  CHECK(code(plan_format(plain, true, readonly)) == Code::failed_precondition);
  CHECK(code(plan_format(lvm, false, request)) == Code::failed_precondition);
  CHECK(code(plan_format(lvm, true, request)) == Code::failed_precondition);
  CHECK(code(plan_format(plain, false, request)) == Code::failed_precondition);
  CHECK(code(plan_format(plain, true, formatted)) == Code::failed_precondition);
  CHECK(code(plan_format(two, true, request)) == Code::failed_precondition);
  CHECK(code(plan_format(broken, true, request)) == Code::internal);
  CHECK_FALSE(plan_format(half, false, request));
  Content xfs = ext4;
  xfs.type = "xfs";
  CHECK(code(plan_format(xfs, false, request)) == Code::failed_precondition);
  Content larger = ext4;
  larger.filesystem_bytes = 2ULL << 30U;
  CHECK_MESSAGE(!plan_format(larger, false, request), "D18: device smaller than its filesystem");
}

TEST_CASE("a cut-off mkfs may be done again only under the same publication") {
  Scene scene;
  scene.record.phase = Phase::formatting;
  scene.record.marker = "m";
  scene.record.generation = 7;
  CHECK(marker_matches(scene.record, scene.request.publish));
  scene.record.generation = 6;
  CHECK_FALSE(marker_matches(scene.record, scene.request.publish));
  scene.record.generation = 7;
  scene.record.phase = Phase::attached;
  CHECK_FALSE(marker_matches(scene.record, scene.request.publish));
  scene.record.phase = Phase::formatting;
  scene.record.marker = "";
  CHECK_FALSE(marker_matches(scene.record, scene.request.publish));
}

TEST_CASE("D07: publish needs a stage that is verified in mountinfo") {
  const auto request = publish_of(vol.publish("a"));
  const auto code = [&](const Scene& scene) {
    const auto step = plan_publish(scene.record, request, scene.machine.view());
    return step ? Code::ok : step.error().code;
  };
  CHECK(plan_publish(std::nullopt, request, Scene().machine.view()).error().code ==
        Code::failed_precondition);
  Scene empty;
  CHECK(code(empty) == Code::failed_precondition);
  Scene staged;
  staged.mount(vol.staging());
  CHECK(code(staged) == Code::ok);
  staged.tmpfs(vol.staging());
  CHECK(code(staged) == Code::failed_precondition);
  Scene unfinished;
  unfinished.mount(vol.staging());
  unfinished.record.stagings[0].state = StagingState::staging;
  CHECK(code(unfinished) == Code::failed_precondition);
  Scene leaving;
  leaving.mount(vol.staging());
  leaving.record.phase = Phase::unstaging;
  CHECK(code(leaving) == Code::failed_precondition);
  Scene dead;
  dead.mount(vol.staging());
  dead.machine.lose_device(vol.nqn);
  CHECK(code(dead) == Code::failed_precondition);
}

TEST_CASE("A03: a second target on the node is fine except for SINGLE_NODE_SINGLE_WRITER") {
  using Mode = ::csi::v1::VolumeCapability::AccessMode;
  for (const auto mode :
       {Mode::SINGLE_NODE_WRITER, Mode::SINGLE_NODE_MULTI_WRITER, Mode::SINGLE_NODE_SINGLE_WRITER}) {
    Scene scene;
    scene.request = request_of(vol.stage(false, mode));
    scene.record.usage = scene.request.usage;
    scene.mount(vol.staging());
    scene.mount(Volume::target("a"));
    scene.record.put_publication({Volume::target("a"), false, static_cast<AccessMode>(mode), true});
    const auto step =
        plan_publish(scene.record, publish_of(vol.publish("b", false, false, mode)), scene.machine.view());
    CHECK(step.has_value() == (mode != Mode::SINGLE_NODE_SINGLE_WRITER));
    if (!step) CHECK(step.error().code == Code::failed_precondition);
    // A recorded target that is no longer mounted does not count.
    scene.machine.mounts.pop_back();
    CHECK(plan_publish(scene.record, publish_of(vol.publish("b", false, false, mode)), scene.machine.view()));
  }
}

TEST_CASE("H01, H05, H06: what is at the target decides") {
  const auto target = Volume::target("a");
  Scene scene;
  scene.mount(vol.staging());
  const auto plan = [&](bool readonly) {
    return plan_publish(scene.record, publish_of(vol.publish("a", false, readonly)), scene.machine.view());
  };
  SUBCASE("nothing: bind") { CHECK(plan(false).value() == PublishStep::bind); }
  SUBCASE("published the same way: done; the other way: ALREADY_EXISTS") {
    scene.mount(target);
    scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
    CHECK(plan(false).value() == PublishStep::done);
    CHECK(plan(true).error().code == Code::already_exists);
  }
  SUBCASE("half bound: bind again, read-only or not") {
    scene.mount(target);
    scene.record.put_publication({target, true, AccessMode::single_node_writer, false});
    CHECK(plan(true).value() == PublishStep::rebind);
  }
  SUBCASE("ours but unrecorded: recorded if it is as asked") {
    scene.mount(target);
    CHECK(plan(false).value() == PublishStep::adopt);
    CHECK(plan(true).error().code == Code::already_exists);
  }
  SUBCASE("another volume: ALREADY_EXISTS") {
    scene.connect(Volume("pvc-2").nqn, 2);
    scene.mount(target, 2);
    CHECK(plan(false).error().code == Code::already_exists);
    CHECK(plan(false).error().reason == Reason::target_occupied);
  }
  SUBCASE("D12: what lost its device is ours if the target is recorded, and bound again") {
    scene.mount(target, 7);
    scene.machine.gone.insert({259, 7});
    CHECK(plan(false).error().reason == Reason::target_occupied);
    scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
    CHECK(plan(false).value() == PublishStep::rebind);
    CHECK(plan(true).error().code == Code::already_exists);
    scene.machine.gone.clear();
    CHECK(plan(false).error().reason == Reason::target_occupied);
  }
  SUBCASE("stacked: one layer again") {
    scene.mount(target);
    scene.mount(target);
    CHECK(plan(false).value() == PublishStep::rebind);
  }
}

TEST_CASE("D12: a node whose device is gone is bound again at a recorded target") {
  Scene scene;
  scene.request = request_of(vol.stage(true));
  scene.record.usage = scene.request.usage;
  scene.machine.mounts.push_back(FakeMount{Volume::target("a"), "udev", "/nvme7n1", "devtmpfs", {0, 5}});
  scene.machine.bound[Volume::target("a")] = {259, 7};
  scene.machine.gone.insert({259, 7});
  scene.record.put_publication({Volume::target("a"), false, AccessMode::single_node_writer, true});
  CHECK(plan_publish(scene.record, publish_of(vol.publish("a", true)), scene.machine.view()).value() ==
        PublishStep::rebind);
}

TEST_CASE("P07: a publication with a mount option the stage does not have is refused") {
  Scene scene;
  scene.mount(vol.staging());
  auto wire = vol.publish("a");
  wire.mutable_volume_capability()->mutable_mount()->add_mount_flags("context=system_u:object_r:c_t:s0:c1");
  const auto step = plan_publish(scene.record, publish_of(wire), scene.machine.view());
  REQUIRE_FALSE(step);
  CHECK(step.error().code == Code::failed_precondition);
}

TEST_CASE("a block volume has one read-only flag for all its targets") {
  Scene scene;
  scene.request = request_of(vol.stage(true));
  scene.record.usage = scene.request.usage;
  scene.machine.mounts.push_back(FakeMount{Volume::target("a"), "udev", "/nvme1n1", "devtmpfs", {0, 5}});
  scene.machine.bound[Volume::target("a")] = {259, 1};
  scene.record.put_publication({Volume::target("a"), false, AccessMode::single_node_writer, true});
  const auto view = scene.machine.view();
  CHECK(plan_publish(scene.record, publish_of(vol.publish("a", true)), view).value() == PublishStep::done);
  CHECK(plan_publish(scene.record, publish_of(vol.publish("b", true)), view).value() == PublishStep::bind);
  CHECK(plan_publish(scene.record, publish_of(vol.publish("b", true, true)), view).error().code ==
        Code::failed_precondition);
  CHECK(plan_publish(scene.record, publish_of(vol.publish("b")), view).error().code ==
        Code::failed_precondition);
}

TEST_CASE("D10: unpublish goes by path; without a record only what is provably ours or dead") {
  const auto target = Volume::target("a");
  Scene scene;
  const auto plan = [&](bool recorded) {
    return plan_unpublish(recorded ? std::optional(scene.record) : std::nullopt, vol.id, target,
                          scene.machine.view());
  };
  CHECK(plan(true).value() == UnpublishStep::nothing);
  scene.mount(target);
  CHECK(plan(true).value() == UnpublishStep::unmount);
  CHECK(plan(false).value() == UnpublishStep::unmount);
  scene.machine.lose_device(vol.nqn);
  CHECK(plan(true).value() == UnpublishStep::unmount);
  CHECK(plan(false).value() == UnpublishStep::unmount);
  scene.machine.mounts.clear();
  scene.connect(Volume("pvc-2").nqn, 2);
  scene.mount(target, 2);
  CHECK(plan(true).error().code == Code::failed_precondition);
  CHECK(plan(false).error().code == Code::failed_precondition);
  scene.machine.mounts.clear();
  scene.tmpfs(target);
  CHECK(plan(false).error().code == Code::failed_precondition);
  scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
  CHECK(plan(true).value() == UnpublishStep::unmount);
}

TEST_CASE("a staging path is no target and a target is no staging path") {
  const auto target = Volume::target("a");
  Scene scene;
  scene.mount(vol.staging());
  scene.mount(target);
  scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
  const auto view = scene.machine.view();
  auto wire = vol.publish("b");
  wire.set_target_path(vol.staging());
  CHECK(plan_publish(scene.record, publish_of(wire), view).error().code == Code::invalid_argument);
  CHECK(plan_unpublish(scene.record, vol.id, vol.staging(), view).error().code == Code::failed_precondition);
  CHECK(plan_unstage(scene.record, target, view).error().code == Code::failed_precondition);
}

TEST_CASE("a number that another device has now is not ours, whatever the record says") {
  // A mkfs was cut off, the machine booted, and 259:1 is a partition of the node's own disk since.
  Scene scene(false);
  scene.record.phase = Phase::formatting;
  scene.record.stagings[0].state = StagingState::staging;
  scene.mount("/var");
  const auto view = scene.machine.view();
  CHECK(users_of(view, scene.record).empty());
  CHECK(plan_unstage(scene.record, vol.staging(), view).value() == UnstageStep::take_down);
  CHECK(plan_unpublish(scene.record, vol.id, "/var", view).error().code == Code::failed_precondition);
  scene.mount(vol.staging());
  CHECK(scene.plan().error().code == Code::failed_precondition);
}

TEST_CASE("a recorded path that holds another volume by now is left alone") {
  const auto target = Volume::target("a");
  Scene scene;
  scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
  scene.connect(Volume("pvc-2").nqn, 2);
  scene.mount(target, 2);
  scene.mount(vol.staging(), 2);
  const auto view = scene.machine.view();
  CHECK(plan_unpublish(scene.record, vol.id, target, view).error().code == Code::failed_precondition);
  CHECK(plan_unstage(scene.record, vol.staging(), view).error().code == Code::failed_precondition);
  CHECK(check_remount(scene.record, vol.staging(), view).error().code == Code::failed_precondition);
}

TEST_CASE("a bound node whose number another volume has now is unmounted: it would show that one's data") {
  const auto target = Volume::target("a");
  Scene scene(false);
  scene.record.put_publication({target, false, AccessMode::single_node_writer, true});
  scene.connect(Volume("pvc-2").nqn, 1);
  scene.machine.mounts.push_back(FakeMount{target, "udev", "/nvme1n1", "devtmpfs", {0, 5}});
  scene.machine.bound[target] = {259, 1};
  CHECK(plan_unpublish(scene.record, vol.id, target, scene.machine.view()).value() == UnpublishStep::unmount);
}

TEST_CASE("D17: unstage is refused while a pod uses the volume, A07: unless another staging path keeps it") {
  Scene scene;
  scene.mount(vol.staging());
  CHECK(plan_unstage(scene.record, vol.staging(), scene.machine.view()).value() == UnstageStep::take_down);
  scene.mount(Volume::target("a"));
  const auto refused = plan_unstage(scene.record, vol.staging(), scene.machine.view());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::failed_precondition);
  CHECK(refused.error().message.find(Volume::target("a")) != std::string::npos);
  scene.record.stagings.push_back({"/other", StagingState::staged, hostio::DeviceNumber{259, 1}});
  CHECK(plan_unstage(scene.record, vol.staging(), scene.machine.view()).value() == UnstageStep::take_down);
  CHECK(plan_unstage(scene.record, "/third", scene.machine.view()).value() == UnstageStep::nothing);
  scene.tmpfs("/third");
  CHECK(plan_unstage(scene.record, "/third", scene.machine.view()).error().code == Code::failed_precondition);
}

TEST_CASE("a missing record is rebuilt only when the NQN leads back to the volume") {
  Scene scene;
  SUBCASE("nothing mounted, no session: nothing to do") {
    CHECK_FALSE(rebuild_record(Scene(false).machine.view(), vol.id, vol.staging()).value().has_value());
    CHECK_FALSE(rebuild_record(scene.machine.view(), "nonsense", vol.staging()).value().has_value());
  }
  SUBCASE("an unused session of the volume is taken down") {
    const auto record = rebuild_record(scene.machine.view(), vol.id, vol.staging()).value();
    REQUIRE(record);
    CHECK(record->session.nqn == vol.nqn);
    CHECK(record->phase == Phase::unstaging);
    scene.mount(Volume::target("a"));
    CHECK_FALSE(rebuild_record(scene.machine.view(), vol.id, vol.staging()).value().has_value());
  }
  SUBCASE("mounted and provable") {
    scene.mount(vol.staging());
    CHECK(rebuild_record(scene.machine.view(), vol.id, vol.staging()).value()->usage.fs_type == "ext4");
  }
  SUBCASE("mounted and not provable: refused") {
    scene.mount(vol.staging());
    CHECK(rebuild_record(scene.machine.view(), Volume("pvc-2").id, vol.staging()).error().code ==
          Code::failed_precondition);
    CHECK_FALSE(rebuild_record(scene.machine.view(), "nonsense", vol.staging()));
    scene.machine.lose_device(vol.nqn);
    CHECK_FALSE(rebuild_record(scene.machine.view(), vol.id, vol.staging()));
  }
}

TEST_CASE("D06: after a reboot only records with something left, or a cut-off mkfs, survive") {
  Scene scene;
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-1") == RecordFate::keep);
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-2") == RecordFate::keep);
  scene.machine.sessions.clear();
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-1") == RecordFate::keep);
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-2") == RecordFate::drop);
  scene.record.phase = Phase::formatting;
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-2") == RecordFate::keep);
  scene.record.phase = Phase::mounted;
  scene.mount(vol.staging());
  CHECK(reconcile_record(scene.record, scene.machine.view(), "boot-2") == RecordFate::keep);
}

TEST_CASE("health comes from mountinfo and sysfs alone") {
  Scene scene;
  scene.mount(vol.staging());
  const auto reasons = [&] {
    std::string text;
    for (const auto& each : health_of(scene.machine.view(), scene.record, vol.staging()))
      text += each.reason + " ";
    return text;
  };
  CHECK(reasons().empty());
  scene.machine.sessions[vol.nqn].state = hostio::ControllerState::connecting;
  CHECK(reasons() == "TargetUnreachable ");
  scene.machine.sessions[vol.nqn].state = hostio::ControllerState::live;
  scene.machine.mounts[0].superblock_readonly = true;
  CHECK(reasons() == "FilesystemReadOnly ");
  scene.machine.lose_device(vol.nqn);
  CHECK(reasons() == "DeviceGone FilesystemDead ");
}

TEST_SUITE_END();
