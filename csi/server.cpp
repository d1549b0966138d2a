#include "csi/server.hpp"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>

#include "messages/ids.hpp"

namespace pillar::csi_front {
namespace {

// A ReconcileState of a storage node with thousands of volumes exceeds gRPC's default of 4 MiB.
constexpr int k_max_message_bytes = 64 << 20;

std::string without_prefix(const std::string& text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

Result<bool> is_answered(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return tl::unexpected(errno_error(errno, "open a socket to test " + path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::close(fd);
  // EAGAIN: somebody listens and the backlog is full.
  if (rc == 0 || error == EAGAIN) return true;
  if (error == ECONNREFUSED || error == ENOENT) return false;
  return tl::unexpected(errno_error(error, "test whether the socket " + path + " is in use"));
}

Result<Endpoint> parse_tcp(const std::string& text, const std::string& target) {
  const auto bad = [&] {
    return fail(Reason::invalid_argument,
                "listen address '" + text + "' is not unix:///PATH or tcp://ADDRESS:PORT with an IP literal");
  };
  const auto colon = target.rfind(':');
  if (colon == std::string::npos || colon + 1 == target.size()) return bad();
  const std::string port = target.substr(colon + 1);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535)
    return bad();
  const auto address = IpAddress::parse(target.substr(0, colon));
  if (!address) return bad();
  const std::string host = address->v6 ? "[" + address->text + "]" : address->text;
  return Endpoint{false, {}, host + ":" + port};
}

}  // namespace

Result<Endpoint> Endpoint::parse(const std::string& text) {
  if (text.starts_with("tcp://")) return parse_tcp(text, without_prefix(text, "tcp://"));
  std::string path = without_prefix(without_prefix(text, "unix://"), "unix:");
  if (path.empty() || path.front() != '/')
    return fail(Reason::invalid_argument,
                "listen address '" + text + "' is not unix:///ABSOLUTE/PATH or tcp://ADDRESS:PORT");
  if (path.size() >= sizeof(sockaddr_un{}.sun_path))
    return fail(Reason::invalid_argument,
                "socket path '" + path + "' is longer than 107 bytes; choose a shorter path");
  return Endpoint{true, path, "unix:" + path};
}

Result<void> prepare_unix_socket(const std::string& path) {
  std::error_code error;
  const auto parent = std::filesystem::path(path).parent_path();
  if (!std::filesystem::exists(parent, error)) {
    std::filesystem::create_directories(parent, error);
    if (error)
      return tl::unexpected(errno_error(error.value(), "create the socket directory " + parent.string()));
    ::chmod(parent.c_str(), 0750);
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return tl::unexpected(errno_error(errno, "stat socket " + path));
  }
  if (!S_ISSOCK(status.st_mode))
    return fail(Reason::already_exists,
                path + " exists and is not a socket; remove it or choose another path");
  const auto answered = is_answered(path);
  if (!answered) return tl::unexpected(answered.error());
  if (*answered)
    return fail(Reason::state_locked,
                "socket " + path + " is in use by a running process; stop it or choose another path");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return tl::unexpected(errno_error(errno, "remove the left-over socket " + path));
  return {};
}

Server::Server(std::unique_ptr<grpc::Server> server, std::vector<Endpoint> endpoints)
    : server_(std::move(server)), endpoints_(std::move(endpoints)) {}

Server::~Server() {
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
}

Result<std::unique_ptr<Server>> Server::start(const std::vector<Endpoint>& endpoints,
                                              const std::vector<grpc::Service*>& services) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(k_max_message_bytes);
  // Two processes on one TCP port would share calls at random; the second must fail instead.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::vector<int> ports(endpoints.size(), 0);
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    if (endpoints[i].is_unix)
      if (auto free = prepare_unix_socket(endpoints[i].path); !free) return tl::unexpected(free.error());
    builder.AddListeningPort(endpoints[i].target, grpc::InsecureServerCredentials(), &ports[i]);
  }
  for (auto* service : services) builder.RegisterService(service);
  auto server = builder.BuildAndStart();
  for (std::size_t i = 0; i < endpoints.size(); ++i)
    if (!server || ports[i] == 0)
      return fail(Reason::io_error, "cannot listen on " + endpoints[i].target +
                                        "; the address must belong to this host and be unused");
  for (const Endpoint& endpoint : endpoints)
    if (endpoint.is_unix) ::chmod(endpoint.path.c_str(), 0660);
  return std::unique_ptr<Server>(new Server(std::move(server), endpoints));
}

void Server::shutdown(std::chrono::milliseconds grace, const std::function<void()>& stop_actors) {
  // Shutdown() returns only when every call has ended, and the last of them end only when their actors die:
  // hence the thread.
  auto closing = std::async(std::launch::async,
                            [this, grace] { server_->Shutdown(std::chrono::system_clock::now() + grace); });
  closing.wait_for(grace);
  stop_actors();
  closing.wait();
  server_->Wait();
  server_.reset();
}

}  // namespace pillar::csi_front
