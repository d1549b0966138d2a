#pragma once
// The rules of docs/fencing.md sections 5 and 6 as functions: given what is recorded, what the kernel shows
// and what was asked, what comes next. No clock, no I/O, no actor.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/node/requests.hpp"
#include "actors/node/stage_record.hpp"
#include "hostio/mounts.hpp"
#include "hostio/nvme/topology.hpp"
#include "hostio/probe.hpp"
#include "messages/error.hpp"

namespace pillar::node {

/// One reading of mountinfo and sysfs. "Mounted" always means: listed here.
struct KernelView {
  hostio::MountTable mounts;
  std::vector<hostio::NvmeSubsystem> subsystems;
  /// Targets of binds of device nodes (raw block publications) and what the nodes stand for.
  std::map<std::string, hostio::DeviceNumber> bound_nodes;
  /// Devices in mountinfo or behind bound nodes that the kernel no longer has: dead mounts.
  std::set<hostio::DeviceNumber> gone;
  /// Why mounts made here would not be seen on the host (row H09); nothing is mounted for a volume then.
  std::optional<Error> hidden;
};

/// The subsystem with exactly this NQN; null when there is none.
const hostio::NvmeSubsystem* find_subsystem(const KernelView& view, std::string_view nqn);
/// The namespace of `session`; null while it is not there.
const hostio::NvmeNamespace* find_namespace(const KernelView& view, const SessionTarget& session);
/// The subsystem that owns the block device; null when it is none of NVMe.
const hostio::NvmeSubsystem* owner_of(const KernelView& view, hostio::DeviceNumber number);
/// True when a controller of the session is live.
bool session_live(const KernelView& view, const SessionTarget& session);

/// Whose mount a layer is.
enum class LayerKind : std::uint8_t {
  ours,       ///< a filesystem or device node of this volume's present device
  ours_dead,  ///< of a device this record has used and that is gone
  foreign,
};
LayerKind classify(const KernelView& view, const hostio::MountEntry& layer, const StageRecord& record);
/// The kinds of all layers at `path`, topmost first.
std::vector<LayerKind> layers_of(const KernelView& view, std::string_view path, const StageRecord& record);

/// The same for a publication's target: of a recorded one also the layers without a device were ours, since a
/// stage after the loss has replaced the device's number in the record.
std::vector<LayerKind> target_layers(const KernelView& view, std::string_view target,
                                     const StageRecord& record);

/// Mount points through which the volume is used, apart from its own staging paths (rows D16, D17).
std::vector<std::string> users_of(const KernelView& view, const StageRecord& record);

/// FAILED_PRECONDITION when a layer at `path` is the filesystem of another NVMe volume: whatever is recorded
/// for the path, that one is not ours to unmount.
Result<void> refuse_other_volume(const StageRecord& record, std::string_view path, const KernelView& view);

/// What NodeStage does next.
enum class StageStep : std::uint8_t {
  fresh,            ///< nothing recorded: write intent, connect, ...
  resume,           ///< go on from what is recorded, verifying each step again
  replace_session,  ///< an unfinished stage went to another export: disconnect that one, then fresh
  check_health,     ///< recorded and mounted: OK if the filesystem still works
  adopt_mount,      ///< mounted as wanted but not recorded (cut off before the record): verify, then record
  mount_again,      ///< the mount is dead or stacked: unmount every layer, then resume
  done,             ///< recorded and usable
};
/// `record` must not be in phase unstaging (the caller finishes that first). ALREADY_EXISTS for another
/// capability or context than what is staged (row D14), FAILED_PRECONDITION when something else is mounted at
/// the path (row D04).
Result<StageStep> plan_stage(const std::optional<StageRecord>& record, const StageRequest& request,
                             const KernelView& view);

/// What a stage does about a storage node that listens elsewhere than the record says (row C12).
enum class AddressStep : std::uint8_t {
  none,  ///< the address is the recorded one or is not told, or nothing is staged yet
  keep,  ///< a controller is live: the session stays where it goes
  move,  ///< the session cannot come back: end it, connect to the new address, mount afresh
};
/// DEVICE_BUSY while pods hold what waits for the old address: ending the session fails their I/O.
Result<AddressStep> plan_address(const StageRecord& record, const StageRequest& request,
                                 const KernelView& view);

/// Whether the layers at a staging path may be unmounted to be mounted afresh: FAILED_PRECONDITION while pods
/// hold the same superblock, since a new mount of it would only be another door to the dead filesystem, and
/// when something else is mounted there.
Result<void> check_remount(const StageRecord& record, std::string_view path, const KernelView& view);

/// What happens to the content of the device (docs/fencing.md section 6): hostio::decide_format, and nothing
/// is ever formatted for a read-only stage. `redo`: marker_matches.
Result<hostio::FormatDecision> plan_format(const hostio::Content& content, bool redo,
                                           const StageRequest& request);
/// True when the record's marker stands for an attempt under this very publication: nobody else can have had
/// the volume since.
bool marker_matches(const StageRecord& record, const PublishContext& publish);

/// What NodePublish does next.
enum class PublishStep : std::uint8_t {
  bind,    ///< nothing at the target
  rebind,  ///< half done, stacked or dead: unmount the target's layers, then bind
  adopt,   ///< bound as asked, but not recorded: record it
  done,
};
/// FAILED_PRECONDITION: not staged, stage not verified (row D07), second target of ReadWriteOncePod (A03),
/// other capability than staged. ALREADY_EXISTS: the target holds something else (H01) or another readonly
/// flag.
Result<PublishStep> plan_publish(const std::optional<StageRecord>& record, const PublishRequest& request,
                                 const KernelView& view);
/// Read-only if any of stage, access mode or readonly flag says so (row H03).
bool effective_readonly(const StageRecord& record, const PublishRequest& request);
/// Publications of the record whose targets are still mounted.
std::vector<Publication> live_publications(const KernelView& view, const StageRecord& record);

/// What NodeUnpublish does next.
enum class UnpublishStep : std::uint8_t { unmount, nothing };
/// By path only (row D10): a recorded target is unmounted unless another volume is there. Without a record,
/// only what provably belongs to the volume or is dead; otherwise FAILED_PRECONDITION.
Result<UnpublishStep> plan_unpublish(const std::optional<StageRecord>& record, std::string_view volume_id,
                                     std::string_view target, const KernelView& view);

/// What NodeUnstage may do at a path.
enum class UnstageStep : std::uint8_t {
  take_down,  ///< unmount what is there, and with the last staging path the session
  nothing,    ///< not staged at that path: OK
};
/// FAILED_PRECONDITION while pods use the volume, or when an unrecorded path holds something else.
Result<UnstageStep> plan_unstage(const StageRecord& record, std::string_view path, const KernelView& view);

/// A record for a volume whose record is missing, from mountinfo -> device -> NQN, in phase unstaging.
/// nullopt: nothing is mounted at the path and there is no unused session of the volume. FAILED_PRECONDITION
/// when something is mounted there that does not map back to the volume.
Result<std::optional<StageRecord>> rebuild_record(const KernelView& view, std::string_view volume_id,
                                                  std::string_view path);

/// Whether a record survives the start of the process (row D06): dropped when the machine has booted since
/// and neither its session nor any of its mounts is left. One in phase formatting stays, since its marker is
/// what lets a cut-off mkfs be done again.
enum class RecordFate : std::uint8_t { keep, drop };
RecordFate reconcile_record(const StageRecord& record, const KernelView& view, std::string_view boot_id);

/// How NodeGetVolumeStats and NodeExpand find what they are asked about.
enum class PathUse : std::uint8_t { filesystem, block };
/// NOT_FOUND when the volume is not staged or the path is neither a staging nor a target path of it.
/// `mounted_only`: a block volume's staging path does not count.
Result<PathUse> resolve_path(const std::optional<StageRecord>& record, std::string_view volume_id,
                             std::string_view path, const KernelView& view);

/// One thing that is wrong with a volume here.
struct HealthFinding {
  csi::VolumeHealthErrorType status = csi::DEGRADED;
  std::string reason;  ///< CamelCase, unique per status
  std::string message;
};
/// What mountinfo and sysfs alone tell; touches nothing. `path`: empty for the whole volume.
std::vector<HealthFinding> health_of(const KernelView& view, const StageRecord& record,
                                     std::string_view path);

}  // namespace pillar::node
