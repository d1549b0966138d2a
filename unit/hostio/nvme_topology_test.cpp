#include <sys/resource.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "fake_nvme.hpp"
#include "hostio/nvme/topology.hpp"
#include "hostio/nvme/uevents.hpp"

using namespace pillar;
using namespace pillar::hostio;
using pillar::hostio::testing::FakeNvme;

namespace {

const std::string k_a = "nqn.2026-01.com.bhyoo.pillar-csi:volume-a";
const std::string k_b = "nqn.2026-01.com.bhyoo.pillar-csi:volume-b";
const std::string k_uuid_a = "11111111-2222-5333-8444-555555555555";
const std::string k_uuid_b = "66666666-2222-5333-8444-555555555555";
const std::string k_class = "class/nvme-subsystem/";

}  // namespace

TEST_CASE("C01, C03: a namespace is found by NQN and UUID, whatever its numbers are") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_b);
  fake.controller("nvme-subsys0", "nvme0", k_b);
  fake.block(k_class + "nvme-subsys0", "nvme0n1", "259:1", "1", k_uuid_b);
  // The old subsystem lingered: controller 4, head "nvme3n2", namespace id 7.
  fake.subsystem("nvme-subsys3", k_a);
  fake.controller("nvme-subsys3", "nvme4", k_a);
  fake.block(k_class + "nvme-subsys3", "nvme3n2", "259:9", "7", k_uuid_a);
  fake.block(k_class + "nvme-subsys3/nvme4", "nvme3c4n2", "259:10", "7", k_uuid_a);

  const NvmeTopology topology(fake.roots());
  const auto found = topology.find_namespace(k_a, "11111111-2222-5333-8444-555555555555");
  REQUIRE(found);
  CHECK(found->name == "nvme3n2");
  CHECK(found->number == DeviceNumber{259, 9});
  CHECK(found->nsid == 7);
  CHECK(found->size_bytes == 1ULL << 30U);
  CHECK(found->node == fake.roots().dev + "/nvme3n2");
  CHECK(topology.nqn_of({259, 9}) == k_a);
  CHECK(!topology.nqn_of({8, 0}));
}

TEST_CASE("without descriptors left it is not known what is connected: an error, not an empty list") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_a);
  fake.controller("nvme-subsys0", "nvme0", k_a);
  const NvmeTopology topology(fake.roots());
  const int next = ::dup(0);
  ::close(next);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  // From no descriptor at all to enough for some of the reads: never a part of the truth.
  for (int spare = 0; spare < 4; ++spare) {
    const rlimit few{static_cast<rlim_t>(next + spare), before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto seen = topology.subsystems();
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CAPTURE(spare);
    if (seen)
      CHECK(seen->at(0).controllers.size() == 1);
    else
      CHECK(seen.error().code == Code::unavailable);
    CHECK(seen.has_value() == (spare > 0));
  }
}

TEST_CASE("without native multipath the device below the controller is found") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_a);
  fake.controller("nvme-subsys0", "nvme0", k_a);
  fake.block("devices/virtual/nvme-fabrics/ctl/nvme0", "nvme0n1", "259:1", "1", k_uuid_a);
  const auto found = NvmeTopology(fake.roots()).find_namespace(k_a, k_uuid_a);
  REQUIRE(found);
  CHECK(found->name == "nvme0n1");
  CHECK(NvmeTopology(fake.roots()).nqn_of({259, 1}) == k_a);
}

TEST_CASE("C06: another namespace under the NQN, or the same one twice, is no device") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_a);
  fake.controller("nvme-subsys0", "nvme0", k_a);
  const NvmeTopology topology(fake.roots());
  CHECK(topology.find_namespace(k_a, k_uuid_a).error().reason == Reason::device_missing);
  fake.block(k_class + "nvme-subsys0", "nvme0n1", "259:1", "1", k_uuid_b);
  const auto other = topology.find_namespace(k_a, k_uuid_a);
  CHECK(other.error().reason == Reason::device_mismatch);
  CHECK(other.error().message.find(k_uuid_b) != std::string::npos);
  fake.block(k_class + "nvme-subsys0", "nvme0n2", "259:2", "2", k_uuid_a);
  CHECK(topology.find_namespace(k_a, k_uuid_a)->name == "nvme0n2");
  fake.block(k_class + "nvme-subsys0", "nvme0n3", "259:3", "3", k_uuid_a);
  CHECK(topology.find_namespace(k_a, k_uuid_a).error().reason == Reason::device_mismatch);
  CHECK(topology.find_namespace("nqn.2026-01.com.bhyoo.pillar-csi:none", k_uuid_a).error().reason ==
        Reason::device_missing);
}

TEST_CASE("controllers carry state, address and identity") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_a);
  fake.controller("nvme-subsys0", "nvme0", k_a, "connecting", pillar::hostio::testing::k_fake_host,
                  "traddr=FD00:0:0::1,trsvcid=4421");
  const NvmeTopology topology(fake.roots());
  const auto controllers = topology.controllers(k_a);
  REQUIRE(controllers);
  REQUIRE(controllers->size() == 1);
  const auto& one = controllers->front();
  CHECK(one.state == ControllerState::connecting);
  CHECK(one.address == "fd00::1");
  CHECK(one.port == 4421);
  CHECK(one.host_nqn == pillar::hostio::testing::k_fake_host.nqn);
  CHECK(one.queue_count == 3);
  CHECK(topology.has_live_controller(k_a).value() == false);
  fake.controller("nvme-subsys0", "nvme1", k_a, "live");
  CHECK(topology.has_live_controller(k_a).value());
}

TEST_CASE("a host without NVMe has no subsystems") {
  const FakeNvme fake;
  CHECK(NvmeTopology(fake.roots()).subsystems().value().empty());
}

TEST_CASE("controller states") {
  CHECK(controller_state_from("live") == ControllerState::live);
  CHECK(controller_state_from("deleting (no IO)") == ControllerState::deleting);
  CHECK(controller_state_from("new") == ControllerState::starting);
  CHECK(controller_state_from("future") == ControllerState::unknown);
  CHECK(to_string(ControllerState::resetting) == "resetting");
}

TEST_CASE("block device facts come from sysfs") {
  const FakeNvme fake;
  fake.block("devices/virtual/x", "nvme0n1", "259:7", "1", k_uuid_a, "4096");
  const auto roots = fake.roots();
  CHECK(block_device_exists(roots, {259, 7}));
  CHECK(block_device_size(roots, {259, 7}).value() == 4096ULL * 512);
  CHECK(block_device_read_only(roots, {259, 7}).value() == false);
  CHECK(block_device_name(roots, {259, 7}).value() == "nvme0n1");
  CHECK(!block_device_exists(roots, {259, 8}));
  CHECK(block_device_size(roots, {259, 8}).error().reason == Reason::device_missing);
  CHECK(DeviceNumber::parse("259:7") == DeviceNumber{259, 7});
  for (const char* bad : {"", "259", "259:", ":7", "259:7x", "a:b", "259:7:1"})
    CHECK(!DeviceNumber::parse(bad));
  CHECK(device_number_of_node(roots.dev + "/none").error().reason == Reason::device_missing);
  CHECK(device_number_of_node(roots.dev + "/nvme0n1").error().reason == Reason::device_mismatch);
  CHECK(device_number_of_node("/dev/null").error().reason == Reason::device_mismatch);
}

TEST_CASE("kernel events are parsed, udevd's are not") {
  using namespace std::string_view_literals;
  const auto event = parse_uevent(
      "add@/devices/virtual/nvme-fabrics/ctl/nvme0\0ACTION=add\0SUBSYSTEM=nvme\0DEVNAME=nvme0\0"sv);
  REQUIRE(event);
  CHECK(event->action == "add");
  CHECK(event->subsystem == "nvme");
  CHECK(event->devname == "nvme0");
  CHECK(!parse_uevent("libudev\0\xfe\xed"sv));
  CHECK(!parse_uevent(""sv));
  CHECK(!parse_uevent("@/x"sv));
}

TEST_CASE("C08: a wait ends by polling when no event comes, and at its deadline") {
  using namespace std::chrono_literals;
  int looks = 0;
  const auto seen = wait_for([&]() -> Result<bool> { return ++looks == 3; }, Deadline::after(5s), 5ms);
  CHECK(seen.value());
  CHECK(looks == 3);
  CHECK(wait_for([]() -> Result<bool> { return false; }, Deadline::after(20ms), 5ms).value() == false);
  const auto failed =
      wait_for([]() -> Result<bool> { return fail(Reason::io_error, "x"); }, Deadline::after(5s));
  CHECK(failed.error().reason == Reason::io_error);
}
