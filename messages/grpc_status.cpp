#include "messages/grpc_status.hpp"

#include "messages/ids.hpp"
#include "messages/rpc_error.pb.h"

namespace pillar {
namespace {

// A peer that sends no ErrorInfo (gRPC itself, a proxy) is understood by its code.
Reason reason_of_code(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Reason::invalid_argument;
    case grpc::StatusCode::NOT_FOUND:
      return Reason::not_found;
    case grpc::StatusCode::ALREADY_EXISTS:
      return Reason::already_exists;
    case grpc::StatusCode::OUT_OF_RANGE:
      return Reason::out_of_range;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Reason::no_space;
    case grpc::StatusCode::ABORTED:
      return Reason::operation_pending;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Reason::deadline_exceeded;
    case grpc::StatusCode::UNIMPLEMENTED:
      return Reason::unsupported;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return Reason::agent_unavailable;
    default:
      return Reason::internal;
  }
}

}  // namespace

grpc::Status to_status(const Error& error) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(to_string(error.reason)));
  info.set_domain(std::string(k_driver_name));
  for (const auto& [key, value] : error.details) (*info.mutable_metadata())[key] = value;
  google::rpc::Status envelope;
  envelope.set_code(static_cast<int>(error.code));
  envelope.set_message(error.message);
  envelope.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), error.message, envelope.SerializeAsString());
}

Error from_status(const grpc::Status& status) {
  Error error{static_cast<Code>(status.error_code()),
              reason_of_code(status.error_code()),
              status.error_message(),
              {}};
  google::rpc::Status envelope;
  if (status.error_details().empty() || !envelope.ParseFromString(status.error_details())) return error;
  for (const auto& detail : envelope.details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info) || info.domain() != k_driver_name) continue;
    error.reason = reason_from_string(info.reason());
    for (const auto& [key, value] : info.metadata()) error.details[key] = value;
  }
  return error;
}

}  // namespace pillar
