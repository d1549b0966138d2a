#pragma once
// Calls of the Kubernetes API: who we are, what is tried again, and what a failure means. Any resource can be
// reached by its path; crd/kube/store.hpp puts our own kinds behind the store interface.
//
// Callbacks run on the client thread (crd/kube/http.hpp), exactly once, and must not block; they may call the
// client again.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "crd/kube/config.hpp"
#include "crd/store.hpp"
#include "messages/error.hpp"

namespace pillar::crd::kube {

struct ClientOptions {
  Config config;
  std::string user_agent = "pillar-csi/" PILLAR_CSI_VERSION;
  std::chrono::milliseconds attempt_limit{15000};  ///< one request
  std::chrono::milliseconds call_limit{30000};     ///< a call with all its attempts
  std::chrono::milliseconds first_pause{100};      ///< before the second attempt; doubles, with jitter
  std::chrono::milliseconds longest_pause{5000};
  std::chrono::milliseconds token_age{60000};  ///< a token file is read again after this
  /// A watch without a line for so long is taken for dead and opened anew. API servers send a bookmark about
  /// every minute.
  std::chrono::milliseconds watch_silence{150000};
  /// What a watch asks the server to last at most; a random part is added, so that they do not all end at
  /// once.
  std::chrono::seconds watch_length{300};
  int watch_attempts = 4;  ///< attempts in a row that fail before a watch ends with STORE_UNAVAILABLE
};

/// One call. Paths are built with the functions below.
struct Request {
  std::string method = "GET";
  std::string path;
  std::string body;  ///< JSON
  std::string content_type = "application/json";
  std::string subject;  ///< what messages call it: "PillarStore/fast"
};

/// Counters since the client was made, by what went over the wire.
struct ClientStats {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t watches = 0;  ///< opened
};

/// What a watch of any resource hears, on the client thread.
struct RawWatchHandler {
  /// `type` is ADDED, MODIFIED, DELETED or BOOKMARK.
  std::function<void(std::string_view type, const nlohmann::json& object)> on_event;
  /// As WatchHandler::on_end of crd/store.hpp.
  std::function<void(const Error&)> on_end;
};

class Client {
 public:
  using Done = std::function<void(Result<nlohmann::json>)>;

  /// INVALID_ARGUMENT for a configuration that cannot work. Does not connect.
  static Result<std::shared_ptr<Client>> make(ClientOptions options);
  /// Ends what is under way with SHUTTING_DOWN; no callback runs afterwards. Watches must be destroyed
  /// before. Not on the client thread.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Carries out a call. Reads are repeated when the server cannot answer; writes only when the server
  /// provably did not carry them out, since only the caller can judge what a repetition would do.
  /// NOT_FOUND, ALREADY_EXISTS, CONFLICT, INVALID_ARGUMENT, VERSION_EXPIRED (a list that took too long),
  /// PERMISSION_DENIED, otherwise STORE_UNAVAILABLE: the resource type is not installed, the server is out of
  /// reach or refuses our credentials.
  void call(Request request, Done done);

  /// A page of a collection.
  struct RawPage {
    std::vector<nlohmann::json> items;
    std::string resource_version;
    std::string continue_token;
  };
  /// Lists `path` (a collection, without a query). `options.limit` 0: everything, fetched in pages.
  void list(std::string path, std::string subject, ListOptions options,
            std::function<void(Result<RawPage>)> done);

  /// Watches `path` from `from`. Connections that end or go silent are opened anew where they stopped; the
  /// watch ends as WatchHandler::on_end says. The handle works as crd::Watch does.
  std::unique_ptr<Watch> watch(std::string path, std::string subject, std::string from,
                               RawWatchHandler handler);

  ClientStats stats() const;
  const std::string& name_space() const;

  class Impl;  // for the implementation files

 private:
  explicit Client(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// Percent-encodes a path segment or query value.
std::string encode(std::string_view text);

/// What the server's answer means; `status` is not 2xx. `subject` as in Request.
Error error_of(int status, std::string_view body, std::string_view subject);

}  // namespace pillar::crd::kube
