#pragma once
// How pillar-node makes itself known to the kubelet (--kubelet-registration-dir).

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/runtime/cell.hpp"
#include "csi/registration.hpp"

namespace pillar::tools {

/// The registration socket, what it answers, and what the kubelet said of it. Thread-safe.
class KubeletRegistration {
 public:
  /// `directory` is the kubelet's plugins_registry folder. The kubelet is sent to the first unix socket of
  /// `listen`, under the path that is given there; without one: INVALID_ARGUMENT.
  static Result<std::unique_ptr<KubeletRegistration>> make(const std::string& directory,
                                                           const std::vector<csi_front::Endpoint>& listen,
                                                           const runtime::Services& services);

  const csi_front::Endpoint& endpoint() const { return endpoint_; }
  grpc::Service* service() { return &service_; }
  /// Why the kubelet does not use this plugin.
  Result<void> ready() const;

 private:
  KubeletRegistration(csi_front::Endpoint endpoint, std::string csi_socket,
                      const runtime::Services& services);
  void take(bool registered, const std::string& error);

  const csi_front::Endpoint endpoint_;
  csi_front::RegistrationService service_;
  runtime::Gauge& registered_gauge_;
  mutable std::mutex mutex_;
  bool registered_ = false;
  std::string error_;
};

}  // namespace pillar::tools
