#pragma once
// The rules of docs/interfaces.md section 1: what the CRD schema and its CEL rules say, once in C++. Used by
// the embedded store on every write and by `pillarctl validate`.

#include <optional>
#include <string_view>

#include "crd/object.hpp"
#include "crd/types.hpp"

namespace pillar::crd {

/// Checks a write of metadata and spec: shape, defaults, ranges, unions, and, when `stored` is given,
/// immutability against it. Returns the object with its spec in canonical form (defaults filled in); status
/// is left as it is.
tl::expected<Object, FieldErrors> admit(const Object& fresh, const Object* stored);

/// Checks a write of status against the stored object. Returns the canonical status.
tl::expected<Doc, FieldErrors> admit_status(const Object& fresh, const Object& stored);

/// The two above for a whole new object.
tl::expected<Object, FieldErrors> admit_new(const Object& fresh);

/// Rules within one spec; paths start at "spec".
FieldErrors validate(const AgentSpec& spec);
FieldErrors validate(const StoreSpec& spec);
FieldErrors validate(const ProtocolSpec& spec);
FieldErrors validate(const StorageClassSpec& spec);
FieldErrors validate(const VolumeSpec& spec);

/// Rules of a change from `before` to `after`: what must stay.
FieldErrors validate_change(const AgentSpec& before, const AgentSpec& after);
FieldErrors validate_change(const StoreSpec& before, const StoreSpec& after);
FieldErrors validate_change(const ProtocolSpec& before, const ProtocolSpec& after);
FieldErrors validate_change(const StorageClassSpec& before, const StorageClassSpec& after);
FieldErrors validate_change(const VolumeSpec& before, const VolumeSpec& after);

/// Name, labels, annotations and finalizers.
FieldErrors validate_metadata(const Metadata& metadata);

/// "10.0.0.0/8" or "fd00::/8".
bool is_cidr(std::string_view text);

/// CSI names of the access modes we serve.
bool is_access_mode(std::string_view text);

}  // namespace pillar::crd
