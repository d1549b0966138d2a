#pragma once
// One pass over the configuration objects: writes conditions, capacity and finalizers where they differ from
// what the catalogue says they should be.

#include <memory>

#include "actors/controller/catalog.hpp"
#include "actors/controller/ports.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {

/// Goes over everything; yields the first failure (a conflict, an absent store) after having tried the rest,
/// so that one bad object does not stop the others.
Task<Result<void>> reconcile_configuration(runtime::OperationContext context, Ports ports,
                                           std::shared_ptr<Catalog> catalog);

}  // namespace pillar::controller
