#pragma once
// Conditions, capacity and deletion protection of the configuration objects, as pure functions of the
// catalogue (docs/interfaces.md section 1). The reconciler writes only where the outcome differs from what is
// stored.

#include <string_view>

#include "actors/controller/catalog.hpp"
#include "actors/controller/protection.hpp"

namespace pillar::controller {

/// Reason of a store's conditions while its agent exists and is not Ready, whatever the agent's own reason
/// is.
inline constexpr std::string_view k_agent_not_ready = "AgentNotReady";

// Status that an object should have. Fields and conditions that others own stay as they are.
crd::StoreStatus wanted_status(const crd::PillarStore& store, const CatalogView& view,
                               const VolumeIndex& volumes);
crd::ProtocolStatus wanted_status(const crd::PillarProtocol& protocol, const CatalogView& view,
                                  const VolumeIndex& volumes);
crd::StorageClassStatus wanted_status(const crd::PillarStorageClass& storage_class, const CatalogView& view,
                                      const VolumeIndex& volumes);

/// The finalizer of an object of a kind.
std::string_view protection_finalizer(crd::Kind kind);

/// What has to be done to the finalizers of an object.
enum class Protection : std::uint8_t {
  keep,     ///< as it should be
  add,      ///< protect a living object
  release,  ///< it is being deleted and nothing depends on it any more
};
Protection wanted_protection(const crd::Metadata& metadata, std::string_view finalizer, bool has_dependents);

}  // namespace pillar::controller
