#pragma once
// What a PillarVolumeState record says, in the words of the two APIs beside it: the CSI answers and the
// agent's requests are pure functions of the stored record (reported-faults row K09).

#include <string>
#include <string_view>

#include "crd/types.hpp"
#include "messages/agent.pb.h"
#include "messages/csi.pb.h"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::controller {

namespace pb = ::pillar::agent::v1;
namespace csi = ::csi::v1;

/// Keeps a record until the backend object is gone.
inline constexpr std::string_view k_volume_finalizer = "pillar-csi.bhyoo.com/volume-protection";
/// Annotations of a record that say what it was created from, for deletion protection and listings (object
/// names may be longer than label values).
inline constexpr std::string_view k_origin_store = "pillar-csi.bhyoo.com/store";
inline constexpr std::string_view k_origin_protocol = "pillar-csi.bhyoo.com/protocol";
inline constexpr std::string_view k_origin_class = "pillar-csi.bhyoo.com/storage-class";
/// Annotation of a record: the normalised wishes of its CreateVolume (create_params.hpp).
inline constexpr std::string_view k_annotation_request = "pillar-csi.bhyoo.com/create-request";

// Condition types and reasons of a record (docs/interfaces.md section 1).
inline constexpr std::string_view k_backend_created = "BackendCreated";
inline constexpr std::string_view k_export_created = "ExportCreated";
inline constexpr std::string_view k_ready = "Ready";
inline constexpr std::string_view k_export_reconciled = "ExportReconciled";
/// (ours) False for a volume of a class with acl false: any host that reaches the port may connect.
inline constexpr std::string_view k_access_controlled = "AccessControlled";

/// metadata.name of the record of a volume: the volume's name when that is an object name, else a hash of it.
/// It depends on the CO's name alone, so one name is one record whatever store or protocol a repeat asks for
/// (reported-faults row K10).
std::string record_name(std::string_view volume_name);
inline std::string record_name(const VolumeId& id) { return record_name(id.volume.name); }

/// csi.v1.Volume of a record.
csi::Volume to_csi_volume(const crd::VolumeState& state);
/// volume_context: how a node reaches and mounts the volume; unset keys are left out; no secrets.
google::protobuf::Map<std::string, std::string> volume_context(const crd::VolumeState& state);
/// publish_context of one granted publication.
google::protobuf::Map<std::string, std::string> publish_context(const crd::VolumeState& state,
                                                                std::string_view initiator_id);

/// The token of the record as it is stored now.
pb::FencingToken token(const crd::VolumeState& state);
pb::VolumeRef volume_ref(const crd::VolumeState& state);
/// The desired export for the agent. `cluster_id` enters the identity only while exportInfo does not record
/// it.
pb::ExportSpec export_spec(const crd::VolumeState& state, std::string_view cluster_id);
/// The subsystem NQN: the recorded one, else derived.
std::string subsystem_nqn(const crd::VolumeState& state, std::string_view cluster_id);
pb::BackendSettings backend_settings(const crd::Backend& backend);
/// The volume as a complete ReconcileState lists it: exportSpec plus non-revoking publications of one read.
pb::DesiredVolume desired_volume(const crd::VolumeState& state, std::string_view cluster_id);

/// Sets a condition of the record; true when that changed it.
bool set_condition(crd::VolumeStatus& status, std::string_view type, crd::ConditionStatus value,
                   std::string_view reason, std::string message = {});

/// What is wrong with a volume as the controller sees it; no entries: healthy. `agent_problem` is empty while
/// the volume's agent answers.
csi::VolumeHealth volume_health(const crd::VolumeState& state, std::string_view agent_problem);
/// The 1.12 form of the same value.
csi::VolumeCondition legacy_condition(const csi::VolumeHealth& health);

}  // namespace pillar::controller
