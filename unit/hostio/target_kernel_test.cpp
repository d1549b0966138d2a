// The target side against the real kernel and the real LVM: run inside a test VM as root, with
// PILLAR_KERNEL_TEST=1 and PILLAR_TEST_DISK=/dev/vdb, a disk whose content may be destroyed
// (integration/vm/cases/hostio_target.py).

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "hostio/configfs/nvmet_executor.hpp"
#include "hostio/configfs/nvmet_planner.hpp"
#include "hostio/configfs/nvmet_reader.hpp"
#include "hostio/helper_process.hpp"
#include "hostio/host_helpers.hpp"
#include "hostio/lvm.hpp"
#include "hostio/modules.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "messages/ids.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace pillar::hostio::nvmet;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t k_mib = 1024 * 1024;
const std::string k_vg = "targettest";
const AgentVolumeId k_id{k_vg, "pvc-1"};
const std::string k_uid = "6f1c2d3e-0000-4000-8000-000000000001";
const HostIdentity k_host_a{"nqn.2014-08.org.nvmexpress:uuid:0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a02",
                            "0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a02"};
const HostIdentity k_host_b{"nqn.2014-08.org.nvmexpress:uuid:1c5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a03",
                            "1c5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a03"};

Deadline soon() { return Deadline::after(60s); }

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

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result, (result ? "" : result.error().message));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

template <class T>
Reason reason(const Result<T>& result) {
  REQUIRE_FALSE(result);
  MESSAGE(result.error().message);
  return result.error().reason;
}

void command(std::string program, std::vector<std::string> args) {
  Command run;
  run.program = std::move(program);
  run.args = std::move(args);
  run.env = {"DM_DISABLE_UDEV=1"};
  must(run_checked(runner(), run));
}

void raw_lvm(std::string program, std::vector<std::string> args) {
  args.insert(args.begin(), {"--config", R"(devices{global_filter=["a|^/dev/vd|","r|.*|"]})"});
  command(std::move(program), std::move(args));
}

/// `count` bytes at `offset` of a device, past the page cache of other openers.
std::string read_at(const std::string& path, std::uint64_t offset, std::size_t count) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  std::string bytes(count, '?');
  CHECK(::pread(fd, bytes.data(), count, static_cast<off_t>(offset)) == static_cast<ssize_t>(count));
  ::close(fd);
  return bytes;
}

/// A volume group on the test disk, whose extents are full of old content.
class Pool {
 public:
  Pool() {
    fill(disk());
    raw_lvm("vgcreate", {"-qy", k_vg, disk()});
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    raw_lvm("vgremove", {"-qfy", k_vg});
    raw_lvm("pvremove", {"-qy", disk()});
  }
  static void fill(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    const std::string old(k_mib, 'o');
    for (int i = 1; i < 128; ++i)
      CHECK(::pwrite(fd, old.data(), old.size(), i * static_cast<off_t>(k_mib)) > 0);
    ::fsync(fd);
    ::close(fd);
  }
};

ExportIdentity identity() { return export_identity("kernel-test", "agent", k_id); }

DesiredExport desired_export(const LvDevice& device, std::uint16_t port_id) {
  const ExportIdentity id = identity();
  DesiredExport desired;
  desired.nqn = id.nqn;
  desired.serial = id.serial;
  desired.uuid = id.namespace_uuid;
  desired.nguid = id.nguid;
  desired.device = {device.path, device.number};
  desired.access.port_id = port_id;
  return desired;
}

FabricsTarget endpoint(const HostIdentity& host) {
  FabricsTarget target{identity().nqn, IpAddress::parse("127.0.0.1").value(), 4497, host, {}};
  target.tunables.ctrl_loss_tmo = 600;
  target.tunables.reconnect_delay = 1;
  target.tunables.keep_alive_tmo = 15;
  return target;
}

/// Port, volume and the tree around them.
class Target {
 public:
  Target() {
    must(lvm.create(k_id, k_uid, {64 * k_mib, 0}, soon()));
    const PortPlan port = must(plan_port(DesiredPort{"127.0.0.1", false, 4497, 0}, must(read_ports(fs))));
    must(executor.run(port.actions));
    desired = desired_export(must(lvm.activate(k_id, k_uid, soon())), port.id);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    (void)fabrics.disconnect(desired.nqn, soon());
    if (live()) must(executor.run(plan_remove(*live())));
    must(fs.remove_dir("ports/" + std::to_string(desired.access.port_id)).map_error([](int e) {
      return errno_error(e, "remove port");
    }));
    must(lvm.remove(k_id, k_uid, soon()));
  }
  std::optional<LiveSubsystem> live() { return must(read_subsystem(fs, desired.nqn)); }
  void allow(const HostIdentity& host) { must(executor.run(plan_allow(desired, host.nqn, live()))); }
  void deny(const HostIdentity& host) { must(executor.run(plan_deny(desired, host.nqn, *live()))); }
  bool live_within(const HostIdentity& host, Clock::duration span) {
    for (const Deadline until = Deadline::after(span); !until.passed(); std::this_thread::sleep_for(50ms))
      for (const NvmeController& c : must(fabrics.topology().controllers(desired.nqn)))
        if (c.host_nqn == host.nqn && c.state == ControllerState::live) return true;
    return false;
  }

  Pool pool;
  DirectWiper wiper;
  Lvm lvm{runner(), wiper};
  PosixConfigfs fs;
  Executor executor{fs};
  Fabrics fabrics{{}, helper()};
  DesiredExport desired;
};

StepHook crash_before(std::size_t step) {
  return [left = step](const Action&) mutable -> Result<void> {
    if (left-- == 0) return fail(Reason::injected_fault, "crash");
    return {};
  };
}

}  // namespace

TEST_CASE("preflight: modules load, configfs is there, LVM answers") {
  for (const HealthItem& item : preflight_target(runner(), {}, "/sys/kernel/config", soon()))
    CHECK_MESSAGE(item.ok, item.name << ": " << item.message);
  const Pool pool;
  CHECK(preflight_lvm(runner(), {k_vg}, {}, soon()).ok);
  CHECK_FALSE(preflight_lvm(runner(), {"no-such-vg"}, {}, soon()).ok);
}

TEST_CASE("LVM: life of a volume") {
  const Pool pool;
  DirectWiper wiper;
  Lvm lvm(runner(), wiper);
  const VolumeGroup vg = must(lvm.pool_info(k_vg, soon()));
  CHECK(vg.extent_bytes == 4 * k_mib);
  CHECK(vg.free_bytes == vg.size_bytes);
  CHECK(reason(lvm.pool_info("no-such-vg", soon())) == Reason::pool_missing);
  CHECK(reason(lvm.find({"no-such-vg", "x"}, soon())) == Reason::pool_missing);
  CHECK_FALSE(must(lvm.find(k_id, soon())).has_value());

  const LogicalVolume made = must(lvm.create(k_id, k_uid, {10 * k_mib + 1, 0}, soon()));
  CHECK(made.size_bytes == 12 * k_mib);
  CHECK(made.wiped);
  const LvDevice device = must(lvm.activate(k_id, k_uid, soon()));
  CHECK(device.path == "/dev/" + k_vg + "/pvc-1");
  CHECK(must(block_device_size({}, device.number)) == made.size_bytes);
  CHECK(read_at(device.path, 0, k_mib) == std::string(k_mib, '\0'));
  CHECK(read_at(device.path, 11 * k_mib, k_mib) == std::string(k_mib, '\0'));

  CHECK(must(lvm.create(k_id, k_uid, {10 * k_mib + 1, 0}, soon())).size_bytes == 12 * k_mib);
  CHECK(reason(lvm.create(k_id, "other-uid", {k_mib, 0}, soon())) == Reason::not_owned);
  CHECK(must(lvm.list(k_vg, soon())).size() == 1);

  CHECK(must(lvm.extend(k_id, k_uid, {8 * k_mib, 0}, soon())).size_bytes == 12 * k_mib);
  CHECK(must(lvm.extend(k_id, k_uid, {15 * k_mib, 0}, soon())).size_bytes == 16 * k_mib);
  raw_lvm("lvcreate", {"-qy", "-n", "theirs", "-L", "8M", k_vg});
  CHECK(reason(lvm.extend(k_id, k_uid, {vg.size_bytes, 0}, soon())) == Reason::no_space);
  CHECK(reason(lvm.extend(k_id, k_uid, {10ULL << 50U, 0}, soon())) == Reason::out_of_range);

  must(lvm.change_owner(k_id, k_uid, "new-uid", soon()));
  CHECK((*must(lvm.find(k_id, soon()))).uid == "new-uid");
  must(lvm.change_owner(k_id, "new-uid", k_uid, soon()));
  must(lvm.remove(k_id, k_uid, soon()));
  must(lvm.remove(k_id, k_uid, soon()));
}

TEST_CASE("LVM: the words of the tools are understood when a check was passed by somebody faster") {
  const Pool pool;
  DirectWiper wiper;
  // The first report says that the name is free; then it is not.
  class Late : public CommandRunner {
   public:
    Result<CommandResult> run(const Command& command) override {
      if (command.program == "lvcreate" && !std::exchange(done_, true))
        raw_lvm("lvcreate", {"-qy", "-n", "pvc-1", "-L", "8M", k_vg});
      if (command.program == "lvextend" && !std::exchange(filled_, true))
        raw_lvm("lvcreate", {"-qy", "-n", "fill", "-l", "100%FREE", k_vg});
      return runner().run(command);
    }
    bool done_ = false;
    bool filled_ = false;
  } late;
  Lvm lvm(late, wiper);
  CHECK(reason(lvm.create(k_id, k_uid, {8 * k_mib, 0}, soon())) == Reason::not_owned);
  const AgentVolumeId second{k_vg, "pvc-2"};
  must(lvm.create(second, k_uid, {8 * k_mib, 0}, soon()));
  CHECK(reason(lvm.extend(second, k_uid, {16 * k_mib, 0}, soon())) == Reason::no_space);
  raw_lvm("lvremove", {"-qy", k_vg + "/fill"});
}

TEST_CASE("LVM: I3 what has come to have the name before the removal takes LVM's lock stays") {
  const Pool pool;
  DirectWiper wiper;
  class Replacing : public CommandRunner {
   public:
    Result<CommandResult> run(const Command& command) override {
      if (command.program == "lvremove" && !std::exchange(done_, true)) {
        raw_lvm("lvremove", {"-qy", k_id.str()});
        raw_lvm("lvcreate", {"-qy", "-n", k_id.name, "-L", "8M", "--addtag", "pillar-csi.uid=another", k_vg});
      }
      return runner().run(command);
    }
    bool done_ = false;
  } replacing;
  Lvm lvm(replacing, wiper);
  must(lvm.create(k_id, k_uid, {8 * k_mib, 0}, soon()));
  must(lvm.remove(k_id, k_uid, soon()));
  const auto other = must(lvm.find(k_id, soon()));
  REQUIRE(other);
  CHECK(other->uid == "another");
  must(lvm.remove(k_id, "another", soon()));
  CHECK_FALSE(must(lvm.find(k_id, soon())));
}

TEST_CASE("LVM: F05 holders and F12 snapshots are named, nothing is removed; F08 skip flag") {
  const Pool pool;
  DirectWiper wiper;
  Lvm lvm(runner(), wiper);
  must(lvm.create(k_id, k_uid, {8 * k_mib, 0}, soon()));
  const LvDevice device = must(lvm.activate(k_id, k_uid, soon()));

  Command hold{"dmsetup", {"create", "targettest-holder"}, soon()};
  hold.env = {"DM_DISABLE_UDEV=1"};
  hold.input = "0 2048 linear " + device.path + " 0\n";
  must(run_checked(runner(), hold));
  const auto busy = lvm.remove(k_id, k_uid, soon());
  CHECK(reason(busy) == Reason::device_busy);
  CHECK(busy.error().message.find("targettest-holder") != std::string::npos);
  CHECK(reason(wiper.zero_ends(device)) == Reason::device_busy);
  command("dmsetup", {"remove", "targettest-holder"});

  raw_lvm("lvcreate", {"-qy", "-s", "-n", "snap", "-L", "4M", k_id.str()});
  const auto origin = lvm.remove(k_id, k_uid, soon());
  CHECK(reason(origin) == Reason::deletion_blocked);
  CHECK(origin.error().details.at("dependents") == k_vg + "/snap");
  raw_lvm("lvremove", {"-qy", k_vg + "/snap"});

  raw_lvm("lvchange", {"-an", k_id.str()});
  raw_lvm("lvchange", {"-ky", k_id.str()});
  CHECK(must(lvm.activate(k_id, k_uid, soon())).path == device.path);
  must(lvm.remove(k_id, k_uid, soon()));
}

TEST_CASE("nvmet: allow, connect, grow, deny; the kernel agrees with the plans") {
  Target target;
  must(target.executor.run(plan_prepare(target.desired, target.live())));
  CHECK(plan_prepare(target.desired, target.live()).empty());
  CHECK_FALSE(target.fabrics.connect(endpoint(k_host_a), Deadline::after(10s)));

  target.allow(k_host_a);
  CHECK(plan_allow(target.desired, k_host_a.nqn, target.live()).empty());
  must(target.fabrics.connect(endpoint(k_host_a), soon()));
  const NvmeNamespace ns =
      must(target.fabrics.wait_for_namespace(target.desired.nqn, target.desired.uuid, soon()));
  CHECK(ns.size_bytes == 64 * k_mib);
  CHECK(ns.nguid == target.desired.nguid);
  CHECK_FALSE(target.fabrics.connect(endpoint(k_host_b), Deadline::after(10s)));

  must(target.lvm.extend(k_id, k_uid, {96 * k_mib, 0}, soon()));
  must(target.executor.run(plan_revalidate(*target.live())));
  must(target.fabrics.wait_for_size(target.desired.nqn, target.desired.uuid, 96 * k_mib, soon()));

  DesiredExport other = target.desired;
  other.serial = "ffffffffffffffffffff";
  CHECK(reason(target.executor.run(plan_prepare(other, target.live()))) == Reason::incompatible);

  target.deny(k_host_a);
  CHECK_FALSE(target.live_within(k_host_a, 3s));
  CHECK(plan_close(*target.live()).empty());
  must(target.fabrics.disconnect(target.desired.nqn, soon()));
}

TEST_CASE("nvmet: denying one of two readers cuts it for good and lets the other return") {
  Target target;
  target.allow(k_host_a);
  target.allow(k_host_b);
  must(target.fabrics.connect(endpoint(k_host_a), soon()));
  REQUIRE(target.live_within(k_host_a, 5s));
  target.deny(k_host_b);
  CHECK(target.live()->host_nqns() == std::set<std::string>{k_host_a.nqn});
  CHECK(target.live_within(k_host_a, 10s));
  must(target.fabrics.disconnect(target.desired.nqn, soon()));
}

TEST_CASE("F11: a crash before any step of any plan is finished by planning again") {
  Target target;
  const auto sweep = [&](const auto& reset, const auto& plan, const auto& reached) {
    for (std::size_t step = 0; step < 30; ++step) {
      reset();
      Executor::Hooks hooks;
      hooks.before = crash_before(step);
      if (Executor(target.fs, hooks).run(plan())) return;
      must(target.executor.run(plan()));
      CHECK_MESSAGE(reached(), "step " << step);
    }
    FAIL("the plan does not end");
  };
  const auto remove = [&] {
    if (target.live()) must(target.executor.run(plan_remove(*target.live())));
  };
  const auto published = [&](const std::string& host) {
    DesiredExport desired = target.desired;
    desired.access.published = true;
    desired.access.hosts = {host};
    return desired;
  };
  const DesiredExport to_a = published(k_host_a.nqn);
  const DesiredExport to_b = published(k_host_b.nqn);
  sweep(
      remove, [&] { return plan_export(to_a, target.live()); },
      [&] { return plan_export(to_a, target.live()).empty(); });
  const auto open_a = [&] { must(target.executor.run(plan_export(to_a, target.live()))); };
  sweep(
      open_a, [&] { return plan_export(to_b, target.live()); },
      [&] { return plan_export(to_b, target.live()).empty(); });
  sweep(
      open_a, [&] { return target.live() ? plan_close(*target.live()) : ExportPlan{}; },
      [&] { return target.live()->ports.empty() && !target.live()->enabled(); });
  sweep(
      open_a, [&] { return target.live() ? plan_remove(*target.live()) : ExportPlan{}; },
      [&] { return !target.live().has_value(); });
}

TEST_CASE("nvmet: a port that cannot listen says why") {
  Target target;
  const PortPlan port =
      must(plan_port(DesiredPort{"203.0.113.9", false, 4497, 0}, must(read_ports(target.fs))));
  must(target.executor.run(port.actions));
  DesiredExport desired = target.desired;
  desired.access.published = true;
  desired.access.hosts = {k_host_a.nqn};
  desired.access.port_id = port.id;
  CHECK(reason(target.executor.run(plan_export(desired, target.live()))) == Reason::port_conflict);
  must(target.executor.run(plan_remove(*target.live())));
  CHECK(target.fs.remove_dir("ports/" + std::to_string(port.id)));
}

int main(int argc, char** argv) {
  register_host_helpers();
  if (const auto code = run_helper_main(argc, argv)) return *code;
  constexpr int meson_skip = 77;
  if (std::getenv("PILLAR_KERNEL_TEST") == nullptr) return meson_skip;
  doctest::Context context(argc, argv);
  return context.run();
}
