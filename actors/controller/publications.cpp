#include "actors/controller/publications.hpp"

#include <algorithm>

namespace pillar::controller {
namespace {

using crd::PublishedNode;

bool is_rox(std::string_view mode) { return access_mode_from(mode) == AccessMode::multi_node_reader_only; }

Result<PublishGrant> decide_same_node(const std::string& volume, const PublishedNode& entry,
                                      const PublishRequest& request) {
  const std::string where = "volume " + volume + " on node " + entry.node_id;
  if (entry.revoking)
    return fail(Reason::revoking, where + " is being unpublished; repeat once that has finished");
  if (entry.initiator_id != request.initiator_id)
    return fail(Reason::still_published, where + " is published to host NQN " + entry.initiator_id +
                                             " but the node now presents " + request.initiator_id +
                                             "; unpublish it first");
  if (access_mode_from(entry.access_mode) != request.mode || entry.readonly != request.readonly)
    return fail(Reason::already_exists, where + " is published as " + entry.access_mode +
                                            (entry.readonly ? " readonly" : " read-write") + ", asked for " +
                                            std::string(to_string(request.mode)) +
                                            (request.readonly ? " readonly" : " read-write") +
                                            "; unpublish it first");
  return PublishGrant::reissue;
}

}  // namespace

Result<PublishGrant> decide_publish(std::string_view volume, const crd::VolumeStatus& status,
                                    const PublishRequest& request) {
  const std::string name(volume);
  if (status.deleting)
    return fail(Reason::lifecycle_ending, "volume " + name + " is being deleted; it cannot be published");
  const auto& entries = status.published_nodes;
  const auto own = std::find_if(entries.begin(), entries.end(),
                                [&](const auto& entry) { return entry.node_id == request.node_id; });
  if (own != entries.end()) return decide_same_node(name, *own, request);
  for (const auto& entry : entries) {
    if (entry.initiator_id == request.initiator_id)
      return fail(Reason::host_nqn_duplicate,
                  "nodes " + entry.node_id + " and " + request.node_id + " present the same host NQN " +
                      request.initiator_id + "; give each node its own /etc/nvme/hostnqn",
                  {{"node", entry.node_id}, {"other_node", request.node_id}});
    if (!is_rox(entry.access_mode) || request.mode != AccessMode::multi_node_reader_only)
      return fail(Reason::published_elsewhere,
                  "volume " + name + " is published to node " + entry.node_id + " as " + entry.access_mode +
                      (entry.revoking ? " (being unpublished)" : "") + "; unpublish it there first",
                  {{"node", entry.node_id}});
  }
  return PublishGrant::add;
}

void record_publish(crd::VolumeStatus& status, const PublishRequest& request) {
  auto& entries = status.published_nodes;
  const bool known = std::any_of(entries.begin(), entries.end(),
                                 [&](const auto& entry) { return entry.node_id == request.node_id; });
  if (known) return;
  PublishedNode entry;
  entry.node_id = request.node_id;
  entry.initiator_id = request.initiator_id;
  entry.access_mode = std::string(to_string(request.mode));
  entry.readonly = request.readonly;
  entries.push_back(std::move(entry));
}

std::vector<PublishedNode> mark_revoking(crd::VolumeStatus& status, std::string_view node_id) {
  std::vector<PublishedNode> chosen;
  for (auto& entry : status.published_nodes) {
    if (!node_id.empty() && entry.node_id != node_id) continue;
    entry.revoking = true;
    chosen.push_back(entry);
  }
  return chosen;
}

void drop_revoked(crd::VolumeStatus& status, const std::vector<PublishedNode>& revoked) {
  std::erase_if(status.published_nodes, [&](const PublishedNode& entry) {
    return entry.revoking && std::any_of(revoked.begin(), revoked.end(),
                                         [&](const auto& each) { return each.node_id == entry.node_id; });
  });
}

std::string node_list(const crd::VolumeStatus& status) {
  std::string list;
  for (const auto& entry : status.published_nodes) list += (list.empty() ? "" : ", ") + entry.node_id;
  return list;
}

}  // namespace pillar::controller
