#include <doctest/doctest.h>

#include "requests_fixture.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace pillar::node::testing;

TEST_SUITE_BEGIN("node/requests");

namespace {

const std::string k = "pillar-csi.bhyoo.com/";

Result<StageRequest> with_volume(const std::string& key, const std::string& value) {
  auto request = Volume().stage();
  (*request.mutable_volume_context())[key] = value;
  return parse_stage(request, rules());
}

Result<StageRequest> with_publish(const std::string& key, const std::string& value) {
  auto request = Volume().stage();
  (*request.mutable_publish_context())[key] = value;
  return parse_stage(request, rules());
}

}  // namespace

TEST_CASE("a stage request carries everything that is recorded") {
  auto request = Volume().stage();
  auto& context = *request.mutable_volume_context();
  context[k + "nvmeof-max-queue-size"] = "64";
  context[k + "nvmeof-ctrl-loss-tmo"] = "-1";
  context[k + "mount-options"] = R"(["noatime"])";
  request.mutable_volume_capability()->mutable_mount()->add_mount_flags("nosuid");
  const auto parsed = parse_stage(request, rules());
  REQUIRE(parsed);
  CHECK(parsed->context.session.nqn == Volume().nqn);
  CHECK(parsed->context.session.namespace_uuid == export_identity_of_nqn(Volume().nqn).namespace_uuid);
  CHECK(parsed->context.tunables.queue_size == 64);
  CHECK(parsed->context.tunables.ctrl_loss_tmo == -1);
  CHECK(parsed->usage.mount_options.find("noatime") != std::string::npos);
  CHECK(parsed->usage.mount_options.find("nosuid") != std::string::npos);
  CHECK(parsed->publish.generation == 7);
  CHECK_FALSE(parsed->publish.formatted);
  CHECK_FALSE(parsed->usage.readonly);
}

TEST_CASE("volume_context is validated strictly, naming the key") {
  const std::pair<std::string, std::string> bad[] = {
      {"target_id", "nqn.2014-08.org.other:disk"},
      {"target_id", Volume("pvc-2").nqn},
      {"target_id", Volume().nqn + ",duplicate_connect"},
      {"address", "storage-1.example"},
      {"address", "10.0.0.5,host_iface=eth1"},
      {"port", "0"},
      {"port", "65536"},
      {"port", "44 20"},
      {"port", ""},
      {k + "protocol-type", "iscsi"},
      {k + "volume-ref", "vg0/pvc-2"},
      {k + "nvmeof-max-queue-size", "8"},
      {k + "nvmeof-ctrl-loss-tmo", "abc"},
      {k + "nvmeof-ctrl-loss-tmo", "-2"},
      {k + "fs-type", "btrfs"},
      {k + "mkfs-options", "-F"},
      {k + "mkfs-options", R"(["-F"])"},
      {k + "mount-options", R"(["loop"])"},
      {k + "mount-options", "[1]"},
  };
  for (const auto& [key, value] : bad) {
    const auto parsed = with_volume(key, value);
    REQUIRE_MESSAGE(!parsed, key, " = ", value);
    CHECK_MESSAGE(parsed.error().code == Code::invalid_argument, key, " = ", value);
  }
  for (const char* key : {"target_id", "address", "port"}) {
    auto request = Volume().stage();
    request.mutable_volume_context()->erase(key);
    const auto parsed = parse_stage(request, rules());
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().message.find(key) != std::string::npos);
  }
}

TEST_CASE("C12: addresses are normalised") {
  CHECK(with_volume("address", "[FD00:0:0::1]")->context.session.address == "fd00::1");
}

TEST_CASE("keys of a newer controller are ignored") { CHECK(with_volume(k + "something-new", "x")); }

TEST_CASE("NodeStage refuses without a publish context") {
  auto request = Volume().stage();
  request.clear_publish_context();
  const auto parsed = parse_stage(request, rules());
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().code == Code::failed_precondition);
  CHECK(parsed.error().message.find("ControllerPublishVolume") != std::string::npos);
}

TEST_CASE("B08: a publication for another host is refused, naming both") {
  const auto parsed = with_publish(k + "initiator-id", "nqn.2014-08.org.nvmexpress:uuid:other");
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().code == Code::failed_precondition);
  CHECK(parsed.error().message.find("uuid:other") != std::string::npos);
  CHECK(parsed.error().message.find(k_host_nqn) != std::string::npos);
}

TEST_CASE("publish_context values are validated") {
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"publication-generation", "0"}, {"formatted", "yes"}, {"capacity-bytes", "-1"}}) {
    const auto parsed = with_publish(k + key, value);
    REQUIRE_MESSAGE(!parsed, key);
    CHECK(parsed.error().code == Code::invalid_argument);
  }
  CHECK(with_publish(k + "formatted", "true")->publish.formatted);
}

TEST_CASE("paths: absolute, clean, short, outside system directories, below the prefixes") {
  const RequestRules anywhere = rules();
  for (const char* good : {"/var/lib/kubelet/x", "/tmp/csi-staging", "/mnt/a/", "/data/..a", "/etcetera"})
    CHECK_MESSAGE(check_path("path", good, anywhere), good);
  for (const std::string& bad :
       {std::string("relative"), std::string(""), std::string("/"), std::string("/a/../etc"),
        std::string("/a//b"), std::string("/a/./b"), std::string("/etc/kubernetes"), std::string("/usr"),
        std::string("/a\nb"), "/" + std::string(4095, 'a')}) {
    const auto checked = check_path("path", bad, anywhere);
    REQUIRE_MESSAGE(!checked, bad);
    CHECK(checked.error().code == Code::invalid_argument);
  }
  const RequestRules kubelet{k_host_nqn, {"/var/lib/kubelet"}};
  CHECK(check_path("path", "/var/lib/kubelet/pods/x", kubelet));
  CHECK_FALSE(check_path("path", "/var/lib/kubelet2/x", kubelet));
  CHECK_FALSE(check_path("path", "/tmp/x", kubelet));
}

TEST_CASE("volume paths: a relative one is where no volume is, everything else is bad input") {
  CHECK(check_volume_path("v", "some/path", rules()).error().code == Code::not_found);
  for (const char* bad : {"", "/", "/a/../etc", "/etc/passwd"})
    CHECK(check_volume_path("v", bad, rules()).error().code == Code::invalid_argument);
  CHECK(check_volume_path("", "some/path", rules()).error().code == Code::invalid_argument);
  CHECK(check_volume_path("v", "/var/lib/kubelet/x", rules()));
}

TEST_CASE("K07: ids and capabilities that are missing or malformed") {
  auto request = Volume().stage();
  request.set_volume_id("");
  CHECK(parse_stage(request, rules()).error().code == Code::invalid_argument);
  request.set_volume_id("nonsense");
  CHECK(parse_stage(request, rules()).error().code == Code::not_found);
  request = Volume().stage();
  request.clear_staging_target_path();
  CHECK(parse_stage(request, rules()).error().code == Code::invalid_argument);
  request = Volume().stage();
  request.clear_volume_capability();
  CHECK(parse_stage(request, rules()).error().code == Code::invalid_argument);
  auto publish = Volume().publish("a");
  publish.clear_staging_target_path();
  CHECK(parse_publish(publish, rules()).error().code == Code::failed_precondition);
  publish = Volume().publish("a");
  publish.clear_target_path();
  CHECK(parse_publish(publish, rules()).error().code == Code::invalid_argument);
}

TEST_CASE("A06: node calls accept exactly the access modes of the one table") {
  for (const auto& row : access_modes())
    for (const bool block : {false, true}) {
      const auto mode = static_cast<::csi::v1::VolumeCapability::AccessMode::Mode>(row.mode);
      const bool offered = block ? row.block : row.mount;
      CHECK_MESSAGE(parse_stage(Volume().stage(block, mode), rules()).has_value() == offered, row.name);
      CHECK_MESSAGE(parse_publish(Volume().publish("a", block, false, mode), rules()).has_value() == offered,
                    row.name);
    }
}

TEST_CASE("H03: read-only if the flag, the access mode or a mount option says so") {
  using Mode = ::csi::v1::VolumeCapability::AccessMode;
  CHECK(parse_publish(Volume().publish("a", false, true), rules())->readonly);
  CHECK(parse_publish(Volume().publish("a", false, false, Mode::MULTI_NODE_READER_ONLY), rules())->readonly);
  CHECK_FALSE(parse_publish(Volume().publish("a"), rules())->readonly);
  CHECK(parse_stage(Volume().stage(false, Mode::MULTI_NODE_READER_ONLY), rules())->usage.readonly);
  CHECK(with_volume(k + "mount-options", R"(["ro"])")->usage.readonly);
}

TEST_CASE("a group for the mount is refused rather than ignored") {
  auto request = Volume().stage();
  request.mutable_volume_capability()->mutable_mount()->set_volume_mount_group("1000");
  CHECK(parse_stage(request, rules()).error().code == Code::invalid_argument);
}

TEST_CASE("an NQN leads back to its volume, or is said not to be provable") {
  const auto volume = VolumeId::parse(Volume().id).value();
  CHECK(nqn_belongs_to(Volume().nqn, volume) == Ownership::yes);
  CHECK(nqn_belongs_to(Volume("pvc-10").nqn, volume) == Ownership::no);
  CHECK(nqn_belongs_to(export_identity("other cluster", "storage-1", volume.volume).nqn, volume) ==
        Ownership::yes);
  CHECK(nqn_belongs_to(export_identity("c", "storage-2", volume.volume).nqn, volume) == Ownership::no);
  CHECK(nqn_belongs_to("nqn.2014-08.org.other:x", volume) == Ownership::no);
  const auto hashed = export_identity(std::string(200, 'c'), "storage-1", volume.volume).nqn;
  CHECK(nqn_belongs_to(hashed, volume) == Ownership::unknown);
}

TEST_SUITE_END();
