#include "actors/controller/records.hpp"

#include <nlohmann/json.hpp>

#include "actors/controller/topology.hpp"
#include "messages/access_modes.hpp"

namespace pillar::controller {
namespace {

using Context = google::protobuf::Map<std::string, std::string>;

std::string key(std::string_view name) { return std::string(k_key_prefix) + std::string(name); }

void put_number(Context& context, std::string_view name, const std::optional<std::int32_t>& value) {
  if (value) context[key(name)] = std::to_string(*value);
}

void put_list(Context& context, std::string_view name, const std::vector<std::string>& values) {
  if (!values.empty()) context[key(name)] = nlohmann::json(values).dump();
}

void put_resolved(Context& context, const crd::Resolved& resolved) {
  if (const auto& nvme = resolved.protocol.nvmeof_tcp) {
    put_number(context, "nvmeof-max-queue-size", nvme->max_queue_size);
    put_number(context, "nvmeof-nr-io-queues", nvme->nr_io_queues);
    put_number(context, "nvmeof-ctrl-loss-tmo", nvme->ctrl_loss_tmo);
    put_number(context, "nvmeof-reconnect-delay", nvme->reconnect_delay);
  }
  context[key("fs-type")] = std::string(crd::to_string(resolved.filesystem.fs_type));
  put_list(context, "mkfs-options", resolved.filesystem.mkfs_options);
  put_list(context, "mount-options", resolved.filesystem.mount_options);
}

void add_entry(csi::VolumeHealth& health, csi::VolumeHealthErrorType status, std::string_view reason,
               std::string_view message) {
  auto* entry = health.add_health_statuses();
  entry->set_status(status);
  entry->set_reason(std::string(reason));
  entry->set_message(std::string(message));
}

}  // namespace

std::string record_name(std::string_view volume_name) {
  // Names of the hashed form are hashed themselves, so that no plain name can be another's hash.
  if (is_object_name(volume_name) && !volume_name.starts_with("n-")) return std::string(volume_name);
  return "n-" + sha256_base32(volume_name);
}

csi::Volume to_csi_volume(const crd::VolumeState& state) {
  csi::Volume volume;
  volume.set_volume_id(state.spec.volume_id);
  volume.set_capacity_bytes(state.status.capacity_bytes);
  *volume.mutable_volume_context() = volume_context(state);
  *volume.add_accessible_topology() = accessible_topology(state.spec.protocol_type);
  return volume;
}

Context volume_context(const crd::VolumeState& state) {
  Context context;
  if (const auto& info = state.status.export_info) {
    context["target_id"] = info->target_id;
    context["address"] = info->address;
    context["port"] = std::to_string(info->port);
  }
  context[key("volume-ref")] = state.spec.agent_volume_id;
  context[key("protocol-type")] = state.spec.protocol_type;
  if (state.spec.resolved) put_resolved(context, *state.spec.resolved);
  return context;
}

Context publish_context(const crd::VolumeState& state, std::string_view initiator_id) {
  Context context;
  context[key("publication-generation")] = std::to_string(state.status.publication_generation);
  context[key("initiator-id")] = std::string(initiator_id);
  // Where the export listens now; volume_context says where it did when the volume was made (row C12).
  if (state.status.export_spec) context[key("address")] = state.status.export_spec->bind_address;
  context[key("capacity-bytes")] = std::to_string(state.status.capacity_bytes);
  // Three states for the node: "true" here, or absent, which says nothing about the content of the device.
  if (state.status.formatted) context[key("formatted")] = "true";
  return context;
}

pb::FencingToken token(const crd::VolumeState& state) {
  pb::FencingToken token;
  token.set_volume_uid(state.metadata.uid);
  token.set_generation(static_cast<std::uint64_t>(state.status.publication_generation));
  return token;
}

pb::VolumeRef volume_ref(const crd::VolumeState& state) {
  pb::VolumeRef ref;
  ref.set_agent_volume_id(state.spec.agent_volume_id);
  ref.set_backend_type(state.spec.backend_type);
  return ref;
}

std::string subsystem_nqn(const crd::VolumeState& state, std::string_view cluster_id) {
  if (state.status.export_info && !state.status.export_info->target_id.empty())
    return state.status.export_info->target_id;
  const auto volume = AgentVolumeId::parse(state.spec.agent_volume_id);
  if (!volume) return {};
  return export_identity(cluster_id, state.spec.agent_ref, *volume).nqn;
}

pb::ExportSpec export_spec(const crd::VolumeState& state, std::string_view cluster_id) {
  pb::ExportSpec spec;
  if (const auto& desired = state.status.export_spec) {
    spec.set_bind_address(desired->bind_address);
    spec.set_port(static_cast<std::uint32_t>(desired->port));
    spec.set_acl_enabled(desired->acl_enabled);
    spec.set_in_capsule_data_size(static_cast<std::uint32_t>(desired->in_capsule_data_size.value_or(0)));
  }
  const auto identity = export_identity_of_nqn(subsystem_nqn(state, cluster_id));
  spec.set_nqn(identity.nqn);
  spec.set_namespace_uuid(identity.namespace_uuid);
  spec.set_serial(identity.serial);
  return spec;
}

pb::BackendSettings backend_settings(const crd::Backend& backend) {
  pb::BackendSettings settings;
  if (backend.lvm)
    settings.mutable_lvm()->set_provisioning_mode(
        backend.lvm->provisioning_mode == crd::ProvisioningMode::thin ? "thin" : "linear");
  return settings;
}

pb::DesiredVolume desired_volume(const crd::VolumeState& state, std::string_view cluster_id) {
  pb::DesiredVolume desired;
  *desired.mutable_token() = token(state);
  *desired.mutable_volume() = volume_ref(state);
  *desired.mutable_spec() = export_spec(state, cluster_id);
  for (const auto& entry : state.status.published_nodes) {
    if (entry.revoking) continue;
    auto* initiator = desired.add_initiators();
    initiator->set_host_nqn(entry.initiator_id);
    const auto* mode = find_access_mode(access_mode_from(entry.access_mode));
    initiator->set_readonly(entry.readonly || (mode != nullptr && mode->readonly));
  }
  return desired;
}

bool set_condition(crd::VolumeStatus& status, std::string_view type, crd::ConditionStatus value,
                   std::string_view reason, std::string message) {
  crd::Condition condition;
  condition.type = std::string(type);
  condition.status = value;
  condition.reason = std::string(reason);
  condition.message = std::move(message);
  return crd::set_condition(status.conditions, std::move(condition));
}

csi::VolumeHealth volume_health(const crd::VolumeState& state, std::string_view agent_problem) {
  csi::VolumeHealth health;
  health.set_volume_id(state.spec.volume_id);
  if (!agent_problem.empty())
    add_entry(health, csi::INACCESSIBLE, "AgentUnavailable",
              "agent " + state.spec.agent_ref + ": " + std::string(agent_problem));
  const auto* reconciled = crd::find_condition(state.status.conditions, k_export_reconciled);
  if (reconciled != nullptr && reconciled->status == crd::ConditionStatus::no &&
      (agent_problem.empty() || reconciled->reason != "AgentUnavailable"))
    add_entry(health, csi::INACCESSIBLE, reconciled->reason, reconciled->message);
  if (const auto& failure = state.status.partial_failure)
    add_entry(health, csi::INACCESSIBLE, "CreateIncomplete",
              failure->failed_operation + " failed: " + failure->message);
  if (state.status.resize_required)
    add_entry(health, csi::DEGRADED, "ResizePending",
              "an expansion was not finished; expand the volume again");
  return health;
}

csi::VolumeCondition legacy_condition(const csi::VolumeHealth& health) {
  csi::VolumeCondition condition;
  condition.set_abnormal(!health.health_statuses().empty());
  std::string message;
  for (const auto& entry : health.health_statuses())
    message += (message.empty() ? "" : "; ") + entry.reason() + ": " + entry.message();
  condition.set_message(message.empty() ? "healthy" : message);
  return condition;
}

}  // namespace pillar::controller
