#pragma once
// pillar-node as a program's service, whatever host it stands on.

#include <memory>
#include <utility>

#include "actors/node/node.hpp"
#include "csi/services.hpp"
#include "tools/kubelet_registration.hpp"
#include "tools/program.hpp"

namespace pillar::tools {

class NodeService final : public Service {
 public:
  /// `registration` is null when the kubelet learns of this plugin in another way.
  NodeService(std::unique_ptr<node::NodeApp> app, const runtime::Services& services,
              std::unique_ptr<KubeletRegistration> registration = nullptr)
      : app_(std::move(app)),
        identity_(*app_, call_metrics(services.metrics, "csi")),
        node_(*app_, call_metrics(services.metrics, "csi")),
        registration_(std::move(registration)) {}

  std::vector<grpc::Service*> grpc_services() override {
    std::vector<grpc::Service*> services{&identity_, &node_};
    if (registration_) services.push_back(registration_->service());
    return services;
  }
  std::vector<csi_front::Endpoint> further_endpoints() override {
    if (!registration_) return {};
    return {registration_->endpoint()};
  }
  Result<void> ready() override {
    if (auto seen = app_->ready(); !seen) return seen;
    return registration_ ? registration_->ready() : Result<void>();
  }
  bool stop(Clock::duration limit) override { return app_->shutdown(limit); }

 private:
  std::unique_ptr<node::NodeApp> app_;
  csi_front::IdentityService<node::NodeApp> identity_;
  csi_front::NodeService<node::NodeApp> node_;
  std::unique_ptr<KubeletRegistration> registration_;
};

}  // namespace pillar::tools
