#pragma once
// A collection of any resource, followed: list, watch, and after a gap in the history a new list whose
// difference is told as changes, deletions included. For resources that are not ours (Node, CSINode); our own
// kinds go through the store, whose followers keep their state themselves.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "crd/kube/client.hpp"

namespace pillar::crd::kube {

class Mirror {
 public:
  /// Called on the client thread.
  struct Handler {
    /// An object is new or has changed.
    std::function<void(const nlohmann::json& object)> on_set;
    /// An object is gone, seen or concluded from a complete list. Never from a server that does not answer,
    /// or one that does not have the resource type.
    std::function<void(const std::string& name)> on_removed;
    /// Everything that exists has been told (nothing), or the server cannot be followed at present.
    std::function<void(const std::optional<Error>&)> on_state;
  };

  /// `path` is the collection of a cluster-scoped resource, or of one namespace; `subject` names it in
  /// messages.
  Mirror(std::shared_ptr<Client> client, std::string path, std::string subject, Handler handler);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  /// No handler runs afterwards.
  ~Mirror();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace pillar::crd::kube
