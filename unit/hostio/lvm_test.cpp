#include "hostio/lvm.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "fake_lvm.hpp"
#include "hostio/durable_file.hpp"

using namespace pillar;
using namespace pillar::hostio;
using pillar::hostio::testing::FakeLvm;
using pillar::hostio::testing::TempDir;

namespace {

constexpr std::uint64_t k_mib = 1024 * 1024;
const AgentVolumeId k_id{"vg0", "v1"};
const std::string k_uid = "6f1c2d3e-0000-4000-8000-000000000001";
const std::string k_tag = "pillar-csi.uid=" + k_uid;
const Deadline k_long = Deadline::after(std::chrono::hours(1));

struct Fixture {
  FakeLvm fake;
  Lvm lvm{fake, fake, fake.options()};

  Result<LogicalVolume> create(std::uint64_t required, std::uint64_t limit = 0) {
    return lvm.create(k_id, k_uid, {required, limit}, k_long);
  }
  Result<LogicalVolume> extend(std::uint64_t required, std::uint64_t limit = 0) {
    return lvm.extend(k_id, k_uid, {required, limit}, k_long);
  }
  std::size_t count(const std::string& program) const {
    std::size_t n = 0;
    for (const std::string& line : fake.log) n += line.starts_with(program) ? 1 : 0;
    return n;
  }
};

FakeLvm::Volume volume(std::uint64_t size, std::set<std::string> tags) {
  FakeLvm::Volume v;
  v.size = size;
  v.tags = std::move(tags);
  return v;
}

template <class T>
Reason reason(const Result<T>& result) {
  REQUIRE_FALSE(result);
  return result.error().reason;
}

}  // namespace

TEST_SUITE("lvm") {
  TEST_CASE("J01, J02, J04, J08: sizes round up to extents within the limit") {
    struct Row {
      std::uint64_t required, limit, extent, expected;  // expected 0: OUT_OF_RANGE
    };
    constexpr std::uint64_t k_huge = ~0ULL;
    for (const Row& row :
         {Row{10 * k_mib + 1, 10 * k_mib + 1, 4 * k_mib, 0},
          Row{10 * k_mib, 12 * k_mib, 4 * k_mib, 12 * k_mib}, Row{1073741825, 0, 4 * k_mib, 1077936128},
          Row{0, 0, 4 * k_mib, 4 * k_mib}, Row{1, 0, 4 * k_mib, 4 * k_mib}, Row{1, k_mib, 4 * k_mib, 0},
          Row{4 * k_mib, 4 * k_mib, 4 * k_mib, 4 * k_mib}, Row{2, 1, 512, 0}, Row{k_huge, 0, 4 * k_mib, 0},
          Row{k_huge >> 1U, 0, 4 * k_mib, 0}}) {
      const auto size = round_to_extents({row.required, row.limit}, row.extent);
      CAPTURE(row.required);
      if (row.expected == 0)
        CHECK(reason(size) == Reason::out_of_range);
      else
        CHECK(size.value() == row.expected);
    }
  }

  TEST_CASE("device-mapper names double the dashes") {
    CHECK(dm_name({"vg0", "v1"}) == "vg0-v1");
    CHECK(dm_name({"my-vg", "pvc-1-2"}) == "my--vg-pvc--1--2");
  }

  TEST_CASE("create: one lvcreate with the tag, then wipe, then the wiped tag") {
    Fixture f;
    const auto made = f.create(10 * k_mib);
    REQUIRE_MESSAGE(made, made.error().message);
    CHECK(made->size_bytes == 12 * k_mib);
    CHECK(made->uid == k_uid);
    CHECK(made->wiped);
    CHECK(made->device_path == "/dev/vg0/v1");
    std::vector<std::string> changes;
    for (const std::string& line : f.fake.log)
      if (!line.starts_with("lvs") && !line.starts_with("vgs")) changes.push_back(line);
    CHECK(changes ==
          std::vector<std::string>{"lvcreate --yes --type linear --zero y --wipesignatures y --addtag " +
                                       k_tag + " --size 12582912b --name v1 vg0",
                                   "wipe /dev/vg0/v1", "lvchange --addtag pillar-csi.wiped=1 vg0/v1"});
  }

  TEST_CASE("J06, K10: a repeat returns the same volume, another size is ALREADY_EXISTS") {
    Fixture f;
    REQUIRE(f.create(1024 * k_mib / 2 + 1));
    f.fake.log.clear();
    const auto again = f.create(1024 * k_mib / 2 + 1);
    REQUIRE(again);
    CHECK(again->size_bytes == 516 * k_mib);
    CHECK(f.create(512 * k_mib));
    CHECK(f.count("wipe") == 0);
    CHECK(f.count("lvcreate") == 0);
    CHECK(reason(f.create(600 * k_mib)) == Reason::already_exists);
    CHECK(reason(f.create(1, 100 * k_mib)) == Reason::already_exists);
    CHECK(reason(f.create(2, 1)) == Reason::out_of_range);
  }

  TEST_CASE("a volume that is not ours is never touched") {
    const std::vector<std::set<std::string>> owners{{}, {"pillar-csi.uid=other"}, {"backup", "a=b"}};
    for (const auto& tags : owners) {
      Fixture f;
      f.fake.add("v1", volume(8 * k_mib, tags));
      CHECK(reason(f.create(8 * k_mib)) == Reason::not_owned);
      CHECK(reason(f.extend(16 * k_mib)) == Reason::not_owned);
      CHECK(reason(f.lvm.remove(k_id, k_uid, k_long)) == Reason::not_owned);
      CHECK(reason(f.lvm.activate(k_id, k_uid, k_long)) == Reason::not_owned);
      CHECK(reason(f.lvm.change_owner(k_id, k_uid, "new", k_long)) == Reason::not_owned);
      for (const std::string& line : f.fake.log) CHECK(line.starts_with("lvs"));
      CHECK(f.fake.volumes.at("v1").size == 8 * k_mib);
    }
  }

  TEST_CASE("a name taken between look-up and lvcreate belongs to whoever made it") {
    Fixture f;
    f.fake.before = [&](const std::string& step) -> Result<void> {
      if (step == "lvcreate") f.fake.add("v1", volume(8 * k_mib, {}));
      return {};
    };
    CHECK(reason(f.create(8 * k_mib)) == Reason::not_owned);
    CHECK(f.count("wipe") == 0);
  }

  TEST_CASE("a crash at any step of create is finished by the retry; a wiped volume is never wiped again") {
    for (int at = 0; at < 20; ++at) {
      Fixture f;
      int seen = 0;
      f.fake.before = [&](const std::string&) -> Result<void> {
        if (seen++ == at) return fail(Reason::injected_fault, "crash");
        return {};
      };
      const bool done = f.create(8 * k_mib).has_value();
      f.fake.before = nullptr;
      const bool had_tag =
          f.fake.volumes.contains("v1") && f.fake.volumes.at("v1").tags.contains("pillar-csi.wiped=1");
      if (!had_tag && f.fake.volumes.contains("v1"))
        CHECK(reason(f.lvm.activate(k_id, k_uid, k_long)) == Reason::device_missing);
      f.fake.log.clear();
      const auto made = f.create(8 * k_mib);
      REQUIRE(made);
      CHECK(made->wiped);
      CHECK(f.fake.volumes.at("v1").wiped_content);
      CHECK(f.count("wipe") == (had_tag ? 0 : 1));
      if (done) break;
    }
  }

  TEST_CASE("L06: a create without space is RESOURCE_EXHAUSTED, an impossible growth OUT_OF_RANGE") {
    Fixture f;
    f.fake.add("other", volume(900 * k_mib, {}));
    CHECK(reason(f.create(512 * k_mib)) == Reason::no_space);
    CHECK(reason(f.create(10ULL << 50U)) == Reason::no_space);
    CHECK(f.count("lvcreate") == 0);
    REQUIRE(f.create(64 * k_mib));
    CHECK(reason(f.extend(512 * k_mib)) == Reason::no_space);
    CHECK(reason(f.extend(10ULL << 50U)) == Reason::out_of_range);
    CHECK(f.extend(100 * k_mib)->size_bytes == 100 * k_mib);
    f.fake.fail_once["lvextend"] = {5, "",
                                    "  Insufficient free space: 9 extents needed, but only 1 available\n"};
    CHECK(reason(f.extend(110 * k_mib)) == Reason::no_space);
  }

  TEST_CASE("L03: equal or smaller is success with the current size, nothing shrinks") {
    Fixture f;
    REQUIRE(f.create(64 * k_mib));
    CHECK(f.extend(64 * k_mib)->size_bytes == 64 * k_mib);
    CHECK(f.extend(8 * k_mib)->size_bytes == 64 * k_mib);
    CHECK(f.count("lvextend") == 0);
    CHECK(reason(f.extend(8 * k_mib, 32 * k_mib)) == Reason::out_of_range);
    CHECK(reason(f.extend(65 * k_mib, 66 * k_mib)) == Reason::out_of_range);
    CHECK(f.extend(65 * k_mib)->size_bytes == 68 * k_mib);
    CHECK(reason(f.lvm.extend({"vg0", "none"}, k_uid, {1, 0}, k_long)) == Reason::not_found);
  }

  TEST_CASE("an lvextend that was killed while the device was suspended is resumed") {
    Fixture f;
    REQUIRE(f.create(64 * k_mib));
    f.fake.volumes.at("v1").suspended = true;
    CHECK(f.extend(64 * k_mib));
    CHECK_FALSE(f.fake.volumes.at("v1").suspended);
  }

  TEST_CASE("remove: missing is success, a missing pool is not") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    CHECK(f.lvm.remove(k_id, k_uid, k_long));
    CHECK(f.lvm.remove(k_id, k_uid, k_long));
    f.fake.vg_present = false;
    CHECK(reason(f.lvm.remove(k_id, k_uid, k_long)) == Reason::pool_missing);
    CHECK(reason(f.lvm.find(k_id, k_long)) == Reason::pool_missing);
    CHECK(reason(f.lvm.pool_info("vg0", k_long)) == Reason::pool_missing);
  }

  TEST_CASE("I3: what has come to have the name meanwhile is not removed") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.before = [&f](const std::string& program) -> Result<void> {
      if (program != "lvremove") return {};
      f.fake.volumes.erase("v1");
      f.fake.add("v1", volume(8 * k_mib, {"pillar-csi.uid=another", "pillar-csi.wiped=1"}));
      return {};
    };
    CHECK(f.lvm.remove(k_id, k_uid, k_long));
    REQUIRE(f.fake.volumes.contains("v1"));
    CHECK(f.fake.volumes.at("v1").tags.contains("pillar-csi.uid=another"));
  }

  TEST_CASE("removal is reported only when the volume is gone") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.fail_once["lvremove"] = {0, "", ""};
    CHECK(reason(f.lvm.remove(k_id, k_uid, k_long)) == Reason::command_failed);
    CHECK(f.lvm.remove(k_id, k_uid, k_long));
    CHECK_FALSE(f.fake.volumes.contains("v1"));
  }

  TEST_CASE("F05: a volume in use is kept and its holders and mounts are named") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.root.put("sys/dev/block/253:0/holders/dm-7/dm/name", "guest-root\n");
    f.fake.root.put(
        "proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 253:0 / /mnt/x rw - ext4 /dev/mapper/vg0-v1 rw\n");
    const auto result = f.lvm.remove(k_id, k_uid, k_long);
    CHECK(reason(result) == Reason::device_busy);
    CHECK(result.error().details.at("holders") == "device dm-7 (guest-root), mount /mnt/x");
    CHECK(f.count("lvremove") == 0);
    std::filesystem::remove_all(f.fake.root / "sys/dev/block/253:0/holders");
    f.fake.root.put("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
    f.fake.fail_once["lvremove"] = {5, "", "  Logical volume vg0/v1 in use.\n"};
    CHECK(reason(f.lvm.remove(k_id, k_uid, k_long)) == Reason::device_busy);
    CHECK(f.lvm.remove(k_id, k_uid, k_long));
  }

  TEST_CASE("F12: a volume with snapshots is kept and they are named") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.volumes.at("v1").kind = 'o';
    FakeLvm::Volume snapshot = volume(4 * k_mib, {});
    snapshot.kind = 's';
    snapshot.origin = "v1";
    f.fake.add("by-hand", snapshot);
    const auto result = f.lvm.remove(k_id, k_uid, k_long);
    CHECK(reason(result) == Reason::deletion_blocked);
    CHECK(result.error().details.at("dependents") == "vg0/by-hand");
    CHECK(f.count("lvremove") == 0);
  }

  TEST_CASE("F08: activation is explicit and ignores the skip flag") {
    Fixture f;
    FakeLvm::Volume sleeping = volume(8 * k_mib, {k_tag, "pillar-csi.wiped=1"});
    sleeping.active = false;
    sleeping.kind = 'k';
    f.fake.add("v1", sleeping);
    const auto device = f.lvm.activate(k_id, k_uid, k_long);
    REQUIRE(device);
    CHECK(device->path == "/dev/vg0/v1");
    CHECK(device->number == DeviceNumber{253, 0});
    CHECK(device->size_bytes == 8 * k_mib);
    f.fake.log.clear();
    CHECK(f.lvm.activate(k_id, k_uid, k_long));
    CHECK(f.count("lvchange") == 0);
    CHECK(reason(f.lvm.activate({"vg0", "none"}, k_uid, k_long)) == Reason::not_found);
  }

  TEST_CASE("C08, F09: nodes are made without udev, and their absence is UNAVAILABLE with the volume kept") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.nodes = false;
    const auto missing = f.lvm.activate(k_id, k_uid, k_long);
    CHECK(reason(missing) == Reason::device_missing);
    CHECK(missing.error().code == Code::unavailable);
    CHECK(f.fake.volumes.contains("v1"));
    f.fake.nodes_after_mknodes = 1;
    CHECK(f.lvm.activate(k_id, k_uid, k_long));
  }

  TEST_CASE("a device number that stands for another device is refused") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.root.put("sys/dev/block/253:0/dm/uuid", "LVM-somethingelse\n");
    CHECK(reason(f.lvm.activate(k_id, k_uid, k_long)) == Reason::device_mismatch);
  }

  TEST_CASE("find and list: only what carries our tag") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    f.fake.add("theirs", volume(4 * k_mib, {"x"}));
    CHECK((*f.lvm.find(k_id, k_long))->uid == k_uid);
    CHECK_FALSE(f.lvm.find({"vg0", "none"}, k_long)->has_value());
    CHECK(reason(f.lvm.find({"vg0", "theirs"}, k_long)) == Reason::not_owned);
    const auto all = f.lvm.list("vg0", k_long);
    REQUIRE(all);
    REQUIRE(all->size() == 1);
    CHECK(all->front().id == k_id);
  }

  TEST_CASE("the owner changes in one step and only from the named one") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    CHECK(reason(f.lvm.change_owner(k_id, "wrong", "new", k_long)) == Reason::not_owned);
    CHECK(f.lvm.change_owner(k_id, k_uid, "new", k_long));
    CHECK(f.lvm.change_owner(k_id, k_uid, "new", k_long));
    CHECK(f.fake.volumes.at("v1").tags == std::set<std::string>{"pillar-csi.uid=new", "pillar-csi.wiped=1"});
  }

  TEST_CASE("names and uids that are no names reach no command line") {
    Fixture f;
    for (const AgentVolumeId& id :
         {AgentVolumeId{"vg0", "--help"}, AgentVolumeId{"vg0", "a b"}, AgentVolumeId{"vg0", ".."},
          AgentVolumeId{"", "x"}, AgentVolumeId{"vg0", "a/b"}})
      CHECK(reason(f.lvm.create(id, k_uid, {1, 0}, k_long)) == Reason::invalid_argument);
    CHECK(reason(f.lvm.create(k_id, "a b", {1, 0}, k_long)) == Reason::invalid_argument);
    CHECK(reason(f.lvm.create(k_id, "", {1, 0}, k_long)) == Reason::invalid_argument);
    CHECK(reason(f.lvm.pool_info("-x", k_long)) == Reason::invalid_argument);
    CHECK(f.fake.log.empty());
  }

  TEST_CASE("errors of the tools keep their words") {
    Fixture f;
    f.fake.fail_once["lvs"] = {5, "", "  Cannot access VG vg0 with system ID other.\n"};
    const auto result = f.create(8 * k_mib);
    CHECK(reason(result) == Reason::command_failed);
    CHECK(result.error().message ==
          "lvs vg0/v1 failed with exit code 5: Cannot access VG vg0 with system ID other.");
    f.fake.fail_once["lvs"] = {0, "not json", ""};
    CHECK(reason(f.create(8 * k_mib)) == Reason::internal);
    f.fake.fail_once["lvs"] = {0, R"({"report":[{"lv":[{"vg_name":"vg0"}]}]})", ""};
    CHECK(reason(f.create(8 * k_mib)) == Reason::internal);
  }

  TEST_CASE("without udevd LVM makes the nodes itself, with udevd it waits for it") {
    Fixture f;
    REQUIRE(f.create(8 * k_mib));
    CHECK(f.fake.last_config.find("udev_sync=0 udev_rules=0") != std::string::npos);
    CHECK(std::count(f.fake.last_env.begin(), f.fake.last_env.end(), "DM_DISABLE_UDEV=1") == 1);
    Lvm::Options options = f.fake.options();
    f.fake.root.put("control", "");
    options.udev_control = f.fake.root / "control";
    Lvm with_udev(f.fake, f.fake, options);
    REQUIRE(with_udev.find(k_id, k_long));
    CHECK(f.fake.last_config.find("udev") == std::string::npos);
    CHECK(f.fake.last_env == std::vector<std::string>{"LVM_SUPPRESS_FD_WARNINGS=1"});
  }

  TEST_CASE("the filter rejects initiator devices and dead heads, not local NVMe disks") {
    const TempDir dir;
    dir.put("class/nvme/nvme0/transport", "pcie\n");
    dir.put("class/nvme/nvme1/transport", "tcp\n");
    dir.put("class/nvme/nvme1/nvme1c1n1/size", "1");
    dir.put("class/nvme/nvme4/transport", "tcp\n");
    dir.put("class/nvme/nvme4/nvme4n1/size", "1");  // without native multipath
    dir.put("class/nvme-subsystem/nvme-subsys0/nvme0/transport", "pcie\n");
    dir.put("class/nvme-subsystem/nvme-subsys0/nvme0n1/size", "1");
    dir.put("class/nvme-subsystem/nvme-subsys1/nvme1/transport", "tcp\n");
    dir.put("class/nvme-subsystem/nvme-subsys1/nvme1n2/size", "1");
    dir.put("class/nvme-subsystem/nvme-subsys2/nvme2n1/size", "1");  // no controller left
    CHECK(lvm_config(dir.path(), {}, true) ==
          "devices{scan_lvs=0 global_filter=[\"r|^/dev/nvme1n2(p[0-9]+)?$|\",\"r|^/dev/nvme2n1(p[0-9]+)?$|\","
          "\"r|^/dev/nvme4n1(p[0-9]+)?$|\"]} global{notify_dbus=0 use_lvmpolld=0} activation{monitoring=0}");
    CHECK(
        lvm_config("/nonexistent", {"^/dev/vd"}, true) ==
        "devices{scan_lvs=0 global_filter=[\"a|^/dev/vd|\",\"r|.*|\"]} global{notify_dbus=0 use_lvmpolld=0} "
        "activation{monitoring=0}");
  }

  TEST_CASE("wiping zeroes exactly the first and the last MiB") {
    for (const std::uint64_t size : {4 * k_mib, k_mib + 512, k_mib / 2}) {
      const TempDir dir;
      dir.put("disk", std::string(size, 'x'));
      const int fd = ::open((dir / "disk").c_str(), O_RDWR | O_CLOEXEC);
      REQUIRE(fd >= 0);
      CHECK(zero_ends(fd, size, "disk"));
      ::close(fd);
      const std::string now = read_file(dir / "disk", 8 * k_mib).value();
      const std::uint64_t end = std::min(size, k_mib);
      std::string expected(size, 'x');
      expected.replace(0, end, end, '\0');
      expected.replace(size - end, end, end, '\0');
      CHECK(now == expected);
    }
    DirectWiper wiper;
    CHECK_FALSE(wiper.zero_ends({"/dev/null", {1, 3}, 4096}));
  }
}
