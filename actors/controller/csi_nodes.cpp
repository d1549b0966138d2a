#include "actors/controller/csi_nodes.hpp"

#include <nlohmann/json.hpp>

#include "messages/ids.hpp"

namespace pillar::controller {
namespace {

std::string annotation_of(const nlohmann::json& node) {
  static const nlohmann::json::json_pointer k_path("/metadata/annotations");
  if (!node.contains(k_path) || !node[k_path].is_object()) return {};
  const auto& annotations = node[k_path];
  const auto it = annotations.find(std::string(k_host_nqn_annotation));
  return it != annotations.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::string name_of(const nlohmann::json& node) { return node.at("metadata").at("name").get<std::string>(); }

}  // namespace

void NodeTable::set(const std::string& name, const std::string& nqn) {
  const std::lock_guard lock(mutex_);
  nodes_[name] = nqn;
}

void NodeTable::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  nodes_.erase(name);
}

void NodeTable::set_state(std::optional<Error> state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

Result<std::string> NodeTable::initiator(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(name);
  if (found == nodes_.end() && state_)
    return fail(Reason::store_unavailable, "node '" + name.substr(0, 253) +
                                               "' is not known, and the nodes cannot be " +
                                               "looked up now (" + state_->message + ")");
  if (found == nodes_.end())
    return fail(Reason::not_found, "node '" + name.substr(0, 253) +
                                       "' does not exist: there is no CSINode of this name, so no driver has "
                                       "registered there");
  const auto& nqn = found->second;
  if (!is_valid_nqn(nqn))
    return fail(Reason::host_nqn_missing,
                "node '" + name + "' has published no valid host NQN (CSINode annotation " +
                    std::string(k_host_nqn_annotation) +
                    (nqn.empty() ? " is missing" : " is '" + nqn.substr(0, 80) + "'") +
                    "); see that pillar-node runs there and may patch its CSINode");
  for (const auto& [other, same] : nodes_)
    if (same == nqn && other != name)
      return fail(Reason::host_nqn_duplicate, "nodes '" + name + "' and '" + other +
                                                  "' have the same host NQN " + nqn +
                                                  "; give one of them another /etc/nvme/hostnqn and hostid");
  return nqn;
}

CsiNodes::CsiNodes(const std::shared_ptr<crd::kube::Client>& client)
    : mirror_(client, "/apis/storage.k8s.io/v1/csinodes", "csinodes",
              {[this](const nlohmann::json& node) { table_.set(name_of(node), annotation_of(node)); },
               [this](const std::string& name) { table_.remove(name); },
               [this](const std::optional<Error>& state) { table_.set_state(state); }}) {}

}  // namespace pillar::controller
