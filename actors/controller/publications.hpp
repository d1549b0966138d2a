#pragma once
// Who may have access to a volume: the table of docs/fencing.md section 4 as plain functions over the record.

#include <string>
#include <string_view>
#include <vector>

#include "crd/types.hpp"
#include "messages/access_modes.hpp"

namespace pillar::controller {

/// What ControllerPublishVolume asks, after the node id was resolved.
struct PublishRequest {
  std::string node_id;
  std::string initiator_id;  ///< host NQN
  AccessMode mode = AccessMode::single_node_writer;
  bool readonly = false;
};

/// A publish that is granted.
enum class PublishGrant {
  add,      ///< a new entry has to be recorded first
  reissue,  ///< the entry exists already; access is granted again under a new generation
};

/// Decides a publish against the record. `volume` names it in messages. Refusals: deleting LIFECYCLE_ENDING;
/// same node revoking REVOKING (ABORTED), with another host identity STILL_PUBLISHED, with another mode or
/// readonly ALREADY_EXISTS; other node PUBLISHED_ELSEWHERE naming it; one host NQN under two node ids
/// HOST_NQN_DUPLICATE naming both (reported-faults row B02).
Result<PublishGrant> decide_publish(std::string_view volume, const crd::VolumeStatus& status,
                                    const PublishRequest& request);

/// Records the entry of a granted publish (no change for reissue).
void record_publish(crd::VolumeStatus& status, const PublishRequest& request);

/// Marks the entries of `node_id` (every entry when empty) as revoking and returns them. Empty: nothing is
/// published there, so there is nothing to revoke.
std::vector<crd::PublishedNode> mark_revoking(crd::VolumeStatus& status, std::string_view node_id);

/// Drops entries whose access the agent has confirmed to have ended. Only revoking entries go, so that a
/// concurrent re-publish is never lost.
void drop_revoked(crd::VolumeStatus& status, const std::vector<crd::PublishedNode>& revoked);

/// "node-a, node-b" in record order, for messages.
std::string node_list(const crd::VolumeStatus& status);

}  // namespace pillar::controller
