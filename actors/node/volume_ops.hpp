#pragma once
// The operations of one volume on this node as coroutines over node::Host (docs/fencing.md sections 5 and 6).
// Each may be cut off at any await: the next call finds the record and the kernel's state and goes on.

#include <memory>
#include <optional>
#include <string>

#include "actors/node/decisions.hpp"
#include "actors/node/host.hpp"
#include "actors/node/requests.hpp"
#include "actors/node/stage_record.hpp"
#include "actors/runtime/operation_queue.hpp"
#include "messages/csi.pb.h"

namespace pillar::node {

/// What operations know about the process.
struct NodeSettings {
  RequestRules rules;
  std::string boot_id;
  bool legacy_volume_condition = true;  ///< fill the 1.12 VolumeCondition of NodeGetVolumeStats
};

/// The calls of one volume. They share nothing but the host, so inspections may run beside a change. Outlives
/// the coroutines it has started.
class VolumeOps {
 public:
  template <class T>
  using Answer = runtime::Task<Result<T>>;
  template <class T>
  using Request = std::shared_ptr<const T>;
  using Context = runtime::OperationContext;

  VolumeOps(std::shared_ptr<Host> host, NodeSettings settings)
      : host_(std::move(host)), settings_(std::move(settings)) {}

  // Changes: one at a time per volume.
  Answer<csi::NodeStageVolumeResponse> stage(Context context, Request<csi::NodeStageVolumeRequest> wire);
  Answer<csi::NodeUnstageVolumeResponse> unstage(Context context,
                                                 Request<csi::NodeUnstageVolumeRequest> wire);
  Answer<csi::NodePublishVolumeResponse> publish(Context context,
                                                 Request<csi::NodePublishVolumeRequest> wire);
  Answer<csi::NodeUnpublishVolumeResponse> unpublish(Context context,
                                                     Request<csi::NodeUnpublishVolumeRequest> wire);
  Answer<csi::NodeExpandVolumeResponse> expand(Context context, Request<csi::NodeExpandVolumeRequest> wire);

  // Inspections: change nothing, may run at any time.
  Answer<csi::NodeGetVolumeStatsResponse> stats(Context context,
                                                Request<csi::NodeGetVolumeStatsRequest> wire);
  Answer<csi::NodeGetVolumeHealthResponse> health(Context context,
                                                  Request<csi::NodeGetVolumeHealthRequest> wire);

 private:
  using Record = std::shared_ptr<StageRecord>;
  using Shared = std::shared_ptr<const StageRequest>;

  /// The canonical form of a path to mount at. Checked again: a link must not lead out of where paths may be.
  Answer<std::string> resolve(const char* what, std::string path);

  // Records.
  /// A corrupt record is set aside and missing; `keep_corrupt`: only missing.
  Answer<std::optional<StageRecord>> load(std::string volume_id, bool keep_corrupt = false);
  Answer<void> save(Record record);
  /// The same where the record on disk serves as well: a state folder without room must not keep a volume
  /// from being taken down.
  Answer<void> save_if_possible(Context context, Record record);

  // Stage.
  /// The request with the address the session of a staged volume goes to; a session that cannot come back
  /// from its old address is ended first.
  Answer<Shared> settle_address(Context context, Record record, Shared request);
  Answer<StageStep> choose_step(Context context, Record record, bool recorded, Shared request);
  Answer<void> bring_up(Context context, Record record, Shared request, StageStep step);
  Answer<void> write_intent(Context context, Record record, Shared request);
  Answer<void> clear_path(Record record, Shared request);
  Answer<hostio::NvmeNamespace> attach(Context context, Record record, Shared request);
  Answer<void> drop_stale_session(Record record, Shared request);
  Answer<void> set_up_filesystem(Context context, Record record, Shared request,
                                 hostio::NvmeNamespace device);
  Answer<void> ensure_formatted(Context context, Record record, Shared request, hostio::NvmeNamespace device);
  Answer<void> format(Context context, Record record, Shared request, hostio::NvmeNamespace device,
                      bool clear);
  Answer<void> mount_device(Context context, Record record, Shared request, hostio::NvmeNamespace device);
  Answer<void> verify_mount(Record record, Shared request);
  /// No session, no record, as far as that is possible; what cannot be undone keeps its record.
  Answer<void> roll_back(Context context, Record record, std::string path);
  /// Proves that the node still stands for the namespace (row C06).
  Answer<void> verify_device(Record record, hostio::NvmeNamespace device);
  /// alive, or an Error, or false: dead, mount it again.
  Answer<bool> mount_is_alive(Record record, std::string path, const hostio::MountOptions* options);

  // Unstage.
  /// Finishes what an earlier unstage left; null when that removed the record.
  Answer<Record> finish_unstages(Context context, Record record);
  /// True when the record is gone with the last staging path.
  Answer<bool> take_down(Context context, Record record, std::string path);
  Answer<void> unmount_staging(Context context, Record record, std::string path);
  Answer<void> end_session(Context context, Record record);

  // Publish.
  Answer<void> bind_target(Context context, Record record, std::shared_ptr<const PublishRequest> request,
                           bool clear);
  /// After a bind that failed: takes away what it left, and only that.
  Answer<void> undo_bind(Record record, std::string target);
  Answer<void> unbind(std::string target);

  // Inspect.
  Answer<void> grow_filesystem(Context context, Record record, hostio::NvmeNamespace device);

  std::shared_ptr<Host> host_;
  NodeSettings settings_;
};

/// Start of the process (row D06): drops records of an earlier boot whose session and mounts are gone, sets
/// corrupt ones aside. Never connects and never disconnects anything.
struct ReconcileReport {
  std::size_t kept = 0;
  std::size_t dropped = 0;
  std::size_t corrupt = 0;
  std::vector<std::string> unrecorded;  ///< NQNs of ours with a session but no record
};
runtime::Task<Result<ReconcileReport>> reconcile_records(std::shared_ptr<Host> host, std::string boot_id);

}  // namespace pillar::node
