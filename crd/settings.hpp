#pragma once
// Settings resolve in layers (docs/interfaces.md section 2): store and protocol, then the storage class's
// overrides, then StorageClass parameters or PVC annotations. The result is recorded in spec.resolved of the
// volume and never read again from its sources.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"
#include "crd/types.hpp"
#include "messages/error.hpp"

namespace pillar::crd {

// Keys of parameters and annotations.
inline constexpr std::string_view k_key_storage_class = "pillar-csi.bhyoo.com/storage-class";
inline constexpr std::string_view k_key_store_ref = "pillar-csi.bhyoo.com/store-ref";
inline constexpr std::string_view k_key_protocol_ref = "pillar-csi.bhyoo.com/protocol-ref";
inline constexpr std::string_view k_key_backend = "pillar-csi.bhyoo.com/backend";
inline constexpr std::string_view k_key_protocol = "pillar-csi.bhyoo.com/protocol";
inline constexpr std::string_view k_key_filesystem = "pillar-csi.bhyoo.com/filesystem";
inline constexpr std::string_view k_key_fstype = "csi.storage.k8s.io/fstype";

/// One layer of tunables above store and protocol.
struct SettingsLayer {
  std::string origin;  ///< for errors: "PillarStorageClass/fast", "PersistentVolumeClaim default/data"
  std::optional<BackendOverride> backend;
  std::optional<ProtocolOverride> protocol;
  FilesystemSettings filesystem;
};

/// The layer that a storage class is.
SettingsLayer layer_of(const PillarStorageClass& storage_class);

/// The layer in a PVC's annotations: YAML documents under the keys backend, protocol and filesystem. Other
/// keys of our prefix are INVALID_ARGUMENT (a misspelt one must not be ignored); foreign keys are ignored.
Result<SettingsLayer> layer_of_annotations(const std::map<std::string, std::string>& annotations,
                                           std::string origin);

/// StorageClass parameters as CreateVolume and GetCapacity get them.
struct ClassParameters {
  std::string storage_class;  ///< PillarStorageClass, empty: store_ref and protocol_ref are set
  std::string store_ref;
  std::string protocol_ref;
  std::optional<FsType> fs_type;  ///< csi.storage.k8s.io/fstype
  SettingsLayer layer;
};

/// Parses parameters: exactly one of storage-class, or store-ref with protocol-ref; documents as above;
/// csi.storage.k8s.io/* is ignored except fstype; any other key is INVALID_ARGUMENT naming it.
Result<ClassParameters> parse_class_parameters(const std::map<std::string, std::string>& parameters);

/// Why a backend cannot be served over a protocol, nothing when it can: block backends go with block
/// protocols, file backends with nfs.
std::optional<std::string> incompatibility(const Backend& backend, const Protocol& protocol);

/// Merges the layers in order (later ones win): scalars replace, zfs.properties merge by key, unset inherits,
/// an empty list clears. INVALID_ARGUMENT naming the origin and field when a layer speaks of another backend
/// or protocol member or when the outcome breaks a rule (thin without a pool, options of another file
/// system); FAILED_PRECONDITION when backend and protocol are incompatible.
Result<Resolved> resolve(const Backend& backend, const Protocol& protocol,
                         const std::vector<SettingsLayer>& layers);

}  // namespace pillar::crd
