#include "hostio/modules.hpp"

#include <doctest/doctest.h>

#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using pillar::hostio::testing::TempDir;

namespace {

/// modprobe that succeeds or not; every other tool is missing.
class Modprobe : public CommandRunner {
 public:
  explicit Modprobe(bool works) : works_(works) {}
  Result<CommandResult> run(const Command& command) override {
    log.push_back(command.text());
    if (command.program != "modprobe")
      return fail(Reason::tool_missing,
                  "program " + command.program + " not found: install the package lvm2");
    return works_ ? CommandResult{} : CommandResult{1, "", "modprobe: FATAL: Module nvmet not found\n"};
  }
  std::vector<std::string> log;

 private:
  bool works_;
};

const Deadline k_long = Deadline::after(std::chrono::hours(1));

}  // namespace

TEST_SUITE("preflight") {
  TEST_CASE("C09: all there: nothing is loaded, every item is ok") {
    const TempDir dir;
    dir.put("proc/self/mountinfo", "1 0 0:20 / " + (dir / "config") + " rw - configfs configfs rw\n");
    dir.put("sys/module/nvmet/x", "");
    dir.put("sys/module/nvmet_tcp/x", "");
    dir.put("config/nvmet/subsystems/x", "");
    Modprobe runner(false);
    const HostRoots roots{dir / "sys", "/dev", dir / "proc"};
    for (const HealthItem& item : preflight_target(runner, roots, dir / "config", k_long))
      CHECK_MESSAGE(item.ok, item.name << " " << item.message);
    CHECK(runner.log.empty());
  }

  TEST_CASE("C09: what is missing is reported with its remedy") {
    const TempDir dir;
    dir.put("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
    Modprobe runner(false);
    const HostRoots roots{dir / "sys", "/dev", dir / "proc"};
    const auto items = preflight_target(runner, roots, "/sys/kernel/config", k_long);
    REQUIRE(items.size() == 3);
    CHECK(items[0].name == "configfs");
    CHECK(items[0].message.find("mount -t configfs") != std::string::npos);
    CHECK(items[1].name == "nvmet");
    CHECK(items[1].message.find("Module nvmet not found") != std::string::npos);
    CHECK(items[2].name == "nvmet-tcp");
    for (const HealthItem& item : items) CHECK_FALSE(item.ok);
    CHECK(runner.log == std::vector<std::string>{"modprobe nvmet", "modprobe nvmet-tcp"});
    CHECK(ensure_module(runner, "nvmet-tcp", roots, k_long).error().reason == Reason::module_missing);
  }

  TEST_CASE("C09: an absent module is loaded") {
    const TempDir dir;
    Modprobe runner(true);
    CHECK(ensure_module(runner, "nvmet-tcp", {dir / "sys", "/dev", dir / "proc"}, k_long));
    CHECK(runner.log == std::vector<std::string>{"modprobe nvmet-tcp"});
  }

  TEST_CASE("C09: missing LVM tools are named with their package") {
    const TempDir dir;
    Modprobe runner(true);
    const HealthItem item = preflight_lvm(runner, {"vg0"}, {dir / "sys", "/dev", dir / "proc"}, k_long);
    CHECK_FALSE(item.ok);
    CHECK(item.message.find("lvm2") != std::string::npos);
    CHECK(preflight_lvm(runner, {}, {dir / "sys", "/dev", dir / "proc"}, k_long).ok);
  }
}
