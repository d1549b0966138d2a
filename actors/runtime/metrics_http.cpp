#include "actors/runtime/metrics_http.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/runtime/logging.hpp"

// One thread, one poll loop, one request per connection. Written out because cpprest's listener cannot bind
// IPv6 literals, so probes would fail in IPv6-only clusters; and a slow or hostile client must not cost more
// than one of a few slots for a few seconds.

namespace pillar::runtime {

namespace {

constexpr std::string_view k_metrics_type = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view k_text_type = "text/plain; charset=utf-8";
constexpr std::size_t k_max_head = 16 * 1024;
constexpr std::size_t k_max_body = 64 * 1024;
constexpr std::size_t k_max_connections = 64;
constexpr std::chrono::seconds k_connection_time{10};

/// Owns a file descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct ListenAddress {
  std::string host;  ///< empty: every address
  std::string port;
};

Result<ListenAddress> parse_listen(const std::string& listen) {
  const auto colon = listen.rfind(':');
  unsigned port = 0;
  const char* end = listen.data() + listen.size();
  const bool number = colon != std::string::npos && colon + 1 < listen.size() &&
                      std::from_chars(listen.data() + colon + 1, end, port).ptr == end;
  std::string host = number ? listen.substr(0, colon) : "";
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!number || port == 0 || port > 65535 || (host.find(':') != std::string::npos && !bracketed)) {
    return fail(
        Reason::invalid_argument,
        "metrics address '" + listen + "' is not <address>:<port> (IPv6 in brackets, port 1 to 65535)");
  }
  if (bracketed) host = host.substr(1, host.size() - 2);
  return ListenAddress{std::move(host), std::to_string(port)};
}

/// A listening socket on `info`; -1 with errno set otherwise.
Fd try_listen(const addrinfo& info) {
  Fd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return fd;
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (info.ai_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd.get(), 64) == 0) return fd;
  const int error = errno;
  fd = Fd();
  errno = error;
  return Fd();
}

Result<Fd> open_listener(const std::string& listen) {
  const auto address = parse_listen(listen);
  if (!address) return tl::unexpected(address.error());
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(address->host.empty() ? nullptr : address->host.c_str(), address->port.c_str(),
                               &hints, &found);
  if (rc != 0) {
    return fail(Reason::invalid_argument,
                "metrics address '" + listen + "': " + ::gai_strerror(rc) + "; give an address of this host");
  }
  // Without an address, the IPv6 wildcard serves both families; IPv4 alone is for hosts without IPv6.
  std::vector<const addrinfo*> order;
  for (const addrinfo* each = found; each; each = each->ai_next) order.push_back(each);
  std::stable_sort(order.begin(), order.end(), [](const addrinfo* a, const addrinfo* b) {
    return a->ai_family == AF_INET6 && b->ai_family != AF_INET6;
  });
  Fd fd;
  int error = 0;
  for (const auto* each : order) {
    fd = try_listen(*each);
    if (fd.get() >= 0) break;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  ::freeaddrinfo(found);
  if (fd.get() >= 0) return fd;
  return tl::unexpected(
      with_context(errno_error(error, "listen", Reason::io_error),
                   "metrics endpoint on '" + listen + "' (choose a free address of this host)"));
}

struct Request {
  std::string method;
  std::string path;
  std::string body;
};
struct Response {
  int status = 200;
  std::string body;
  std::string_view type = k_text_type;
};

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

std::string render(const Response& response) {
  return "HTTP/1.1 " + std::to_string(response.status) + ' ' + std::string(status_text(response.status)) +
         "\r\nContent-Type: " + std::string(response.type) +
         "\r\nContent-Length: " + std::to_string(response.body.size()) + "\r\nConnection: close\r\n\r\n" +
         response.body;
}

/// Content-Length of a request head; 0 when absent, more than k_max_body when malformed.
std::size_t content_length(std::string_view head) {
  std::string lower(head);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto at = lower.find("\r\ncontent-length:");
  if (at == std::string::npos)
    return lower.find("\r\ntransfer-encoding:") == std::string::npos ? 0 : k_max_body + 1;
  auto begin = at + 17;
  while (begin < lower.size() && lower[begin] == ' ') ++begin;
  std::size_t length = 0;
  const auto [end, error] = std::from_chars(lower.data() + begin, lower.data() + lower.size(), length);
  return error != std::errc() || end == lower.data() + begin ? k_max_body + 1 : length;
}

Response probe(const std::function<Result<void>()>& check) {
  const Result<void> state = check ? check() : Result<void>();
  if (state) return {200, "ok\n"};
  return {503, state.error().message + "\n"};
}

Response answer_chaos(Chaos& chaos, const Request& request) {
  if (!chaos.enabled())
    return {403, "fault injection is not enabled; start the program with --enable-chaos\n"};
  if (request.method != "POST") return {405, "use POST\n"};
  auto answer = chaos.handle_json(request.body);
  if (!answer) return {400, answer.error().message + "\n"};
  return {200, std::move(*answer), "application/json"};
}

Response answer(const MetricsHttpOptions& options, const Request& request) {
  if (request.path == "/chaos") return answer_chaos(*options.services.chaos, request);
  const bool page = request.path == "/metrics" || request.path == "/healthz" || request.path == "/readyz";
  if (!page) return {404, "no such page; there are /metrics, /healthz and /readyz\n"};
  if (request.method != "GET") return {405, "use GET\n"};
  if (request.path == "/healthz") return probe(options.healthy);
  if (request.path == "/readyz") return probe(options.ready);
  return {200, options.services.metrics->text(), k_metrics_type};
}

/// One client: reads one request, writes one response.
struct Connection {
  Fd fd;
  Deadline deadline;
  std::string in = {};
  std::string out = {};
  std::size_t written = 0;
  bool answered = false;

  /// The response once the request is complete or hopeless.
  std::optional<Response> take(const MetricsHttpOptions& options) const {
    const auto head_end = in.find("\r\n\r\n");
    if (head_end == std::string::npos) {
      if (in.size() > k_max_head) return Response{413, "the request head is too long\n"};
      return std::nullopt;
    }
    const std::string_view head = std::string_view(in).substr(0, head_end);
    const auto length = content_length(head);
    if (length > k_max_body) return Response{413, "the request body is too long or of unknown length\n"};
    if (in.size() < head_end + 4 + length) return std::nullopt;
    const auto line = head.substr(0, head.find("\r\n"));
    const auto space = line.find(' ');
    const auto second = line.find(' ', space == std::string_view::npos ? space : space + 1);
    if (second == std::string_view::npos) return Response{400, "not an HTTP request\n"};
    const auto target = line.substr(space + 1, second - space - 1);
    try {
      return answer(options,
                    {std::string(line.substr(0, space)), std::string(target.substr(0, target.find('?'))),
                     in.substr(head_end + 4, length)});
    } catch (const std::exception& e) {
      log(spdlog::level::err, std::string("metrics endpoint: ") + e.what());
      return Response{500, "internal error, see the log\n"};
    }
  }

  /// Does what can be done now; false when the connection is to be closed.
  bool progress(const MetricsHttpOptions& options) {
    if (!answered && !receive(options)) return false;
    while (written < out.size()) {
      const auto n = ::send(fd.get(), out.data() + written, out.size() - written, MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      written += static_cast<std::size_t>(n);
    }
    return !answered;
  }

  bool receive(const MetricsHttpOptions& options) {
    char buffer[4096];
    for (;;) {
      const auto n = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      if (n == 0) return false;
      in.append(buffer, static_cast<std::size_t>(n));
      if (auto response = take(options)) {
        out = render(*response);
        answered = true;
        drain(buffer, sizeof buffer);
        return true;
      }
    }
  }
  /// Unread input at close would reset the connection and lose the answer.
  void drain(char* buffer, std::size_t size) const {
    for (int i = 0; i < 32 && ::recv(fd.get(), buffer, size, 0) > 0; ++i) {
    }
  }
};

class Server final : public MetricsHttp {
 public:
  Server(MetricsHttpOptions options, Fd listener)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}
  ~Server() override {
    const std::uint64_t one = 1;
    while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  void run() {
    std::list<Connection> connections;
    bool refused = false;  // out of descriptors: leave the listener alone for one round
    for (;;) {
      std::vector<pollfd> polls{{stop_.get(), POLLIN, 0}};
      const bool accepting = !refused && connections.size() < k_max_connections;
      polls.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
      for (const auto& each : connections) {
        polls.push_back({each.fd.get(), static_cast<short>(each.answered ? POLLOUT : POLLIN), 0});
      }
      ::poll(polls.data(), polls.size(), connections.empty() && !refused ? -1 : 500);
      if (polls[0].revents != 0) return;
      auto poll = polls.begin() + 2;
      for (auto it = connections.begin(); it != connections.end(); ++poll) {
        const bool over = (poll->revents != 0 && !it->progress(options_)) || it->deadline.passed();
        it = over ? connections.erase(it) : std::next(it);
      }
      refused = polls[1].revents != 0 && !accept_all(connections);
    }
  }

  /// False when the process has no descriptor left.
  bool accept_all(std::list<Connection>& connections) const {
    while (connections.size() < k_max_connections) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.get() < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
      connections.push_back({std::move(fd), Deadline::after(k_connection_time)});
    }
    return true;
  }

  const MetricsHttpOptions options_;
  const Fd listener_;
  const Fd stop_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<MetricsHttp>> MetricsHttp::start(MetricsHttpOptions options) {
  auto listener = open_listener(options.listen);
  if (!listener) return tl::unexpected(listener.error());
  try {
    return std::unique_ptr<MetricsHttp>(std::make_unique<Server>(std::move(options), std::move(*listener)));
  } catch (const std::exception& e) {
    return fail(Reason::io_error, std::string("metrics endpoint could not start its thread: ") + e.what());
  }
}

}  // namespace pillar::runtime
