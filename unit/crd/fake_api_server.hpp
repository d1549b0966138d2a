#pragma once
// A small HTTP server that misbehaves as told, for tests of the Kubernetes client's transport. What the real
// API server does is tested on the real one (unit/kube).

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace pillar::crd::test {

/// A request as it arrived; header names in lower case.
struct SeenRequest {
  std::string method;
  std::string path;
  std::map<std::string, std::string> headers;
  std::string body;
};

/// One request and the connection it came on.
class Exchange {
 public:
  Exchange(int fd, SeenRequest seen, int count, const std::atomic<bool>& stopping)
      : request(std::move(seen)), number(count), fd_(fd), stopping_(stopping) {}

  const SeenRequest request;
  const int number;  ///< of the server's requests, from 1

  /// A whole response. `headers`: lines ending in CRLF.
  void answer(int status, const std::string& body, const std::string& headers = "");
  /// A response in chunks: begin, any number of chunks, end.
  void begin_stream();
  void chunk(const std::string& text);
  void end_stream();
  /// Bytes as they are.
  void raw(const std::string& bytes);
  /// Waits until the client goes or the server stops.
  void hang();
  /// Closes the connection.
  void drop() { dropped = true; }
  bool dropped = false;

 private:
  int fd_;
  const std::atomic<bool>& stopping_;
};

class FakeApiServer {
 public:
  using Script = std::function<void(Exchange&)>;
  /// Listens on a free port of 127.0.0.1; `script` answers every request, on a thread of its connection.
  explicit FakeApiServer(Script script);
  FakeApiServer(const FakeApiServer&) = delete;
  FakeApiServer& operator=(const FakeApiServer&) = delete;
  ~FakeApiServer();

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<SeenRequest> seen() const;

 private:
  void accept_loop();
  void serve(int fd);
  bool read_request(int fd, std::string& buffer, SeenRequest& out) const;

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;  ///< guards what follows
  std::vector<SeenRequest> seen_;
  std::vector<int> connections_;
  std::list<std::thread> threads_;
  std::thread accepting_;
};

}  // namespace pillar::crd::test
