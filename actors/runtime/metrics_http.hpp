#pragma once
// The small HTTP endpoint of every program: /metrics, /healthz, /readyz, and /chaos when that is enabled.

#include <functional>
#include <memory>
#include <string>

#include "actors/runtime/cell.hpp"
#include "messages/error.hpp"

namespace pillar::runtime {

struct MetricsHttpOptions {
  std::string listen;  ///< "address:port"; "[v6]:port" for IPv6, ":port" for every address of both families
  Services services = {};
  /// Liveness and readiness: an error becomes 503 with its message. Called on the endpoint's thread; must not
  /// block. Empty: always fine.
  std::function<Result<void>()> healthy = {};
  std::function<Result<void>()> ready = {};
};

/// Serves from a thread of its own until destroyed.
class MetricsHttp {
 public:
  virtual ~MetricsHttp() = default;
  /// Starts to listen. INVALID_ARGUMENT for a malformed address, IO_ERROR when it cannot be bound.
  static Result<std::unique_ptr<MetricsHttp>> start(MetricsHttpOptions options);
};

}  // namespace pillar::runtime
