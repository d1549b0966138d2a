#pragma once
// Typed forms of the five kinds (docs/interfaces.md section 1). Field names are the manifest's in snake_case.
// Reading is strict: unknown keys, wrong types, values outside a range or an enum are errors with the field
// path. Members hold their defaults; writing puts defaulted fields out, so a value read and written back is
// the canonical form. std::optional means "unset": inherit, or leave it to the kernel.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"

namespace pillar::crd {

// ---- values ------------------------------------------------------------------------------------------

/// Bytes of a Kubernetes quantity ("10Gi", "1.5G", "1e9", "4096"); fractions of a byte round up.
/// INVALID_ARGUMENT when malformed, negative or over 2^63-1.
Result<std::int64_t> parse_quantity(std::string_view text);
/// Shortest exact binary form: "10Gi", "1536Mi", "1000".
std::string format_quantity(std::int64_t bytes);

enum class ConditionStatus : std::uint8_t { yes, no, unknown };  ///< "True", "False", "Unknown"

/// Kubernetes condition.
struct Condition {
  std::string type;
  ConditionStatus status = ConditionStatus::unknown;
  std::string reason;  ///< CamelCase, never empty
  std::string message;
  std::string last_transition_time;      ///< kept by set_condition
  std::int64_t observed_generation = 0;  ///< metadata.generation the condition speaks of
  friend bool operator==(const Condition&, const Condition&) = default;
};
using Conditions = std::vector<Condition>;

const Condition* find_condition(const Conditions& conditions, std::string_view type);
/// True when the condition exists and is True.
bool condition_true(const Conditions& conditions, std::string_view type);
/// Puts `wanted` into the list. last_transition_time moves only when the status changes. False, and nothing
/// changed, when an equal condition is there already: the caller then has nothing to write.
bool set_condition(Conditions& conditions, Condition wanted);
/// Removes a condition; true when there was one.
bool remove_condition(Conditions& conditions, std::string_view type);

// ---- PillarAgent -------------------------------------------------------------------------------------

enum class AddressType : std::uint8_t { internal_ip, external_ip };  ///< InternalIP, ExternalIP

struct NodeRef {
  std::string name;
  AddressType address_type = AddressType::internal_ip;
  std::string address_selector;  ///< CIDR, empty: any
  std::int32_t port = 9500;
  friend bool operator==(const NodeRef&, const NodeRef&) = default;
};
struct ExternalAddress {
  std::string address;  ///< IP literal or DNS name
  std::int32_t port = 0;
  friend bool operator==(const ExternalAddress&, const ExternalAddress&) = default;
};
struct AgentSpec {
  std::optional<NodeRef> node_ref;
  std::optional<ExternalAddress> external;
  friend bool operator==(const AgentSpec&, const AgentSpec&) = default;
};
struct AgentCapabilities {
  std::vector<std::string> backends;   ///< lvm-lv, zfs-zvol
  std::vector<std::string> protocols;  ///< nvmeof-tcp
  friend bool operator==(const AgentCapabilities&, const AgentCapabilities&) = default;
};
struct DiscoveredPool {
  std::string name;
  std::string type;  ///< lvm, zfs
  std::int64_t total = 0;
  std::int64_t available = 0;
  std::string parent_dataset;
  std::string thin_pool;
  friend bool operator==(const DiscoveredPool&, const DiscoveredPool&) = default;
};
/// What the controller last knew of the agent's fencing state (docs/fencing.md section 2).
struct AgentFencing {
  std::string epoch;
  std::int64_t sequence = 0;
  friend bool operator==(const AgentFencing&, const AgentFencing&) = default;
};
struct AgentStatus {
  std::string resolved_address;  ///< host:port the controller dials
  std::string agent_version;
  std::optional<AgentCapabilities> capabilities;
  std::vector<DiscoveredPool> discovered_pools;
  std::optional<AgentFencing> fencing;
  Conditions conditions;
  friend bool operator==(const AgentStatus&, const AgentStatus&) = default;
};

// ---- PillarStore -------------------------------------------------------------------------------------

enum class ZfsVolumeType : std::uint8_t { zvol, dataset };
enum class ProvisioningMode : std::uint8_t { linear, thin };
enum class BackendKind : std::uint8_t { none, zfs, lvm };

struct ZfsBackend {
  std::string pool;
  std::string parent_dataset;
  ZfsVolumeType volume_type = ZfsVolumeType::zvol;
  std::map<std::string, std::string> properties;
  friend bool operator==(const ZfsBackend&, const ZfsBackend&) = default;
};
struct LvmBackend {
  std::string volume_group;
  std::string thin_pool;
  ProvisioningMode provisioning_mode = ProvisioningMode::linear;
  friend bool operator==(const LvmBackend&, const LvmBackend&) = default;
};
/// Exactly one member in a valid object.
struct Backend {
  std::optional<ZfsBackend> zfs;
  std::optional<LvmBackend> lvm;

  BackendKind kind() const;
  /// Pool name: zfs pool or volume group; empty when neither member is set.
  std::string_view pool() const;
  /// Routing token: "lvm-lv", "zfs-zvol", "zfs-dataset".
  std::string_view type() const;
  /// Volumes are block devices (zvol, LV) and not file trees.
  bool is_block() const;
  friend bool operator==(const Backend&, const Backend&) = default;
};
struct StoreSpec {
  std::string agent_ref;
  Backend backend;
  friend bool operator==(const StoreSpec&, const StoreSpec&) = default;
};
struct Capacity {
  std::int64_t total = 0;
  std::int64_t available = 0;
  std::int64_t used = 0;
  friend bool operator==(const Capacity&, const Capacity&) = default;
};
struct StoreStatus {
  std::optional<Capacity> capacity;
  Conditions conditions;
  friend bool operator==(const StoreStatus&, const StoreStatus&) = default;
};

// ---- PillarProtocol ----------------------------------------------------------------------------------

enum class ProtocolKind : std::uint8_t { none, nvmeof_tcp, iscsi, nfs };
enum class NvmeAuth : std::uint8_t { none, dhchap, mutual_dhchap };  ///< None, DHCHAP, MutualDHCHAP
enum class IscsiAuth : std::uint8_t { none, chap, mutual_chap };     ///< None, CHAP, MutualCHAP

struct SecretRef {
  std::string name;
  std::string namespace_name;  ///< JSON key "namespace"
  friend bool operator==(const SecretRef&, const SecretRef&) = default;
};
/// `auth: {type: None|..., secretRef: {name, namespace}}`; any type but None needs the reference.
template <class Type>
struct Auth {
  Type type = Type::none;
  std::optional<SecretRef> secret_ref;
  friend bool operator==(const Auth&, const Auth&) = default;
};
/// The settings of nvmeofTcp that layers above may change.
struct NvmeofTcpTunables {
  std::optional<std::int32_t> max_queue_size;        ///< 16..1024
  std::optional<std::int32_t> nr_io_queues;          ///< 1..128
  std::optional<std::int32_t> in_capsule_data_size;  ///< >= 1024, shared by all volumes of a port
  std::optional<std::int32_t> ctrl_loss_tmo;         ///< seconds >= 0; -1: never give up
  std::optional<std::int32_t> reconnect_delay;       ///< seconds >= 0; 0: kernel default
  friend bool operator==(const NvmeofTcpTunables&, const NvmeofTcpTunables&) = default;
};
struct NvmeofTcp : NvmeofTcpTunables {
  std::int32_t port = 4420;
  bool acl = true;
  Auth<NvmeAuth> auth;
  friend bool operator==(const NvmeofTcp&, const NvmeofTcp&) = default;
};
struct IscsiTunables {
  std::optional<std::int32_t> login_timeout;        ///< seconds >= 1
  std::optional<std::int32_t> replacement_timeout;  ///< seconds >= 0
  std::optional<std::int32_t> noop_out_interval;    ///< seconds >= 0
  std::optional<std::int32_t> noop_out_timeout;     ///< seconds >= 0
  friend bool operator==(const IscsiTunables&, const IscsiTunables&) = default;
};
struct Iscsi : IscsiTunables {
  std::int32_t port = 3260;
  bool acl = true;
  Auth<IscsiAuth> auth;
  friend bool operator==(const Iscsi&, const Iscsi&) = default;
};
struct Nfs {
  std::string version = "4.2";
  std::string squash;
  friend bool operator==(const Nfs&, const Nfs&) = default;
};
/// Exactly one member in a valid object.
struct Protocol {
  std::optional<NvmeofTcp> nvmeof_tcp;
  std::optional<Iscsi> iscsi;
  std::optional<Nfs> nfs;

  ProtocolKind kind() const;
  /// Routing token: "nvmeof-tcp", "iscsi", "nfs".
  std::string_view type() const;
  bool is_block() const;
  friend bool operator==(const Protocol&, const Protocol&) = default;
};
struct ProtocolSpec {
  Protocol protocol;
  friend bool operator==(const ProtocolSpec&, const ProtocolSpec&) = default;
};
struct ProtocolStatus {
  std::string protocol_type;  ///< (ours) routing token of spec.protocol's member, for columns
  std::int32_t storage_class_count = 0;
  std::vector<std::string> active_agents;
  Conditions conditions;
  friend bool operator==(const ProtocolStatus&, const ProtocolStatus&) = default;
};

// ---- PillarStorageClass ------------------------------------------------------------------------------

enum class ReclaimPolicy : std::uint8_t { remove, retain };  ///< Delete, Retain
enum class BindingMode : std::uint8_t { immediate, wait_for_first_consumer };
enum class FsType : std::uint8_t { ext4, xfs };
/// "ext4", "xfs".
std::string_view to_string(FsType type) noexcept;
Result<FsType> fs_type_from_string(std::string_view text);

struct GeneratedClass {
  std::string name;  ///< defaulted to the object's own name on write
  ReclaimPolicy reclaim_policy = ReclaimPolicy::remove;
  BindingMode volume_binding_mode = BindingMode::immediate;
  std::optional<bool> allow_volume_expansion;  ///< unset: true for block backends
  friend bool operator==(const GeneratedClass&, const GeneratedClass&) = default;
};
/// One layer of file system settings: unset inherits, an empty list clears.
struct FilesystemSettings {
  std::optional<FsType> fs_type;
  std::optional<std::vector<std::string>> mkfs_options;
  std::optional<std::vector<std::string>> mount_options;
  friend bool operator==(const FilesystemSettings&, const FilesystemSettings&) = default;
};
struct ZfsOverride {
  std::map<std::string, std::string> properties;  ///< merged by key
  friend bool operator==(const ZfsOverride&, const ZfsOverride&) = default;
};
struct LvmOverride {
  std::optional<ProvisioningMode> provisioning_mode;
  friend bool operator==(const LvmOverride&, const LvmOverride&) = default;
};
struct BackendOverride {
  std::optional<ZfsOverride> zfs;
  std::optional<LvmOverride> lvm;
  BackendKind kind() const;
  friend bool operator==(const BackendOverride&, const BackendOverride&) = default;
};
struct ProtocolOverride {
  std::optional<NvmeofTcpTunables> nvmeof_tcp;
  std::optional<IscsiTunables> iscsi;
  ProtocolKind kind() const;
  friend bool operator==(const ProtocolOverride&, const ProtocolOverride&) = default;
};
struct Overrides {
  std::optional<BackendOverride> backend;
  std::optional<ProtocolOverride> protocol;
  friend bool operator==(const Overrides&, const Overrides&) = default;
};
struct StorageClassSpec {
  std::string store_ref;
  std::string protocol_ref;
  GeneratedClass storage_class;
  FilesystemSettings filesystem;  ///< fsType defaulted to ext4 on write
  Overrides overrides;
  friend bool operator==(const StorageClassSpec&, const StorageClassSpec&) = default;
};
struct StorageClassStatus {
  std::string storage_class_name;  ///< the generated StorageClass
  Conditions conditions;
  friend bool operator==(const StorageClassStatus&, const StorageClassStatus&) = default;
};

// ---- PillarVolumeState -------------------------------------------------------------------------------

/// File system settings after all layers.
struct ResolvedFilesystem {
  FsType fs_type = FsType::ext4;
  std::vector<std::string> mkfs_options;
  std::vector<std::string> mount_options;
  friend bool operator==(const ResolvedFilesystem&, const ResolvedFilesystem&) = default;
};
/// Everything a volume was created with, after all layers (crd/settings.hpp); never read again from its
/// sources.
struct Resolved {
  Backend backend;
  Protocol protocol;
  ResolvedFilesystem filesystem;
  friend bool operator==(const Resolved&, const Resolved&) = default;
};
struct ClaimRef {
  std::string uid;
  std::string namespace_name;  ///< JSON key "namespace"
  std::string name;
  friend bool operator==(const ClaimRef&, const ClaimRef&) = default;
};
/// Immutable, except that `resolved` and `claim_ref` may be added once.
struct VolumeSpec {
  std::string volume_id;        ///< JSON key volumeID; pillar::VolumeId text
  std::string agent_volume_id;  ///< JSON key agentVolumeID; pillar::AgentVolumeId text
  std::string agent_ref;
  std::string backend_type;         ///< lvm-lv, zfs-zvol
  std::string protocol_type;        ///< nvmeof-tcp
  std::int64_t capacity_bytes = 0;  ///< asked for at creation
  std::optional<ClaimRef> claim_ref;
  std::optional<Resolved> resolved;
  friend bool operator==(const VolumeSpec&, const VolumeSpec&) = default;
};

enum class VolumePhase : std::uint8_t { none, provisioning, create_partial, ready, deleting };
/// "Provisioning", "CreatePartial", "Ready", "Deleting"; "" for none.
std::string_view to_string(VolumePhase phase) noexcept;

struct PartialFailure {
  std::string failed_operation;
  std::string failed_at;  ///< timestamp
  std::string reason;
  std::string message;
  bool backend_created = false;
  bool export_created = false;
  friend bool operator==(const PartialFailure&, const PartialFailure&) = default;
};
/// Where the volume is reachable.
struct ExportInfo {
  std::string target_id;  ///< JSON key targetID; the NQN
  std::string address;
  std::int32_t port = 0;
  std::string volume_ref;
  friend bool operator==(const ExportInfo&, const ExportInfo&) = default;
};
/// Desired export (docs/fencing.md section 7).
struct ExportSpec {
  std::string bind_address;
  std::int32_t port = 0;
  bool acl_enabled = true;
  std::optional<std::int32_t> in_capsule_data_size;
  friend bool operator==(const ExportSpec&, const ExportSpec&) = default;
};
/// A node's access (docs/fencing.md section 4); in any state it counts for exclusivity.
struct PublishedNode {
  std::string node_id;       ///< JSON key nodeID
  std::string initiator_id;  ///< JSON key initiatorID; host NQN
  std::string access_mode;   ///< CSI name, SINGLE_NODE_WRITER
  bool readonly = false;
  bool revoking = false;
  friend bool operator==(const PublishedNode&, const PublishedNode&) = default;
};
/// A node has reported the first format (docs/fencing.md section 6).
struct Formatted {
  FsType fs_type = FsType::ext4;
  std::string formatted_at;  ///< timestamp
  friend bool operator==(const Formatted&, const Formatted&) = default;
};
struct VolumeStatus {
  VolumePhase phase = VolumePhase::none;
  std::optional<PartialFailure> partial_failure;
  std::string backend_device_path;  ///< only in CreatePartial
  std::int64_t capacity_bytes = 0;  ///< (ours) real size after rounding and expansion; 0: not created yet
  std::optional<ExportInfo> export_info;
  std::optional<ExportSpec> export_spec;
  std::vector<PublishedNode> published_nodes;
  std::int64_t publication_generation = 0;  ///< fencing token; never falls
  bool deleting = false;
  std::optional<Formatted> formatted;
  bool resize_required = false;
  Conditions conditions;
  friend bool operator==(const VolumeStatus&, const VolumeStatus&) = default;
};

// ---- typed resources ---------------------------------------------------------------------------------

/// A resource with its parts typed.
template <Kind K, class SpecType, class StatusType>
struct Typed {
  using Spec = SpecType;
  using Status = StatusType;
  static constexpr Kind k_kind = K;

  Metadata metadata;
  Spec spec;
  Status status;
  friend bool operator==(const Typed&, const Typed&) = default;
};
using PillarAgent = Typed<Kind::agent, AgentSpec, AgentStatus>;
using PillarStore = Typed<Kind::store, StoreSpec, StoreStatus>;
using PillarProtocol = Typed<Kind::protocol, ProtocolSpec, ProtocolStatus>;
using PillarStorageClass = Typed<Kind::storage_class, StorageClassSpec, StorageClassStatus>;
using VolumeState = Typed<Kind::volume, VolumeSpec, VolumeStatus>;

/// The typed form of `object`; INVALID_ARGUMENT with field paths when its spec or status does not parse or
/// the kind is another. Defined for the five types above.
template <class T>
Result<T> from_object(const Object& object);
/// The generic form; reading it back gives an equal value.
template <class T>
Object to_object(const T& typed);

/// JSON of one of the structs above, for spec, status, resolved settings and their parts.
template <class T>
nlohmann::json encode(const T& value);
/// Strict parse of the same; `path` is put before the field names in errors.
template <class T>
tl::expected<T, FieldErrors> decode(const nlohmann::json& value, std::string_view path);

}  // namespace pillar::crd
