#pragma once
// A pool of volumes as the agent uses it. Blocking; runs in the blocking pool. Tests and the benchmark
// replace it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hostio/lvm.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::agent {

/// Semantics and errors are those of the hostio::Lvm member of the same name.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual Result<hostio::VolumeGroup> pool_info(const std::string& pool, Deadline deadline) = 0;
  virtual Result<std::vector<hostio::LogicalVolume>> list(const std::string& pool, Deadline deadline) = 0;
  virtual Result<std::optional<hostio::LogicalVolume>> find(const AgentVolumeId& id, Deadline deadline) = 0;
  virtual Result<hostio::LogicalVolume> create(const AgentVolumeId& id, const std::string& uid,
                                               hostio::SizeRange range, Deadline deadline) = 0;
  virtual Result<hostio::LogicalVolume> extend(const AgentVolumeId& id, const std::string& uid,
                                               hostio::SizeRange range, Deadline deadline) = 0;
  virtual Result<void> remove(const AgentVolumeId& id, const std::string& uid, Deadline deadline) = 0;
  virtual Result<hostio::LvDevice> activate(const AgentVolumeId& id, const std::string& uid,
                                            Deadline deadline) = 0;
  virtual Result<void> change_owner(const AgentVolumeId& id, const std::string& old_uid,
                                    const std::string& new_uid, Deadline deadline) = 0;
};

/// The LVM of this host.
std::unique_ptr<Backend> make_lvm_backend(std::shared_ptr<hostio::CommandRunner> runner,
                                          std::shared_ptr<hostio::DeviceWiper> wiper,
                                          hostio::Lvm::Options options);

}  // namespace pillar::agent
