#include "actors/agent/backend.hpp"

#include <utility>

namespace pillar::agent {
namespace {

class LvmBackend final : public Backend {
 public:
  LvmBackend(std::shared_ptr<hostio::CommandRunner> runner, std::shared_ptr<hostio::DeviceWiper> wiper,
             hostio::Lvm::Options options)
      : runner_(std::move(runner)), wiper_(std::move(wiper)), lvm_(*runner_, *wiper_, std::move(options)) {}

  Result<hostio::VolumeGroup> pool_info(const std::string& pool, Deadline deadline) override {
    return lvm_.pool_info(pool, deadline);
  }
  Result<std::vector<hostio::LogicalVolume>> list(const std::string& pool, Deadline deadline) override {
    return lvm_.list(pool, deadline);
  }
  Result<std::optional<hostio::LogicalVolume>> find(const AgentVolumeId& id, Deadline deadline) override {
    return lvm_.find(id, deadline);
  }
  Result<hostio::LogicalVolume> create(const AgentVolumeId& id, const std::string& uid,
                                       hostio::SizeRange range, Deadline deadline) override {
    return lvm_.create(id, uid, range, deadline);
  }
  Result<hostio::LogicalVolume> extend(const AgentVolumeId& id, const std::string& uid,
                                       hostio::SizeRange range, Deadline deadline) override {
    return lvm_.extend(id, uid, range, deadline);
  }
  Result<void> remove(const AgentVolumeId& id, const std::string& uid, Deadline deadline) override {
    return lvm_.remove(id, uid, deadline);
  }
  Result<hostio::LvDevice> activate(const AgentVolumeId& id, const std::string& uid,
                                    Deadline deadline) override {
    return lvm_.activate(id, uid, deadline);
  }
  Result<void> change_owner(const AgentVolumeId& id, const std::string& old_uid, const std::string& new_uid,
                            Deadline deadline) override {
    return lvm_.change_owner(id, old_uid, new_uid, deadline);
  }

 private:
  std::shared_ptr<hostio::CommandRunner> runner_;
  std::shared_ptr<hostio::DeviceWiper> wiper_;
  hostio::Lvm lvm_;
};

}  // namespace

std::unique_ptr<Backend> make_lvm_backend(std::shared_ptr<hostio::CommandRunner> runner,
                                          std::shared_ptr<hostio::DeviceWiper> wiper,
                                          hostio::Lvm::Options options) {
  return std::make_unique<LvmBackend>(std::move(runner), std::move(wiper), std::move(options));
}

}  // namespace pillar::agent
