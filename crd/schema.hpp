#pragma once
// The CustomResourceDefinitions of our kinds, made from the C++ types: fields, types, ranges, enums and
// defaults come from the descriptions that read and write them (crd/types.cpp), names and CEL rules from
// crd/schema.cpp. charts/crds holds the result (`pillarctl crds`); tests keep the two equal and prove on a
// real API server that it judges as crd/validation.hpp does.

#include <nlohmann/json_fwd.hpp>

#include "crd/object.hpp"

namespace pillar::crd {

/// The CustomResourceDefinition of `kind` (apiextensions.k8s.io/v1).
nlohmann::json definition_of(Kind kind);

}  // namespace pillar::crd
