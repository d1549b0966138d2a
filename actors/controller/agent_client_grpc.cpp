#include "actors/controller/agent_client_grpc.hpp"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "messages/agent.grpc.pb.h"
#include "messages/grpc_status.hpp"

namespace pillar::controller {
namespace {

constexpr int k_max_message = 64 * 1024 * 1024;  // a complete list of desired exports
constexpr int k_keepalive_ms = 20'000;
// Between attempts to connect; until the next one every call fails at once. An agent that was restarted is
// back within a second, and one packet every two seconds is nothing to a machine that is down.
constexpr int k_first_backoff_ms = 100;
constexpr int k_max_backoff_ms = 2'000;
// gRPC gives an attempt to connect as long as its "minimum backoff": more than a lost SYN and its
// repeats need. The waits between attempts do not depend on it.
constexpr int k_connect_ms = 5'000;

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  // An agent is a machine of this cluster: a proxy for the way out is not for it.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(k_max_message);
  arguments.SetMaxSendMessageSize(k_max_message);
  // A peer that vanished without a word is noticed while calls are in flight, not only at their deadline.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, k_keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, k_keepalive_ms);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, k_first_backoff_ms);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, k_connect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, k_max_backoff_ms);
  return arguments;
}

/// gRPC runs callbacks on threads that are joined with the last channel that ever made a call with one. A
/// call's end may be what drops that channel, on such a thread, which cannot join itself (gRPC 1.51 then
/// frees its queue twice). A channel that lasts until the program ends, after one call to nowhere, keeps
/// them.
void keep_callback_threads() {
  struct Flight {
    grpc::ClientContext context;
    pb::HealthCheckRequest request;
    pb::HealthCheckResponse response;
  };
  static const auto k_nowhere = [] {
    auto stub = pb::Agent::NewStub(grpc::CreateChannel("unix:/dev/null", grpc::InsecureChannelCredentials()));
    const auto flight = std::make_shared<Flight>();
    stub->async()->HealthCheck(&flight->context, &flight->request, &flight->response,
                               [flight](const grpc::Status&) {});
    return stub;
  }();
}

class GrpcAgentClient final : public AgentClient {
 public:
  GrpcAgentClient(std::string name, std::string target)
      : peer_(std::make_shared<Peer>(Peer{std::move(name), target})),
        stub_(pb::Agent::NewStub(
            grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), channel_arguments()))) {}

  void call(pb::GetCapabilitiesRequest request, Deadline deadline,
            Answer<pb::GetCapabilitiesResponse> done) override {
    start(&pb::Agent::Stub::async_interface::GetCapabilities, std::move(request), deadline, std::move(done));
  }
  void call(pb::HealthCheckRequest request, Deadline deadline,
            Answer<pb::HealthCheckResponse> done) override {
    start(&pb::Agent::Stub::async_interface::HealthCheck, std::move(request), deadline, std::move(done));
  }
  void call(pb::GetCapacityRequest request, Deadline deadline,
            Answer<pb::GetCapacityResponse> done) override {
    start(&pb::Agent::Stub::async_interface::GetCapacity, std::move(request), deadline, std::move(done));
  }
  void call(pb::CreateVolumeRequest request, Deadline deadline,
            Answer<pb::CreateVolumeResponse> done) override {
    start(&pb::Agent::Stub::async_interface::CreateVolume, std::move(request), deadline, std::move(done));
  }
  void call(pb::DeleteVolumeRequest request, Deadline deadline,
            Answer<pb::DeleteVolumeResponse> done) override {
    start(&pb::Agent::Stub::async_interface::DeleteVolume, std::move(request), deadline, std::move(done));
  }
  void call(pb::ExpandVolumeRequest request, Deadline deadline,
            Answer<pb::ExpandVolumeResponse> done) override {
    start(&pb::Agent::Stub::async_interface::ExpandVolume, std::move(request), deadline, std::move(done));
  }
  void call(pb::ExportVolumeRequest request, Deadline deadline,
            Answer<pb::ExportVolumeResponse> done) override {
    start(&pb::Agent::Stub::async_interface::ExportVolume, std::move(request), deadline, std::move(done));
  }
  void call(pb::AllowInitiatorRequest request, Deadline deadline,
            Answer<pb::AllowInitiatorResponse> done) override {
    start(&pb::Agent::Stub::async_interface::AllowInitiator, std::move(request), deadline, std::move(done));
  }
  void call(pb::DenyInitiatorRequest request, Deadline deadline,
            Answer<pb::DenyInitiatorResponse> done) override {
    start(&pb::Agent::Stub::async_interface::DenyInitiator, std::move(request), deadline, std::move(done));
  }
  void call(pb::ReconcileStateRequest request, Deadline deadline,
            Answer<pb::ReconcileStateResponse> done) override {
    start(&pb::Agent::Stub::async_interface::ReconcileState, std::move(request), deadline, std::move(done));
  }
  void call(pb::SeedMarksRequest request, Deadline deadline, Answer<pb::SeedMarksResponse> done) override {
    start(&pb::Agent::Stub::async_interface::SeedMarks, std::move(request), deadline, std::move(done));
  }

 private:
  struct Peer {
    std::string name;
    std::string target;
  };
  /// Everything one call needs until its callback has run; owned by the callback.
  template <class Request, class Response>
  struct Flight {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  static Error failure(const grpc::Status& status, const Peer& peer) {
    Error error = from_status(status);
    // Without ErrorInfo the agent itself has not answered: gRPC could not reach it.
    if (status.error_details().empty() && error.code == Code::unavailable) {
      error.reason = Reason::agent_unavailable;
      error.message = "agent " + peer.name + " at " + peer.target + " cannot be reached: " + error.message;
      return error;
    }
    return with_context(std::move(error), "agent " + peer.name);
  }

  /// The overload of an rpc that takes a callback.
  template <class Request, class Response>
  using Method = void (pb::Agent::Stub::async_interface::*)(grpc::ClientContext*, const Request*, Response*,
                                                            std::function<void(grpc::Status)>);

  template <class Request, class Response>
  void start(Method<Request, Response> method, Request request, Deadline deadline, Answer<Response> done) {
    auto flight = std::make_shared<Flight<Request, Response>>();
    flight->request = std::move(request);
    if (!deadline.is_never())
      flight->context.set_deadline(
          std::chrono::system_clock::now() +
          std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline.left()));
    (stub_->async()->*method)(&flight->context, &flight->request, &flight->response,
                              [flight, peer = peer_, done = std::move(done)](const grpc::Status& status) {
                                if (status.ok())
                                  done(std::move(flight->response));
                                else
                                  done(tl::unexpected(failure(status, *peer)));
                              });
  }

  std::shared_ptr<const Peer> peer_;
  std::unique_ptr<pb::Agent::Stub> stub_;
};

}  // namespace

AgentClientFactory grpc_agent_factory() {
  keep_callback_threads();
  return [](const std::string& name, const std::string& target) -> std::shared_ptr<AgentClient> {
    return std::make_shared<GrpcAgentClient>(name, target);
  };
}

}  // namespace pillar::controller
