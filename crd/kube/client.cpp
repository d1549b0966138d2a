#include "crd/kube/client.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <set>

#include <nlohmann/json.hpp>

#include "crd/kube/http.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Objects fetched by one request of a list.
constexpr std::size_t k_page = 500;
/// A complete list that the server's history outruns is begun anew so often.
constexpr int k_list_rounds = 3;
/// Longest event line: three times what etcd stores of one object.
constexpr std::size_t k_max_line = 8U << 20;
/// Most of an error's body that is read from a stream.
constexpr std::size_t k_max_error_body = 64U << 10;
/// A watch that lasted so long has worked, even if nothing happened.
constexpr std::chrono::seconds k_good_watch{5};

bool is_read(const Request& request) { return request.method == "GET"; }

std::string text_at(const json& value, const char* key) {
  if (!value.is_object()) return {};
  const auto it = value.find(key);
  return it != value.end() && it->is_string() ? it->get<std::string>() : std::string();
}

const json& member(const json& value, const char* key) {
  static const json k_none;
  if (!value.is_object()) return k_none;
  const auto it = value.find(key);
  return it != value.end() ? *it : k_none;
}

/// "spec.backend: exactly one of ..." of every cause the server names; its whole message when it names none.
std::string causes_of(const json& status, std::string& first_field) {
  std::string out;
  for (const auto& cause : member(member(status, "details"), "causes")) {
    const auto field = text_at(cause, "field");
    if (first_field.empty()) first_field = field;
    out += (out.empty() ? "" : "; ") + (field.empty() ? "" : field + ": ") + text_at(cause, "message");
  }
  return out.empty() ? text_at(status, "message") : out;
}

bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Objects that are too large come back under several names.
bool is_too_large(int status, const std::string& text) {
  return status == 413 || mentions(text, "request is too large") || mentions(text, "larger than max") ||
         mentions(text, "Request entity too large");
}

Error make_error(Reason reason, std::string message, std::map<std::string, std::string> details = {}) {
  return fail(reason, std::move(message), std::move(details)).value();
}

/// Whether a watch cannot go on from where it stood.
bool is_expired(int status, const json& answer) {
  const auto reason = text_at(answer, "reason");
  const auto message = text_at(answer, "message");
  if (status == 410 || reason == "Expired" || reason == "Gone") return true;
  // Version numbers of another life of the cluster, or none at all.
  return mentions(message, "Too large resource version") ||
         mentions(message, "resourceVersion: Invalid value") ||
         ((status == 400 || status == 422) &&
          (mentions(message, "resource version") || mentions(message, "resourceVersion")));
}

/// Versions are decimal numbers of any length.
bool is_before(const std::string& a, const std::string& b) {
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!is_number(a) || !is_number(b)) return false;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

json parsed(std::string_view text) { return json::parse(text, nullptr, false); }

}  // namespace

std::string encode(std::string_view text) {
  static constexpr char k_digits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '.' || c == '_' || c == '~')
      out.push_back(c);
    else
      out.append({'%', k_digits[byte >> 4U], k_digits[byte & 15U]});
  }
  return out;
}

Error error_of(int status, std::string_view body, std::string_view subject) {
  const auto answer = parsed(body);
  const auto reason = text_at(answer, "reason");
  std::string field;
  auto said = causes_of(answer, field);
  if (said.empty()) said = "HTTP status " + std::to_string(status);
  const auto about = [&](const std::string& text) { return std::string(subject) + ": " + text; };
  if (is_too_large(status, said))
    return make_error(Reason::invalid_argument,
                      about("is too large for the API server (" + said + "); make it smaller"));
  switch (status) {
    case 400:
    case 422:
      return make_error(Reason::invalid_argument, about(said),
                        field.empty() ? std::map<std::string, std::string>{}
                                      : std::map<std::string, std::string>{{"field", field}});
    case 401:
      return make_error(Reason::store_unavailable, about("the API server does not know us (" + said +
                                                         "); renew the token or certificate"));
    case 403:
      return make_error(Reason::permission_denied, about(said + "; grant it by RBAC"));
    case 404:
      if (!text_at(member(answer, "details"), "name").empty())
        return make_error(Reason::not_found, std::string(subject) + " does not exist");
      return make_error(Reason::store_unavailable,
                        about("the API server does not have this resource type; install the "
                              "CustomResourceDefinitions"));
    case 409:
      if (reason == "AlreadyExists")
        return make_error(Reason::already_exists, std::string(subject) + " exists already");
      return make_error(Reason::conflict, about("has changed (" + said + "); read it again and repeat"));
    case 410:
      return make_error(Reason::version_expired, about(said + "; list again"));
    default:
      return make_error(Reason::store_unavailable,
                        about("the API server answered " + std::to_string(status) + " (" + said + ")"));
  }
}

// ---- implementation ----------------------------------------------------------------------------------

namespace {
class Pending;
class WatchLoop;
}  // namespace

/// Lives on the client thread, except for the counters.
class Client::Impl : public std::enable_shared_from_this<Client::Impl> {
 public:
  explicit Impl(ClientOptions options) : options_(std::move(options)), random_(std::random_device{}()) {}

  Result<void> connect() {
    auto made = HttpClient::make(endpoint());
    if (!made) return tl::unexpected(with_context(made.error(), options_.config.source));
    http_ = std::move(*made);
    return {};
  }

  const ClientOptions& options() const { return options_; }
  HttpClient& http() { return *http_; }

  /// The Authorization header; `renew` reads a token file again whatever its age.
  Result<std::string> authorization(bool renew) {
    const auto& token = options_.config.token;
    if (token.empty()) return std::string();
    if (!token.file.empty() && (renew || token_.empty() || Clock::now() - token_read_ > options_.token_age)) {
      auto read = token.read("token file");
      if (!read && token_.empty()) return tl::unexpected(read.error());
      if (read) {
        read->erase(read->find_last_not_of(" \r\n\t") + 1);
        token_ = std::move(*read);
        token_read_ = Clock::now();
      }
    } else if (token.file.empty()) {
      token_ = token.data;
    }
    return "Bearer " + token_;
  }
  /// After a 401: the next connection reads certificates and token anew.
  void renew_credentials() {
    if (auto fresh = HttpClient::make(endpoint())) http_ = std::move(*fresh);
    (void)authorization(true);
  }

  /// Exponential with jitter: between half and all of the pause for this attempt (counted from 1).
  milliseconds pause(int attempt) {
    const milliseconds doubled = options_.first_pause * (1L << std::min(attempt - 1, 20));
    const auto longest = std::min(doubled, options_.longest_pause).count();
    return milliseconds(std::uniform_int_distribution<std::int64_t>(longest / 2, longest)(random_));
  }
  std::chrono::seconds watch_length() {
    const auto base = options_.watch_length.count();
    return std::chrono::seconds(std::uniform_int_distribution<std::int64_t>(base, 2 * base)(random_));
  }

  void add(const std::shared_ptr<Pending>& pending) { pending_.insert(pending); }
  void remove(const std::shared_ptr<Pending>& pending) { pending_.erase(pending); }
  void close();

  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> writes{0};
  std::atomic<std::uint64_t> watches{0};

 private:
  HttpEndpoint endpoint() const {
    HttpEndpoint out;
    out.url = options_.config.server;
    out.user_agent = options_.user_agent;
    out.tls = [config = options_.config]() -> Result<TlsMaterial> {
      TlsMaterial material;
      material.server_name = config.server_name;
      material.verify = config.verify;
      for (const auto& [from, to, what] :
           {std::tuple(&config.ca, &material.ca_pem, "CA certificate"),
            std::tuple(&config.certificate, &material.certificate_pem, "client certificate"),
            std::tuple(&config.key, &material.key_pem, "client key")}) {
        auto read = from->read(what);
        if (!read) return tl::unexpected(read.error());
        *to = std::move(*read);
      }
      return material;
    };
    return out;
  }

  const ClientOptions options_;
  std::unique_ptr<HttpClient> http_;
  std::string token_;
  Clock::time_point token_read_{};
  std::mt19937_64 random_;
  std::set<std::shared_ptr<Pending>> pending_;
};

namespace {

/// One call with its attempts.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  Pending(std::shared_ptr<Client::Impl> impl, Request request, Client::Done done)
      : impl_(std::move(impl)),
        request_(std::move(request)),
        done_(std::move(done)),
        deadline_(Clock::now() + impl_->options().call_limit) {}

  void start() {
    impl_->add(shared_from_this());
    attempt();
  }

  void finish(Result<json> outcome) {
    if (!done_) return;
    impl_->remove(shared_from_this());
    const auto done = std::exchange(done_, nullptr);
    done(std::move(outcome));
  }

 private:
  void attempt() {
    if (!done_) return;
    ++attempts_;
    const auto authorization = impl_->authorization(false);
    if (!authorization) return finish(tl::unexpected(authorization.error()));
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    ++(is_read(request_) ? impl_->reads : impl_->writes);
    impl_->http().send({request_.method, request_.path, request_.body, request_.content_type, *authorization},
                       std::clamp(left, milliseconds(1), impl_->options().attempt_limit),
                       [self = shared_from_this()](auto outcome) { self->judge(std::move(outcome)); });
  }

  void judge(tl::expected<HttpResponse, HttpFailure> outcome) {
    if (!done_) return;
    if (!outcome) {
      const auto error =
          make_error(Reason::store_unavailable, request_.subject + ": the API server at " +
                                                    impl_->options().config.server + " cannot be reached (" +
                                                    outcome.error().message + ")");
      const bool harmless = is_read(request_) || outcome.error().kind == HttpFailure::Kind::unsent;
      return harmless ? again(impl_->pause(attempts_), error) : finish(tl::unexpected(error));
    }
    if (outcome->status >= 200 && outcome->status < 300) return accept(*outcome);
    const auto error = error_of(outcome->status, outcome->body, request_.subject);
    if (outcome->status == 401 && !renewed_) {
      renewed_ = true;
      impl_->renew_credentials();
      return again(milliseconds(0), error);
    }
    // 429 says that nothing was done; what a 5xx did is unknown.
    const bool repeatable = outcome->status == 429 || (outcome->status >= 500 && is_read(request_));
    if (!repeatable) return finish(tl::unexpected(error));
    const auto asked =
        std::chrono::duration_cast<milliseconds>(outcome->retry_after.value_or(std::chrono::seconds(0)));
    again(std::max(asked, impl_->pause(attempts_)), error);
  }

  void accept(const HttpResponse& response) {
    auto value = parsed(response.body);
    if (!value.is_discarded()) return finish(std::move(value));
    const auto error =
        make_error(Reason::store_unavailable, request_.subject + ": the API server's answer is not JSON");
    is_read(request_) ? again(impl_->pause(attempts_), error) : finish(tl::unexpected(error));
  }

  /// Tries again after `delay`, or answers `error` when there is no time for it.
  void again(milliseconds delay, const Error& error) {
    if (Clock::now() + delay >= deadline_) return finish(tl::unexpected(error));
    post_after(delay, [self = shared_from_this()] { self->attempt(); });
  }

  std::shared_ptr<Client::Impl> impl_;
  Request request_;
  Client::Done done_;
  Clock::time_point deadline_;
  int attempts_ = 0;
  bool renewed_ = false;
};

/// A watch across its connections.
class WatchLoop : public std::enable_shared_from_this<WatchLoop> {
 public:
  WatchLoop(std::shared_ptr<Client::Impl> impl, std::string path, std::string subject, std::string from,
            RawWatchHandler handler)
      : impl_(std::move(impl)),
        path_(std::move(path)),
        subject_(std::move(subject)),
        version_(std::move(from)),
        handler_(std::move(handler)) {}

  void connect() {
    if (over()) return;
    line_.clear();
    status_ = 0;
    retry_after_ = milliseconds(0);
    opened_ = Clock::now();
    const auto authorization = impl_->authorization(false);
    if (!authorization) return end(authorization.error());
    HttpRequest request;
    request.path = path_ + "?watch=true&allowWatchBookmarks=true&resourceVersion=" + encode(version_) +
                   "&timeoutSeconds=" + std::to_string(impl_->watch_length().count());
    request.authorization = *authorization;
    ++impl_->watches;
    HttpStreamHandler stream;
    stream.on_head = [weak = weak_from_this()](const HttpResponse& head) {
      if (const auto self = weak.lock()) self->head(head);
    };
    stream.on_data = [weak = weak_from_this()](std::string_view bytes) {
      if (const auto self = weak.lock()) self->data(bytes);
    };
    stream.on_end = [weak = weak_from_this()](const std::optional<HttpFailure>& failure) {
      if (const auto self = weak.lock()) self->closed(failure);
    };
    stream_ = impl_->http().stream(std::move(request), impl_->options().watch_silence, std::move(stream));
  }

  /// Client thread only.
  void stop() {
    cancelled_ = true;
    if (stream_) std::exchange(stream_, nullptr)->cancel();
  }
  /// From any other thread: waits for a handler that is running.
  void stop_and_wait() {
    cancelled_ = true;
    const std::lock_guard wait_for_handler(running_);
    post([self = shared_from_this()] { self->stop(); });
  }

 private:
  bool over() const { return cancelled_ || ended_; }

  /// Calls `work` unless the watch was ended; another thread that ends it waits meanwhile.
  template <class F>
  void deliver(F work) {
    const std::lock_guard lock(running_);
    if (!over()) work();
  }

  void head(const HttpResponse& response) {
    status_ = response.status;
    if (status_ == 200) renewed_ = false;
    retry_after_ =
        std::chrono::duration_cast<milliseconds>(response.retry_after.value_or(std::chrono::seconds(0)));
  }

  void data(std::string_view bytes) {
    const auto self = shared_from_this();
    if (status_ != 200) {
      line_.append(bytes.substr(0, k_max_error_body - std::min(line_.size(), k_max_error_body)));
      return;
    }
    while (!over() && stream_) {
      const auto end = bytes.find('\n');
      line_.append(bytes.substr(0, end));
      if (line_.size() > k_max_line) return lost("an event of more than 8 MiB");
      if (end == std::string_view::npos) return;
      bytes.remove_prefix(end + 1);
      const auto event = parsed(line_);
      line_.clear();
      take(event);
    }
  }

  void take(const json& event) {
    const auto type = text_at(event, "type");
    const auto& object = member(event, "object");
    if (type == "ERROR") {
      const auto code = member(object, "code");
      return refused(code.is_number_integer() ? code.get<int>() : 500, object);
    }
    const auto version = text_at(member(object, "metadata"), "resourceVersion");
    // Something that is no event is no reason to believe what follows it.
    if (type.empty() || version.empty()) return lost("a line that is no event");
    failures_ = 0;
    version_ = version;
    deliver([&] { handler_.on_event(type, object); });
  }

  /// The connection has ended.
  void closed(const std::optional<HttpFailure>& failure) {
    stream_.reset();
    if (over()) return;
    if (status_ != 0 && status_ != 200) return refused(status_, parsed(line_));
    if (status_ == 200 && Clock::now() - opened_ > k_good_watch) failures_ = 0;
    if (status_ == 200 && failure && failure->kind == HttpFailure::Kind::timeout) return compare();
    // A rest in line_ is an event that was cut off: it comes again, since version_ does not cover it.
    lost(failure ? failure->message : "the server ended the watch");
  }

  /// Servers that work send bookmarks. One that was restored from an older backup accepts our version, which
  /// lies in its future, and says nothing until it gets there: asks where it is before believing the silence.
  void compare() {
    HttpRequest request;
    request.path = path_ + "?limit=1";
    const auto authorization = impl_->authorization(false);
    if (authorization) request.authorization = *authorization;
    ++impl_->reads;
    impl_->http().send(std::move(request), impl_->options().attempt_limit,
                       [weak = weak_from_this()](auto outcome) {
                         const auto self = weak.lock();
                         if (!self || self->over()) return;
                         const auto answer = outcome ? parsed(outcome->body) : json();
                         const auto theirs = text_at(member(answer, "metadata"), "resourceVersion");
                         if (is_before(theirs, self->version_)) return self->refused(410, answer);
                         self->lost("it went silent");
                       });
  }

  void refused(int status, const json& answer) {
    if (is_expired(status, answer))
      return end(make_error(Reason::version_expired,
                            subject_ + ": resource version \"" + version_ +
                                "\" is outside the kept history; list again and watch from there"));
    const auto error = error_of(status, answer.is_discarded() ? "" : answer.dump(), subject_);
    if (status == 401 && !renewed_) {
      renewed_ = true;
      impl_->renew_credentials();
    } else if (status != 429 && status < 500) {
      return end(error);
    }
    lost(error.message);
  }

  /// Opens the next connection after a pause, or gives up.
  void lost(const std::string& why) {
    if (stream_) std::exchange(stream_, nullptr)->cancel();
    if (++failures_ > impl_->options().watch_attempts)
      return end(
          make_error(Reason::store_unavailable,
                     subject_ + ": the watch at " + impl_->options().config.server + " ends (" + why + ")"));
    post_after(std::max(retry_after_, impl_->pause(failures_)), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->connect();
    });
  }

  void end(const Error& error) {
    if (stream_) std::exchange(stream_, nullptr)->cancel();
    deliver([&] {
      ended_ = true;
      if (handler_.on_end) handler_.on_end(error);
    });
  }

  std::shared_ptr<Client::Impl> impl_;
  const std::string path_;
  const std::string subject_;
  std::string version_;  ///< everything up to here was delivered
  RawWatchHandler handler_;
  std::shared_ptr<HttpStream> stream_;
  std::string line_;  ///< of the event, or of the error's body
  int status_ = 0;
  milliseconds retry_after_{0};
  Clock::time_point opened_;
  int failures_ = 0;  ///< in a row
  bool renewed_ = false;
  bool ended_ = false;
  std::atomic<bool> cancelled_{false};
  std::mutex running_;  ///< held while a handler runs
};

class WatchHandle final : public Watch {
 public:
  explicit WatchHandle(std::shared_ptr<WatchLoop> loop) : loop_(std::move(loop)) {}
  ~WatchHandle() override {
    // A handler may hold this handle and be what is being destroyed: the loop lives on until it returns.
    if (on_client_thread())
      loop_->stop();
    else
      loop_->stop_and_wait();
  }

 private:
  std::shared_ptr<WatchLoop> loop_;
};

/// A list with its pages.
struct Listing : std::enable_shared_from_this<Listing> {
  Client* client = nullptr;
  std::string path;
  std::string subject;
  ListOptions options;
  std::function<void(Result<Client::RawPage>)> done;
  Client::RawPage page;
  int round = 0;

  void next() {
    const bool everything = options.limit == 0;
    const auto& token = everything ? page.continue_token : options.continue_token;
    Request request;
    request.path = path + "?limit=" + std::to_string(everything ? k_page : options.limit);
    if (!token.empty()) request.path += "&continue=" + encode(token);
    request.subject = subject;
    client->call(std::move(request),
                 [self = shared_from_this()](Result<json> answer) { self->take(std::move(answer)); });
  }

  void take(Result<json> answer) {
    const bool everything = options.limit == 0;
    if (!answer) {
      if (answer.error().reason == Reason::version_expired && everything && ++round < k_list_rounds) {
        page = {};
        return next();
      }
      return done(tl::unexpected(answer.error()));
    }
    const auto& metadata = member(*answer, "metadata");
    if (page.resource_version.empty()) page.resource_version = text_at(metadata, "resourceVersion");
    page.continue_token = text_at(metadata, "continue");
    if (auto items = answer->find("items"); items != answer->end() && items->is_array())
      std::move(items->begin(), items->end(), std::back_inserter(page.items));
    if (everything && !page.continue_token.empty()) return next();
    done(std::move(page));
  }
};

}  // namespace

void Client::Impl::close() {
  const auto open = pending_;
  for (const auto& one : open) one->finish(fail(Reason::shutting_down, "the program is stopping"));
}

Client::Client(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  run_on_client_thread([this] { impl_->close(); });
}

Result<std::shared_ptr<Client>> Client::make(ClientOptions options) {
  const auto impl = std::make_shared<Impl>(std::move(options));
  if (auto connected = impl->connect(); !connected) return tl::unexpected(connected.error());
  return std::shared_ptr<Client>(new Client(impl));
}

void Client::call(Request request, Done done) {
  const auto pending = std::make_shared<Pending>(impl_, std::move(request), std::move(done));
  post([pending] { pending->start(); });
}

void Client::list(std::string path, std::string subject, ListOptions options,
                  std::function<void(Result<RawPage>)> done) {
  auto listing = std::make_shared<Listing>();
  listing->client = this;
  listing->path = std::move(path);
  listing->subject = std::move(subject);
  listing->options = std::move(options);
  listing->done = std::move(done);
  listing->next();
}

std::unique_ptr<Watch> Client::watch(std::string path, std::string subject, std::string from,
                                     RawWatchHandler handler) {
  const auto loop = std::make_shared<WatchLoop>(impl_, std::move(path), std::move(subject), std::move(from),
                                                std::move(handler));
  post([loop] { loop->connect(); });
  return std::make_unique<WatchHandle>(loop);
}

ClientStats Client::stats() const { return {impl_->reads, impl_->writes, impl_->watches}; }
const std::string& Client::name_space() const { return impl_->options().config.name_space; }

}  // namespace pillar::crd::kube
