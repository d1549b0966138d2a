#pragma once
// One gRPC call becomes one message. A handler built with serve() copies the request (the operation may
// outlive the call), sends it with the call's deadline, and finishes the call when the answer slot is filled
// or dropped. It never blocks or decides.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "messages/call.hpp"
#include "messages/grpc_status.hpp"

namespace pillar::csi_front {

/// What a completed call leaves behind for the log line and the metrics.
struct CallRecord {
  std::string_view service;  ///< "controller", "node", "identity", "agent"
  std::string_view method;   ///< "CreateVolume", ...
  std::string_view
      subject;  ///< volume id or name, empty when the request has none; valid during the callback
  Code code = Code::ok;
  const Error* error = nullptr;  ///< null when the call succeeded
  std::chrono::duration<double> seconds{};
};

/// Called once per completed call, on any thread; must not block.
using CallObserver = std::function<void(const CallRecord&)>;

/// Calls without a deadline of their own get this one, so that every call ends.
inline constexpr std::chrono::seconds k_default_deadline{120};

namespace detail {

class Reactor final : public grpc::ServerUnaryReactor {
  void OnDone() override { delete this; }
};

template <class Request>
std::string subject_of(const Request& request) {
  if constexpr (requires { request.volume_id(); }) {
    return request.volume_id();
  } else if constexpr (requires { request.name(); }) {
    return request.name();
  } else if constexpr (requires { request.volume().agent_volume_id(); }) {
    return request.volume().agent_volume_id();
  } else {
    return {};
  }
}

inline Deadline deadline_of(const grpc::CallbackServerContext& context) {
  const auto at = context.deadline();
  if (at == std::chrono::system_clock::time_point::max()) return Deadline::after(k_default_deadline);
  const auto left = at - std::chrono::system_clock::now();
  return left > k_default_deadline * 10 ? Deadline::after(k_default_deadline * 10)
                                        : Deadline::after(std::chrono::duration_cast<Clock::duration>(left));
}

}  // namespace detail

/// Which RPC a handler serves.
struct Method {
  std::string_view service;
  std::string_view name;
};

/// Turns the call into `send(Call<Request, Response>)`. The returned reactor belongs to gRPC.
template <class Request, class Response, class Send>
grpc::ServerUnaryReactor* serve(Method method, grpc::CallbackServerContext* context, const Request* request,
                                Response* response, const CallObserver& observer, Send&& send) {
  auto* reactor = new detail::Reactor;
  auto copy = std::make_shared<const Request>(*request);
  const auto begin = Clock::now();
  Reply<Response> reply([=, &observer](Result<Response> result) {
    const std::string subject = detail::subject_of(*copy);
    CallRecord record{method.service, method.name, subject, Code::ok, nullptr, Clock::now() - begin};
    if (!result) {
      record.code = result.error().code;
      record.error = &result.error();
    }
    if (observer) observer(record);
    if (result) {
      *response = std::move(*result);
      reactor->Finish(grpc::Status::OK);
    } else {
      reactor->Finish(to_status(result.error()));
    }
  });
  // An exception here is this call's alone: the answer slot, dropped by the unwinding, or the explicit answer
  // ends it.
  try {
    send(Call<Request, Response>{copy, detail::deadline_of(*context), reply});
  } catch (const std::exception& failure) {
    reply(fail(Reason::internal, std::string(method.name) + ": unexpected failure: " + failure.what()));
  }
  return reactor;
}

}  // namespace pillar::csi_front
