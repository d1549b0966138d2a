#include "csi/registration.hpp"

#include <utility>

namespace pillar::csi_front {
namespace {

/// Version of the CSI interface as the kubelet compares it: by its major number.
constexpr const char* k_csi_interface = "1.0.0";

grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace

Result<Endpoint> registration_endpoint(const std::string& directory, const std::string& driver) {
  if (!directory.starts_with('/'))
    return fail(Reason::invalid_argument, "registration folder '" + directory + "' is not an absolute path");
  return Endpoint::parse(directory + "/" + driver + "-reg.sock");
}

RegistrationService::RegistrationService(std::string driver, std::string csi_socket, Verdict verdict)
    : driver_(std::move(driver)), csi_socket_(std::move(csi_socket)), verdict_(std::move(verdict)) {}

grpc::ServerUnaryReactor* RegistrationService::GetInfo(grpc::CallbackServerContext* context,
                                                       const pluginregistration::InfoRequest*,
                                                       pluginregistration::PluginInfo* response) {
  response->set_type("CSIPlugin");
  response->set_name(driver_);
  response->set_endpoint(csi_socket_);
  response->add_supported_versions(k_csi_interface);
  return finish(context);
}

grpc::ServerUnaryReactor* RegistrationService::NotifyRegistrationStatus(
    grpc::CallbackServerContext* context, const pluginregistration::RegistrationStatus* request,
    pluginregistration::RegistrationStatusResponse*) {
  verdict_(request->plugin_registered(), request->error());
  return finish(context);
}

}  // namespace pillar::csi_front
