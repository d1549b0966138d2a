// NodeGetVolumeStats, NodeGetVolumeHealth and NodeExpandVolume.

#include <algorithm>

#include "actors/node/volume_ops.hpp"

namespace pillar::node {
namespace {

void add_usage(csi::NodeGetVolumeStatsResponse& response, csi::VolumeUsage::Unit unit, std::uint64_t total,
               std::uint64_t used, std::uint64_t available) {
  auto* usage = response.add_usage();
  usage->set_unit(unit);
  usage->set_total(static_cast<std::int64_t>(total));
  usage->set_used(static_cast<std::int64_t>(used));
  usage->set_available(static_cast<std::int64_t>(available));
}

void add_filesystem_usage(csi::NodeGetVolumeStatsResponse& response, const hostio::FilesystemStats& stats) {
  add_usage(response, csi::VolumeUsage::BYTES, stats.total_bytes, stats.used_bytes, stats.available_bytes);
  add_usage(response, csi::VolumeUsage::INODES, stats.total_inodes, stats.used_inodes, stats.free_inodes);
}

void set_condition(csi::NodeGetVolumeStatsResponse& response, const std::vector<HealthFinding>& findings) {
  auto* condition = response.mutable_volume_condition();
  condition->set_abnormal(!findings.empty());
  std::string message;
  for (const auto& each : findings)
    message += (message.empty() ? "" : "; ") + each.reason + ": " + each.message;
  condition->set_message(message.empty() ? "healthy" : message);
}

/// What a failed statfs means for the volume.
HealthFinding statfs_finding(const std::string& path, const Error& error) {
  const bool silent = error.reason == Reason::command_timeout || error.code == Code::deadline_exceeded ||
                      error.code == Code::aborted || error.code == Code::unavailable;
  return {csi::INACCESSIBLE, silent ? "FilesystemNotResponding" : "FilesystemDead",
          "statfs of " + path + ": " + error.message};
}

std::optional<HealthFinding> verdict_finding(const std::string& path,
                                             const hostio::FilesystemVerdict& verdict) {
  switch (verdict.health) {
    case hostio::FilesystemHealth::alive:
      return std::nullopt;
    case hostio::FilesystemHealth::degraded:
      return HealthFinding{csi::DEGRADED, "FilesystemErrors", path + ": " + verdict.why};
    case hostio::FilesystemHealth::stalled:
      return HealthFinding{csi::INACCESSIBLE, "FilesystemNotResponding", path + ": " + verdict.why};
    case hostio::FilesystemHealth::dead:
      break;
  }
  return HealthFinding{csi::INACCESSIBLE, "FilesystemDead", path + ": " + verdict.why};
}

Result<void> check_range(const csi::CapacityRange& range) {
  if (range.required_bytes() < 0 || range.limit_bytes() < 0 ||
      (range.limit_bytes() > 0 && range.limit_bytes() < range.required_bytes()))
    return fail(Reason::invalid_argument, "capacity range of " + std::to_string(range.required_bytes()) +
                                              " to " + std::to_string(range.limit_bytes()) +
                                              " bytes is not possible");
  return {};
}

}  // namespace

VolumeOps::Answer<csi::NodeGetVolumeStatsResponse> VolumeOps::stats(
    Context context, Request<csi::NodeGetVolumeStatsRequest> wire) {
  auto good = check_volume_path(wire->volume_id(), wire->volume_path(), settings_.rules);
  if (!good) co_return tl::unexpected(good.error());
  const std::string volume_id = wire->volume_id();
  const std::string asked = wire->volume_path();
  auto path = co_await host_->canonical(asked);
  if (!path) co_return tl::unexpected(path.error());
  auto record = co_await load(volume_id, true);
  if (!record) co_return tl::unexpected(record.error());
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto use = resolve_path(*record, volume_id, *path, *view);
  if (!use) co_return tl::unexpected(use.error());
  auto announced = co_await context.step("path_resolved");
  if (!announced) co_return tl::unexpected(announced.error());
  csi::NodeGetVolumeStatsResponse response;
  auto findings = health_of(*view, **record, *path);
  if (*use == PathUse::block) {
    // Row I06: a device has a size and nothing else.
    if (const auto* device = find_namespace(*view, (*record)->session)) {
      auto* usage = response.add_usage();
      usage->set_unit(csi::VolumeUsage::BYTES);
      usage->set_total(static_cast<std::int64_t>(device->size_bytes));
    }
  } else {
    auto stats = co_await host_->stats(*path);
    if (!stats && stats.error().code == Code::not_found) co_return tl::unexpected(stats.error());
    if (stats)
      add_filesystem_usage(response, *stats);
    else
      findings.push_back(statfs_finding(*path, stats.error()));
  }
  if (settings_.legacy_volume_condition) set_condition(response, findings);
  co_return response;
}

VolumeOps::Answer<csi::NodeGetVolumeHealthResponse> VolumeOps::health(
    Context context, Request<csi::NodeGetVolumeHealthRequest> wire) {
  if (wire->volume_id().empty())
    co_return fail(Reason::invalid_argument, "volume id is empty; give the id of a volume");
  const std::string volume_id = wire->volume_id();
  std::string path =
      wire->volume_publish_path().empty() ? wire->staging_target_path() : wire->volume_publish_path();
  if (!path.empty()) {
    auto good = check_path("volume path", path, settings_.rules);
    if (!good) co_return tl::unexpected(good.error());
    auto canonical = co_await host_->canonical(path);
    if (!canonical) co_return tl::unexpected(canonical.error());
    path = *canonical;
  }
  auto record = co_await load(volume_id, true);
  if (!record) co_return tl::unexpected(record.error());
  if (!*record || !(*record)->any_staged())
    co_return fail(Reason::not_found, "volume " + volume_id + " is not staged on this node");
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto announced = co_await context.step("record_read");
  if (!announced) co_return tl::unexpected(announced.error());
  auto findings = health_of(*view, **record, path);
  if (path.empty()) path = (*record)->stagings.front().path;
  const auto layers = view->mounts.layers_at(path);
  if (findings.empty() && (*record)->usage.mode == VolumeMode::mount && !layers.empty()) {
    const bool live = session_live(*view, (*record)->session);
    // What only this target is refused (row H05) is no fault of the filesystem.
    const bool readonly = (*record)->usage.readonly || layers.front().read_only();
    auto verdict = co_await host_->filesystem_health(layers.front(), readonly, live);
    if (!verdict) co_return tl::unexpected(verdict.error());
    if (auto finding = verdict_finding(path, *verdict)) findings.push_back(std::move(*finding));
  }
  csi::NodeGetVolumeHealthResponse response;
  auto* health = response.mutable_volume_health();
  health->set_volume_id(volume_id);
  for (const auto& each : findings) {
    auto* entry = health->add_health_statuses();
    entry->set_status(each.status);
    entry->set_reason(each.reason);
    entry->set_message(each.message);
  }
  co_return response;
}

VolumeOps::Answer<csi::NodeExpandVolumeResponse> VolumeOps::expand(
    Context context, Request<csi::NodeExpandVolumeRequest> wire) {
  auto good = check_volume_path(wire->volume_id(), wire->volume_path(), settings_.rules);
  if (good) good = check_range(wire->capacity_range());
  if (!good) co_return tl::unexpected(good.error());
  const std::string volume_id = wire->volume_id();
  const std::string asked = wire->volume_path();
  auto path = co_await host_->canonical(asked);
  if (!path) co_return tl::unexpected(path.error());
  auto loaded = co_await load(volume_id);
  if (!loaded) co_return tl::unexpected(loaded.error());
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  auto use = resolve_path(*loaded, volume_id, *path, *view);
  if (!use) co_return tl::unexpected(use.error());
  const Record record = std::make_shared<StageRecord>(std::move(**loaded));
  const SessionTarget session = record->session;
  const auto wanted = static_cast<std::uint64_t>(wire->capacity_range().required_bytes());
  auto device = co_await host_->wait_size(session, wanted);
  if (!device) co_return tl::unexpected(device.error());
  auto announced = co_await context.step("size_seen");
  if (!announced) co_return tl::unexpected(announced.error());
  const auto limit = static_cast<std::uint64_t>(wire->capacity_range().limit_bytes());
  if (limit > 0 && device->size_bytes > limit)
    co_return fail(Reason::out_of_range, "volume " + volume_id + " has " +
                                             std::to_string(device->size_bytes) +
                                             " bytes, more than the limit of " + std::to_string(limit));
  if (*use == PathUse::filesystem) {
    auto grown = co_await grow_filesystem(context, record, *device);
    if (!grown) co_return tl::unexpected(grown.error());
  }
  csi::NodeExpandVolumeResponse response;
  response.set_capacity_bytes(static_cast<std::int64_t>(device->size_bytes));
  co_return response;
}

VolumeOps::Answer<void> VolumeOps::grow_filesystem(Context context, Record record,
                                                   hostio::NvmeNamespace device) {
  if (record->usage.readonly)
    co_return fail(
        Reason::unsupported, Code::failed_precondition,
        "volume " + record->volume_id +
            " is staged read-only, so its filesystem cannot grow; stage it writable and expand it again");
  const auto staged = std::find_if(record->stagings.begin(), record->stagings.end(),
                                   [](const auto& each) { return each.state == StagingState::staged; });
  // The staging mount is writable whatever the publication is.
  const std::string mount_point = staged->path;
  const std::string fs_type = record->usage.fs_type;
  auto view = co_await host_->view();
  if (!view) co_return tl::unexpected(view.error());
  const auto kinds = layers_of(*view, mount_point, *record);
  if (kinds.empty() || kinds.front() != LayerKind::ours)
    co_return fail(Reason::filesystem_dead, "the filesystem of volume " + record->volume_id +
                                                " is not mounted at " + mount_point +
                                                " any more; stage the volume again");
  auto grown = co_await host_->grow(fs_type, device, mount_point);
  if (!grown) co_return grown;
  co_return co_await context.step("grown");
}

}  // namespace pillar::node
