#pragma once
// Every controller call that touches one volume, as a coroutine over the ports. Each follows the order of
// docs/fencing.md section 3: compare-and-swap the record, call the agent, compare-and-swap the outcome; so
// that a crash anywhere leaves something the same call, repeated, finishes. They run one at a time in the
// volume's actor.

#include <memory>
#include <string>

#include "actors/controller/create_params.hpp"
#include "actors/controller/ports.hpp"
#include "actors/controller/records.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {

using runtime::OperationContext;

/// Resolves the request (plan.hpp), then creates the volume or finishes what an earlier call left. A request
/// that the agent refuses for good (no space, out of range) is undone again; everything else stays visible
/// and resumable (row K01).
Task<Result<csi::CreateVolumeResponse>> create_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::CreateVolumeRequest> request);

/// Unknown volumes are OK. STILL_PUBLISHED while a node holds it.
Task<Result<csi::DeleteVolumeResponse>> delete_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::DeleteVolumeRequest> request);

/// Records, then grants, access (docs/fencing.md section 4). A pending expansion is finished first (row L09).
Task<Result<csi::ControllerPublishVolumeResponse>> publish_volume(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerPublishVolumeRequest> request);

/// Ends access and forgets it only then. Works from the record alone; unknown volumes and nodes are OK; an
/// empty node id means every node.
Task<Result<csi::ControllerUnpublishVolumeResponse>> unpublish_volume(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerUnpublishVolumeRequest> request);

/// Grows; a size at or below the present one is answered with the present one (row L03).
Task<Result<csi::ControllerExpandVolumeResponse>> expand_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::ControllerExpandVolumeRequest> request);

Task<Result<csi::ControllerGetVolumeResponse>> get_volume(
    OperationContext context, Ports ports, std::shared_ptr<const csi::ControllerGetVolumeRequest> request);

Task<Result<csi::ControllerGetVolumeHealthResponse>> get_volume_health(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ControllerGetVolumeHealthRequest> request);

Task<Result<csi::ValidateVolumeCapabilitiesResponse>> validate_capabilities(
    OperationContext context, Ports ports,
    std::shared_ptr<const csi::ValidateVolumeCapabilitiesRequest> request);

/// A node has made the file system of the volume for the first time (docs/fencing.md section 6). Idempotent.
struct MarkFormatted {
  std::string volume_id;
  crd::FsType fs_type = crd::FsType::ext4;
};
Task<Result<Done>> mark_formatted(OperationContext context, Ports ports,
                                  std::shared_ptr<const MarkFormatted> request);

/// Reason of ExportReconciled=False while an operator has accepted a record that was restored to the past and
/// the agent has not been brought in line with it (pillarctl fence accept-rollback, docs/fencing.md section
/// 2).
inline constexpr std::string_view k_rollback_accepted = "RollbackAccepted";

/// Sets the FenceAhead condition of a record whose agent holds a higher generation than the record (a store
/// that was restored to the past, docs/fencing.md section 2). From then on nothing is granted or revoked
/// until an operator decides. `agent_says` is the agent's refusal, which names the generation it holds.
Task<Result<crd::VolumeState>> record_fence_ahead(Ports ports, crd::VolumeState state,
                                                  std::string agent_says);

}  // namespace pillar::controller
