#pragma once
// From StorageClass parameters to settled facts: which store, protocol and agent, which settings. Read once
// at CreateVolume and then recorded (docs/interfaces.md section 2).

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/controller/create_params.hpp"
#include "actors/controller/ports.hpp"
#include "actors/runtime/operation_queue.hpp"

namespace pillar::controller {

/// The objects behind a set of parameters.
struct Sources {
  std::string storage_class;  ///< empty when store and protocol were named directly
  crd::PillarStore store;
  crd::PillarProtocol protocol;
  crd::Resolved resolved;
};

/// Reads and merges what `parameters` name. INVALID_ARGUMENT for parameters that do not parse,
/// DEPENDENCY_MISSING naming an object that does not exist. `fs_type` is the one that the volume capabilities
/// ask for, empty: none.
Task<Result<Sources>> read_sources(Ports ports, std::map<std::string, std::string> parameters,
                                   std::string fs_type);

/// Everything CreateVolume needs, or why it cannot be: the shape checks of check_create_request, the
/// parameters resolved, topology and mount flags checked. Nothing is written.
Task<Result<CreatePlan>> plan_create(Ports ports,
                                     std::shared_ptr<const ::csi::v1::CreateVolumeRequest> request);

/// GetCapacity (docs/interfaces.md section 4): without parameters the sum over all stores that are ready; an
/// unknown class NOT_FOUND; a topology that cannot reach the volumes 0 bytes.
Task<Result<::csi::v1::GetCapacityResponse>> get_capacity(
    runtime::OperationContext context, Ports ports,
    std::shared_ptr<const ::csi::v1::GetCapacityRequest> request);

}  // namespace pillar::controller
