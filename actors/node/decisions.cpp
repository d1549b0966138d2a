#include "actors/node/decisions.hpp"

#include <algorithm>

namespace pillar::node {
namespace {

using hostio::DeviceNumber;
using hostio::MountEntry;

bool any_is(const std::vector<LayerKind>& layers, LayerKind kind) {
  return std::find(layers.begin(), layers.end(), kind) != layers.end();
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string describe_top(const KernelView& view, std::string_view path) {
  const auto layers = view.mounts.layers_at(path);
  if (layers.empty()) return "nothing";
  return layers.front().fs_type + " from " + layers.front().source + " (" + layers.front().device.str() + ")";
}

/// The device a layer stands for: of a bound node the device behind the node, else that of the filesystem.
DeviceNumber number_of(const KernelView& view, const MountEntry& layer) {
  const bool node_bind = layer.root != "/" && (layer.fs_type == "devtmpfs" || layer.fs_type == "tmpfs");
  if (node_bind)
    if (const auto at = view.bound_nodes.find(layer.target); at != view.bound_nodes.end()) return at->second;
  return layer.device;
}

std::string usage_text(const Usage& usage) {
  std::string text = std::string(to_string(usage.access)) + " " + std::string(to_string(usage.mode));
  if (usage.mode == VolumeMode::mount) text += " " + usage.fs_type + " [" + usage.mount_options + "]";
  return text;
}

tl::unexpected<Error> other_usage(const StageRecord& record, const StageRequest& request) {
  if (record.usage != request.usage)
    return fail(Reason::incompatible, "volume " + record.volume_id + " is staged as " +
                                          usage_text(record.usage) + ", asked for " +
                                          usage_text(request.usage) + "; unstage it first");
  return fail(Reason::incompatible,
              "volume " + record.volume_id + " is staged from " + record.session.nqn + " at " +
                  record.session.address + ":" + std::to_string(record.session.port) + ", asked for " +
                  request.context.session.nqn + " at " + request.context.session.address + ":" +
                  std::to_string(request.context.session.port) + "; unstage it first");
}

/// A path staged as recorded: is it still what the record says?
StageStep check_staged(const StageRecord& record, const Staging& staging, const KernelView& view) {
  if (record.usage.mode == VolumeMode::block)
    return find_namespace(view, record.session) != nullptr ? StageStep::done : StageStep::resume;
  const auto kinds = layers_of(view, staging.path, record);
  if (kinds.empty()) return StageStep::resume;
  if (kinds.size() > 1 || kinds.front() != LayerKind::ours) return StageStep::mount_again;
  return StageStep::check_health;
}

StageRecord as_record(const StageRequest& request) {
  StageRecord record;
  record.volume_id = request.volume_id;
  record.usage = request.usage;
  record.session = request.context.session;
  return record;
}

/// The staging path must be free or hold only layers of this volume.
Result<bool> path_holds_ours(const StageRecord& record, std::string_view path, const KernelView& view) {
  const auto kinds = layers_of(view, path, record);
  if (any_is(kinds, LayerKind::foreign))
    return fail(Reason::target_occupied, Code::failed_precondition,
                "staging path " + std::string(path) + " already holds " + describe_top(view, path) +
                    ", which is not volume " + record.volume_id + "; unmount it first");
  return !kinds.empty();
}

/// A path that is not recorded as staged: mountinfo decides. `otherwise`: the step when nothing is mounted.
Result<StageStep> plan_path(const StageRecord& record, const StageRequest& request, const KernelView& view,
                            StageStep otherwise) {
  auto ours = path_holds_ours(record, request.path, view);
  if (!ours) return tl::unexpected(ours.error());
  if (!*ours) return otherwise;
  const auto layers = view.mounts.layers_at(request.path);
  const auto& top = layers.front();
  const bool as_wanted = layers.size() == 1 && classify(view, top, record) == LayerKind::ours &&
                         request.usage.mode == VolumeMode::mount && top.fs_type == request.usage.fs_type &&
                         hostio::mounted_as(top, request.mount_options);
  return as_wanted ? StageStep::adopt_mount : StageStep::mount_again;
}

Result<StageStep> plan_unfinished(const StageRecord& record, const StageRequest& request,
                                  const KernelView& view) {
  if (record.session != request.context.session) return StageStep::replace_session;
  return plan_path(record, request, view, StageStep::resume);
}

Result<StageStep> plan_without_record(const StageRequest& request, const KernelView& view) {
  return plan_path(as_record(request), request, view, StageStep::fresh);
}

tl::unexpected<Error> not_staged(const PublishRequest& request, const std::string& seen) {
  return fail(Reason::not_staged, "volume " + request.volume_id + " is not staged at " +
                                      request.staging_path + " (" + seen + "); call NodeStageVolume first");
}

/// Row D07: a publication may only stand on a verified stage.
Result<void> check_stage(const StageRecord& record, const PublishRequest& request, const KernelView& view) {
  const auto* staging = record.find_staging(request.staging_path);
  if (staging == nullptr || staging->state != StagingState::staged || record.phase == Phase::unstaging)
    return not_staged(request, "phase " + std::string(to_string(record.phase)));
  if (record.usage.mode == VolumeMode::block) {
    if (find_namespace(view, record.session) == nullptr) return not_staged(request, "its device is gone");
    return {};
  }
  const auto kinds = layers_of(view, staging->path, record);
  if (kinds.empty()) return not_staged(request, "nothing is mounted there");
  if (kinds.front() == LayerKind::foreign)
    return not_staged(request, describe_top(view, staging->path) + " is mounted there");
  if (kinds.front() == LayerKind::ours_dead)
    return fail(Reason::filesystem_dead, Code::failed_precondition,
                "the filesystem of volume " + record.volume_id + " at " + staging->path +
                    " is dead, its device is gone; delete the pods that use it so that it is staged again");
  return {};
}

Result<void> check_capability_staged(const StageRecord& record, const PublishRequest& request) {
  const auto& asked = request.capability;
  const auto mismatch = [&](const std::string& staged, const std::string& wanted) {
    return fail(Reason::incompatible, Code::failed_precondition,
                "volume " + record.volume_id + " is staged as " + staged + ", asked for " + wanted +
                    "; unstage it first");
  };
  if (asked.mode != record.usage.mode)
    return mismatch(std::string(to_string(record.usage.mode)), std::string(to_string(asked.mode)));
  if (!asked.fs_type.empty() && asked.fs_type != record.usage.fs_type)
    return mismatch(record.usage.fs_type, asked.fs_type);
  if (record.usage.mode != VolumeMode::mount) return {};
  // Every flag of the publication must be one of the stage's (row P07); read-only may be added per target.
  auto staged = hostio::parse_mount_options(record.usage.fs_type, {record.usage.mount_options}, false);
  auto wanted = hostio::parse_mount_options(record.usage.fs_type, request.mount_flags, false);
  if (!staged) return tl::unexpected(staged.error());
  if (!wanted) return tl::unexpected(wanted.error());
  const auto within = [](const auto& parts, const auto& whole) {
    return std::includes(whole.begin(), whole.end(), parts.begin(), parts.end());
  };
  if (!within(wanted->attributes, staged->attributes) || !within(wanted->filesystem, staged->filesystem))
    return mismatch("[" + staged->str() + "]", "[" + wanted->str() + "]");
  return {};
}

/// Rows A03 and, for devices, the one flag they share.
Result<void> check_other_targets(const StageRecord& record, const PublishRequest& request,
                                 const KernelView& view) {
  const bool readonly = effective_readonly(record, request);
  for (const auto& other : live_publications(view, record)) {
    if (other.target == request.target) continue;
    const auto single = [](AccessMode mode) {
      const auto* row = find_access_mode(mode);
      return row != nullptr && row->single_target;
    };
    if (single(request.capability.access) || single(record.usage.access) || single(other.access))
      return fail(Reason::published_elsewhere, "volume " + record.volume_id +
                                                   " is SINGLE_NODE_SINGLE_WRITER and in use at " +
                                                   other.target + "; only one pod may use it at a time");
    if (record.usage.mode == VolumeMode::block && other.readonly != readonly)
      return fail(
          Reason::incompatible, Code::failed_precondition,
          "block volume " + record.volume_id + " is published " +
              (other.readonly ? "read-only" : "writable") + " at " + other.target +
              " and a device has one read-only flag for all; publish it the same way or unpublish that");
  }
  return {};
}

Result<PublishStep> check_target(const StageRecord& record, const PublishRequest& request,
                                 const KernelView& view) {
  const auto layers = view.mounts.layers_at(request.target);
  const auto kinds = target_layers(view, request.target, record);
  const auto* known = record.find_publication(request.target);
  const bool wanted_ro = effective_readonly(record, request);
  if (kinds.empty()) return PublishStep::bind;
  if (any_is(kinds, LayerKind::foreign))
    return fail(Reason::target_occupied, "target " + request.target + " already holds " +
                                             describe_top(view, request.target) + ", which is not volume " +
                                             record.volume_id + "; unmount it first");
  if (known != nullptr && known->bound && known->readonly != wanted_ro)
    return fail(Reason::incompatible, "volume " + record.volume_id + " is published at " + request.target +
                                          (known->readonly ? " read-only" : " writable") +
                                          ", asked for the opposite; unpublish it first");
  if (kinds.size() > 1 || kinds.front() == LayerKind::ours_dead || (known != nullptr && !known->bound))
    return PublishStep::rebind;
  const bool block = record.usage.mode == VolumeMode::block;
  const auto* device = find_namespace(view, record.session);
  const bool actual_ro = block ? device != nullptr && device->read_only : layers.front().read_only();
  if (known != nullptr) return actual_ro == wanted_ro ? PublishStep::done : PublishStep::rebind;
  if (actual_ro == wanted_ro) return PublishStep::adopt;
  return fail(Reason::incompatible, "target " + request.target + " already holds volume " + record.volume_id +
                                        (actual_ro ? " read-only" : " writable") +
                                        ", asked for the opposite; unpublish it first");
}

bool is_dead(const KernelView& view, const MountEntry& layer) { return view.gone.contains(layer.device); }

void add_device_findings(const KernelView& view, const StageRecord& record,
                         std::vector<HealthFinding>& found) {
  if (find_subsystem(view, record.session.nqn) == nullptr ||
      find_namespace(view, record.session) == nullptr) {
    found.push_back(
        {csi::INACCESSIBLE, "DeviceGone",
         "the device of the volume is gone; delete the pods that use it so that it is staged again"});
    return;
  }
  if (!session_live(view, record.session))
    found.push_back({csi::INACCESSIBLE, "TargetUnreachable",
                     "no connection to " + record.session.address + ":" +
                         std::to_string(record.session.port) +
                         " is live; I/O waits until the storage node is back"});
}

void add_mount_findings(const KernelView& view, const StageRecord& record, const std::string& path,
                        std::vector<HealthFinding>& found) {
  const auto layers = view.mounts.layers_at(path);
  if (layers.empty()) {
    found.push_back({csi::INACCESSIBLE, "NotMounted", "nothing is mounted at " + path});
    return;
  }
  const auto& top = layers.front();
  if (classify(view, top, record) == LayerKind::ours_dead)
    found.push_back({csi::INACCESSIBLE, "FilesystemDead",
                     "the filesystem at " + path + " lost its device; delete the pods that use it"});
  else if (!record.usage.readonly && top.superblock_read_only())
    found.push_back(
        {csi::INACCESSIBLE, "FilesystemReadOnly",
         "the filesystem at " + path + " turned read-only after an error; delete the pods that use it"});
}

}  // namespace

const hostio::NvmeSubsystem* find_subsystem(const KernelView& view, std::string_view nqn) {
  for (const auto& each : view.subsystems)
    if (each.nqn == nqn) return &each;
  return nullptr;
}

const hostio::NvmeNamespace* find_namespace(const KernelView& view, const SessionTarget& session) {
  for (const auto& subsystem : view.subsystems) {
    if (subsystem.nqn != session.nqn) continue;
    for (const auto& each : subsystem.namespaces)
      if (each.uuid == session.namespace_uuid) return &each;
  }
  return nullptr;
}

const hostio::NvmeSubsystem* owner_of(const KernelView& view, DeviceNumber number) {
  for (const auto& subsystem : view.subsystems)
    for (const auto& each : subsystem.namespaces)
      if (each.number == number) return &subsystem;
  return nullptr;
}

bool session_live(const KernelView& view, const SessionTarget& session) {
  for (const auto& subsystem : view.subsystems) {
    if (subsystem.nqn != session.nqn) continue;
    for (const auto& controller : subsystem.controllers)
      if (controller.state == hostio::ControllerState::live) return true;
  }
  return false;
}

LayerKind classify(const KernelView& view, const MountEntry& layer, const StageRecord& record) {
  const DeviceNumber number = number_of(view, layer);
  const auto* present = find_namespace(view, record.session);
  // A dead head keeps its number while it is mounted, so a number that is present now is the living device.
  if (present != nullptr && present->number == number && !view.gone.contains(number)) return LayerKind::ours;
  // Numbers are given again, also to partitions and after a boot: another device that has one now is not
  // ours.
  const auto* owner = owner_of(view, number);
  const bool may_be_ours = owner != nullptr ? owner->nqn == record.session.nqn : view.gone.contains(number);
  return may_be_ours && record.used(number) ? LayerKind::ours_dead : LayerKind::foreign;
}

std::vector<LayerKind> layers_of(const KernelView& view, std::string_view path, const StageRecord& record) {
  std::vector<LayerKind> kinds;
  for (const auto& layer : view.mounts.layers_at(path)) kinds.push_back(classify(view, layer, record));
  return kinds;
}

std::vector<LayerKind> target_layers(const KernelView& view, std::string_view target,
                                     const StageRecord& record) {
  auto kinds = layers_of(view, target, record);
  if (record.find_publication(target) == nullptr) return kinds;
  const auto layers = view.mounts.layers_at(target);
  for (std::size_t index = 0; index < layers.size(); ++index)
    if (kinds[index] == LayerKind::foreign && view.gone.contains(number_of(view, layers[index])))
      kinds[index] = LayerKind::ours_dead;
  return kinds;
}

std::vector<std::string> users_of(const KernelView& view, const StageRecord& record) {
  std::set<std::string> users;
  for (const auto& each : view.mounts.entries())
    if (record.find_staging(each.target) == nullptr && classify(view, each, record) != LayerKind::foreign)
      users.insert(each.target);
  for (const auto& each : live_publications(view, record)) users.insert(each.target);
  return {users.begin(), users.end()};
}

Result<AddressStep> plan_address(const StageRecord& record, const StageRequest& request,
                                 const KernelView& view) {
  const auto& wanted = request.context.session;
  const bool told = request.publish.address || request.publish.port;
  const bool same_volume = record.session.same_export(wanted) && record.usage == request.usage;
  if (!told || !record.any_staged() || !same_volume || record.session == wanted) return AddressStep::none;
  if (session_live(view, record.session)) return AddressStep::keep;
  const auto users = users_of(view, record);
  if (find_namespace(view, record.session) != nullptr && !users.empty())
    return fail(Reason::device_busy, "volume " + record.volume_id + " waits for " + record.session.address +
                                         ":" + std::to_string(record.session.port) + " but listens at " +
                                         wanted.address + ":" + std::to_string(wanted.port) +
                                         " now, and is in use at " + join(users) +
                                         "; delete the pods that use it so that it is staged from there");
  return AddressStep::move;
}

Result<void> refuse_other_volume(const StageRecord& record, std::string_view path, const KernelView& view) {
  // By the device of the filesystem: a bound node does not keep its number from being given to another
  // volume, and then it has to go all the more.
  for (const auto& layer : view.mounts.layers_at(path))
    if (const auto* owner = owner_of(view, layer.device);
        owner != nullptr && owner->nqn != record.session.nqn)
      return fail(Reason::target_occupied, Code::failed_precondition,
                  std::string(path) + " is recorded for volume " + record.volume_id + " but holds " +
                      layer.source + " of " + owner->nqn + "; unmount that volume first");
  return {};
}

Result<StageStep> plan_stage(const std::optional<StageRecord>& record, const StageRequest& request,
                             const KernelView& view) {
  if (!record) return plan_without_record(request, view);
  if (!record->any_staged()) return plan_unfinished(*record, request, view);
  if (record->usage != request.usage || record->session != request.context.session)
    return other_usage(*record, request);
  const auto* staging = record->find_staging(request.path);
  if (staging == nullptr || staging->state != StagingState::staged)
    return plan_unfinished(*record, request, view);
  if (record->usage.mode == VolumeMode::mount)
    if (auto clear = path_holds_ours(*record, request.path, view); !clear)
      return tl::unexpected(clear.error());
  return check_staged(*record, *staging, view);
}

Result<void> check_remount(const StageRecord& record, std::string_view path, const KernelView& view) {
  const auto layers = view.mounts.layers_at(path);
  if (auto clear = path_holds_ours(record, path, view); !clear) return tl::unexpected(clear.error());
  if (layers.empty() || classify(view, layers.front(), record) != LayerKind::ours) return {};
  const auto users = users_of(view, record);
  if (users.empty()) return {};
  return fail(Reason::filesystem_dead, Code::failed_precondition,
              "the filesystem of volume " + record.volume_id + " at " + std::string(path) +
                  " needs a new mount but is in use at " + join(users) + "; delete the pods that use it");
}

bool marker_matches(const StageRecord& record, const PublishContext& publish) {
  return record.phase == Phase::formatting && !record.marker.empty() &&
         record.generation == publish.generation;
}

Result<hostio::FormatDecision> plan_format(const hostio::Content& content, bool redo,
                                           const StageRequest& request) {
  auto decision = hostio::decide_format(content, request.usage.fs_type, request.publish.formatted, redo);
  if (!decision) return tl::unexpected(with_context(decision.error(), "volume " + request.volume_id));
  if (*decision != hostio::FormatDecision::use && request.usage.readonly)
    return fail(Reason::foreign_content,
                "volume " + request.volume_id +
                    " holds no filesystem and was asked for read-only; stage it writable "
                    "once so that it gets one");
  return decision;
}

bool effective_readonly(const StageRecord& record, const PublishRequest& request) {
  return request.readonly || record.usage.readonly;
}

std::vector<Publication> live_publications(const KernelView& view, const StageRecord& record) {
  std::vector<Publication> live;
  for (const auto& each : record.publications)
    if (!view.mounts.layers_at(each.target).empty()) live.push_back(each);
  return live;
}

Result<PublishStep> plan_publish(const std::optional<StageRecord>& record, const PublishRequest& request,
                                 const KernelView& view) {
  if (!record) return not_staged(request, "there is no record of it on this node");
  if (record->find_staging(request.target) != nullptr)
    return fail(Reason::invalid_argument, "target path " + request.target + " is a staging path of volume " +
                                              request.volume_id + "; give the pod's own path");
  if (auto good = check_capability_staged(*record, request); !good) return tl::unexpected(good.error());
  if (auto good = check_stage(*record, request, view); !good) return tl::unexpected(good.error());
  if (auto good = check_other_targets(*record, request, view); !good) return tl::unexpected(good.error());
  return check_target(*record, request, view);
}

Result<UnpublishStep> plan_unpublish(const std::optional<StageRecord>& record, std::string_view volume_id,
                                     std::string_view target, const KernelView& view) {
  const auto layers = view.mounts.layers_at(target);
  if (layers.empty()) return UnpublishStep::nothing;
  if (record && record->find_staging(target) != nullptr)
    return fail(Reason::target_occupied, Code::failed_precondition,
                std::string(target) + " is a staging path of volume " + std::string(volume_id) +
                    "; NodeUnstageVolume takes it down");
  if (record && record->find_publication(target) != nullptr) {
    auto free = refuse_other_volume(*record, target, view);
    if (!free) return tl::unexpected(free.error());
    return UnpublishStep::unmount;
  }
  const auto volume = VolumeId::parse(volume_id);
  const auto belongs = [&](const MountEntry& layer) {
    if (record && classify(view, layer, *record) != LayerKind::foreign) return true;
    const auto* owner = owner_of(view, number_of(view, layer));
    if (owner == nullptr) return is_dead(view, layer);
    return volume && nqn_belongs_to(owner->nqn, *volume) == Ownership::yes;
  };
  if (std::all_of(layers.begin(), layers.end(), belongs)) return UnpublishStep::unmount;
  return fail(Reason::target_occupied, Code::failed_precondition,
              "target " + std::string(target) + " holds " + describe_top(view, target) +
                  ", which is not known to be volume " + std::string(volume_id) + "; unmount it by hand");
}

Result<UnstageStep> plan_unstage(const StageRecord& record, std::string_view path, const KernelView& view) {
  const auto* staging = record.find_staging(path);
  const auto kinds = layers_of(view, path, record);
  if (staging == nullptr) {
    if (kinds.empty()) return UnstageStep::nothing;
    if (record.find_publication(path) != nullptr)
      return fail(Reason::device_busy, std::string(path) + " is a target path of volume " + record.volume_id +
                                           "; NodeUnpublishVolume takes it down");
    if (any_is(kinds, LayerKind::foreign))
      return fail(Reason::target_occupied, Code::failed_precondition,
                  "staging path " + std::string(path) + " holds " + describe_top(view, path) +
                      ", which is not volume " + record.volume_id + "; unmount it by hand");
  } else if (auto free = refuse_other_volume(record, path, view); !free) {
    return tl::unexpected(free.error());
  }
  const auto others = static_cast<std::size_t>(std::count_if(
      record.stagings.begin(), record.stagings.end(), [&](const auto& each) { return each.path != path; }));
  // With another staging path left the device stays, and so may its pods (row A07).
  if (others == 0)
    if (const auto users = users_of(view, record); !users.empty())
      return fail(Reason::device_busy, "volume " + record.volume_id + " is still in use at " + join(users) +
                                           "; unpublish it there first");
  return UnstageStep::take_down;
}

Result<std::optional<StageRecord>> rebuild_record(const KernelView& view, std::string_view volume_id,
                                                  std::string_view path) {
  const auto volume = VolumeId::parse(volume_id);
  const auto layers = view.mounts.layers_at(path);
  StageRecord record;
  record.volume_id = std::string(volume_id);
  record.phase = Phase::unstaging;
  record.stagings.push_back(Staging{std::string(path), StagingState::unstaging, std::nullopt});
  const auto adopt = [&](const hostio::NvmeSubsystem& owner) {
    record.session.nqn = owner.nqn;
    record.session.namespace_uuid = export_identity_of_nqn(owner.nqn).namespace_uuid;
  };
  if (layers.empty()) {
    if (!volume) return std::optional<StageRecord>();
    for (const auto& each : view.subsystems) {
      if (nqn_belongs_to(each.nqn, *volume) != Ownership::yes) continue;
      adopt(each);
      if (users_of(view, record).empty()) return std::optional(record);
    }
    return std::optional<StageRecord>();
  }
  const auto* owner = owner_of(view, number_of(view, layers.front()));
  if (!volume || owner == nullptr || nqn_belongs_to(owner->nqn, *volume) != Ownership::yes)
    return fail(Reason::not_owned, "there is no record of volume " + std::string(volume_id) +
                                       " on this node and what is mounted at " + std::string(path) + ", " +
                                       describe_top(view, path) +
                                       (owner != nullptr ? " of " + owner->nqn : std::string()) +
                                       ", does not lead back to it; unmount it by hand");
  adopt(*owner);
  record.stagings.front().device = layers.front().device;
  record.usage.fs_type = layers.front().fs_type;
  return std::optional(record);
}

RecordFate reconcile_record(const StageRecord& record, const KernelView& view, std::string_view boot_id) {
  if (record.boot_id == boot_id || record.phase == Phase::formatting) return RecordFate::keep;
  if (find_subsystem(view, record.session.nqn) != nullptr) return RecordFate::keep;
  for (const auto& each : record.stagings)
    if (!view.mounts.layers_at(each.path).empty()) return RecordFate::keep;
  return live_publications(view, record).empty() ? RecordFate::drop : RecordFate::keep;
}

Result<PathUse> resolve_path(const std::optional<StageRecord>& record, std::string_view volume_id,
                             std::string_view path, const KernelView& view) {
  const auto missing = [&](const std::string& why) {
    return fail(Reason::not_found, "volume " + std::string(volume_id) + " " + why);
  };
  if (!record || !record->any_staged()) return missing("is not staged on this node");
  const auto* staging = record->find_staging(path);
  const bool staged = staging != nullptr && staging->state == StagingState::staged;
  if (record->usage.mode == VolumeMode::block) {
    if (staged) return PathUse::block;
    if (layers_of(view, path, *record).empty()) return missing("is not published at " + std::string(path));
  }
  const auto kinds = layers_of(view, path, *record);
  if (kinds.empty() || kinds.front() == LayerKind::foreign)
    return missing("is not mounted at " + std::string(path));
  return record->usage.mode == VolumeMode::block ? PathUse::block : PathUse::filesystem;
}

std::vector<HealthFinding> health_of(const KernelView& view, const StageRecord& record,
                                     std::string_view path) {
  std::vector<HealthFinding> found;
  add_device_findings(view, record, found);
  if (record.usage.mode == VolumeMode::block) return found;
  if (!path.empty()) {
    add_mount_findings(view, record, std::string(path), found);
    return found;
  }
  for (const auto& each : record.stagings)
    if (each.state == StagingState::staged) {
      add_mount_findings(view, record, each.path, found);
      break;  // one entry per reason is enough: all paths share one device
    }
  return found;
}

}  // namespace pillar::node
