// The initiator side against the real kernel: run inside a test VM as root, with PILLAR_KERNEL_TEST=1 and
// PILLAR_TEST_DISK=/dev/vdb, a disk whose content may be destroyed (integration/vm/cases/hostio_node.py).

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "hostio/filesystem.hpp"
#include "hostio/helper_process.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "hostio/nvme/uevents.hpp"
#include "hostio/probe.hpp"
#include "hostio/sysfs.hpp"
#include "messages/ids.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using pillar::hostio::testing::TempDir;

namespace {

namespace fs = std::filesystem;

const std::string k_nqn = "nqn.2026-01.com.bhyoo.pillar-csi:kernel-test";
const std::string k_uuid = "3f2c8f0e-7b1d-5a52-9b7e-1c2d3e4f5a6b";
const HostIdentity k_host{"nqn.2014-08.org.nvmexpress:uuid:0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a02",
                          "0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a02"};
const std::string k_nvmet = "/sys/kernel/config/nvmet";
const std::string k_vg = "hostiotest";

std::string disk() {
  const char* value = std::getenv("PILLAR_TEST_DISK");
  REQUIRE_MESSAGE(value != nullptr, "PILLAR_TEST_DISK is not set");
  return value;
}

ProcessRunner& runner() {
  static ProcessRunner one;
  return one;
}

HelperCall helper() {
  static HelperRunner one(runner());
  return helper_call(one);
}

void command(std::string program, std::vector<std::string> args) {
  Command run;
  run.program = std::move(program);
  run.args = std::move(args);
  run.env = {"DM_DISABLE_UDEV=1"};
  const auto done = run_checked(runner(), run);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
}

/// LVM must not look at initiator devices, which may hang.
void lvm(std::string program, std::vector<std::string> args) {
  args.insert(args.begin(), {"--config", R"(devices{global_filter=["a|^/dev/vd|","r|.*|"]})"});
  command(std::move(program), std::move(args));
}

void put(const std::string& path, const std::string& value) {
  const int code = write_attribute(path, value);
  REQUIRE_MESSAGE(code == 0, path << " errno " << code);
}

/// The kernel's target, by hand: one subsystem with one namespace on a logical volume.
class Target {
 public:
  Target() {
    lvm("vgcreate", {"-qy", k_vg, disk()});
    lvm("lvcreate", {"-qy", "-Wy", "-n", "lv", "-L", "400M", k_vg});
    // Reused extents hold what was there before; LVM wipes signatures only.
    REQUIRE(clear_here(backing(), device_number_of_node(backing()).value()));
    fs::create_directory(k_nvmet + "/hosts/" + k_host.nqn);
    fs::create_directory(subsystem());
    fs::create_directory(subsystem() + "/namespaces/1");
    put(subsystem() + "/namespaces/1/device_path", backing());
    put(subsystem() + "/namespaces/1/device_uuid", k_uuid);
    put(subsystem() + "/namespaces/1/enable", "1");
    fs::create_symlink(k_nvmet + "/hosts/" + k_host.nqn, subsystem() + "/allowed_hosts/" + k_host.nqn);
    fs::create_directory(port());
    put(port() + "/addr_trtype", "tcp");
    put(port() + "/addr_adrfam", "ipv4");
    put(port() + "/addr_traddr", "127.0.0.1");
    put(port() + "/addr_trsvcid", "4498");
    link();
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    unlink();
    std::error_code ec;
    fs::remove(subsystem() + "/namespaces/1", ec);
    fs::remove(subsystem() + "/allowed_hosts/" + k_host.nqn, ec);
    fs::remove(subsystem(), ec);
    fs::remove(k_nvmet + "/hosts/" + k_host.nqn, ec);
    fs::remove(port(), ec);
    lvm("vgremove", {"-qfy", k_vg});
    lvm("pvremove", {"-qy", disk()});
  }
  void link() const { fs::create_symlink(subsystem(), port() + "/subsystems/" + k_nqn); }
  void unlink() const {
    std::error_code ec;
    fs::remove(port() + "/subsystems/" + k_nqn, ec);
  }
  static std::string backing() { return "/dev/" + k_vg + "/lv"; }

 private:
  static std::string subsystem() { return k_nvmet + "/subsystems/" + k_nqn; }
  static std::string port() { return k_nvmet + "/ports/77"; }
};

FabricsTarget endpoint() {
  FabricsTarget target{k_nqn, IpAddress::parse("127.0.0.1").value(), 4498, k_host, {}};
  target.tunables.ctrl_loss_tmo = 600;
  target.tunables.reconnect_delay = 1;
  target.tunables.keep_alive_tmo = 15;
  return target;
}

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result, (result ? "" : result.error().message));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// An attached volume with its mount point; taken down in the end whatever happened.
struct Volume {
  Target target;
  Fabrics fabrics{HostRoots{}, helper()};
  TempDir dir;
  std::string stage;
  NvmeNamespace device;

  explicit Volume(FabricsTarget to = endpoint()) : stage(fs::canonical(dir.path()).string() + "/stage") {
    fs::create_directory(stage);
    must(fabrics.connect(to, Deadline::after(30s)));
    device = must(fabrics.wait_for_namespace(k_nqn, k_uuid, Deadline::after(30s)));
  }
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;
  ~Volume() {
    (void)fabrics.disconnect(k_nqn, Deadline::after(30s));
    (void)unmount_all_layers(helper(), {}, stage, Deadline::after(30s));
  }

  Content content() const {
    return must(probe_device(helper(), device.node, device.number, Deadline::after(30s)));
  }
  void format(std::string_view type) const {
    must(make_filesystem(runner(), type, {}, device.node, Deadline::after(120s)));
  }
  Result<void> try_mount(std::string_view type, bool read_only = false,
                         Deadline deadline = Deadline::after(60s),
                         const std::vector<std::string>& flags = {}) const {
    const MountRequest request{device.node, device.number, stage, std::string(type),
                               must(parse_mount_options(type, flags, read_only))};
    return mount_filesystem(helper(), {}, request, deadline);
  }
  MountEntry entry() const {
    const auto table = must(MountTable::read());
    const auto layers = table.layers_at(stage);
    REQUIRE(layers.size() == 1);
    return layers.front();
  }
  FilesystemHealth health(bool expected_read_only = false) const {
    const bool live = must(fabrics.topology().has_live_controller(k_nqn));
    const auto verdict =
        must(check_filesystem_health(helper(), {}, entry(), expected_read_only, live, Deadline::after(10s)));
    MESSAGE("health: " << std::string(to_string(verdict.health)) << " " << verdict.why);
    return verdict.health;
  }
  void wait_state(bool live) const {
    CHECK(must(wait_for(
        [&]() -> Result<bool> {
          const auto now = fabrics.topology().has_live_controller(k_nqn);
          if (!now) return tl::unexpected(now.error());
          return *now == live;
        },
        Deadline::after(60s))));
  }
};

int write_file(const std::string& path, bool sync) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return errno;
  if (::write(fd.get(), "data", 4) != 4) return errno;
  return sync && ::fsync(fd.get()) != 0 ? errno : 0;
}

int write_raw(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return errno;
  const std::string block(4096, 'x');
  if (::pwrite(fd.get(), block.data(), block.size(), 0) < 0) return errno;
  return ::fsync(fd.get()) == 0 ? 0 : errno;
}

}  // namespace

TEST_CASE("kernel: a volume's life on the node") {
  for (const std::string type : {"ext4", "xfs"}) {
    CAPTURE(type);
    Volume volume;
    // Connecting again finds the session.
    CHECK(must(volume.fabrics.connect(endpoint(), Deadline::after(30s))).already);
    CHECK(volume.device.size_bytes == 400ULL << 20U);
    CHECK(volume.fabrics.topology().nqn_of(volume.device.number) == k_nqn);
    CHECK(volume.content().kind == ContentKind::blank);
    must(check_device_opens(helper(), volume.device.node, volume.device.number, Deadline::after(10s)));
    volume.format(type);
    const auto content = volume.content();
    CHECK(decide_format(content, type, true, false).value() == FormatDecision::use);
    must(check_filesystem(runner(), type, volume.device.node, Deadline::after(60s)));
    must(volume.try_mount(type, false, Deadline::after(60s), {"noatime", "nodev"}));
    CHECK(volume.entry().device == volume.device.number);
    CHECK(has_mount_option(volume.entry().vfs_options, "noatime"));
    CHECK(volume.try_mount(type).error().reason == Reason::target_occupied);
    CHECK(volume.health() == FilesystemHealth::alive);
    CHECK(write_file(volume.stage + "/f", true) == 0);

    // H05: one pod reads, another writes.
    const auto reader = volume.dir / "reader";
    const auto writer = volume.dir / "writer";
    fs::create_directory(reader);
    fs::create_directory(writer);
    must(bind_mount({}, volume.stage, reader, true));
    must(bind_mount({}, volume.stage, writer, false));
    CHECK(write_file(reader + "/g", false) == EROFS);
    CHECK(write_file(writer + "/g", false) == 0);
    CHECK(must(MountTable::read()).mounts_of(volume.device.number).size() == 3);
    CHECK(has_mount_option(must(MountTable::read()).layers_at(reader).front().vfs_options, "nodev"));
    CHECK(must(unmount_top(helper(), {}, reader, Deadline::after(30s))) == UnmountOutcome::unmounted);
    CHECK(must(unmount_top(helper(), {}, writer, Deadline::after(30s))) == UnmountOutcome::unmounted);

    // L01: grown on the target, the rescan shows it.
    const auto before = must(filesystem_stats(helper(), volume.stage, Deadline::after(10s))).total_bytes;
    lvm("lvextend", {"-qy", "-L", "600M", Target::backing()});
    must(volume.fabrics.wait_for_size(k_nqn, k_uuid, 600ULL << 20U, Deadline::after(20s)));
    must(grow_filesystem(runner(), type, volume.device.node, volume.stage, Deadline::after(60s)));
    must(grow_filesystem(runner(), type, volume.device.node, volume.stage, Deadline::after(60s)));
    CHECK(must(filesystem_stats(helper(), volume.stage, Deadline::after(10s))).total_bytes > before);

    {
      const UniqueFd open(::open((volume.stage + "/f").c_str(), O_RDONLY | O_CLOEXEC));
      CHECK(unmount_top(helper(), {}, volume.stage, Deadline::after(10s)).error().reason ==
            Reason::device_busy);
    }
    must(sync_filesystem(helper(), volume.stage, Deadline::after(60s)));
    CHECK(must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s))) ==
          UnmountOutcome::unmounted);
    must(volume.fabrics.disconnect(k_nqn, Deadline::after(30s)));
    CHECK(must(volume.fabrics.topology().controllers(k_nqn)).empty());
    CHECK(!block_device_exists({}, volume.device.number));
  }
}

TEST_CASE("kernel: H03 a read-only publication, mounted and raw") {
  Volume volume;
  volume.format("xfs");
  must(set_device_read_only(helper(), volume.device.node, volume.device.number, true, Deadline::after(10s)));
  must(volume.try_mount("xfs", true));
  CHECK(volume.entry().read_only());
  CHECK(write_file(volume.stage + "/f", false) == EROFS);
  CHECK(volume.health(true) == FilesystemHealth::alive);
  must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s)));
  const auto raw = volume.dir / "pod/raw";
  must(bind_device_node({}, volume.device.node, volume.device.number, raw));
  CHECK(must(MountTable::read()).node_binds(volume.device.name).size() == 1);
  CHECK(write_raw(raw) == EPERM);
  must(set_device_read_only(helper(), volume.device.node, volume.device.number, false, Deadline::after(10s)));
  CHECK(write_raw(raw) == 0);
  must(unmount_all_layers(helper(), {}, raw, Deadline::after(30s)));
}

TEST_CASE("kernel: refused connects say why") {
  Volume volume;
  auto other = endpoint();
  other.nqn = k_nqn + "-unknown";
  const auto unknown = volume.fabrics.connect(other, Deadline::after(30s));
  REQUIRE(!unknown);
  CHECK(unknown.error().message.find("published to this node") != std::string::npos);
  other = endpoint();
  other.port = 4497;
  const auto closed = volume.fabrics.connect(other, Deadline::after(30s));
  REQUIRE(!closed);
  CHECK(closed.error().message.find("nothing listens") != std::string::npos);
}

TEST_CASE("kernel: E01 a reused session gets the wanted timeouts") {
  Volume volume;
  auto wanted = endpoint();
  wanted.tunables.ctrl_loss_tmo = -1;
  wanted.tunables.fast_io_fail_tmo = 20;
  const auto session = must(volume.fabrics.connect(wanted, Deadline::after(30s)));
  CHECK(session.already);
  CHECK(read_attribute(session.controller.dir + "/ctrl_loss_tmo") == "off");
  CHECK(read_attribute(session.controller.dir + "/fast_io_fail_tmo") == "20");
}

TEST_CASE("kernel: a device that dies under its mount") {
  for (const std::string type : {"ext4", "xfs"}) {
    CAPTURE(type);
    Volume volume;
    volume.format(type);
    must(volume.try_mount(type));
    must(volume.fabrics.disconnect(k_nqn, Deadline::after(30s)));
    CHECK(volume.health() == FilesystemHealth::dead);
    CHECK(must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s))) ==
          UnmountOutcome::unmounted);
    must(volume.fabrics.connect(endpoint(), Deadline::after(30s)));
    volume.device = must(volume.fabrics.wait_for_namespace(k_nqn, k_uuid, Deadline::after(30s)));
    must(volume.try_mount(type));
    CHECK(volume.health() == FilesystemHealth::alive);
    must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s)));
  }
}

TEST_CASE("kernel: an outage stalls, unmount hangs and a disconnect ends it") {
  Volume volume;
  volume.format("ext4");
  must(volume.try_mount("ext4"));
  CHECK(write_file(volume.stage + "/f", false) == 0);
  volume.target.unlink();
  volume.wait_state(false);
  CHECK(volume.health() == FilesystemHealth::stalled);
  CHECK(check_device_opens(helper(), volume.device.node, volume.device.number, Deadline::after(2s))
            .error()
            .reason == Reason::command_timeout);
  const auto outcome = unmount_top(helper(), {}, volume.stage, Deadline::after(3s));
  // Either it left mountinfo and hangs, or the stuck reader above keeps it busy.
  if (outcome) CHECK(*outcome == UnmountOutcome::flushing);
  must(volume.fabrics.disconnect(k_nqn, Deadline::after(30s)));
  CHECK(must(wait_for([]() -> Result<bool> { return wedged_processes().empty(); }, Deadline::after(30s))));
}

TEST_CASE("kernel: I03 a mount cut off at its deadline never appears later") {
  Volume volume;
  volume.format("ext4");
  volume.target.unlink();
  volume.wait_state(false);
  const auto mounted = volume.try_mount("ext4", false, Deadline::after(2s));
  REQUIRE(!mounted);
  CHECK(mounted.error().reason == Reason::command_timeout);
  volume.target.link();
  volume.wait_state(true);
  CHECK(must(wait_for([]() -> Result<bool> { return wedged_processes().empty(); }, Deadline::after(60s))));
  std::this_thread::sleep_for(1s);
  CHECK(must(MountTable::read()).layers_at(volume.stage).empty());
  must(volume.try_mount("ext4"));
  CHECK(volume.health() == FilesystemHealth::alive);
  must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s)));
}

TEST_CASE("kernel: D12 an aborted journal and a shut down xfs are seen after the target is back") {
  for (const std::string type : {"ext4", "xfs"}) {
    CAPTURE(type);
    auto to = endpoint();
    to.tunables.fast_io_fail_tmo = 1;
    Volume volume(to);
    volume.format(type);
    must(volume.try_mount(type));
    CHECK(write_file(volume.stage + "/f", true) == 0);
    volume.target.unlink();
    volume.wait_state(false);
    // A change of metadata alone, so that what fails is the write of the log.
    fs::permissions(volume.stage + "/f", fs::perms::owner_read);
    CHECK(!sync_filesystem(helper(), volume.stage, Deadline::after(30s)));
    volume.target.link();
    volume.wait_state(true);
    CHECK(volume.health() == FilesystemHealth::dead);
    must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s)));
    must(check_filesystem(runner(), type, volume.device.node, Deadline::after(60s)));
    must(volume.try_mount(type));
    CHECK(volume.health() == FilesystemHealth::alive);
    CHECK(fs::exists(volume.stage + "/f"));
    must(unmount_all_layers(helper(), {}, volume.stage, Deadline::after(30s)));
  }
}

TEST_CASE("kernel: G01 a device with unreadable edges is not blank") {
  struct Row {
    const char* what;
    std::vector<std::string> table;
  };
  const auto number = must(device_number_of_node(disk()));
  const auto linear = [&](int from, int length) {
    return std::to_string(from) + " " + std::to_string(length) + " linear " + number.str() + " " +
           std::to_string(from);
  };
  const Row rows[] = {
      {"start", {"0 4096 error", linear(4096, 61440)}},
      {"end", {linear(0, 65528), "65528 8 error"}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    Command make;
    make.program = "dmsetup";
    make.args = {"create", "hostiotest-error"};
    make.env = {"DM_DISABLE_UDEV=1"};
    for (const auto& line : row.table) make.input += line + "\n";
    must(run_checked(runner(), make));
    const std::string node = "/dev/mapper/hostiotest-error";
    const auto content =
        probe_device(helper(), node, must(device_number_of_node(node)), Deadline::after(30s));
    command("dmsetup", {"remove", "hostiotest-error"});
    REQUIRE(content);
    CHECK(content->kind == ContentKind::unreadable);
    MESSAGE(content->what);
    CHECK(decide_format(*content, "ext4", false, true).error().reason == Reason::device_unreadable);
  }
}

int main(int argc, char** argv) {
  register_host_helpers();
  if (const auto code = run_helper_main(argc, argv)) return *code;
  constexpr int meson_skip = 77;
  if (std::getenv("PILLAR_KERNEL_TEST") == nullptr) return meson_skip;
  doctest::Context context(argc, argv);
  return context.run();
}
