#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "actors/runtime/metrics_http.hpp"

using namespace pillar;
using namespace pillar::runtime;

namespace {

/// A port that was free a moment ago.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

/// Sends `request` and reads until the server closes.
std::string send_raw(int port, const std::string& request) {
  const int fd = connect_to(port);
  REQUIRE(send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(n));
  close(fd);
  return answer;
}

std::string exchange(int port, const std::string& method, const std::string& path,
                     const std::string& body = "") {
  return send_raw(port, method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body);
}

bool status_is(const std::string& answer, int code) {
  return answer.find("HTTP/1.1 " + std::to_string(code)) == 0;
}

}  // namespace

TEST_CASE("metrics endpoint: metrics, probes, chaos") {
  MetricsHttpOptions options;
  const int port = free_port();
  options.listen = "127.0.0.1:" + std::to_string(port);
  options.services.metrics->counter("x_total", "x").add(3);
  options.ready = []() -> Result<void> {
    return fail(Reason::store_not_ready, "exports are being restored");
  };
  SUBCASE("chaos disabled") {
    auto server = MetricsHttp::start(options);
    REQUIRE(server.has_value());
    const auto metrics = exchange(port, "GET", "/metrics");
    CHECK(status_is(metrics, 200));
    CHECK(metrics.find("x_total 3\n") != std::string::npos);
    CHECK(status_is(exchange(port, "GET", "/healthz"), 200));
    const auto ready = exchange(port, "GET", "/readyz");
    CHECK(status_is(ready, 503));
    CHECK(ready.find("exports are being restored") != std::string::npos);
    CHECK(status_is(exchange(port, "GET", "/other"), 404));
    CHECK(status_is(exchange(port, "POST", "/chaos", "{}"), 403));
    CHECK(status_is(exchange(port, "POST", "/metrics"), 405));
    CHECK(status_is(exchange(port, "GET", "/metrics?x=1"), 200));
    auto second = MetricsHttp::start(options);
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().reason == Reason::io_error);
  }
  SUBCASE("chaos enabled") {
    options.services.chaos = std::make_shared<Chaos>(true);
    auto server = MetricsHttp::start(options);
    REQUIRE(server.has_value());
    const auto added = exchange(port, "POST", "/chaos", R"({"add": "step=*:s,action=fail"})");
    CHECK(status_is(added, 200));
    CHECK(options.services.chaos->points().size() == 1);
    CHECK(status_is(exchange(port, "POST", "/chaos", "nonsense"), 400));
    CHECK(status_is(exchange(port, "GET", "/chaos"), 405));
    CHECK(status_is(exchange(port, "POST", "/chaos", std::string(70000, ' ')), 413));
  }
}

TEST_CASE("metrics endpoint: bad addresses are errors") {
  for (const char* listen :
       {"", "9501", ":", "host:", "host:port", "1.2.3.4:0", "1.2.3.4:70000", "::1:9501", "1.2.3.4:12x"}) {
    CAPTURE(listen);
    MetricsHttpOptions options;
    options.listen = listen;
    auto server = MetricsHttp::start(options);
    REQUIRE_FALSE(server.has_value());
    CHECK(server.error().code == Code::invalid_argument);
  }
  MetricsHttpOptions options;
  options.listen = "192.0.2.1:9501";
  CHECK(MetricsHttp::start(options).error().reason == Reason::io_error);
}

TEST_CASE("metrics endpoint: IPv6 and wildcards") {
  for (const std::string host : {"", "0.0.0.0", "[::]", "localhost"}) {
    CAPTURE(host);
    MetricsHttpOptions options;
    const int port = free_port();
    options.listen = host + ":" + std::to_string(port);
    auto server = MetricsHttp::start(options);
    REQUIRE(server.has_value());
    if (host != "localhost") CHECK(status_is(exchange(port, "GET", "/healthz"), 200));
  }
}

TEST_CASE("metrics endpoint: slow and broken clients do not keep others out") {
  MetricsHttpOptions options;
  const int port = free_port();
  options.listen = "127.0.0.1:" + std::to_string(port);
  auto server = MetricsHttp::start(options);
  REQUIRE(server.has_value());
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect_to(port));
  CHECK(status_is(exchange(port, "GET", "/healthz"), 200));
  for (const int fd : silent) close(fd);
  CHECK(status_is(send_raw(port, "hello\r\n\r\n"), 400));
  CHECK(status_is(send_raw(port, "\r\n\r\n"), 400));
  CHECK(status_is(send_raw(port, "GET /healthz HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 413));
  CHECK(
      status_is(send_raw(port, "POST /chaos HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 413));
  CHECK(status_is(send_raw(port, "GET /" + std::string(20000, 'a')), 413));
  CHECK(status_is(exchange(port, "GET", "/healthz"), 200));
}
