#pragma once
// HTTP as the Kubernetes client needs it: requests with a time limit, and streams that are pushed. Hides the
// HTTP library (slow to compile, throws) from everything else. Internal to crd/.
//
// One thread of the process, the client thread, runs every callback here; nothing on it may block.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "messages/error.hpp"

namespace pillar::crd::kube {

/// Runs `work` on the client thread, after what is queued already.
void post(std::function<void()> work);
/// Runs `work` on the client thread after `delay`. It cannot be called back: give it weak references.
void post_after(std::chrono::milliseconds delay, std::function<void()> work);
/// Whether this is the client thread.
bool on_client_thread();
/// Runs `work` on the client thread and waits for it; at once when this is the client thread.
void run_on_client_thread(const std::function<void()>& work);

struct HttpRequest {
  std::string method = "GET";
  std::string path;  ///< from the root, with the query, encoded
  std::string body;
  std::string content_type;
  std::string authorization;  ///< value of the header, empty: none
};

struct HttpResponse {
  int status = 0;
  std::optional<std::chrono::seconds> retry_after;
  std::string body;
};

/// Why there is no response.
struct HttpFailure {
  enum class Kind : std::uint8_t {
    unsent,     ///< no connection: the server has seen nothing of the request
    timeout,    ///< no answer in time, or a stream that went silent
    broken,     ///< the connection failed on the way; the server may have carried the request out
    cancelled,  ///< by us
  };
  Kind kind = Kind::broken;
  std::string message;
};

/// What a TLS connection is made with.
struct TlsMaterial {
  std::string ca_pem;           ///< the only roots that are trusted
  std::string certificate_pem;  ///< own chain, may be empty
  std::string key_pem;
  std::string server_name;  ///< name or address the server must prove; empty: the one in the URL
  bool verify = true;
};

struct HttpEndpoint {
  std::string url;  ///< scheme://host[:port][/base]
  /// Asked for each new connection, so that replaced files count without a restart.
  std::function<Result<TlsMaterial>()> tls;
  std::string user_agent;
};

/// A running stream; destroying it does not end it.
class HttpStream {
 public:
  HttpStream() = default;
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;
  virtual ~HttpStream() = default;
  /// Ends the stream; no handler is called any more. Client thread only.
  virtual void cancel() = 0;
};

/// In this order, on the client thread: on_head once (unless the request fails), on_data, on_end once.
struct HttpStreamHandler {
  std::function<void(const HttpResponse&)> on_head;  ///< without a body
  std::function<void(std::string_view)> on_data;
  std::function<void(std::optional<HttpFailure>)> on_end;  ///< nothing: the server ended it properly
};

/// One server. Methods are called on the client thread only.
class HttpClient {
 public:
  using Done = std::function<void(tl::expected<HttpResponse, HttpFailure>)>;

  /// INVALID_ARGUMENT for a URL that is none.
  static Result<std::unique_ptr<HttpClient>> make(HttpEndpoint endpoint);
  HttpClient() = default;
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  virtual ~HttpClient() = default;

  /// Sends over a kept connection. `done` runs exactly once, at the latest after `limit`.
  virtual void send(HttpRequest request, std::chrono::milliseconds limit, Done done) = 0;
  /// Opens a stream over a connection of its own, which fails with `timeout` when nothing comes for
  /// `silence`.
  virtual std::shared_ptr<HttpStream> stream(HttpRequest request, std::chrono::milliseconds silence,
                                             HttpStreamHandler handler) = 0;
};

}  // namespace pillar::crd::kube
