#include "messages/error.hpp"

#include <array>
#include <cerrno>
#include <cstring>

namespace pillar {
namespace {

struct Row {
  Reason reason;
  ReasonInfo info;
};

constexpr auto k_bad_request = Retry::never;

// One row per Reason in the order of the enum; the static_assert below keeps both in step.
constexpr std::array k_table{
    Row{Reason::invalid_argument,
        {"INVALID_ARGUMENT", Code::invalid_argument, k_bad_request, Severity::warning, "InvalidArgument"}},
    Row{Reason::not_found, {"NOT_FOUND", Code::not_found, k_bad_request, Severity::info, ""}},
    Row{Reason::already_exists,
        {"ALREADY_EXISTS", Code::already_exists, k_bad_request, Severity::warning, "AlreadyExists"}},
    Row{Reason::incompatible,
        {"INCOMPATIBLE", Code::already_exists, k_bad_request, Severity::warning, "Incompatible"}},
    Row{Reason::out_of_range,
        {"OUT_OF_RANGE", Code::out_of_range, k_bad_request, Severity::warning, "OutOfRange"}},
    Row{Reason::unsupported, {"UNSUPPORTED", Code::unimplemented, k_bad_request, Severity::info, ""}},
    Row{Reason::deadline_exceeded,
        {"DEADLINE_EXCEEDED", Code::deadline_exceeded, Retry::backoff, Severity::info, ""}},
    Row{Reason::operation_pending, {"OPERATION_PENDING", Code::aborted, Retry::backoff, Severity::debug, ""}},
    Row{Reason::queue_full, {"QUEUE_FULL", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::actor_restarted, {"ACTOR_RESTARTED", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::shutting_down, {"SHUTTING_DOWN", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::drained, {"DRAINED", Code::unavailable, Retry::after_fix, Severity::info, ""}},
    Row{Reason::restore_pending, {"RESTORE_PENDING", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::internal, {"INTERNAL", Code::internal, Retry::backoff, Severity::error, "InternalError"}},
    Row{Reason::injected_fault, {"INJECTED_FAULT", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::io_error, {"IO_ERROR", Code::internal, Retry::backoff, Severity::error, "HostIOError"}},
    Row{Reason::permission_denied,
        {"PERMISSION_DENIED", Code::internal, Retry::after_fix, Severity::error, "PermissionDenied"}},
    Row{Reason::command_failed,
        {"COMMAND_FAILED", Code::internal, Retry::backoff, Severity::error, "CommandFailed"}},
    Row{Reason::command_timeout,
        {"COMMAND_TIMEOUT", Code::unavailable, Retry::backoff, Severity::warning, "CommandTimeout"}},
    Row{Reason::output_too_large,
        {"OUTPUT_TOO_LARGE", Code::internal, Retry::after_fix, Severity::error, "CommandFailed"}},
    Row{Reason::module_missing,
        {"MODULE_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "KernelModuleMissing"}},
    Row{Reason::tool_missing,
        {"TOOL_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning, "ToolMissing"}},
    Row{Reason::configfs_missing,
        {"CONFIGFS_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "ConfigfsMissing"}},
    Row{Reason::device_missing,
        {"DEVICE_MISSING", Code::unavailable, Retry::backoff, Severity::warning, "DeviceMissing"}},
    Row{Reason::device_busy,
        {"DEVICE_BUSY", Code::failed_precondition, Retry::after_fix, Severity::warning, "DeviceBusy"}},
    Row{Reason::device_unreadable,
        {"DEVICE_UNREADABLE", Code::internal, Retry::backoff, Severity::error, "DeviceUnreadable"}},
    Row{Reason::device_mismatch,
        {"DEVICE_MISMATCH", Code::internal, Retry::after_fix, Severity::error, "DeviceMismatch"}},
    Row{Reason::foreign_content,
        {"FOREIGN_CONTENT", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "ForeignContent"}},
    Row{Reason::no_space,
        {"NO_SPACE", Code::resource_exhausted, Retry::after_fix, Severity::warning, "NoSpace"}},
    Row{Reason::pool_missing,
        {"POOL_MISSING", Code::unavailable, Retry::after_fix, Severity::warning, "PoolMissing"}},
    Row{Reason::not_owned,
        {"NOT_OWNED", Code::failed_precondition, Retry::after_fix, Severity::warning, "NotOwned"}},
    Row{Reason::state_unwritable,
        {"STATE_UNWRITABLE", Code::unavailable, Retry::after_fix, Severity::error, "StateUnwritable"}},
    Row{Reason::state_corrupt,
        {"STATE_CORRUPT", Code::internal, Retry::after_fix, Severity::error, "StateCorrupt"}},
    Row{Reason::state_locked,
        {"STATE_LOCKED", Code::failed_precondition, Retry::after_fix, Severity::error, ""}},
    Row{Reason::token_missing,
        {"TOKEN_MISSING", Code::failed_precondition, k_bad_request, Severity::warning, ""}},
    Row{Reason::stale_generation,
        {"STALE_GENERATION", Code::failed_precondition, Retry::backoff, Severity::info, "StaleGeneration"}},
    Row{Reason::foreign_lifecycle,
        {"FOREIGN_LIFECYCLE", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "ForeignLifecycle"}},
    Row{Reason::lifecycle_ending,
        {"LIFECYCLE_ENDING", Code::failed_precondition, Retry::backoff, Severity::info, ""}},
    Row{Reason::lifecycle_ended,
        {"LIFECYCLE_ENDED", Code::failed_precondition, k_bad_request, Severity::info, ""}},
    Row{Reason::lifecycle_retired,
        {"LIFECYCLE_RETIRED", Code::failed_precondition, k_bad_request, Severity::info, ""}},
    Row{Reason::mark_corrupt,
        {"MARK_CORRUPT", Code::internal, Retry::after_fix, Severity::error, "MarkCorrupt"}},
    Row{Reason::epoch_unknown, {"EPOCH_UNKNOWN", Code::unavailable, Retry::backoff, Severity::info, ""}},
    Row{Reason::fence_ahead,
        {"FENCE_AHEAD", Code::failed_precondition, Retry::after_fix, Severity::error, "FenceAhead"}},
    Row{Reason::published_elsewhere,
        {"PUBLISHED_ELSEWHERE", Code::failed_precondition, Retry::backoff, Severity::info,
         "PublishedElsewhere"}},
    Row{Reason::revoking, {"REVOKING", Code::aborted, Retry::backoff, Severity::debug, ""}},
    Row{Reason::still_published,
        {"STILL_PUBLISHED", Code::failed_precondition, Retry::backoff, Severity::info, "StillPublished"}},
    Row{Reason::access_not_ended,
        {"ACCESS_NOT_ENDED", Code::unavailable, Retry::backoff, Severity::warning, "AccessNotEnded"}},
    Row{Reason::host_nqn_missing,
        {"HOST_NQN_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "HostNQNMissing"}},
    Row{Reason::host_nqn_duplicate,
        {"HOST_NQN_DUPLICATE", Code::failed_precondition, Retry::after_fix, Severity::error,
         "HostNQNDuplicate"}},
    Row{Reason::export_spec_missing,
        {"EXPORT_SPEC_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "ExportSpecMissing"}},
    Row{Reason::port_conflict,
        {"PORT_CONFLICT", Code::failed_precondition, Retry::after_fix, Severity::warning, "PortConflict"}},
    Row{Reason::connect_failed,
        {"CONNECT_FAILED", Code::unavailable, Retry::backoff, Severity::warning, "ConnectFailed"}},
    Row{Reason::not_staged, {"NOT_STAGED", Code::failed_precondition, Retry::backoff, Severity::info, ""}},
    Row{Reason::target_occupied,
        {"TARGET_OCCUPIED", Code::already_exists, Retry::after_fix, Severity::warning, "TargetOccupied"}},
    Row{Reason::filesystem_dead,
        {"FILESYSTEM_DEAD", Code::unavailable, Retry::backoff, Severity::warning, "FilesystemDead"}},
    Row{Reason::filesystem_corrupt,
        {"FILESYSTEM_CORRUPT", Code::internal, Retry::after_fix, Severity::error, "FilesystemCorrupt"}},
    Row{Reason::data_loss, {"DATA_LOSS", Code::data_loss, Retry::after_fix, Severity::error, "DataLoss"}},
    Row{Reason::resize_pending,
        {"RESIZE_PENDING", Code::failed_precondition, Retry::backoff, Severity::info, "ResizePending"}},
    Row{Reason::agent_unavailable,
        {"AGENT_UNAVAILABLE", Code::unavailable, Retry::backoff, Severity::info, "AgentUnavailable"}},
    Row{Reason::store_not_ready,
        {"STORE_NOT_READY", Code::failed_precondition, Retry::backoff, Severity::info, "StoreNotReady"}},
    Row{Reason::dependency_missing,
        {"DEPENDENCY_MISSING", Code::failed_precondition, Retry::after_fix, Severity::warning,
         "DependencyMissing"}},
    Row{Reason::conflict, {"CONFLICT", Code::aborted, Retry::backoff, Severity::debug, ""}},
    Row{Reason::version_expired, {"VERSION_EXPIRED", Code::aborted, Retry::backoff, Severity::debug, ""}},
    Row{Reason::deletion_blocked,
        {"DELETION_BLOCKED", Code::failed_precondition, Retry::after_fix, Severity::info, "DeletionBlocked"}},
    Row{Reason::store_unavailable,
        {"STORE_UNAVAILABLE", Code::unavailable, Retry::backoff, Severity::warning, ""}},
};

constexpr bool in_enum_order() {
  for (std::size_t i = 0; i < k_table.size(); ++i)
    if (static_cast<std::size_t>(k_table[i].reason) != i) return false;
  return true;
}
static_assert(in_enum_order(), "the error table must list every Reason in the order of the enum");
static_assert(k_table.size() == static_cast<std::size_t>(Reason::store_unavailable) + 1);

constexpr std::array<std::string_view, 17> k_codes{
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

Reason reason_of_errno(int errno_value, Reason missing) {
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
      return Reason::no_space;
    case EACCES:
    case EPERM:
    case EROFS:
      return Reason::permission_denied;
    case EBUSY:
      return Reason::device_busy;
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return missing;
    default:
      return Reason::io_error;
  }
}

}  // namespace

const ReasonInfo& info(Reason reason) noexcept { return k_table.at(static_cast<std::size_t>(reason)).info; }

Reason reason_from_string(std::string_view name) noexcept {
  for (const Row& row : k_table)
    if (row.info.name == name) return row.reason;
  return Reason::internal;
}

std::string_view to_string(Code code) noexcept { return k_codes.at(static_cast<std::size_t>(code)); }

Error errno_error(int errno_value, std::string_view what, Reason missing) {
  const Reason reason = reason_of_errno(errno_value, missing);
  const std::string text = std::string(what) + ": " + std::strerror(errno_value);
  return Error{info(reason).code, reason, text, {{"errno", std::to_string(errno_value)}}};
}

}  // namespace pillar
