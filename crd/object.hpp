#pragma once
// The generic form of every stored resource, as Kubernetes shapes it: type, metadata, spec, status. The typed
// forms are in crd/types.hpp.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "messages/error.hpp"

namespace pillar::crd {

/// Group and version of all kinds.
inline constexpr std::string_view k_api_version = "pillar-csi.bhyoo.com/v1alpha1";

/// The kinds of docs/interfaces.md section 1; all are cluster-scoped.
enum class Kind : std::uint8_t { agent, store, protocol, storage_class, volume };
inline constexpr Kind k_kinds[] = {Kind::agent, Kind::store, Kind::protocol, Kind::storage_class,
                                   Kind::volume};

/// How a kind is written.
struct KindInfo {
  std::string_view kind;        ///< PillarAgent
  std::string_view singular;    ///< pillaragent
  std::string_view plural;      ///< pillaragents
  std::string_view short_name;  ///< pa
};
/// Names of `kind`; total over the enum.
const KindInfo& info(Kind kind) noexcept;
/// "PillarAgent" and so on.
inline std::string_view to_string(Kind kind) noexcept { return info(kind).kind; }
/// The kind whose `kind` field is exactly `name`; INVALID_ARGUMENT naming the known ones.
Result<Kind> kind_from_string(std::string_view name);
/// The kind for a command-line word: kind, singular, plural or short name in any letter case.
Result<Kind> kind_from_word(std::string_view word);

/// An immutable JSON value, cheap to copy between threads. Holds an object unless someone stored otherwise.
class Doc {
 public:
  Doc();  ///< the empty object
  /// A document holding `value`. Not a constructor, so that JSON never converts by accident.
  static Doc of(nlohmann::json value);
  /// Parses JSON text; STATE_CORRUPT when it is not JSON (stored text is always ours).
  static Result<Doc> parse(std::string_view text);

  const nlohmann::json& json() const { return *value_; }
  /// Compact JSON text.
  std::string dump() const;
  bool empty() const;
  friend bool operator==(const Doc& a, const Doc& b);

 private:
  explicit Doc(std::shared_ptr<const nlohmann::json> value) : value_(std::move(value)) {}
  std::shared_ptr<const nlohmann::json> value_;
};

/// Who owns an object.
struct OwnerReference {
  std::string api_version;
  std::string kind;
  std::string name;
  std::string uid;
  bool controller = false;
  bool block_owner_deletion = false;
  friend bool operator==(const OwnerReference&, const OwnerReference&) = default;
};

/// Kubernetes object metadata, the part we use. Times are RFC 3339 in UTC with whole seconds.
struct Metadata {
  std::string name;
  std::string uid;               ///< set by the store; one life of the name
  std::string resource_version;  ///< opaque; set by the store, compared on update
  std::int64_t generation = 0;   ///< set by the store; rises when spec changes and when deletion begins
  std::string creation_timestamp;
  std::string deletion_timestamp;  ///< empty: not being deleted
  std::vector<std::string> finalizers;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::vector<OwnerReference> owner_references;

  bool deleting() const { return !deletion_timestamp.empty(); }
  bool has_finalizer(std::string_view finalizer) const;
  /// Adds or removes a finalizer; true when that changed something.
  bool add_finalizer(std::string_view finalizer);
  bool remove_finalizer(std::string_view finalizer);
  friend bool operator==(const Metadata&, const Metadata&) = default;
};

/// A stored resource.
struct Object {
  Kind kind = Kind::agent;
  Metadata metadata;
  Doc spec;
  Doc status;
  friend bool operator==(const Object&, const Object&) = default;
};

/// One rejected field.
struct FieldError {
  std::string path;     ///< spec.backend.lvm.volumeGroup, metadata.annotations[a/b]
  std::string value;    ///< the value seen as JSON, shortened; empty when the field is missing
  std::string problem;  ///< what is wrong and what is accepted
  friend bool operator==(const FieldError&, const FieldError&) = default;
};
using FieldErrors = std::vector<FieldError>;

/// "path: value: problem".
std::string to_string(const FieldError& error);
/// INVALID_ARGUMENT for `subject` ("PillarStore/fast") listing every field error; details carry `field` (the
/// first path). `errors` must not be empty.
Error to_error(std::string_view subject, const FieldErrors& errors);

/// Full JSON form (apiVersion, kind, metadata, spec, status); empty parts are left out.
nlohmann::json to_json(const Object& object);
/// Parses the full JSON form strictly: unknown top-level or metadata keys, a wrong type, another apiVersion
/// or an unknown kind are INVALID_ARGUMENT with the field path. `managedFields` and other server-side
/// metadata that Kubernetes adds are ignored. Spec and status are taken as they are; see
/// crd/validation.hpp.
Result<Object> object_from_json(const nlohmann::json& value);
/// As above, with every field error kept separately.
tl::expected<Object, FieldErrors> parse_object(const nlohmann::json& value);

/// "PillarStore/fast", the way messages name an object.
std::string subject(Kind kind, std::string_view name);
inline std::string subject(const Object& object) { return subject(object.kind, object.metadata.name); }

/// The present time as metadata stores it.
std::string timestamp_now();
/// Seconds since the epoch of a metadata timestamp; nothing when it is malformed.
std::optional<std::int64_t> timestamp_seconds(std::string_view text);

}  // namespace pillar::crd
