#pragma once
// Leader election by a Lease (coordination.k8s.io/v1). Holding it makes two active controllers rare, not
// impossible: a paused process does not notice that its time is over. What must never happen twice is guarded
// by comparison of resource versions and by fencing (docs/fencing.md).

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "crd/kube/client.hpp"

namespace pillar::crd::kube {

struct LeaseOptions {
  std::string name = "pillar-controller";
  std::string name_space;                     ///< empty: the client's
  std::string identity;                       ///< who we are; unique per process
  std::chrono::milliseconds duration{15000};  ///< others wait so long after the last renewal they saw
  std::chrono::milliseconds renew{5000};      ///< between renewals, and between attempts to get it
  /// A holder that could not renew for so long stops; must be well below `duration`.
  std::chrono::milliseconds give_up{10000};
};

/// Tries to hold the lease until it is destroyed, which releases it when it is held.
class LeaseHolder {
 public:
  struct Handler {
    std::function<void()> on_acquired;
    /// The lease is not ours any more, or might not be. We go on trying.
    std::function<void(const Error&)> on_lost;
  };

  /// Handlers run on the client thread.
  LeaseHolder(std::shared_ptr<Client> client, LeaseOptions options, Handler handler);
  LeaseHolder(const LeaseHolder&) = delete;
  LeaseHolder& operator=(const LeaseHolder&) = delete;
  /// No handler runs afterwards. Waits for the release, a second at most.
  ~LeaseHolder();

  /// Whether the lease is held now, by our own clock.
  bool held() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace pillar::crd::kube
