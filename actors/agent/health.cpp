#include "actors/agent/health.hpp"

#include <map>

#include "hostio/configfs/nvmet_reader.hpp"

namespace pillar::agent {
namespace {

constexpr std::chrono::seconds k_look{10};

hostio::HealthItem state_item(const StateStore& store) {
  const std::size_t corrupt = store.corrupt_marks();
  if (corrupt == 0) return {"state", true, ""};
  return {"state", false,
          std::to_string(corrupt) +
              " fencing marks cannot be trusted and block their volumes; the log names the files: stop "
              "the agent, move them and meta.json out of the state directory and start it"};
}

}  // namespace

std::vector<hostio::HealthItem> look_at_host(const AgentContext& context) {
  std::vector<hostio::HealthItem> items;
  if (!context.host.runner) return items;
  const hostio::HostRoots roots{context.config.sysfs_root, context.config.dev_root, context.config.proc_root};
  const Deadline deadline = Deadline::after(k_look);
  items = hostio::preflight_target(*context.host.runner, roots, context.config.configfs_root, deadline);
  std::vector<std::string> groups;
  for (const LvmBackendConfig& backend : context.config.backends) groups.push_back(backend.volume_group);
  items.push_back(hostio::preflight_lvm(*context.host.runner, groups, roots, deadline));
  return items;
}

std::vector<hostio::HealthItem> HealthProbe::items(const AgentContext& context) {
  const std::unique_lock looking(looking_, std::try_to_lock);
  {
    const std::lock_guard lock(data_);
    const bool fresh = known_ && Clock::now() - at_ < context.limits.health_cache;
    if (fresh || (!looking.owns_lock() && known_)) return items_;
  }
  if (!looking.owns_lock()) {
    std::unique_lock lock(data_);
    if (looked_.wait_for(lock, context.limits.first_look, [this] { return known_; })) return items_;
    return {{"host", false, "the first look at the host has not finished yet; ask again"}};
  }
  auto items = look_(context);
  {
    const std::lock_guard lock(data_);
    items_ = items;
    at_ = Clock::now();
    known_ = true;
  }
  looked_.notify_all();
  return items;
}

std::uint64_t maximum_volume(const hostio::VolumeGroup& group) {
  return group.extent_bytes == 0 ? 0 : group.free_bytes / group.extent_bytes * group.extent_bytes;
}

v1::Pool pool_message(const hostio::VolumeGroup& group) {
  v1::Pool pool;
  pool.set_name(group.name);
  pool.set_type("lvm");
  pool.set_total_bytes(group.size_bytes);
  pool.set_available_bytes(group.free_bytes);
  pool.set_provisioning_mode("linear");
  pool.set_extent_bytes(group.extent_bytes);
  return pool;
}

void publish_size(const AgentContext& context, const hostio::VolumeGroup& group) {
  runtime::Metrics& metrics = *context.services.metrics;
  const runtime::Metrics::Labels labels{{"pool", group.name}};
  const auto size = static_cast<double>(group.size_bytes);
  const auto available = static_cast<double>(group.free_bytes);
  metrics.gauge("pillar_csi_pool_size_bytes", "Size of the pool", labels).set(size);
  metrics.gauge("pillar_csi_pool_available_bytes", "Free space of the pool", labels).set(available);
  metrics.gauge("pillar_csi_pool_provisioned_bytes", "Space given to volumes", labels).set(size - available);
}

v1::GetCapabilitiesResponse get_capabilities(const AgentContext& context) {
  v1::GetCapabilitiesResponse response;
  response.set_version(PILLAR_CSI_VERSION);
  response.add_backends("lvm-lv");
  response.add_protocols("nvmeof-tcp");
  for (const LvmBackendConfig& backend : context.config.backends) {
    auto info = context.host.backend->pool_info(backend.volume_group, Deadline::after(k_look));
    v1::Pool& pool = *response.add_pools();
    if (info) {
      publish_size(context, *info);
      pool = pool_message(*info);
      continue;
    }
    pool.set_name(backend.volume_group);
    pool.set_type("lvm");
    pool.set_provisioning_mode("linear");
    pool.set_error(info.error().message);
  }
  return response;
}

v1::HealthCheckResponse health_check(AgentContext& context, HealthProbe& probe,
                                     const v1::HealthCheckRequest& request) {
  context.store->note_known_sequence(request.known_epoch(), request.known_sequence());
  v1::HealthCheckResponse response;
  response.set_epoch(context.store->epoch());
  response.set_sequence(context.store->sequence());
  response.set_seeded(context.marks_complete());
  response.set_gated(context.gated);
  response.set_drained(context.store->drained());
  auto items = probe.items(context);
  items.push_back(state_item(*context.store));
  for (const hostio::HealthItem& item : items) {
    v1::SubsystemHealth& out = *response.add_subsystems();
    out.set_name(item.name);
    out.set_ok(item.ok);
    out.set_message(item.message);
  }
  return response;
}

Result<v1::ListVolumesResponse> list_volumes(const AgentContext& context) {
  v1::ListVolumesResponse response;
  for (const LvmBackendConfig& backend : context.config.backends) {
    auto volumes = context.host.backend->list(backend.volume_group, Deadline::after(context.limits.command));
    // A pool that cannot be read is not an empty pool.
    if (!volumes) return tl::unexpected(volumes.error());
    for (const hostio::LogicalVolume& volume : *volumes) {
      v1::ListedVolume& out = *response.add_volumes();
      out.mutable_volume()->set_agent_volume_id(volume.id.str());
      out.mutable_volume()->set_backend_type("lvm-lv");
      out.set_volume_uid(volume.uid);
      out.set_capacity_bytes(volume.size_bytes);
      out.set_device_path(volume.device_path);
    }
  }
  return response;
}

Result<v1::ListExportsResponse> list_exports(const AgentContext& context) {
  auto live = hostio::nvmet::read_our_subsystems(*context.host.nvmet);
  if (!live) return tl::unexpected(live.error());
  std::map<std::string, std::string> volumes;
  for (const ExportRecord& record : context.store->records()) volumes[record.nqn] = record.volume.str();
  v1::ListExportsResponse response;
  for (const auto& subsystem : *live) {
    v1::ListedExport& out = *response.add_exports();
    out.set_nqn(subsystem.nqn);
    out.set_enabled(subsystem.enabled());
    out.set_linked(!subsystem.ports.empty());
    for (const std::string& host : subsystem.host_nqns()) out.add_host_nqns(host);
    const auto ns = subsystem.namespaces.find(std::to_string(hostio::nvmet::k_nsid));
    if (ns != subsystem.namespaces.end()) out.set_device_path(ns->second.device_path);
    if (const auto it = volumes.find(subsystem.nqn); it != volumes.end()) out.set_agent_volume_id(it->second);
  }
  return response;
}

}  // namespace pillar::agent
