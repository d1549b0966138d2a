#pragma once
// The kubelet's plugin registration, served by the node program itself in place of a registrar beside it.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "csi/server.hpp"
#include "messages/pluginregistration.grpc.pb.h"

namespace pillar::csi_front {

/// Where the kubelet is to find the registration socket of `driver`: `<directory>/<driver>-reg.sock`.
/// INVALID_ARGUMENT when that is no absolute path or too long for a socket.
Result<Endpoint> registration_endpoint(const std::string& directory, const std::string& driver);

/// Tells the kubelet what this plugin is. The kubelet asks whenever the socket appears or the kubelet starts,
/// and repeats with its own back-off what failed; nothing has to be renewed from this side.
class RegistrationService final : public pluginregistration::Registration::CallbackService {
 public:
  /// The kubelet's verdict; `error` is empty when it took the plugin. Called on any thread; must not block.
  using Verdict = std::function<void(bool registered, const std::string& error)>;

  /// `csi_socket` is the path of the socket with the CSI Node service, as the kubelet sees it.
  RegistrationService(std::string driver, std::string csi_socket, Verdict verdict);

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                    const pluginregistration::InfoRequest* request,
                                    pluginregistration::PluginInfo* response) override;
  grpc::ServerUnaryReactor* NotifyRegistrationStatus(
      grpc::CallbackServerContext* context, const pluginregistration::RegistrationStatus* request,
      pluginregistration::RegistrationStatusResponse* response) override;

 private:
  const std::string driver_;
  const std::string csi_socket_;
  const Verdict verdict_;
};

}  // namespace pillar::csi_front
