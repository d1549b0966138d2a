// The agent client over real gRPC on the loopback address.

#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <future>

#include "actors/controller/agent_client_grpc.hpp"
#include "messages/agent.grpc.pb.h"

namespace pillar::controller {
namespace {

class Service final : public pb::Agent::Service {
  grpc::Status HealthCheck(grpc::ServerContext*, const pb::HealthCheckRequest*,
                           pb::HealthCheckResponse* response) override {
    response->set_epoch("e1");
    return grpc::Status::OK;
  }
};

/// Sets environment variables and takes them away again.
class Environment {
 public:
  Environment(std::vector<const char*> names, const char* value) : names_(std::move(names)) {
    for (const char* name : names_) ::setenv(name, value, 1);
  }
  ~Environment() {
    for (const char* name : names_) ::unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<const char*> names_;
};

}  // namespace

TEST_CASE("the last client of all may be dropped by the end of a call") {
  for (int i = 0; i < 20; ++i) {
    auto client = grpc_agent_factory()("store-1", "unix:/dev/null");
    auto* const asked = client.get();
    std::promise<void> ended;
    asked->call(pb::HealthCheckRequest(), Deadline::after(std::chrono::seconds(20)),
                [&ended, client = std::move(client)](const Result<pb::HealthCheckResponse>& answer) mutable {
                  CHECK(answer.error().code == Code::unavailable);
                  client.reset();
                  ended.set_value();
                });
    ended.get_future().wait();
  }
}

TEST_CASE("agents are dialled directly, whatever proxy the environment names") {
  Service service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  REQUIRE(port != 0);
  const Environment proxy({"grpc_proxy", "https_proxy", "http_proxy"}, "http://127.0.0.1:1");
  const auto client = grpc_agent_factory()("store-1", "127.0.0.1:" + std::to_string(port));
  std::promise<Result<pb::HealthCheckResponse>> answer;
  client->call(pb::HealthCheckRequest(), Deadline::after(std::chrono::seconds(20)),
               [&](Result<pb::HealthCheckResponse> result) { answer.set_value(std::move(result)); });
  const auto health = answer.get_future().get();
  REQUIRE_MESSAGE(health.has_value(), (health ? "" : health.error().message));
  CHECK(health->epoch() == "e1");
}

}  // namespace pillar::controller
