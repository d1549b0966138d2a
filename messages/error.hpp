#pragma once
// The error values of all programs. An Error is what a refused or failed operation returns: a gRPC code for
// the caller, a stable reason for machines, and a sentence for the operator that names the object, the value
// seen and the remedy.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace pillar {

/// gRPC status codes by their wire numbers (grpc/status.h); kept here so that only csi/ needs gRPC headers.
enum class Code : std::uint8_t {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
  unauthenticated = 16,
};

/// Whether and how a caller should try again.
enum class Retry : std::uint8_t {
  never,      ///< the request itself is wrong; repeating it gives the same answer
  backoff,    ///< a passing condition; the same request may succeed later
  after_fix,  ///< an operator or another call has to change something first
};

/// Severity of the log line that a call ending in this error deserves (reported-faults row O12).
enum class Severity : std::uint8_t { debug, info, warning, error };

/// Every reason an Error can carry. The wire form is `to_string(Reason)`; it is stable and part of the
/// interface.
enum class Reason : std::uint8_t {
  // requests
  invalid_argument,
  not_found,
  already_exists,
  incompatible,
  out_of_range,
  unsupported,
  // calls and processes
  deadline_exceeded,
  operation_pending,
  queue_full,
  actor_restarted,
  shutting_down,
  drained,
  restore_pending,
  internal,
  injected_fault,
  // host
  io_error,
  permission_denied,
  command_failed,
  command_timeout,
  output_too_large,
  module_missing,
  tool_missing,
  configfs_missing,
  device_missing,
  device_busy,
  device_unreadable,
  device_mismatch,
  foreign_content,
  no_space,
  pool_missing,
  not_owned,
  state_unwritable,
  state_corrupt,
  state_locked,
  // fencing (docs/fencing.md section 1)
  token_missing,
  stale_generation,
  foreign_lifecycle,
  lifecycle_ending,
  lifecycle_ended,
  lifecycle_retired,
  mark_corrupt,
  epoch_unknown,
  fence_ahead,
  // publications and exports
  published_elsewhere,
  revoking,
  still_published,
  access_not_ended,
  host_nqn_missing,
  host_nqn_duplicate,
  export_spec_missing,
  port_conflict,
  // nodes
  connect_failed,
  not_staged,
  target_occupied,
  filesystem_dead,
  filesystem_corrupt,
  data_loss,
  resize_pending,
  // resources
  agent_unavailable,
  store_not_ready,
  dependency_missing,
  conflict,
  version_expired,
  deletion_blocked,
  store_unavailable,
};

/// One row of the error table.
struct ReasonInfo {
  std::string_view name;  ///< wire form, UPPER_SNAKE (google.rpc.ErrorInfo.reason)
  Code code;              ///< default gRPC code
  Retry retry;
  Severity severity;
  std::string_view event;  ///< CamelCase reason of the Kubernetes Event, empty: no Event
};

/// The row of `reason`; total over the enum.
const ReasonInfo& info(Reason reason) noexcept;

/// Wire form of `reason`, for example "STALE_GENERATION".
inline std::string_view to_string(Reason reason) noexcept { return info(reason).name; }

/// The reason whose wire form is `name`; Reason::internal when unknown (a newer peer).
Reason reason_from_string(std::string_view name) noexcept;

/// Wire name of a gRPC code, for example "FAILED_PRECONDITION".
std::string_view to_string(Code code) noexcept;

/// A failure as a value.
struct Error {
  Code code = Code::internal;
  Reason reason = Reason::internal;
  std::string message;                         ///< object, value seen, remedy; no trailing period
  std::map<std::string, std::string> details;  ///< google.rpc.ErrorInfo.metadata
};

/// An Error with the table's code for `reason`.
inline tl::unexpected<Error> fail(Reason reason, std::string message,
                                  std::map<std::string, std::string> details = {}) {
  return tl::unexpected<Error>(Error{info(reason).code, reason, std::move(message), std::move(details)});
}

/// An Error with a code other than the table's default, for the rare reason that answers differently per
/// call.
inline tl::unexpected<Error> fail(Reason reason, Code code, std::string message,
                                  std::map<std::string, std::string> details = {}) {
  return tl::unexpected<Error>(Error{code, reason, std::move(message), std::move(details)});
}

/// Value or Error.
template <class T>
using Result = tl::expected<T, Error>;

/// `error` with `context` put before its message, for adding the object on the way up.
inline Error with_context(Error error, std::string_view context) {
  error.message = std::string(context) + ": " + error.message;
  return error;
}

/// An Error from an errno value: "what: strerror". The reason is chosen from the errno (ENOSPC no_space,
/// EACCES/EPERM/EROFS permission_denied, ENOENT device_missing only through `missing`, everything else
/// io_error).
Error errno_error(int errno_value, std::string_view what, Reason missing = Reason::io_error);

}  // namespace pillar
