#include <doctest/doctest.h>

#include <sys/stat.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "hostio/mounts.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using nlohmann::json;
using pillar::hostio::testing::TempDir;

namespace {

constexpr const char* k_mountinfo =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "24 27 0:6 / /dev rw,relatime shared:2 - devtmpfs devtmpfs rw,size=12334464k,mode=755\n"
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
    "90 27 259:1 / /var/lib/kubelet/plugins/staging\\040one rw,noatime shared:40 - ext4 /dev/nvme0n1 "
    "rw,errors=remount-ro\n"
    "91 27 259:1 / /pods/a/mount ro,nosuid,relatime shared:40 - ext4 /dev/nvme0n1 rw,errors=remount-ro\n"
    "92 27 0:6 /nvme1n1 /pods/b/device rw,relatime shared:2 - devtmpfs devtmpfs rw,size=12334464k,mode=755\n"
    "93 27 0:6 /nvme9n1//deleted /pods/c/device rw,relatime shared:2 - devtmpfs devtmpfs rw\n"
    "94 27 259:1 / /stack rw,relatime - ext4 /dev/nvme0n1 rw\n"
    "95 94 0:50 / /stack rw,relatime - tmpfs tmpfs rw,size=4k\n"
    "96 95 0:51 / /stack/below ro,relatime - tmpfs tmpfs ro\n"
    "97 27 259:2 / /shutdown ro,relatime - xfs /dev/nvme2n1 ro,attr2,inode64\n";

/// A proc root whose mountinfo is what the test says.
struct FakeProc {
  TempDir dir;
  HostRoots roots() const { return {dir / "sys", dir / "dev", dir / "proc"}; }
  void mounts(const std::string& text) const { dir.put("proc/self/mountinfo", text); }
};

const std::string k_root_line = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
const std::string k_stage_line = "90 27 259:1 / /stage rw,relatime - ext4 /dev/nvme0n1 rw\n";
const std::string k_second_line = "91 90 259:1 / /stage rw,relatime - ext4 /dev/nvme0n1 rw\n";

}  // namespace

TEST_CASE("mountinfo: escapes, devices and options") {
  const auto table = MountTable::parse(k_mountinfo);
  REQUIRE(table);
  CHECK(table->entries().size() == 11);
  const auto staging = table->layers_at("/var/lib/kubelet/plugins/staging one");
  REQUIRE(staging.size() == 1);
  CHECK(staging[0].device == DeviceNumber{259, 1});
  CHECK(staging[0].fs_type == "ext4");
  CHECK(staging[0].source == "/dev/nvme0n1");
  CHECK(staging[0].root == "/");
  CHECK(!staging[0].read_only());
  CHECK(has_mount_option(staging[0].vfs_options, "noatime"));
  CHECK(has_mount_option(staging[0].fs_options, "errors"));
  const auto pod = table->layers_at("/pods/a/mount/");
  REQUIRE(pod.size() == 1);
  CHECK(pod[0].read_only());
  CHECK(!pod[0].superblock_read_only());
  CHECK(table->layers_at("/shutdown")[0].superblock_read_only());
  CHECK(table->layers_at("/pods/a").empty());
}

TEST_CASE("D04: stacked layers come topmost first") {
  const auto table = MountTable::parse(k_mountinfo);
  const auto layers = table->layers_at("/stack");
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].fs_type == "tmpfs");
  CHECK(layers[1].fs_type == "ext4");
  CHECK(table->below("/stack").size() == 1);
  CHECK(table->below("/").size() == 10);
}

TEST_CASE("D17: users of a device, by filesystem and by node") {
  const auto table = MountTable::parse(k_mountinfo);
  CHECK(table->mounts_of({259, 1}).size() == 3);
  CHECK(table->mounts_of({259, 9}).empty());
  REQUIRE(table->node_binds("nvme1n1").size() == 1);
  CHECK(table->node_binds("nvme1n1")[0].target == "/pods/b/device");
  CHECK(table->node_binds("nvme9n1").size() == 1);
  CHECK(table->node_binds("nvme1n").empty());
}

TEST_CASE("an empty mount table is a table, the real one parses") {
  CHECK(MountTable::parse("")->entries().empty());
  const auto real = MountTable::read();
  REQUIRE(real);
  CHECK(!real->layers_at("/proc").empty());
  CHECK(!MountTable::read({"/nonexistent", "/nonexistent", "/nonexistent"}));
}

TEST_CASE("mount option words are matched whole") {
  CHECK(has_mount_option("rw,errors=remount-ro", "errors"));
  CHECK(!has_mount_option("rw,errors=remount-ro", "ro"));
  CHECK(!has_mount_option("rw,norecovery", "rec"));
  CHECK(has_mount_option("ro", "ro"));
  CHECK(!has_mount_option("", "ro"));
}

TEST_CASE("H09: whether mounts below the kubelet directory are seen on the host") {
  const std::string root = "20 1 0:30 / / rw,relatime - overlay overlay rw\n";
  const auto kubelet = [](const std::string& tags) {
    return "21 20 8:1 /kubelet /var/lib/kubelet rw,relatime " + tags + "- ext4 /dev/sda1 rw\n";
  };
  struct Row {
    std::string mountinfo;
    bool host_namespace;
    bool seen;
    const char* why;
  };
  const Row rows[] = {
      {root + kubelet("shared:7 "), false, true, "Bidirectional"},
      {root + kubelet("master:7 "), false, false, "HostToContainer"},
      {root + kubelet("shared:90 master:7 "), false, false, "shared with nobody on the host"},
      {root + kubelet(""), false, false, "None"},
      {root + kubelet(""), true, false, "made private on the host"},
      {root, false, false, "no kubelet directory in the container"},
      {root, true, true, "on the host, whose root is private"},
      {"20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n", false, true, "on the host, as systemd sets it up"},
      {"20 1 8:1 / / rw shared:300 master:1 - ext4 /dev/sda1 rw\n", false, false,
       "systemd unit with PrivateTmp"},
      {root + kubelet("shared:7 ") + "22 21 0:50 / /var/lib/kubelet rw - tmpfs tmpfs rw\n", false, false,
       "covered by another mount"},
      {root + kubelet("") + "22 20 8:2 / /var/lib/kubelet2 rw shared:9 - ext4 /dev/sdb rw\n", false, false,
       "a neighbour with a longer name"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.why);
    const auto table = MountTable::parse(row.mountinfo).value();
    const auto seen = check_propagation(table, "/var/lib/kubelet", row.host_namespace);
    CHECK(seen.has_value() == row.seen);
    if (!seen) {
      CHECK(seen.error().reason == Reason::dependency_missing);
      CHECK(seen.error().message.find("mountPropagation: Bidirectional") != std::string::npos);
    }
  }
}

TEST_CASE("N04: paths are compared with their parents' links resolved") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "real/pods");
  std::filesystem::create_directory_symlink(dir / "real", dir / "link");
  const auto base = std::filesystem::canonical(dir.path()).string();
  CHECK(canonical_mount_path(dir / "link/pods").value() == base + "/real/pods");
  CHECK(canonical_mount_path(dir / "link/pods/absent/").value() == base + "/real/pods/absent");
  // The last component is left alone, even when it is a link.
  CHECK(canonical_mount_path(dir / "link").value() == base + "/link");
  // Not yet made directories end up where a mount will: below what the link resolves to.
  CHECK(canonical_mount_path(dir / "link/none/new/x").value() == base + "/real/none/new/x");
  CHECK(canonical_mount_path(dir / "none/x").value() == base + "/none/x");
  for (const char* bad : {"", "relative/x", "/a/../b", "/a/./b", "/", "/a\nb"})
    CHECK(canonical_mount_path(bad).error().reason == Reason::invalid_argument);
}

TEST_CASE("mount options: what is allowed and how it is split") {
  struct Row {
    const char* fs;
    std::vector<std::string> flags;
    bool read_only;
    const char* out;
  };
  const Row rows[] = {
      {"ext4", {}, false, "rw"},
      {"ext4", {"noatime", "nodev,nosuid"}, false, "rw,noatime,nodev,nosuid"},
      {"ext4", {"defaults", "_netdev", "relatime", "dev"}, false, "rw"},
      {"ext4",
       {"discard", "barrier=1", "data=ordered", "commit=30"},
       true,
       "ro,barrier=1,commit=30,data=ordered,discard"},
      {"xfs", {}, false, "rw,nouuid"},
      {"xfs", {"nouuid", "logbsize=256k", "logbufs=8"}, false, "rw,logbsize=256k,logbufs=8,nouuid"},
      {"xfs", {"ro"}, false, "ro,nouuid"},
      {"ext4", {"rw"}, true, "ro"},
      {"ext4", {"noatime", "noatime"}, false, "rw,noatime"},
      {"ext4",
       {"context=\"system_u:object_r:container_file_t:s0:c1,c2\",noexec"},
       false,
       "rw,noexec,context=\"system_u:object_r:container_file_t:s0:c1,c2\""},
  };
  for (const auto& row : rows) {
    CAPTURE(row.out);
    const auto options = parse_mount_options(row.fs, row.flags, row.read_only);
    REQUIRE(options);
    CHECK(options->str() == row.out);
  }
}

TEST_CASE("mount options that are refused are named") {
  struct Row {
    const char* fs;
    std::vector<std::string> flags;
    const char* names;
  };
  const Row rows[] = {
      {"ext4", {"bind"}, "'bind'"},
      {"ext4", {"noload"}, "'noload'"},
      {"xfs", {"norecovery"}, "'norecovery'"},
      {"ext4", {"nouuid"}, "not an option of ext4"},
      {"xfs", {"data=journal"}, "not an option of xfs"},
      {"ext4", {"data=fast"}, "'data=fast'"},
      {"ext4", {"errors=panic"}, "'errors=panic'"},
      {"ext4", {"commit"}, "'commit'"},
      {"ext4", {"noatime=1"}, "'noatime=1'"},
      {"ext4", {"commit=99999"}, "1..300"},
      {"xfs", {"logbsize=256kk"}, "'logbsize=256kk'"},
      {"ext4", {"noatime,relatime"}, "contradicts 'noatime'"},
      {"ext4", {"ro", "rw"}, "contradicts 'ro'"},
      {"ext4", {"nosuid", "suid"}, "contradicts"},
      {"ext4", {"context=a b"}, "'context=a b'"},
      {"ext4", {"loop=/dev/loop0"}, "loop"},
      {"ext4", {"journal_dev=8"}, "journal_dev"},
      {"ext4", {"barrier=0"}, "power cut"},
      {"ext4", {"data=writeback"}, "'data=writeback'"},
      {"ext4", {"seclabel"}, "'seclabel'"},
      {"ext4", {"data=journal", "delalloc"}, "contradicts 'data=journal'"},
      {"xfs", {"logbsize=100k"}, "power of two"},
      {"xfs", {"sunit=8"}, "needs swidth"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.names);
    const auto options = parse_mount_options(row.fs, row.flags, false);
    REQUIRE(!options);
    CHECK(options.error().code == Code::invalid_argument);
    CHECK(options.error().message.find(row.names) != std::string::npos);
  }
}

TEST_CASE("H01: a mount is compared by access and attributes") {
  MountEntry entry;
  entry.vfs_options = "rw,noatime,nodev";
  entry.fs_options = "rw,errors=remount-ro";
  CHECK(mounted_as(entry, parse_mount_options("ext4", {"noatime"}, false).value()));
  CHECK(!mounted_as(entry, parse_mount_options("ext4", {"noatime"}, true).value()));
  CHECK(!mounted_as(entry, parse_mount_options("ext4", {"noexec"}, false).value()));
  CHECK(!mounted_as(entry, parse_mount_options("ext4", {"strictatime"}, false).value()));
  entry.fs_options = "ro";
  CHECK(mounted_as(entry, parse_mount_options("ext4", {}, true).value()));
}

TEST_CASE("a mount request travels to the helper unchanged") {
  const MountRequest request{"/dev/nvme0n1",
                             {259, 1},
                             "/stage",
                             "xfs",
                             parse_mount_options("xfs", {"noatime", "logbufs=8"}, true).value()};
  const auto back = mount_request_from(to_json(request));
  CHECK(back.device == request.device);
  CHECK(back.number == request.number);
  CHECK(back.target == request.target);
  CHECK(back.fs_type == request.fs_type);
  CHECK(back.options == request.options);
}

TEST_CASE("a mount is verified in mountinfo afterwards") {
  const FakeProc proc;
  MountRequest request{"/dev/nvme0n1", {259, 1}, "/stage", "ext4", {}};
  const auto mounts_as = [&](const std::string& line) -> HelperCall {
    return [&proc, line](std::string_view, const json&, Deadline) -> Result<json> {
      proc.mounts(k_root_line + line);
      return json::object();
    };
  };
  proc.mounts(k_root_line);
  CHECK(mount_filesystem(mounts_as(k_stage_line), proc.roots(), request, Deadline::after(1s)));
  // H06: a second mount on top is refused before anything is done.
  const auto again = mount_filesystem(mounts_as(k_stage_line), proc.roots(), request, Deadline::after(1s));
  CHECK(again.error().reason == Reason::target_occupied);
  proc.mounts(k_root_line);
  const auto other = mount_filesystem(mounts_as("90 27 259:7 / /stage rw - ext4 /dev/nvme0n1 rw\n"),
                                      proc.roots(), request, Deadline::after(1s));
  CHECK(other.error().reason == Reason::device_mismatch);
  proc.mounts(k_root_line);
  const auto nothing = mount_filesystem(mounts_as(""), proc.roots(), request, Deadline::after(1s));
  CHECK(nothing.error().reason == Reason::not_staged);
}

TEST_CASE("D07: a bind needs a staged source and a free target") {
  const FakeProc proc;
  proc.mounts(k_root_line);
  CHECK(bind_mount(proc.roots(), "/stage", "/pod", false).error().reason == Reason::not_staged);
  proc.mounts(k_root_line + k_stage_line + "92 27 0:9 / /pod rw - tmpfs tmpfs rw\n");
  const auto occupied = bind_mount(proc.roots(), "/stage", "/pod", false);
  CHECK(occupied.error().reason == Reason::target_occupied);
  CHECK(occupied.error().message.find("tmpfs") != std::string::npos);
}

TEST_CASE("a raw block bind proves the node first") {
  const FakeProc proc;
  proc.mounts(k_root_line);
  CHECK(bind_device_node(proc.roots(), "/dev/null", {1, 3}, proc.dir / "pod/device").error().reason ==
        Reason::device_mismatch);
  CHECK(!std::filesystem::exists(proc.dir / "pod"));
}

TEST_CASE("unmounting: every outcome of the kernel") {
  const FakeProc proc;
  struct Row {
    const char* what;
    Result<json> answer;
    bool leaves;  ///< the layer left mountinfo
    bool ok;
    UnmountOutcome outcome;
    Reason reason;
  };
  const Row rows[] = {
      {"done", json::object(), true, true, UnmountOutcome::unmounted, {}},
      {"somebody else was faster", fail(Reason::not_found, "x"), true, true, UnmountOutcome::unmounted, {}},
      {"left mountinfo, hangs", fail(Reason::command_timeout, "x"), true, true, UnmountOutcome::flushing, {}},
      {"hangs", fail(Reason::command_timeout, "x"), false, false, {}, Reason::command_timeout},
      {"busy", fail(Reason::device_busy, "x"), false, false, {}, Reason::device_busy},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    proc.mounts(k_root_line + k_stage_line);
    const HelperCall helper = [&](std::string_view, const json&, Deadline) {
      if (row.leaves) proc.mounts(k_root_line);
      return row.answer;
    };
    const auto outcome = unmount_top(helper, proc.roots(), "/stage", Deadline::after(1s));
    REQUIRE(outcome.has_value() == row.ok);
    if (row.ok) CHECK(*outcome == row.outcome);
    if (!row.ok) CHECK(outcome.error().reason == row.reason);
  }
}

TEST_CASE("H06, D04: every layer is taken away, and nothing mounted is success") {
  const FakeProc proc;
  proc.mounts(k_root_line + k_stage_line + k_second_line);
  int calls = 0;
  const HelperCall helper = [&](std::string_view verb, const json& input, Deadline) -> Result<json> {
    CHECK(verb == "umount");
    CHECK(input.at("path") == "/stage");
    proc.mounts(++calls == 1 ? k_root_line + k_stage_line : k_root_line);
    return json::object();
  };
  CHECK(unmount_all_layers(helper, proc.roots(), "/stage", Deadline::after(1s)).value() ==
        UnmountOutcome::unmounted);
  CHECK(calls == 2);
  CHECK(unmount_all_layers(helper, proc.roots(), "/stage", Deadline::after(1s)));
  CHECK(calls == 2);
}

TEST_CASE("the umount verb says what is not mounted") {
  const TempDir dir;
  const auto answer = run_host_verb_here("umount", {{"path", dir.path()}}, Deadline::never());
  REQUIRE(!answer);
  const auto reason = answer.error().reason;
  CHECK((reason == Reason::not_found || reason == Reason::permission_denied));
}
