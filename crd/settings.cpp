#include "crd/settings.hpp"

#include <nlohmann/json.hpp>

#include "crd/codec.hpp"
#include "crd/filesystem_options.hpp"
#include "crd/validation.hpp"
#include "crd/yaml.hpp"
#include "messages/ids.hpp"

namespace pillar::crd {
namespace {

constexpr std::string_view k_csi_prefix = "csi.storage.k8s.io/";

/// Parses the document under `key` into `out`.
template <class T, class Out>
std::optional<Error> read_document(const std::string& key, const std::string& text, const std::string& origin,
                                   Out& out) {
  const auto what = origin + ", " + key;
  const auto document = parse_yaml_value(text, what);
  if (!document) return document.error();
  auto value = decode<T>(document->json(), "");
  if (!value) return to_error(what, value.error());
  out = std::move(*value);
  return std::nullopt;
}

/// Takes a document key into the layer. `handled` tells whether `key` is one.
std::optional<Error> take_document(const std::string& key, const std::string& text, SettingsLayer& layer,
                                   bool& handled) {
  handled = true;
  if (key == k_key_backend) return read_document<BackendOverride>(key, text, layer.origin, layer.backend);
  if (key == k_key_protocol) return read_document<ProtocolOverride>(key, text, layer.origin, layer.protocol);
  if (key == k_key_filesystem)
    return read_document<FilesystemSettings>(key, text, layer.origin, layer.filesystem);
  handled = false;
  return std::nullopt;
}

tl::unexpected<Error> refuse(const std::string& origin, const std::string& what) {
  return fail(Reason::invalid_argument, origin + ": " + what);
}

/// An object reference among the parameters.
std::optional<Error> take_reference(const std::string& key, const std::string& value, std::string& out) {
  if (!is_object_name(value))
    return refuse("StorageClass parameters", key + " = \"" + value + "\" must be the name of an object")
        .value();
  out = value;
  return std::nullopt;
}

template <class T>
void overlay(std::optional<T>& below, const std::optional<T>& above) {
  if (above) below = above;
}

void overlay(NvmeofTcp& below, const NvmeofTcpTunables& above) {
  overlay(below.max_queue_size, above.max_queue_size);
  overlay(below.nr_io_queues, above.nr_io_queues);
  overlay(below.in_capsule_data_size, above.in_capsule_data_size);
  overlay(below.ctrl_loss_tmo, above.ctrl_loss_tmo);
  overlay(below.reconnect_delay, above.reconnect_delay);
}

void overlay(Iscsi& below, const IscsiTunables& above) {
  overlay(below.login_timeout, above.login_timeout);
  overlay(below.replacement_timeout, above.replacement_timeout);
  overlay(below.noop_out_interval, above.noop_out_interval);
  overlay(below.noop_out_timeout, above.noop_out_timeout);
}

std::optional<std::string> merge(Backend& backend, const BackendOverride& above) {
  if (above.kind() != backend.kind())
    return std::string("backend settings are for ") + (above.zfs ? "zfs" : "lvm") +
           " but the store's backend is " + (backend.zfs ? "zfs" : "lvm");
  if (above.zfs)
    for (const auto& [name, value] : above.zfs->properties) backend.zfs->properties[name] = value;
  if (above.lvm && above.lvm->provisioning_mode)
    backend.lvm->provisioning_mode = *above.lvm->provisioning_mode;
  return std::nullopt;
}

std::optional<std::string> merge(Protocol& protocol, const ProtocolOverride& above) {
  if (above.kind() != protocol.kind())
    return std::string("protocol settings are for ") + (above.nvmeof_tcp ? "nvmeofTcp" : "iscsi") +
           " but the protocol is " + std::string(protocol.type());
  if (above.nvmeof_tcp) overlay(*protocol.nvmeof_tcp, *above.nvmeof_tcp);
  if (above.iscsi) overlay(*protocol.iscsi, *above.iscsi);
  return std::nullopt;
}

/// The rules that only the merged whole can break.
FieldErrors check_resolved(const Resolved& resolved) {
  auto errors = validate(StoreSpec{"agent", resolved.backend});
  const auto add = [&](FieldErrors more) { errors.insert(errors.end(), more.begin(), more.end()); };
  add(check_mkfs_options(resolved.filesystem.fs_type, resolved.filesystem.mkfs_options,
                         "filesystem.mkfsOptions"));
  add(check_mount_options(resolved.filesystem.fs_type, resolved.filesystem.mount_options,
                          "filesystem.mountOptions"));
  return errors;
}

}  // namespace

SettingsLayer layer_of(const PillarStorageClass& storage_class) {
  return {subject(Kind::storage_class, storage_class.metadata.name), storage_class.spec.overrides.backend,
          storage_class.spec.overrides.protocol, storage_class.spec.filesystem};
}

Result<SettingsLayer> layer_of_annotations(const std::map<std::string, std::string>& annotations,
                                           std::string origin) {
  SettingsLayer layer;
  layer.origin = std::move(origin);
  for (const auto& [key, text] : annotations) {
    bool handled = false;
    if (auto error = take_document(key, text, layer, handled)) return tl::unexpected(std::move(*error));
    if (!handled && key.starts_with(k_key_prefix))
      return refuse(layer.origin, "annotation " + key + " is unknown; known: " + std::string(k_key_backend) +
                                      ", " + std::string(k_key_protocol) + ", " +
                                      std::string(k_key_filesystem));
  }
  return layer;
}

Result<ClassParameters> parse_class_parameters(const std::map<std::string, std::string>& parameters) {
  ClassParameters out;
  out.layer.origin = "StorageClass parameters";
  for (const auto& [key, text] : parameters) {
    bool handled = false;
    auto error = take_document(key, text, out.layer, handled);
    if (!handled) {
      if (key == k_key_storage_class)
        error = take_reference(key, text, out.storage_class);
      else if (key == k_key_store_ref)
        error = take_reference(key, text, out.store_ref);
      else if (key == k_key_protocol_ref)
        error = take_reference(key, text, out.protocol_ref);
      else if (key == k_key_fstype) {
        const auto type = fs_type_from_string(text);
        if (type)
          out.fs_type = *type;
        else
          error = with_context(type.error(), key);
      } else if (!key.starts_with(k_csi_prefix))
        return refuse(out.layer.origin,
                      "\"" + key + "\" is unknown; known: " + std::string(k_key_storage_class) + ", " +
                          std::string(k_key_store_ref) + ", " + std::string(k_key_protocol_ref) + ", " +
                          std::string(k_key_backend) + ", " + std::string(k_key_protocol) + ", " +
                          std::string(k_key_filesystem) + ", " + std::string(k_key_fstype));
    }
    if (error) return tl::unexpected(std::move(*error));
  }
  const bool by_class = !out.storage_class.empty();
  const bool by_parts = !out.store_ref.empty() || !out.protocol_ref.empty();
  if (by_class == by_parts || (by_parts && (out.store_ref.empty() || out.protocol_ref.empty())))
    return refuse(out.layer.origin, "set either " + std::string(k_key_storage_class) + ", or both " +
                                        std::string(k_key_store_ref) + " and " +
                                        std::string(k_key_protocol_ref));
  return out;
}

std::optional<std::string> incompatibility(const Backend& backend, const Protocol& protocol) {
  if (backend.is_block() == protocol.is_block()) return std::nullopt;
  return "backend " + std::string(backend.type()) + " holds " +
         (backend.is_block() ? "block devices" : "files") + " but protocol " + std::string(protocol.type()) +
         " serves " + (protocol.is_block() ? "block devices" : "files") +
         "; combine block backends with nvmeofTcp or iscsi, file "
         "backends with nfs";
}

Result<Resolved> resolve(const Backend& backend, const Protocol& protocol,
                         const std::vector<SettingsLayer>& layers) {
  if (const auto why = incompatibility(backend, protocol))
    return fail(Reason::invalid_argument, Code::failed_precondition, *why);
  Resolved out{backend, protocol, {}};
  std::string origins = "store and protocol";
  for (const auto& layer : layers) {
    origins += " < " + layer.origin;
    if (layer.backend)
      if (const auto problem = merge(out.backend, *layer.backend)) return refuse(layer.origin, *problem);
    if (layer.protocol)
      if (const auto problem = merge(out.protocol, *layer.protocol)) return refuse(layer.origin, *problem);
    if (layer.filesystem.fs_type) out.filesystem.fs_type = *layer.filesystem.fs_type;
    if (layer.filesystem.mkfs_options) out.filesystem.mkfs_options = *layer.filesystem.mkfs_options;
    if (layer.filesystem.mount_options) out.filesystem.mount_options = *layer.filesystem.mount_options;
  }
  // The kernel refuses a reconnect delay of 0; manifests use it for "the kernel's own".
  if (out.protocol.nvmeof_tcp && out.protocol.nvmeof_tcp->reconnect_delay == 0)
    out.protocol.nvmeof_tcp->reconnect_delay.reset();
  if (const auto errors = check_resolved(out); !errors.empty())
    return tl::unexpected(to_error("settings of " + origins, errors));
  return out;
}

}  // namespace pillar::crd
