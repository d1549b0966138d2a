#pragma once
// Nodes of a Kubernetes cluster: the CSI node id is the node's name, and its host NQN is what its pillar-node
// has written to the CSINode object of that name.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/controller/ports.hpp"
#include "crd/kube/client.hpp"
#include "crd/kube/mirror.hpp"

namespace pillar::controller {

/// Annotation of CSINode with the host NQN (docs/interfaces.md section 3).
inline constexpr std::string_view k_host_nqn_annotation = "pillar-csi.bhyoo.com/nvmeof-host-nqn";

/// What is known of the nodes. Any thread.
class NodeTable {
 public:
  /// A node with its NQN, empty: it has published none.
  void set(const std::string& name, const std::string& nqn);
  void remove(const std::string& name);
  /// Nothing: the table is complete; otherwise why it may not be.
  void set_state(std::optional<Error> state);

  /// NOT_FOUND for a node that does not exist, HOST_NQN_MISSING when it has published no valid NQN,
  /// HOST_NQN_DUPLICATE when another node has published the same (reported-faults row B02), STORE_UNAVAILABLE
  /// for an unknown node while the table may be incomplete.
  Result<std::string> initiator(const std::string& name) const;

 private:
  mutable std::mutex mutex_;  ///< guards what follows
  std::map<std::string, std::string> nodes_;
  std::optional<Error> state_ = Error{Code::unavailable, Reason::store_unavailable, "not listed yet", {}};
};

/// Follows the CSINode objects of a cluster.
class CsiNodes final : public NodeDirectory {
 public:
  explicit CsiNodes(const std::shared_ptr<crd::kube::Client>& client);
  Result<std::string> initiator(const std::string& node_id) const override {
    return table_.initiator(node_id);
  }

 private:
  NodeTable table_;
  crd::kube::Mirror mirror_;  ///< after the table, which it fills
};

}  // namespace pillar::controller
