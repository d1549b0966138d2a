// pillar-bench-agent: pillar-agent on a volume group and an NVMe target made of values. Everything else is
// the real program: front door, actors, pools, fencing marks and export records on disk.

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/agent_service.hpp"
#include "unit/hostio/fake_configfs.hpp"

namespace {

using namespace pillar;
using hostio::ErrnoResult;

constexpr const char* k_pool = "bench";
constexpr std::uint64_t k_extent = 4ULL << 20U;
constexpr std::uint64_t k_pool_bytes = 1ULL << 40U;

/// The simulated nvmet tree of the unit tests, for many threads.
class MemoryConfigfs final : public hostio::ConfigfsOps {
  // Declared first: what it returns is deduced.
  template <class Fn>
  auto locked(Fn fn) {
    const std::lock_guard lock(mutex_);
    auto result = fn();
    tree_.log.clear();
    return result;
  }

 public:
  ErrnoResult<void> make_dir(const std::string& path) override {
    return locked([&] { return tree_.make_dir(path); });
  }
  ErrnoResult<void> remove_dir(const std::string& path) override {
    return locked([&] { return tree_.remove_dir(path); });
  }
  ErrnoResult<std::string> read(const std::string& path) override {
    return locked([&] { return tree_.read(path); });
  }
  ErrnoResult<void> write(const std::string& path, const std::string& value) override {
    return locked([&] { return tree_.write(path, value); });
  }
  ErrnoResult<void> link(const std::string& target, const std::string& path) override {
    return locked([&] { return tree_.link(target, path); });
  }
  ErrnoResult<void> unlink(const std::string& path) override {
    return locked([&] { return tree_.unlink(path); });
  }
  ErrnoResult<std::string> link_target(const std::string& path) override {
    return locked([&] { return tree_.link_target(path); });
  }
  ErrnoResult<std::vector<std::string>> list(const std::string& path) override {
    return locked([&] { return tree_.list(path); });
  }

  void add_device(const std::string& path) {
    locked([&] { return tree_.devices.insert(path).second; });
  }
  void remove_device(const std::string& path) {
    locked([&] { return tree_.devices.erase(path); });
  }

 private:
  std::mutex mutex_;
  hostio::testing::FakeConfigfs tree_;
};

/// A volume group whose commands take no time. Thread-safe.
class MemoryBackend final : public agent::Backend {
 public:
  explicit MemoryBackend(std::shared_ptr<MemoryConfigfs> nvmet) : nvmet_(std::move(nvmet)) {}

  Result<hostio::VolumeGroup> pool_info(const std::string& pool, Deadline) override {
    const std::lock_guard lock(mutex_);
    return hostio::VolumeGroup{pool, k_pool_bytes, k_pool_bytes - used_, k_extent};
  }
  Result<std::vector<hostio::LogicalVolume>> list(const std::string&, Deadline) override {
    const std::lock_guard lock(mutex_);
    std::vector<hostio::LogicalVolume> all;
    for (const auto& [id, volume] : volumes_) all.push_back(volume);
    return all;
  }
  Result<std::optional<hostio::LogicalVolume>> find(const AgentVolumeId& id, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto at = volumes_.find(id);
    if (at == volumes_.end()) return std::nullopt;
    return at->second;
  }
  Result<hostio::LogicalVolume> create(const AgentVolumeId& id, const std::string& uid,
                                       hostio::SizeRange range, Deadline) override {
    auto size = hostio::round_to_extents(range, k_extent);
    if (!size) return tl::unexpected(size.error());
    const std::string path = "/dev/" + id.str();
    const std::lock_guard lock(mutex_);
    const auto [at, made] = volumes_.try_emplace(id, hostio::LogicalVolume{id, uid, *size, true, true, path});
    if (at->second.uid != uid) return not_owned(id);
    if (made) used_ += *size;
    nvmet_->add_device(path);
    return at->second;
  }
  Result<hostio::LogicalVolume> extend(const AgentVolumeId& id, const std::string& uid,
                                       hostio::SizeRange range, Deadline) override {
    auto size = hostio::round_to_extents(range, k_extent);
    if (!size) return tl::unexpected(size.error());
    const std::lock_guard lock(mutex_);
    auto owned = require(id, uid);
    if (!owned) return tl::unexpected(owned.error());
    const std::uint64_t grown = std::max((*owned)->size_bytes, *size);
    used_ += grown - (*owned)->size_bytes;
    (*owned)->size_bytes = grown;
    return **owned;
  }
  Result<void> remove(const AgentVolumeId& id, const std::string& uid, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto at = volumes_.find(id);
    if (at == volumes_.end()) return {};
    if (at->second.uid != uid) return not_owned(id);
    nvmet_->remove_device(at->second.device_path);
    used_ -= at->second.size_bytes;
    volumes_.erase(at);
    return {};
  }
  Result<hostio::LvDevice> activate(const AgentVolumeId& id, const std::string& uid, Deadline) override {
    const std::lock_guard lock(mutex_);
    auto owned = require(id, uid);
    if (!owned) return tl::unexpected(owned.error());
    return hostio::LvDevice{(*owned)->device_path, {253, 0}, (*owned)->size_bytes};
  }
  Result<void> change_owner(const AgentVolumeId& id, const std::string& old_uid, const std::string& new_uid,
                            Deadline) override {
    const std::lock_guard lock(mutex_);
    auto owned = require(id, old_uid);
    if (!owned) return tl::unexpected(owned.error());
    (*owned)->uid = new_uid;
    return {};
  }

 private:
  static tl::unexpected<Error> not_owned(const AgentVolumeId& id) {
    return fail(Reason::not_owned, id.str() + " belongs to another life of the volume");
  }
  Result<hostio::LogicalVolume*> require(const AgentVolumeId& id, const std::string& uid) {
    const auto at = volumes_.find(id);
    if (at == volumes_.end()) return fail(Reason::not_found, id.str() + " does not exist");
    if (at->second.uid != uid) return not_owned(id);
    return &at->second;
  }

  std::shared_ptr<MemoryConfigfs> nvmet_;
  std::mutex mutex_;
  std::map<AgentVolumeId, hostio::LogicalVolume> volumes_;
  std::uint64_t used_ = 0;
};

Result<std::unique_ptr<tools::Service>> start(agent::AgentConfig config, const runtime::Services& services) {
  config.backends = {{k_pool}};
  auto nvmet = std::make_shared<MemoryConfigfs>();
  agent::AgentParts parts;
  parts.services = services;
  parts.host.backend = std::make_shared<MemoryBackend>(nvmet);
  parts.host.nvmet = nvmet;
  parts.host.check_device = [](const std::string&, const std::string&) { return Result<void>{}; };
  auto app = agent::AgentApp::start(std::move(config), std::move(parts));
  if (!app) return tl::unexpected(app.error());
  return std::make_unique<tools::AgentService>(std::move(*app), services);
}

}  // namespace

int main(int argc, char** argv) {
  agent::AgentConfig config;
  tools::Program program;
  program.name = "pillar-bench-agent";
  program.description = "pillar-agent without a host behind it; for tools/bench only";
  program.default_listen = "tcp://127.0.0.1:9500";
  program.add_flags = [&config](CLI::App& cli) {
    cli.add_option("--state-dir", config.state_dir, "folder of marks and export records")->required();
  };
  program.start = [&config](const tools::Start& with) { return start(config, with.services); };
  return tools::run_program(argc, argv, program);
}
