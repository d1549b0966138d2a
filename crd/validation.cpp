#include "crd/validation.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include <nlohmann/json.hpp>

#include "crd/codec.hpp"
#include "crd/filesystem_options.hpp"
#include "messages/access_modes.hpp"
#include "messages/ids.hpp"

namespace pillar::crd {
namespace {

using codec::child_path;
using codec::shown;

/// Kubernetes' own bound on all annotations of an object together.
constexpr std::size_t k_max_annotations = 256U << 10;
/// etcd refuses objects of about 1.5 MiB; this leaves room for status and metadata.
constexpr std::size_t k_max_spec = 256U << 10;
constexpr std::size_t k_max_status = 1U << 20;

/// Collects field errors with short calls.
class Checks {
 public:
  void require(bool holds, std::string path, const nlohmann::json& value, std::string problem) {
    if (!holds) errors_.push_back({std::move(path), shown(value), std::move(problem)});
  }
  /// `after` must equal `before`; shown as "a -> b".
  void immutable(bool same, std::string path, const std::string& before, const std::string& after) {
    if (!same)
      errors_.push_back({std::move(path), shown(before) + " -> " + shown(after),
                         "is immutable; delete the object and create it again to change it"});
  }
  void add(FieldErrors more) {
    errors_.insert(errors_.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  FieldErrors take() { return std::move(errors_); }

 private:
  FieldErrors errors_;
};

constexpr const char* k_name_rule =
    "must be a DNS-1123 name: lower-case letters, digits, '-' and '.', at most 253";
constexpr const char* k_pool_rule = "must match [A-Za-z0-9][A-Za-z0-9_.+-]{0,62} without \"..\"";

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// Pool, volume group and thin pool names: the pool grammar of agent volume ids.
bool is_pool_name(std::string_view text) {
  return text.find('/') == std::string_view::npos &&
         AgentVolumeId::parse(std::string(text) + "/x").has_value();
}

/// ZFS dataset path: components of letters, digits and _ . : -, joined by '/'.
bool is_dataset(std::string_view text) {
  if (text.empty() || text.size() > 200) return false;
  while (true) {
    const auto slash = text.find('/');
    const auto part = text.substr(0, slash);
    if (part.empty() || !is_alnum(part[0]) || part.find("..") != std::string_view::npos) return false;
    const bool plain = std::all_of(part.begin(), part.end(), [](char c) {
      return is_alnum(c) || std::string_view("_.:-").find(c) != std::string_view::npos;
    });
    if (!plain) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

/// Name part of labels, annotations and finalizers, also label values when `text` is not empty.
bool is_label_word(std::string_view text) {
  return !text.empty() && text.size() <= 63 && is_alnum(text.front()) && is_alnum(text.back()) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_qualified_name(std::string_view text) {
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return is_label_word(text);
  return is_object_name(text.substr(0, slash)) && is_label_word(text.substr(slash + 1));
}

constexpr const char* k_key_rule =
    "must be a name of up to 63 characters with an optional DNS prefix and '/'";

std::string joined_host(const std::optional<ExternalAddress>& external) {
  return external ? external->address + ":" + std::to_string(external->port) : std::string();
}

const char* member_of(const Backend& backend) { return backend.zfs ? "zfs" : backend.lvm ? "lvm" : "none"; }

void check_backend(Checks& checks, const Backend& backend, const std::string& path) {
  if (const auto& zfs = backend.zfs) {
    const auto at = path + ".zfs";
    checks.require(is_pool_name(zfs->pool), at + ".pool", zfs->pool, k_pool_rule);
    checks.require(zfs->parent_dataset.empty() || is_dataset(zfs->parent_dataset), at + ".parentDataset",
                   zfs->parent_dataset, "must be a dataset path such as k8s/volumes");
    checks.add(check_zfs_properties(zfs->properties, at + ".properties"));
  }
  if (const auto& lvm = backend.lvm) {
    const auto at = path + ".lvm";
    checks.require(is_pool_name(lvm->volume_group), at + ".volumeGroup", lvm->volume_group, k_pool_rule);
    checks.require(lvm->thin_pool.empty() || is_pool_name(lvm->thin_pool), at + ".thinPool", lvm->thin_pool,
                   k_pool_rule);
    checks.require(lvm->provisioning_mode == ProvisioningMode::linear || !lvm->thin_pool.empty(),
                   at + ".provisioningMode", "thin", "needs thinPool, the name of the thin pool LV");
  }
}

template <class Type>
void check_auth(Checks& checks, const Auth<Type>& auth, const std::string& path) {
  if (!auth.secret_ref) return;
  checks.require(is_object_name(auth.secret_ref->name), path + ".secretRef.name", auth.secret_ref->name,
                 k_name_rule);
  checks.require(auth.secret_ref->namespace_name.empty() || is_object_name(auth.secret_ref->namespace_name),
                 path + ".secretRef.namespace", auth.secret_ref->namespace_name, k_name_rule);
}

void check_protocol(Checks& checks, const Protocol& protocol, const std::string& path) {
  if (protocol.nvmeof_tcp) check_auth(checks, protocol.nvmeof_tcp->auth, path + ".nvmeofTcp.auth");
  if (protocol.iscsi) check_auth(checks, protocol.iscsi->auth, path + ".iscsi.auth");
  if (protocol.nfs) {
    static const std::set<std::string> k_versions{"3", "4", "4.0", "4.1", "4.2"};
    static const std::set<std::string> k_squash{"", "root_squash", "no_root_squash", "all_squash"};
    checks.require(k_versions.contains(protocol.nfs->version), path + ".nfs.version", protocol.nfs->version,
                   "must be one of 3, 4, 4.0, 4.1, 4.2 (a string)");
    checks.require(k_squash.contains(protocol.nfs->squash), path + ".nfs.squash", protocol.nfs->squash,
                   "must be one of root_squash, no_root_squash, all_squash");
  }
}

/// Conditions: unique types, CamelCase reasons.
void check_conditions(Checks& checks, const Conditions& conditions) {
  std::set<std::string> types;
  for (std::size_t i = 0; i < conditions.size(); ++i) {
    const auto& one = conditions[i];
    const auto at = "status.conditions[" + std::to_string(i) + "]";
    checks.require(types.insert(one.type).second, at + ".type", one.type, "occurs twice");
    checks.require(is_qualified_name(one.type), at + ".type", one.type, "must be CamelCase");
    const bool reason = std::isalpha(static_cast<unsigned char>(one.reason.empty() ? ' ' : one.reason[0])) &&
                        std::all_of(one.reason.begin(), one.reason.end(),
                                    [](char c) { return is_alnum(c) || c == '_' || c == ',' || c == ':'; });
    checks.require(reason, at + ".reason", one.reason, "must be one CamelCase word");
    checks.require(timestamp_seconds(one.last_transition_time).has_value(), at + ".lastTransitionTime",
                   one.last_transition_time, "must be a time such as 2026-01-31T12:00:00Z");
  }
}

void check_status(Checks&, const AgentStatus&, const AgentStatus*) {}
void check_status(Checks&, const StoreStatus&, const StoreStatus*) {}
void check_status(Checks&, const ProtocolStatus&, const ProtocolStatus*) {}
void check_status(Checks&, const StorageClassStatus&, const StorageClassStatus*) {}
void check_status(Checks& checks, const VolumeStatus& status, const VolumeStatus* stored) {
  std::set<std::string> nodes;
  for (std::size_t i = 0; i < status.published_nodes.size(); ++i) {
    const auto& one = status.published_nodes[i];
    const auto at = "status.publishedNodes[" + std::to_string(i) + "]";
    checks.require(nodes.insert(one.node_id).second, at + ".nodeID", one.node_id, "occurs twice");
    checks.require(is_access_mode(one.access_mode), at + ".accessMode", one.access_mode,
                   "must be the CSI name of a supported access mode, for example SINGLE_NODE_WRITER");
  }
  checks.require(status.publication_generation >= 0, "status.publicationGeneration",
                 status.publication_generation, "must not be negative");
  checks.require(!stored || status.publication_generation >= stored->publication_generation,
                 "status.publicationGeneration", status.publication_generation,
                 "must never fall: it fences delayed requests");
  if (status.export_spec)
    checks.require(IpAddress::parse(status.export_spec->bind_address).has_value(),
                   "status.exportSpec.bindAddress", status.export_spec->bind_address,
                   "must be an IPv4 or IPv6 address");
}

/// What depends on the object's own name.
template <class T>
void apply_defaults(T&) {}
template <>
void apply_defaults(PillarStorageClass& object) {
  if (object.spec.storage_class.name.empty()) object.spec.storage_class.name = object.metadata.name;
  if (!object.spec.filesystem.fs_type) object.spec.filesystem.fs_type = FsType::ext4;
}

template <class T>
tl::expected<Object, FieldErrors> admit_typed(const Object& fresh, const Object* stored) {
  using Spec = typename T::Spec;
  Checks checks;
  checks.add(validate_metadata(fresh.metadata));
  checks.require(fresh.spec.dump().size() <= k_max_spec, "spec", "...", "is larger than 256 KiB");
  auto spec = decode<Spec>(fresh.spec.json(), "spec");
  if (!spec) {
    checks.add(spec.error());
    return tl::unexpected(checks.take());
  }
  T typed{fresh.metadata, std::move(*spec), {}};
  apply_defaults(typed);
  checks.add(validate(typed.spec));
  if (stored)
    if (const auto before = decode<Spec>(stored->spec.json(), "spec"))
      checks.add(validate_change(*before, typed.spec));
  auto errors = checks.take();
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return Object{fresh.kind, fresh.metadata, Doc::of(encode(typed.spec)), fresh.status};
}

template <class T>
tl::expected<Doc, FieldErrors> admit_status_typed(const Object& fresh, const Object& stored) {
  using Status = typename T::Status;
  auto status = decode<Status>(fresh.status.json(), "status");
  if (!status) return tl::unexpected(status.error());
  const auto before = decode<Status>(stored.status.json(), "status");
  Checks checks;
  check_conditions(checks, status->conditions);
  check_status(checks, *status, before ? &*before : nullptr);
  auto out = Doc::of(encode(*status));
  checks.require(out.dump().size() <= k_max_status, "status", "...", "is larger than 1 MiB");
  auto errors = checks.take();
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return out;
}

/// Calls `f` with a null pointer of the typed form of `kind`.
template <class F>
auto with_type(Kind kind, F f) {
  switch (kind) {
    case Kind::agent:
      return f(static_cast<PillarAgent*>(nullptr));
    case Kind::store:
      return f(static_cast<PillarStore*>(nullptr));
    case Kind::protocol:
      return f(static_cast<PillarProtocol*>(nullptr));
    case Kind::storage_class:
      return f(static_cast<PillarStorageClass*>(nullptr));
    case Kind::volume:
      break;
  }
  return f(static_cast<VolumeState*>(nullptr));
}

}  // namespace

bool is_cidr(std::string_view text) {
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return false;
  const auto address = IpAddress::parse(text.substr(0, slash));
  if (!address || text.find_first_of("[]%") != std::string_view::npos) return false;
  const auto digits = text.substr(slash + 1);
  int prefix = -1;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), prefix);
  if (status != std::errc() || end != digits.data() + digits.size()) return false;
  return prefix >= 0 && prefix <= (address->v6 ? 128 : 32);
}

bool is_access_mode(std::string_view text) {
  const auto* known = find_access_mode(access_mode_from(text));
  return known && (known->mount || known->block);
}

FieldErrors validate_metadata(const Metadata& metadata) {
  Checks checks;
  checks.require(is_object_name(metadata.name), "metadata.name", metadata.name, k_name_rule);
  for (const auto& [key, value] : metadata.labels) {
    const auto at = child_path("metadata.labels", key);
    checks.require(is_qualified_name(key), at, key, k_key_rule);
    checks.require(value.empty() || is_label_word(value), at, value,
                   "must be empty or up to 63 letters, digits, '-', '_' and '.'");
  }
  std::size_t total = 0;
  for (const auto& [key, value] : metadata.annotations) {
    checks.require(is_qualified_name(key), child_path("metadata.annotations", key), key, k_key_rule);
    total += key.size() + value.size();
  }
  checks.require(total <= k_max_annotations, "metadata.annotations", std::to_string(total) + " bytes",
                 "all annotations together may have 262144 bytes");
  std::set<std::string> finalizers;
  for (std::size_t i = 0; i < metadata.finalizers.size(); ++i) {
    const auto& one = metadata.finalizers[i];
    const auto at = "metadata.finalizers[" + std::to_string(i) + "]";
    checks.require(is_qualified_name(one) && one.find('/') != std::string::npos, at, one,
                   "must be a name with a DNS prefix, for example pillar-csi.bhyoo.com/agent-protection");
    checks.require(finalizers.insert(one).second, at, one, "occurs twice");
  }
  return checks.take();
}

FieldErrors validate(const AgentSpec& spec) {
  Checks checks;
  if (const auto& node = spec.node_ref) {
    checks.require(is_object_name(node->name), "spec.nodeRef.name", node->name, k_name_rule);
    checks.require(node->address_selector.empty() || is_cidr(node->address_selector),
                   "spec.nodeRef.addressSelector", node->address_selector,
                   "must be a CIDR such as 10.0.0.0/8 or fd00::/8");
  }
  if (const auto& external = spec.external)
    checks.require(IpAddress::parse(external->address).has_value() || is_object_name(external->address),
                   "spec.external.address", external->address,
                   "must be an IP address or a DNS name in lower case, without port");
  return checks.take();
}

FieldErrors validate(const StoreSpec& spec) {
  Checks checks;
  checks.require(is_object_name(spec.agent_ref), "spec.agentRef", spec.agent_ref, k_name_rule);
  check_backend(checks, spec.backend, "spec.backend");
  return checks.take();
}

FieldErrors validate(const ProtocolSpec& spec) {
  Checks checks;
  check_protocol(checks, spec.protocol, "spec.protocol");
  return checks.take();
}

FieldErrors validate(const StorageClassSpec& spec) {
  Checks checks;
  checks.require(is_object_name(spec.store_ref), "spec.storeRef", spec.store_ref, k_name_rule);
  checks.require(is_object_name(spec.protocol_ref), "spec.protocolRef", spec.protocol_ref, k_name_rule);
  checks.require(spec.storage_class.name.empty() || is_object_name(spec.storage_class.name),
                 "spec.storageClass.name", spec.storage_class.name, k_name_rule);
  const auto type = spec.filesystem.fs_type.value_or(FsType::ext4);
  checks.add(check_mkfs_options(type, spec.filesystem.mkfs_options.value_or(std::vector<std::string>{}),
                                "spec.filesystem.mkfsOptions"));
  checks.add(check_mount_options(type, spec.filesystem.mount_options.value_or(std::vector<std::string>{}),
                                 "spec.filesystem.mountOptions"));
  if (spec.overrides.backend && spec.overrides.backend->zfs)
    checks.add(check_zfs_properties(spec.overrides.backend->zfs->properties,
                                    "spec.overrides.backend.zfs.properties"));
  return checks.take();
}

FieldErrors validate(const VolumeSpec& spec) {
  Checks checks;
  const auto id = VolumeId::parse(spec.volume_id);
  checks.require(id.has_value(), "spec.volumeID", spec.volume_id,
                 "must be <agent>/<protocolType>/<backendType>/<pool>/<name>");
  if (id) {
    checks.require(id->agent == spec.agent_ref, "spec.agentRef", spec.agent_ref,
                   "must be the agent of volumeID");
    checks.require(id->protocol_type == spec.protocol_type, "spec.protocolType", spec.protocol_type,
                   "must be the protocol of volumeID");
    checks.require(id->backend_type == spec.backend_type, "spec.backendType", spec.backend_type,
                   "must be the backend of volumeID");
    checks.require(id->volume.str() == spec.agent_volume_id, "spec.agentVolumeID", spec.agent_volume_id,
                   "must be the last two parts of volumeID");
  }
  if (spec.resolved) {
    check_backend(checks, spec.resolved->backend, "spec.resolved.backend");
    check_protocol(checks, spec.resolved->protocol, "spec.resolved.protocol");
  }
  return checks.take();
}

FieldErrors validate_change(const AgentSpec& before, const AgentSpec& after) {
  Checks checks;
  const auto member = [](const AgentSpec& spec) { return spec.node_ref ? "nodeRef" : "external"; };
  checks.immutable(before.node_ref.has_value() == after.node_ref.has_value(), "spec", member(before),
                   member(after));
  if (before.node_ref && after.node_ref)
    checks.immutable(before.node_ref->name == after.node_ref->name, "spec.nodeRef.name",
                     before.node_ref->name, after.node_ref->name);
  if (before.external && after.external)
    checks.immutable(before.external == after.external, "spec.external", joined_host(before.external),
                     joined_host(after.external));
  return checks.take();
}

FieldErrors validate_change(const StoreSpec& before, const StoreSpec& after) {
  Checks checks;
  checks.immutable(before.agent_ref == after.agent_ref, "spec.agentRef", before.agent_ref, after.agent_ref);
  checks.immutable(before.backend.kind() == after.backend.kind(), "spec.backend", member_of(before.backend),
                   member_of(after.backend));
  const auto same = [&](const char* field, const std::string& a, const std::string& b) {
    checks.immutable(a == b, std::string("spec.backend.") + field, a, b);
  };
  if (before.backend.zfs && after.backend.zfs) {
    same("zfs.pool", before.backend.zfs->pool, after.backend.zfs->pool);
    same("zfs.parentDataset", before.backend.zfs->parent_dataset, after.backend.zfs->parent_dataset);
    same("zfs.volumeType", std::string(before.backend.type()), std::string(after.backend.type()));
  }
  if (before.backend.lvm && after.backend.lvm) {
    same("lvm.volumeGroup", before.backend.lvm->volume_group, after.backend.lvm->volume_group);
    same("lvm.thinPool", before.backend.lvm->thin_pool, after.backend.lvm->thin_pool);
  }
  return checks.take();
}

FieldErrors validate_change(const ProtocolSpec&, const ProtocolSpec&) { return {}; }

FieldErrors validate_change(const StorageClassSpec& before, const StorageClassSpec& after) {
  Checks checks;
  checks.immutable(before.store_ref == after.store_ref, "spec.storeRef", before.store_ref, after.store_ref);
  checks.immutable(before.protocol_ref == after.protocol_ref, "spec.protocolRef", before.protocol_ref,
                   after.protocol_ref);
  checks.immutable(before.storage_class.name == after.storage_class.name, "spec.storageClass.name",
                   before.storage_class.name, after.storage_class.name);
  return checks.take();
}

FieldErrors validate_change(const VolumeSpec& before, const VolumeSpec& after) {
  Checks checks;
  VolumeSpec expected = before;
  if (!expected.resolved) expected.resolved = after.resolved;
  if (!expected.claim_ref) expected.claim_ref = after.claim_ref;
  if (expected == after) return {};
  const auto was = encode(expected);
  const auto is = encode(after);
  for (const auto& [key, value] : was.items())
    if (!is.contains(key) || is[key] != value)
      checks.immutable(false, "spec." + key, value.dump(), is.contains(key) ? is[key].dump() : "");
  return checks.take();
}

tl::expected<Object, FieldErrors> admit(const Object& fresh, const Object* stored) {
  return with_type(fresh.kind, [&]<class T>(T*) { return admit_typed<T>(fresh, stored); });
}

tl::expected<Doc, FieldErrors> admit_status(const Object& fresh, const Object& stored) {
  return with_type(stored.kind, [&]<class T>(T*) { return admit_status_typed<T>(fresh, stored); });
}

tl::expected<Object, FieldErrors> admit_new(const Object& fresh) {
  auto object = admit(fresh, nullptr);
  if (!object) return object;
  Object blank = *object;
  blank.status = Doc();
  auto status = admit_status(fresh, blank);
  if (!status) return tl::unexpected(status.error());
  object->status = fresh.status.empty() ? Doc() : *status;
  return object;
}

}  // namespace pillar::crd
