#pragma once
// pillar-node as a program's service, whatever host it stands on.

#include <memory>
#include <utility>

#include "actors/node/node.hpp"
#include "csi/services.hpp"
#include "tools/program.hpp"

namespace pillar::tools {

class NodeService final : public Service {
 public:
  NodeService(std::unique_ptr<node::NodeApp> app, const runtime::Services& services)
      : app_(std::move(app)),
        identity_(*app_, call_metrics(services.metrics, "csi")),
        node_(*app_, call_metrics(services.metrics, "csi")) {}

  std::vector<grpc::Service*> grpc_services() override { return {&identity_, &node_}; }
  Result<void> ready() override { return {}; }
  bool stop(Clock::duration limit) override { return app_->shutdown(limit); }

 private:
  std::unique_ptr<node::NodeApp> app_;
  csi_front::IdentityService<node::NodeApp> identity_;
  csi_front::NodeService<node::NodeApp> node_;
};

}  // namespace pillar::tools
