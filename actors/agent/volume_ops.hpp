#pragma once
// The operations on one volume, as coroutines: read mark -> admit -> durable mark -> act -> (delete) ended.
// Each converges from any partial state, so a repeat after a crash at any step reaches the same end.

#include <memory>
#include <optional>
#include <string>

#include "actors/agent/host.hpp"
#include "messages/agent.pb.h"

namespace pillar::agent {

template <class Message>
using Shared = std::shared_ptr<const Message>;

/// An export that is ready but not linked, because its port is not open yet.
struct PendingLink {
  Endpoint endpoint;
  std::string nqn;
  hostio::nvmet::Plan open;
};

/// What reconciling one volume came to.
struct ReconcileOutcome {
  bool changed = false;
  std::optional<PendingLink> link;
};

/// What a reconcile of one volume is asked for.
struct ReconcileOne {
  v1::DesiredVolume desired;
  bool hold_links = false;  ///< prepare only; the link is returned
};

/// Closing of a subsystem of ours that no record asks for. Takes access, destroys nothing.
struct CloseStray {
  std::string nqn;
  std::optional<AgentVolumeId> volume;  ///< whose record names it
  std::uint64_t known_sequence = 0;     ///< a mark newer than this is not the list's to judge
};

Task<Result<v1::CreateVolumeResponse>> create_volume(HostPtr host, Shared<v1::CreateVolumeRequest> request);
Task<Result<v1::DeleteVolumeResponse>> delete_volume(HostPtr host, Shared<v1::DeleteVolumeRequest> request);
Task<Result<v1::ExpandVolumeResponse>> expand_volume(HostPtr host, Shared<v1::ExpandVolumeRequest> request);
Task<Result<v1::ExportVolumeResponse>> export_volume(HostPtr host, Shared<v1::ExportVolumeRequest> request);
/// OK only when access has ended.
Task<Result<v1::UnexportVolumeResponse>> unexport_volume(HostPtr host,
                                                         Shared<v1::UnexportVolumeRequest> request);
Task<Result<v1::AllowInitiatorResponse>> allow_initiator(HostPtr host,
                                                         Shared<v1::AllowInitiatorRequest> request);
/// OK only when the initiator's access has ended (docs/fencing.md section 4).
Task<Result<v1::DenyInitiatorResponse>> deny_initiator(HostPtr host,
                                                       Shared<v1::DenyInitiatorRequest> request);
Task<Result<v1::AdoptLifecycleResponse>> adopt_lifecycle(HostPtr host,
                                                         Shared<v1::AdoptLifecycleRequest> request);
/// Brings one export exactly to the desired state; without a spec no access is left.
Task<Result<ReconcileOutcome>> reconcile_volume(HostPtr host, Shared<ReconcileOne> request);
Task<Result<ReconcileOutcome>> close_stray(HostPtr host, Shared<CloseStray> request);

/// The desired volume that `record` stands for.
v1::DesiredVolume desired_of_record(const ExportRecord& record);

}  // namespace pillar::agent
