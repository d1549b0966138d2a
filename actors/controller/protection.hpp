#pragma once
// What still depends on an object: deletion protection by finalizers (docs/interfaces.md section 1).

#include <string>
#include <string_view>

#include "actors/controller/catalog.hpp"
#include "actors/controller/volume_index.hpp"

namespace pillar::controller {

/// Most dependents that a message names.
inline constexpr std::size_t k_named_dependents = 10;

inline constexpr std::string_view k_agent_finalizer = "pillar-csi.bhyoo.com/agent-protection";
inline constexpr std::string_view k_store_finalizer = "pillar-csi.bhyoo.com/store-protection";
inline constexpr std::string_view k_protocol_finalizer = "pillar-csi.bhyoo.com/protocol-protection";
inline constexpr std::string_view k_class_finalizer = "pillar-csi.bhyoo.com/storage-class-protection";

/// "PillarStore/fast, volume a/b and 3 more"; empty when there is none.
std::string describe(const VolumeIndex::Dependents& dependents);

// Dependents of an object of each kind: other objects first, then volumes.
VolumeIndex::Dependents dependents_of(const crd::PillarAgent& agent, const CatalogView& view,
                                      const VolumeIndex& volumes);
VolumeIndex::Dependents dependents_of(const crd::PillarStore& store, const CatalogView& view,
                                      const VolumeIndex& volumes);
VolumeIndex::Dependents dependents_of(const crd::PillarProtocol& protocol, const CatalogView& view,
                                      const VolumeIndex& volumes);
VolumeIndex::Dependents dependents_of(const crd::PillarStorageClass& storage_class, const CatalogView& view,
                                      const VolumeIndex& volumes);

}  // namespace pillar::controller
