#include "messages/grpc_status.hpp"

#include <algorithm>
#include <string>
#include <string_view>

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

// A status travels in the trailers of the call, its message twice. What exceeds gRPC's 8 KiB for them reaches
// the caller as RESOURCE_EXHAUSTED, which means something else to it.
constexpr std::size_t k_max_message = 2400;
constexpr std::size_t k_max_details = 800;

/// Bytes of the well-formed UTF-8 sequence that `text` begins with, 0: it is malformed.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80   ? 1
                             : byte(0) < 0xC2 ? 0
                             : byte(0) < 0xE0 ? 2
                             : byte(0) < 0xF0 ? 3
                             : byte(0) < 0xF5 ? 4
                                              : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  if (length == 3 && ((byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F))) return 0;
  if (length == 4 && ((byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F))) return 0;
  return length;
}

/// `text` as valid UTF-8 that takes at most `limit` bytes in a header, where every byte that is not printable
/// ASCII takes three.
std::string carried(std::string_view text, std::size_t limit) {
  std::string out;
  std::size_t taken = 0;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const bool plain = length == 1 && text[0] >= 0x20 && text[0] <= 0x7E && text[0] != '%';
    const std::size_t cost = plain || length == 0 ? 1 : 3 * length;
    if (taken + cost + 3 > limit) return out + "...";
    out += length == 0 ? std::string_view("?") : text.substr(0, length);
    taken += cost;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace

grpc::Status to_status(const Error& error) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(to_string(error.reason)));
  info.set_domain(std::string(k_driver_name));
  std::size_t room = k_max_details;
  for (const auto& [key, value] : error.details) {
    const std::string text = carried(value, k_max_details / 2);
    if (key.size() + text.size() > room) continue;
    room -= key.size() + text.size();
    (*info.mutable_metadata())[key] = text;
  }
  const std::string message = carried(error.message, k_max_message);
  google::rpc::Status envelope;
  envelope.set_code(static_cast<int>(error.code));
  envelope.set_message(message);
  envelope.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), message, envelope.SerializeAsString());
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
