#pragma once
// pillar-agent as a program's service, whatever host it stands on.

#include <memory>
#include <utility>

#include "actors/agent/agent.hpp"
#include "csi/services.hpp"
#include "tools/program.hpp"

namespace pillar::tools {

/// Ready once the controller's first complete list was heard.
class AgentService final : public Service {
 public:
  AgentService(std::unique_ptr<agent::AgentApp> app, const runtime::Services& services)
      : app_(std::move(app)), service_(*app_, call_metrics(services.metrics, "agent")) {}

  std::vector<grpc::Service*> grpc_services() override { return {&service_}; }
  Result<void> ready() override {
    if (app_->gated())
      return fail(Reason::restore_pending, "exports wait for the controller's first complete list");
    return {};
  }
  bool stop(Clock::duration limit) override { return app_->shutdown(limit); }

 private:
  std::unique_ptr<agent::AgentApp> app_;
  csi_front::AgentService<agent::AgentApp> service_;
};

}  // namespace pillar::tools
