#include "fake_api_server.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>

namespace pillar::crd::test {
namespace {

void send_all(int fd, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const auto count = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

/// Appends what arrives; false when the peer is gone.
bool receive_more(int fd, std::string& buffer) {
  char bytes[4096];
  const auto count = ::recv(fd, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::string hex(std::size_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%zx", number);
  return text;
}

}  // namespace

void Exchange::answer(int status, const std::string& body, const std::string& headers) {
  send_all(fd_, "HTTP/1.1 " + std::to_string(status) +
                    " X\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                    "\r\n" + headers + "\r\n" + body);
}
void Exchange::begin_stream() {
  send_all(fd_, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
}
void Exchange::chunk(const std::string& text) { send_all(fd_, hex(text.size()) + "\r\n" + text + "\r\n"); }
void Exchange::end_stream() { send_all(fd_, "0\r\n\r\n"); }
void Exchange::raw(const std::string& bytes) { send_all(fd_, bytes); }
void Exchange::hang() {
  while (!stopping_) {
    pollfd waiting{fd_, POLLIN | POLLRDHUP, 0};
    if (::poll(&waiting, 1, 50) > 0) break;
  }
  drop();
}

FakeApiServer::FakeApiServer(Script script) : script_(std::move(script)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, plain, length) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, plain, &length) != 0)
    throw std::runtime_error("the fake API server cannot listen");
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { accept_loop(); });
}

FakeApiServer::~FakeApiServer() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  ::close(listener_);
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : connections_) ::shutdown(fd, SHUT_RDWR);
  }
  for (auto& thread : threads_) thread.join();
  for (const int fd : connections_) ::close(fd);
}

std::vector<SeenRequest> FakeApiServer::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

void FakeApiServer::accept_loop() {
  while (!stopping_) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const std::lock_guard lock(mutex_);
    connections_.push_back(fd);
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void FakeApiServer::serve(int fd) {
  std::string buffer;
  SeenRequest request;
  while (!stopping_ && read_request(fd, buffer, request)) {
    int number = 0;
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(request);
      number = static_cast<int>(seen_.size());
    }
    Exchange exchange(fd, request, number, stopping_);
    script_(exchange);
    if (exchange.dropped) break;
  }
  ::shutdown(fd, SHUT_RDWR);
}

bool FakeApiServer::read_request(int fd, std::string& buffer, SeenRequest& out) const {
  std::size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos)
    if (!receive_more(fd, buffer)) return false;
  out = {};
  std::size_t line_end = buffer.find("\r\n");
  const auto first = buffer.substr(0, line_end);
  out.method = first.substr(0, first.find(' '));
  out.path = first.substr(out.method.size() + 1, first.rfind(' ') - out.method.size() - 1);
  while (line_end < end) {
    const auto start = line_end + 2;
    line_end = buffer.find("\r\n", start);
    auto line = buffer.substr(start, line_end - start);
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    auto name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    auto value = line.substr(colon + 1);
    value.erase(0, value.find_first_not_of(' '));
    out.headers[name] = value;
  }
  buffer.erase(0, end + 4);
  const auto length = static_cast<std::size_t>(std::atoll(out.headers["content-length"].c_str()));
  while (buffer.size() < length)
    if (!receive_more(fd, buffer)) return false;
  out.body = buffer.substr(0, length);
  buffer.erase(0, length);
  return true;
}

}  // namespace pillar::crd::test
