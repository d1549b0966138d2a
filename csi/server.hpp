#pragma once
// Listening sockets and the lifetime of a gRPC server.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messages/error.hpp"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace pillar::csi_front {

/// Where to listen: "unix:///path", "/path", or "tcp://HOST:PORT" with an IP literal (brackets around IPv6).
struct Endpoint {
  bool is_unix = false;
  std::string path;    ///< unix socket path
  std::string target;  ///< what gRPC is given
  static Result<Endpoint> parse(const std::string& text);
};

/// Makes `path` free for a new unix socket: removes one left by a dead process (reported-faults N01), refuses
/// one that a live process answers on, and refuses anything that is not a socket. Creates a missing parent
/// directory (0750).
Result<void> prepare_unix_socket(const std::string& path);

/// A running server. Services must outlive it.
class Server {
 public:
  static Result<std::unique_ptr<Server>> start(const std::vector<Endpoint>& endpoints,
                                               const std::vector<grpc::Service*>& services);
  ~Server();

  /// Refuses new calls, waits up to `grace` for calls in flight, then calls `stop_actors`, whose dropped
  /// answer slots end the rest, and returns when the server is down.
  void shutdown(std::chrono::milliseconds grace, const std::function<void()>& stop_actors);

 private:
  Server(std::unique_ptr<grpc::Server> server, std::vector<Endpoint> endpoints);
  std::unique_ptr<grpc::Server> server_;
  std::vector<Endpoint> endpoints_;
};

}  // namespace pillar::csi_front
