#pragma once
// The LVM tools as a CommandRunner: one volume group in memory, with the exit codes, words and report format
// of LVM 2.03.16, and its devices in a fake sysfs.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hostio/lvm.hpp"
#include "temp_dir.hpp"

namespace pillar::hostio::testing {

class FakeLvm : public CommandRunner, public DeviceWiper {
 public:
  struct Volume {
    std::uint64_t size = 0;
    std::set<std::string> tags;
    bool active = true;
    bool suspended = false;
    char kind = '-';  ///< first letter of lv_attr
    std::string origin;
    unsigned minor = 0;
    bool wiped_content = false;
  };

  FakeLvm();
  Result<CommandResult> run(const Command& command) override;
  Result<void> zero_ends(const LvDevice& device) override;

  /// Options that point Lvm at this fake.
  Lvm::Options options();

  std::string vg = "vg0";
  std::uint64_t extent = 4ULL << 20U;
  std::uint64_t size = 1ULL << 30U;
  std::map<std::string, Volume> volumes;
  bool vg_present = true;
  bool nodes = true;                 ///< device nodes appear
  unsigned nodes_after_mknodes = 0;  ///< vgmknodes makes them
  std::vector<std::string> log;      ///< "program args" without --config
  std::string last_config;
  std::vector<std::string> last_env;
  std::map<std::string, CommandResult> fail_once;  ///< by program
  /// Called before each command and wipe; an error stops there like a crash.
  std::function<Result<void>(const std::string& step)> before;
  TempDir root;

  std::uint64_t free_bytes() const;
  void add(const std::string& name, Volume volume);

 private:
  CommandResult lvs(const std::vector<std::string>& args) const;
  CommandResult vgs() const;
  CommandResult create(const std::vector<std::string>& args);
  CommandResult extend(const std::vector<std::string>& args);
  CommandResult change(const std::vector<std::string>& args);
  CommandResult remove(const std::vector<std::string>& args);
  Volume* find(const std::string& full_name);
  void publish(const std::string& name, const Volume& volume) const;

  unsigned next_minor_ = 0;
};

}  // namespace pillar::hostio::testing
