#pragma once
// A sysfs tree with NVMe/TCP subsystems, as kernel 6.1 with native multipath shows them.

#include <filesystem>
#include <string>
#include <utility>

#include "hostio/block_device.hpp"
#include "hostio/nvme/host_identity.hpp"
#include "temp_dir.hpp"

namespace pillar::hostio::testing {

inline const HostIdentity k_fake_host{"nqn.2014-08.org.nvmexpress:uuid:3f2c8f0e-7b1d-4a52-9b7e-1c2d3e4f5a6b",
                                      "3f2c8f0e-7b1d-4a52-9b7e-1c2d3e4f5a6b"};

class FakeNvme {
 public:
  HostRoots roots() const { return {dir_ / "sys", dir_ / "dev", dir_ / "proc"}; }
  const TempDir& dir() const { return dir_; }

  void subsystem(const std::string& name, const std::string& nqn) const {
    dir_.put("sys/class/nvme-subsystem/" + name + "/subsysnqn", nqn + "\n");
  }

  void controller(const std::string& subsystem, const std::string& name, const std::string& nqn,
                  const std::string& state = "live", const HostIdentity& host = k_fake_host,
                  const std::string& address = "traddr=10.0.0.5,trsvcid=4420,src_addr=10.0.0.9") const {
    const auto real = "sys/devices/virtual/nvme-fabrics/ctl/" + name;
    put(real, "subsysnqn", nqn);
    put(real, "state", state);
    put(real, "transport", "tcp");
    put(real, "address", address);
    put(real, "hostnqn", host.nqn);
    put(real, "hostid", host.id);
    put(real, "cntlid", "1");
    put(real, "queue_count", "3");
    put(real, "ctrl_loss_tmo", "600");
    put(real, "reconnect_delay", "10");
    put(real, "fast_io_fail_tmo", "off");
    put(real, "rescan_controller", "");
    put(real, "delete_controller", "");
    std::filesystem::create_directory_symlink(dir_ / real, link(subsystem, name));
  }

  void remove_controller(const std::string& subsystem, const std::string& name) const {
    std::filesystem::remove(link(subsystem, name));
    std::filesystem::remove_all(dir_ / ("sys/devices/virtual/nvme-fabrics/ctl/" + name));
  }

  /// `parent`: the directory below sys that holds the block device, a subsystem (head) or a controller
  /// (path).
  void block(const std::string& parent, const std::string& name, const std::string& dev,
             const std::string& nsid, const std::string& uuid, const std::string& sectors = "2097152") const {
    const auto base = "sys/" + parent + "/" + name;
    put(base, "dev", dev);
    put(base, "nsid", nsid);
    put(base, "uuid", uuid);
    put(base, "size", sectors);
    put(base, "ro", "0");
    std::filesystem::create_directories(dir_ / "sys/dev/block");
    std::filesystem::create_directory_symlink(dir_ / base, dir_ / ("sys/dev/block/" + dev));
    dir_.put("dev/" + name, "");
  }

  std::string read(const std::string& controller, const std::string& attribute) const;

 private:
  void put(const std::string& base, const std::string& attribute, const std::string& value) const {
    dir_.put(base + "/" + attribute, value + (value.empty() ? "" : "\n"));
  }
  std::string link(const std::string& subsystem, const std::string& name) const {
    return dir_ / ("sys/class/nvme-subsystem/" + subsystem + "/" + name);
  }

  TempDir dir_;
};

inline std::string FakeNvme::read(const std::string& controller, const std::string& attribute) const {
  std::ifstream file(dir_ / ("sys/devices/virtual/nvme-fabrics/ctl/" + controller + "/" + attribute));
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace pillar::hostio::testing
