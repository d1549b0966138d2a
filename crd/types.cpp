#include "crd/types.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "crd/codec.hpp"
#include "crd/schema_codec.hpp"

namespace pillar::crd {

// ---- enum names --------------------------------------------------------------------------------------
namespace {
template <class E, std::size_t N>
using Names = std::array<std::pair<E, std::string_view>, N>;
}  // namespace

constexpr Names<ConditionStatus, 3> enum_names(ConditionStatus*) {
  return {{{ConditionStatus::yes, "True"},
           {ConditionStatus::no, "False"},
           {ConditionStatus::unknown, "Unknown"}}};
}
constexpr Names<AddressType, 2> enum_names(AddressType*) {
  return {{{AddressType::internal_ip, "InternalIP"}, {AddressType::external_ip, "ExternalIP"}}};
}
constexpr Names<ZfsVolumeType, 2> enum_names(ZfsVolumeType*) {
  return {{{ZfsVolumeType::zvol, "zvol"}, {ZfsVolumeType::dataset, "dataset"}}};
}
constexpr Names<ProvisioningMode, 2> enum_names(ProvisioningMode*) {
  return {{{ProvisioningMode::linear, "linear"}, {ProvisioningMode::thin, "thin"}}};
}
constexpr Names<NvmeAuth, 3> enum_names(NvmeAuth*) {
  return {
      {{NvmeAuth::none, "None"}, {NvmeAuth::dhchap, "DHCHAP"}, {NvmeAuth::mutual_dhchap, "MutualDHCHAP"}}};
}
constexpr Names<IscsiAuth, 3> enum_names(IscsiAuth*) {
  return {{{IscsiAuth::none, "None"}, {IscsiAuth::chap, "CHAP"}, {IscsiAuth::mutual_chap, "MutualCHAP"}}};
}
constexpr Names<ReclaimPolicy, 2> enum_names(ReclaimPolicy*) {
  return {{{ReclaimPolicy::remove, "Delete"}, {ReclaimPolicy::retain, "Retain"}}};
}
constexpr Names<BindingMode, 2> enum_names(BindingMode*) {
  return {{{BindingMode::immediate, "Immediate"},
           {BindingMode::wait_for_first_consumer, "WaitForFirstConsumer"}}};
}
constexpr Names<FsType, 2> enum_names(FsType*) { return {{{FsType::ext4, "ext4"}, {FsType::xfs, "xfs"}}}; }
constexpr Names<VolumePhase, 4> enum_names(VolumePhase*) {
  return {{{VolumePhase::provisioning, "Provisioning"},
           {VolumePhase::create_partial, "CreatePartial"},
           {VolumePhase::ready, "Ready"},
           {VolumePhase::deleting, "Deleting"}}};
}

// ---- field descriptions ------------------------------------------------------------------------------

template <class V>
void describe(V& v, Condition& x) {
  v.required("type", x.type);
  v.required("status", x.status);
  v.required("reason", x.reason);
  v.value("message", x.message);
  v.required("lastTransitionTime", x.last_transition_time);
  v.nonzero("observedGeneration", x.observed_generation);
}

template <class V>
void describe(V& v, NodeRef& x) {
  v.required("name", x.name);
  v.value("addressType", x.address_type);
  v.optional("addressSelector", x.address_selector);
  v.ranged("port", x.port, 1, 65535);
}
template <class V>
void describe(V& v, ExternalAddress& x) {
  v.required("address", x.address);
  v.ranged("port", x.port, 1, 65535);
  v.check(x.port != 0, "port", "is required");
}
template <class V>
void describe(V& v, AgentSpec& x) {
  v.optional("nodeRef", x.node_ref);
  v.optional("external", x.external);
  v.check(x.node_ref.has_value() != x.external.has_value(), "",
          "exactly one of nodeRef, external must be set", "has(self.nodeRef) != has(self.external)");
}
template <class V>
void describe(V& v, AgentCapabilities& x) {
  v.optional("backends", x.backends);
  v.optional("protocols", x.protocols);
}
template <class V>
void describe(V& v, DiscoveredPool& x) {
  v.required("name", x.name);
  v.required("type", x.type);
  v.quantity("total", x.total);
  v.quantity("available", x.available);
  v.optional("parentDataset", x.parent_dataset);
  v.optional("thinPool", x.thin_pool);
}
template <class V>
void describe(V& v, AgentFencing& x) {
  v.required("epoch", x.epoch);
  v.value("sequence", x.sequence);
}
template <class V>
void describe(V& v, AgentStatus& x) {
  v.optional("resolvedAddress", x.resolved_address);
  v.optional("agentVersion", x.agent_version);
  v.optional("capabilities", x.capabilities);
  v.optional("discoveredPools", x.discovered_pools);
  v.optional("fencing", x.fencing);
  v.optional("conditions", x.conditions);
}

template <class V>
void describe(V& v, ZfsBackend& x) {
  v.required("pool", x.pool);
  v.optional("parentDataset", x.parent_dataset);
  v.value("volumeType", x.volume_type);
  v.optional("properties", x.properties);
}
template <class V>
void describe(V& v, LvmBackend& x) {
  v.required("volumeGroup", x.volume_group);
  v.optional("thinPool", x.thin_pool);
  v.value("provisioningMode", x.provisioning_mode);
}
template <class V>
void describe(V& v, Backend& x) {
  v.optional("zfs", x.zfs);
  v.optional("lvm", x.lvm);
  v.check(x.zfs.has_value() != x.lvm.has_value(), "", "exactly one of zfs, lvm must be set",
          "has(self.zfs) != has(self.lvm)");
}
template <class V>
void describe(V& v, StoreSpec& x) {
  v.required("agentRef", x.agent_ref);
  v.required("backend", x.backend);
}
template <class V>
void describe(V& v, Capacity& x) {
  v.quantity("total", x.total);
  v.quantity("available", x.available);
  v.quantity("used", x.used);
}
template <class V>
void describe(V& v, StoreStatus& x) {
  v.optional("capacity", x.capacity);
  v.optional("conditions", x.conditions);
}

template <class V>
void describe(V& v, SecretRef& x) {
  v.required("name", x.name);
  v.optional("namespace", x.namespace_name);
}
template <class V, class Type>
void describe(V& v, Auth<Type>& x) {
  v.value("type", x.type);
  v.optional("secretRef", x.secret_ref);
  v.check(x.type == Type::none || x.secret_ref.has_value(), "secretRef", "is required unless type is None",
          "self.type == 'None' || has(self.secretRef)");
}
template <class V>
void describe(V& v, NvmeofTcpTunables& x) {
  v.ranged("maxQueueSize", x.max_queue_size, 16, 1024);
  v.ranged("nrIoQueues", x.nr_io_queues, 1, 128);
  v.ranged("inCapsuleDataSize", x.in_capsule_data_size, 1024);
  v.ranged("ctrlLossTmo", x.ctrl_loss_tmo, -1);
  v.ranged("reconnectDelay", x.reconnect_delay, 0);
  v.structural({"port", "acl", "auth"}, "PillarProtocol");
}
template <class V>
void describe(V& v, NvmeofTcp& x) {
  v.ranged("port", x.port, 1, 65535);
  v.value("acl", x.acl);
  v.ranged("maxQueueSize", x.max_queue_size, 16, 1024);
  v.ranged("nrIoQueues", x.nr_io_queues, 1, 128);
  v.ranged("inCapsuleDataSize", x.in_capsule_data_size, 1024);
  v.ranged("ctrlLossTmo", x.ctrl_loss_tmo, -1);
  v.ranged("reconnectDelay", x.reconnect_delay, 0);
  v.nonzero("auth", x.auth);
}
template <class V>
void describe(V& v, IscsiTunables& x) {
  v.ranged("loginTimeout", x.login_timeout, 1);
  v.ranged("replacementTimeout", x.replacement_timeout, 0);
  v.ranged("noopOutInterval", x.noop_out_interval, 0);
  v.ranged("noopOutTimeout", x.noop_out_timeout, 0);
  v.structural({"port", "acl", "auth"}, "PillarProtocol");
}
template <class V>
void describe(V& v, Iscsi& x) {
  v.ranged("port", x.port, 1, 65535);
  v.value("acl", x.acl);
  v.ranged("loginTimeout", x.login_timeout, 1);
  v.ranged("replacementTimeout", x.replacement_timeout, 0);
  v.ranged("noopOutInterval", x.noop_out_interval, 0);
  v.ranged("noopOutTimeout", x.noop_out_timeout, 0);
  v.nonzero("auth", x.auth);
}
template <class V>
void describe(V& v, Nfs& x) {
  v.value("version", x.version);
  v.optional("squash", x.squash);
}
template <class V>
void describe(V& v, Protocol& x) {
  v.optional("nvmeofTcp", x.nvmeof_tcp);
  v.optional("iscsi", x.iscsi);
  v.optional("nfs", x.nfs);
  v.check(x.nvmeof_tcp.has_value() + x.iscsi.has_value() + x.nfs.has_value() == 1, "",
          "exactly one of nvmeofTcp, iscsi, nfs must be set",
          "[has(self.nvmeofTcp), has(self.iscsi), has(self.nfs)].exists_one(one, one)");
}
template <class V>
void describe(V& v, ProtocolSpec& x) {
  v.required("protocol", x.protocol);
}
template <class V>
void describe(V& v, ProtocolStatus& x) {
  v.optional("protocolType", x.protocol_type);
  v.value("storageClassCount", x.storage_class_count);
  v.optional("activeAgents", x.active_agents);
  v.optional("conditions", x.conditions);
}

template <class V>
void describe(V& v, GeneratedClass& x) {
  v.optional("name", x.name);
  v.value("reclaimPolicy", x.reclaim_policy);
  v.value("volumeBindingMode", x.volume_binding_mode);
  v.optional("allowVolumeExpansion", x.allow_volume_expansion);
}
template <class V>
void describe(V& v, FilesystemSettings& x) {
  v.optional("fsType", x.fs_type);
  v.optional("mkfsOptions", x.mkfs_options);
  v.optional("mountOptions", x.mount_options);
}
template <class V>
void describe(V& v, ZfsOverride& x) {
  v.optional("properties", x.properties);
  v.structural({"pool", "parentDataset", "volumeType"}, "PillarStore");
}
template <class V>
void describe(V& v, LvmOverride& x) {
  v.optional("provisioningMode", x.provisioning_mode);
  v.structural({"volumeGroup", "thinPool"}, "PillarStore");
}
template <class V>
void describe(V& v, BackendOverride& x) {
  v.optional("zfs", x.zfs);
  v.optional("lvm", x.lvm);
  v.check(x.zfs.has_value() != x.lvm.has_value(), "", "exactly one of zfs, lvm must be set",
          "has(self.zfs) != has(self.lvm)");
}
template <class V>
void describe(V& v, ProtocolOverride& x) {
  v.optional("nvmeofTcp", x.nvmeof_tcp);
  v.optional("iscsi", x.iscsi);
  v.check(x.nvmeof_tcp.has_value() != x.iscsi.has_value(), "", "exactly one of nvmeofTcp, iscsi must be set",
          "has(self.nvmeofTcp) != has(self.iscsi)");
}
template <class V>
void describe(V& v, Overrides& x) {
  v.optional("backend", x.backend);
  v.optional("protocol", x.protocol);
}
template <class V>
void describe(V& v, StorageClassSpec& x) {
  v.required("storeRef", x.store_ref);
  v.required("protocolRef", x.protocol_ref);
  v.value("storageClass", x.storage_class);
  v.value("filesystem", x.filesystem);
  v.nonzero("overrides", x.overrides);
}
template <class V>
void describe(V& v, StorageClassStatus& x) {
  v.optional("storageClassName", x.storage_class_name);
  v.optional("conditions", x.conditions);
}

template <class V>
void describe(V& v, ResolvedFilesystem& x) {
  v.value("fsType", x.fs_type);
  v.optional("mkfsOptions", x.mkfs_options);
  v.optional("mountOptions", x.mount_options);
}
template <class V>
void describe(V& v, Resolved& x) {
  v.required("backend", x.backend);
  v.required("protocol", x.protocol);
  v.value("filesystem", x.filesystem);
}
template <class V>
void describe(V& v, ClaimRef& x) {
  v.required("uid", x.uid);
  v.optional("namespace", x.namespace_name);
  v.optional("name", x.name);
}
template <class V>
void describe(V& v, VolumeSpec& x) {
  v.required("volumeID", x.volume_id);
  v.required("agentVolumeID", x.agent_volume_id);
  v.required("agentRef", x.agent_ref);
  v.required("backendType", x.backend_type);
  v.required("protocolType", x.protocol_type);
  v.ranged("capacityBytes", x.capacity_bytes, 0, std::numeric_limits<std::int64_t>::max());
  v.optional("claimRef", x.claim_ref);
  v.optional("resolved", x.resolved);
}
template <class V>
void describe(V& v, PartialFailure& x) {
  v.required("failedOperation", x.failed_operation);
  v.optional("failedAt", x.failed_at);
  v.optional("reason", x.reason);
  v.optional("message", x.message);
  v.nonzero("backendCreated", x.backend_created);
  v.nonzero("exportCreated", x.export_created);
}
template <class V>
void describe(V& v, ExportInfo& x) {
  v.required("targetID", x.target_id);
  v.optional("address", x.address);
  v.ranged("port", x.port, 0, 65535);
  v.optional("volumeRef", x.volume_ref);
}
template <class V>
void describe(V& v, ExportSpec& x) {
  v.required("bindAddress", x.bind_address);
  v.ranged("port", x.port, 1, 65535);
  v.value("aclEnabled", x.acl_enabled);
  v.ranged("inCapsuleDataSize", x.in_capsule_data_size, 1024);
  v.check(x.port != 0, "port", "is required");
}
template <class V>
void describe(V& v, PublishedNode& x) {
  v.required("nodeID", x.node_id);
  v.optional("initiatorID", x.initiator_id);
  v.optional("accessMode", x.access_mode);
  v.nonzero("readonly", x.readonly);
  v.nonzero("revoking", x.revoking);
}
template <class V>
void describe(V& v, Formatted& x) {
  v.required("fsType", x.fs_type);
  v.optional("formattedAt", x.formatted_at);
}
template <class V>
void describe(V& v, VolumeStatus& x) {
  v.nonzero("phase", x.phase);
  v.optional("partialFailure", x.partial_failure);
  v.optional("backendDevicePath", x.backend_device_path);
  v.nonzero("capacityBytes", x.capacity_bytes);
  v.optional("exportInfo", x.export_info);
  v.optional("exportSpec", x.export_spec);
  v.optional("publishedNodes", x.published_nodes);
  v.nonzero("publicationGeneration", x.publication_generation);
  v.nonzero("deleting", x.deleting);
  v.optional("formatted", x.formatted);
  v.nonzero("resizeRequired", x.resize_required);
  v.optional("conditions", x.conditions);
}

// ---- public functions --------------------------------------------------------------------------------
namespace {

struct Unit {
  std::string_view suffix;
  std::int64_t factor;
};
// Longest suffix first. The sub-unit suffixes of Kubernetes (m, u, n) make no sense for bytes.
constexpr Unit k_units[] = {
    {"Ki", 1LL << 10},      {"Mi", 1LL << 20},         {"Gi", 1LL << 30},
    {"Ti", 1LL << 40},      {"Pi", 1LL << 50},         {"Ei", 1LL << 60},
    {"k", 1000LL},          {"M", 1000000LL},          {"G", 1000000000LL},
    {"T", 1000000000000LL}, {"P", 1000000000000000LL}, {"E", 1000000000000000000LL},
};

__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using)

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Multiplies and adds within [0, limit]; false on overflow.
bool scale(Wide& value, unsigned factor, unsigned digit) {
  constexpr auto k_limit = static_cast<Wide>(1) << 120;
  if (value > k_limit / factor) return false;
  value = value * factor + digit;
  return true;
}

/// A decimal number as mantissa / 10^fraction, times 10^exponent.
struct Decimal {
  Wide mantissa = 0;
  int fraction = 0;
};

/// Parses digits with an optional fraction at the front of `text` and takes them off.
bool take_decimal(std::string_view& text, Decimal& out) {
  std::size_t i = 0;
  bool any = false;
  bool point = false;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !point)); ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (point && ++out.fraction > 18) return false;
    if (!scale(out.mantissa, 10, static_cast<unsigned>(text[i] - '0'))) return false;
  }
  text.remove_prefix(i);
  return any;
}

/// The multiplier that `suffix` stands for; nothing when it is none.
std::optional<std::int64_t> factor_of(std::string_view suffix) {
  if (suffix.empty()) return 1;
  for (const auto& unit : k_units)
    if (unit.suffix == suffix) return unit.factor;
  if (suffix.size() < 2 || suffix.size() > 3 || (suffix[0] != 'e' && suffix[0] != 'E')) return std::nullopt;
  int exponent = 0;
  for (const char c : suffix.substr(1)) {
    if (!is_digit(c)) return std::nullopt;
    exponent = exponent * 10 + (c - '0');
  }
  if (exponent > 18) return std::nullopt;
  std::int64_t factor = 1;
  while (exponent-- > 0) factor *= 10;
  return factor;
}

}  // namespace

Result<std::int64_t> parse_quantity(std::string_view text) {
  const auto bad = [&](const char* why) {
    return fail(Reason::invalid_argument, "quantity \"" + std::string(text.substr(0, 40)) + "\" " + why +
                                              "; write bytes as in 10Gi, 1.5G, 1e9 or 4096");
  };
  std::string_view rest = text;
  if (!rest.empty() && rest.front() == '+') rest.remove_prefix(1);
  if (!rest.empty() && rest.front() == '-') return bad("is negative");
  Decimal number;
  if (!take_decimal(rest, number)) return bad("is not a number of bytes");
  const auto factor = factor_of(rest);
  if (!factor) return bad("has an unknown unit");
  Wide divisor = 1;
  for (int i = 0; i < number.fraction; ++i) divisor *= 10;
  constexpr auto k_max = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
  if (number.mantissa / divisor > k_max) return bad("is too large");
  const auto bytes = (number.mantissa * static_cast<Wide>(*factor) + divisor - 1) / divisor;
  if (bytes > k_max) return bad("is too large");
  return static_cast<std::int64_t>(bytes);
}

std::string format_quantity(std::int64_t bytes) {
  for (int i = 5; i >= 0; --i)
    if (bytes >= k_units[i].factor && bytes % k_units[i].factor == 0)
      return std::to_string(bytes / k_units[i].factor) + std::string(k_units[i].suffix);
  return std::to_string(bytes);
}

const Condition* find_condition(const Conditions& conditions, std::string_view type) {
  const auto it =
      std::find_if(conditions.begin(), conditions.end(), [&](const Condition& c) { return c.type == type; });
  return it == conditions.end() ? nullptr : &*it;
}

bool condition_true(const Conditions& conditions, std::string_view type) {
  const auto* found = find_condition(conditions, type);
  return found && found->status == ConditionStatus::yes;
}

bool set_condition(Conditions& conditions, Condition wanted) {
  const auto it = std::find_if(conditions.begin(), conditions.end(),
                               [&](const Condition& c) { return c.type == wanted.type; });
  if (it == conditions.end()) {
    if (wanted.last_transition_time.empty()) wanted.last_transition_time = timestamp_now();
    conditions.push_back(std::move(wanted));
    return true;
  }
  if (it->status == wanted.status)
    wanted.last_transition_time = it->last_transition_time;
  else if (wanted.last_transition_time.empty())
    wanted.last_transition_time = timestamp_now();
  if (*it == wanted) return false;
  *it = std::move(wanted);
  return true;
}

bool remove_condition(Conditions& conditions, std::string_view type) {
  return std::erase_if(conditions, [&](const Condition& c) { return c.type == type; }) != 0;
}

BackendKind Backend::kind() const {
  return zfs ? BackendKind::zfs : lvm ? BackendKind::lvm : BackendKind::none;
}
std::string_view Backend::pool() const {
  if (zfs) return zfs->pool;
  if (lvm) return lvm->volume_group;
  return {};
}
std::string_view Backend::type() const {
  if (zfs) return zfs->volume_type == ZfsVolumeType::zvol ? "zfs-zvol" : "zfs-dataset";
  if (lvm) return "lvm-lv";
  return {};
}
bool Backend::is_block() const { return lvm || (zfs && zfs->volume_type == ZfsVolumeType::zvol); }

ProtocolKind Protocol::kind() const {
  return nvmeof_tcp ? ProtocolKind::nvmeof_tcp
         : iscsi    ? ProtocolKind::iscsi
         : nfs      ? ProtocolKind::nfs
                    : ProtocolKind::none;
}
std::string_view Protocol::type() const {
  switch (kind()) {
    case ProtocolKind::nvmeof_tcp:
      return "nvmeof-tcp";
    case ProtocolKind::iscsi:
      return "iscsi";
    case ProtocolKind::nfs:
      return "nfs";
    case ProtocolKind::none:
      break;
  }
  return {};
}
bool Protocol::is_block() const { return nvmeof_tcp || iscsi; }

BackendKind BackendOverride::kind() const {
  return zfs ? BackendKind::zfs : lvm ? BackendKind::lvm : BackendKind::none;
}
ProtocolKind ProtocolOverride::kind() const {
  return nvmeof_tcp ? ProtocolKind::nvmeof_tcp : iscsi ? ProtocolKind::iscsi : ProtocolKind::none;
}

std::string_view to_string(FsType type) noexcept { return codec::enum_text(type); }
std::string_view to_string(VolumePhase phase) noexcept { return codec::enum_text(phase); }

Result<FsType> fs_type_from_string(std::string_view text) {
  for (const auto& [type, name] : enum_names(static_cast<FsType*>(nullptr)))
    if (name == text) return type;
  return fail(Reason::invalid_argument,
              "file system type \"" + std::string(text) + "\" is not supported; use ext4 or xfs");
}

template <class T>
nlohmann::json encode(const T& value) {
  return codec::write_all(value);
}

template <class T>
tl::expected<T, FieldErrors> decode(const nlohmann::json& value, std::string_view path) {
  return codec::read_all<T>(value, path);
}

template <class T>
Result<T> from_object(const Object& object) {
  const auto name = subject(object);
  if (object.kind != T::k_kind)
    return fail(Reason::invalid_argument, name + ": is no " + std::string(to_string(T::k_kind)));
  auto spec = decode<typename T::Spec>(object.spec.json(), "spec");
  if (!spec) return tl::unexpected(to_error(name, spec.error()));
  auto status = decode<typename T::Status>(object.status.json(), "status");
  if (!status) return tl::unexpected(to_error(name, status.error()));
  return T{object.metadata, std::move(*spec), std::move(*status)};
}

template <class T>
Object to_object(const T& typed) {
  return Object{T::k_kind, typed.metadata, Doc::of(encode(typed.spec)), Doc::of(encode(typed.status))};
}

#define PILLAR_CRD_CODEC(T)                    \
  template nlohmann::json encode<T>(const T&); \
  template tl::expected<T, FieldErrors> decode<T>(const nlohmann::json&, std::string_view);
#define PILLAR_CRD_TYPED(T)                         \
  template Result<T> from_object<T>(const Object&); \
  template Object to_object<T>(const T&);

PILLAR_CRD_CODEC(AgentSpec)
PILLAR_CRD_CODEC(AgentStatus)
PILLAR_CRD_CODEC(StoreSpec)
PILLAR_CRD_CODEC(StoreStatus)
PILLAR_CRD_CODEC(ProtocolSpec)
PILLAR_CRD_CODEC(ProtocolStatus)
PILLAR_CRD_CODEC(StorageClassSpec)
PILLAR_CRD_CODEC(StorageClassStatus)
PILLAR_CRD_CODEC(VolumeSpec)
PILLAR_CRD_CODEC(VolumeStatus)
PILLAR_CRD_CODEC(Resolved)
PILLAR_CRD_CODEC(BackendOverride)
PILLAR_CRD_CODEC(ProtocolOverride)
PILLAR_CRD_CODEC(FilesystemSettings)
PILLAR_CRD_TYPED(PillarAgent)
PILLAR_CRD_TYPED(PillarStore)
PILLAR_CRD_TYPED(PillarProtocol)
PILLAR_CRD_TYPED(PillarStorageClass)
PILLAR_CRD_TYPED(VolumeState)

namespace schema {

template <class T>
nlohmann::json fields_of() {
  return Fields::of<T>();
}

template nlohmann::json fields_of<AgentSpec>();
template nlohmann::json fields_of<AgentStatus>();
template nlohmann::json fields_of<StoreSpec>();
template nlohmann::json fields_of<StoreStatus>();
template nlohmann::json fields_of<ProtocolSpec>();
template nlohmann::json fields_of<ProtocolStatus>();
template nlohmann::json fields_of<StorageClassSpec>();
template nlohmann::json fields_of<StorageClassStatus>();
template nlohmann::json fields_of<VolumeSpec>();
template nlohmann::json fields_of<VolumeStatus>();

}  // namespace schema

#undef PILLAR_CRD_CODEC
#undef PILLAR_CRD_TYPED

}  // namespace pillar::crd

namespace pillar::crd::codec {

void Reader::quantity(const char* key, std::int64_t& out) {
  const json* member = find(key);
  if (!member) return;
  const auto text = member->is_string()           ? member->get<std::string>()
                    : member->is_number_integer() ? member->dump()
                                                  : std::string("?");
  const auto bytes = parse_quantity(text);
  if (bytes)
    out = *bytes;
  else
    error(child_path(path_, key), *member, "must be a quantity such as 10Gi or a number of bytes");
}

void Writer::quantity(const char* key, std::int64_t& in) { out_[key] = format_quantity(in); }

}  // namespace pillar::crd::codec
