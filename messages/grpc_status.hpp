#pragma once
// Errors on the wire: grpc::Status with a google.rpc.ErrorInfo detail, and back.

#include <grpcpp/support/status.h>

#include "messages/error.hpp"

namespace pillar {

/// The status for `error`: its code and message, and ErrorInfo{reason, driver domain, details} in the status
/// details.
grpc::Status to_status(const Error& error);

/// The Error a peer of ours sent: reason and details from ErrorInfo when present, else chosen from the code
/// alone.
Error from_status(const grpc::Status& status);

}  // namespace pillar
