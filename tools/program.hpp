#pragma once
// What the three programs share: flags, logging, the metrics endpoint, signals, the order of starting and
// stopping.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "actors/runtime/cell.hpp"
#include "csi/serve.hpp"
#include "csi/server.hpp"
#include "messages/error.hpp"

namespace pillar::tools {

/// A started program.
class Service {
 public:
  virtual ~Service() = default;
  /// The gRPC services, owned by this object.
  virtual std::vector<grpc::Service*> grpc_services() = 0;
  /// Where to listen beside --listen.
  virtual std::vector<csi_front::Endpoint> further_endpoints() { return {}; }
  /// For /readyz; must not block.
  virtual Result<void> ready() = 0;
  /// Ends all actors; calls they hold are answered UNAVAILABLE. Called after the server refuses new calls.
  /// False when something was still there after `limit`.
  virtual bool stop(Clock::duration limit) = 0;
};

/// What a program is started with.
struct Start {
  runtime::Services services;
  std::vector<csi_front::Endpoint> listen;  ///< of --listen
};

/// How one program differs from the others.
struct Program {
  std::string name;
  std::string description;
  std::string default_listen;   ///< gRPC endpoint(s), comma separated
  std::string default_metrics;  ///< address:port of /metrics, /healthz, /readyz
  std::string default_health;   ///< further address:port with the same pages, empty: none
  /// Adds the program's own flags.
  std::function<void(CLI::App&)> add_flags;
  /// Starts it; an error ends the program with status 1 and its message.
  std::function<Result<std::unique_ptr<Service>>(const Start&)> start;
};

/// Runs `program` until SIGTERM or SIGINT. Exit status: 0 orderly end, 1 cannot start, 2 wrong flags. Helper
/// verbs
/// (`--helper VERB`) are served before anything else.
int run_program(int argc, char** argv, const Program& program);

/// Counts calls and their time: pillar_csi_csi_requests_total{method,code} and ..._seconds{method} (`family`
/// "csi"), or the same with "agent".
csi_front::CallObserver call_metrics(std::shared_ptr<runtime::Metrics> metrics, const std::string& family);

}  // namespace pillar::tools
