#pragma once
// What a CreateVolume asked for, in a form that can be stored and compared: a repeat must mean the same
// volume, and only differences that matter count (reported-faults rows K09, K10, J06).

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/controller/sizes.hpp"
#include "crd/types.hpp"
#include "messages/access_modes.hpp"
#include "messages/csi.pb.h"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::controller {

/// The normalised wishes of one CreateVolume, stored with the record.
struct CreateWishes {
  SizeRange size;
  std::vector<std::string> capabilities;          ///< "SINGLE_NODE_WRITER/mount/ext4", sorted, unique
  std::map<std::string, std::string> parameters;  ///< without the orchestrator's bookkeeping keys
  friend bool operator==(const CreateWishes&, const CreateWishes&) = default;
};

/// Text form for the record's annotation, and back (STATE_CORRUPT for text that is not ours).
std::string to_text(const CreateWishes& wishes);
Result<CreateWishes> wishes_from_text(std::string_view text);

/// The shape of a CreateVolume request: checks name, capabilities, capacity range and content source without
/// looking anything up. INVALID_ARGUMENT, OUT_OF_RANGE; NOT_FOUND for a content source, which nothing can
/// have made yet; unknown mutable_parameters INVALID_ARGUMENT.
Result<CreateWishes> check_create_request(const ::csi::v1::CreateVolumeRequest& request);

/// The parameters that matter: without `csi.storage.k8s.io/{pvc,pv}/...`.
std::map<std::string, std::string> normalised_parameters(
    const google::protobuf::Map<std::string, std::string>& parameters);

/// The one file system type that the capabilities name, if any; INVALID_ARGUMENT for two different ones.
Result<std::string> requested_fs_type(const ::csi::v1::CreateVolumeRequest& request);

/// Everything that is needed to make a volume, resolved once.
struct CreatePlan {
  VolumeId id;
  crd::VolumeSpec spec;
  std::map<std::string, std::string> origin;  ///< annotations that name store, protocol and class
  CreateWishes wishes;
  /// Why nothing new can be made now; a finished volume is answered, and one that was begun goes on.
  std::optional<Error> blocked;
  /// What blocks is the state of the agent, which may only be out of reach.
  bool waits_for_agent = false;
};

/// Whether the record `state` is what `plan` asks for: ALREADY_EXISTS naming what differs. A record that is
/// not created yet is compared by the size that it will have at least.
Result<void> check_compatible(const crd::VolumeState& state, const CreatePlan& plan);

/// The record a plan starts with: Provisioning, generation 1.
crd::VolumeState new_record(const CreatePlan& plan);

}  // namespace pillar::controller
