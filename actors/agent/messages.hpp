#pragma once
// The agent's actors and what each of them is sent. Every message is a Call: it carries its deadline and its
// answer slot, so a killed actor answers its callers with UNAVAILABLE.

#include <memory>
#include <string>
#include <vector>

#include "actors/agent/in_flight.hpp"
#include "actors/agent/state_store.hpp"
#include "actors/agent/volume_ops.hpp"
#include "actors/runtime/registry.hpp"
#include "messages/actors_caf.hpp"
#include "messages/agent.pb.h"
#include "messages/call.hpp"

namespace pillar::agent {

/// The actor behind a registry of the same messages.
template <class Registry>
struct ChildOf;
template <class... Ms>
struct ChildOf<caf::typed_actor<caf::reacts_to<Routed<Ms>>...>> {
  using type = caf::typed_actor<caf::reacts_to<Ms>...>;
};
template <class Registry>
using Child = typename ChildOf<Registry>::type;

// --- agent/marks: durable writes with group commit
// --------------------------------------------------------------
using WriteMark = Call<Mark, Mark>;
using WriteRecord = Call<StateStore::RecordChange, Done>;
using MarksRegistry = runtime::RegistryActor<WriteMark, WriteRecord>;

// --- agent/pool/<vg>: metadata-changing commands of one volume group, one at a time
// -------------------------------
struct LvCreate {
  AgentVolumeId volume;
  std::string uid;
  hostio::SizeRange range;
};
struct LvExtend {
  AgentVolumeId volume;
  std::string uid;
  hostio::SizeRange range;
};
struct LvRemove {
  AgentVolumeId volume;
  std::string uid;
};
struct LvChangeOwner {
  AgentVolumeId volume;
  std::string old_uid;
  std::string new_uid;
};
/// Size and free space; answered from a short-lived cache.
struct PoolInfo {
  std::string pool;
};
using PoolRegistry = runtime::RegistryActor<Call<LvCreate, hostio::LogicalVolume>,
                                            Call<LvExtend, hostio::LogicalVolume>, Call<LvRemove, Done>,
                                            Call<LvChangeOwner, Done>, Call<PoolInfo, hostio::VolumeGroup>>;

// --- agent/port/<address:port>: the nvmet port and the links into it
// ----------------------------------------------
struct PortId {
  std::uint16_t id = 0;
};
/// Makes the port when it is missing.
struct EnsurePort {
  Endpoint endpoint;
};
/// Links one export; `hold` marks it as being changed until the link is made.
struct OpenExport {
  Endpoint endpoint;
  hostio::nvmet::Plan plan;
  std::shared_ptr<InFlight::Hold> hold;
};
/// Links every prepared export of the port in one tight loop (docs/fencing.md section 7).
struct OpenAll {
  Endpoint endpoint;
  std::vector<hostio::nvmet::Plan> plans;
};
struct OpenedAll {
  std::vector<Result<void>> results;  ///< one per plan
};
using PortRegistry =
    runtime::RegistryActor<Call<EnsurePort, PortId>, Call<OpenExport, Done>, Call<OpenAll, OpenedAll>>;

// --- agent/volume/<agent volume id>: everything that changes one volume
// --------------------------------------------
using VolumeRegistry =
    runtime::RegistryActor<Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse>,
                           Call<v1::DeleteVolumeRequest, v1::DeleteVolumeResponse>,
                           Call<v1::ExpandVolumeRequest, v1::ExpandVolumeResponse>,
                           Call<v1::ExportVolumeRequest, v1::ExportVolumeResponse>,
                           Call<v1::UnexportVolumeRequest, v1::UnexportVolumeResponse>,
                           Call<v1::AllowInitiatorRequest, v1::AllowInitiatorResponse>,
                           Call<v1::DenyInitiatorRequest, v1::DenyInitiatorResponse>,
                           Call<v1::AdoptLifecycleRequest, v1::AdoptLifecycleResponse>,
                           Call<ReconcileOne, ReconcileOutcome>, Call<CloseStray, ReconcileOutcome>>;

// --- agent/reconcile: fan-out of desired states, the restore gate
// ---------------------------------------------------
/// Prepares (and, with self_restore, links) from the records on disk; sent once at the start.
struct RestoreFromRecords {};
using ReconcileRegistry = runtime::RegistryActor<Call<v1::ReconcileStateRequest, v1::ReconcileStateResponse>,
                                                 Call<RestoreFromRecords, Done>>;

/// Key of the kinds that have one actor.
inline constexpr const char* k_only = "main";

}  // namespace pillar::agent
