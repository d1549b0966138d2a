#include "crd/kube/http.hpp"

#include <algorithm>
#include <charconv>
#include <future>
#include <mutex>
#include <thread>

#include <arpa/inet.h>
#include <cpprest/astreambuf.h>
#include <cpprest/http_client.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pplx/threadpool.h>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>

namespace pillar::crd::kube {
namespace {

namespace http = web::http;
namespace asio = boost::asio;

/// The pool of the HTTP library with one thread: everything that runs there is serial, and an idle program
/// has one thread instead of forty.
asio::io_service& client_loop() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      crossplat::threadpool::initialize_with_threads(1);
    } catch (const std::exception&) {
      // Somebody else in the process started the pool; callbacks are then not serial, which must not be.
      std::abort();
    }
  });
  return crossplat::threadpool::shared_instance().service();
}

std::thread::id client_thread() {
  static const std::thread::id k_id = [] {
    std::promise<std::thread::id> id;
    client_loop().post([&id] { id.set_value(std::this_thread::get_id()); });
    return id.get_future().get();
  }();
  return k_id;
}

// ---- TLS ---------------------------------------------------------------------------------------------

/// Who the server must prove to be.
struct Expected {
  std::string name;
  bool verify = true;
};

void free_expected(void*, void* value, CRYPTO_EX_DATA*, int, long, void*) {  // NOLINT(google-runtime-int)
  delete static_cast<Expected*>(value);  // NOLINT(cppcoreguidelines-owning-memory): OpenSSL owns it
}

int expected_index() {
  static const int k_index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_expected);
  return k_index;
}

bool is_address(const std::string& text) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

/// Replaces the library's check, which knows the URL's host only and no IPv6 address: chain against our
/// roots, and name or address.
int check_server(X509_STORE_CTX* chain, void*) {
  auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* expected =
      static_cast<const Expected*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), expected_index()));
  if (!expected) return 0;
  if (!expected->verify) return 1;
  auto* parameters = X509_STORE_CTX_get0_param(chain);
  const bool set = is_address(expected->name)
                       ? X509_VERIFY_PARAM_set1_ip_asc(parameters, expected->name.c_str()) == 1
                       : X509_VERIFY_PARAM_set1_host(parameters, expected->name.c_str(), 0) == 1;
  if (!set) return 0;
  X509_STORE_CTX_set_verify_cb(chain, [](int good, X509_STORE_CTX*) { return good; });
  return X509_verify_cert(chain);
}

asio::const_buffer bytes_of(const std::string& text) { return asio::buffer(text.data(), text.size()); }

/// Throws what the library turns into the failure of the request.
void prepare_tls(asio::ssl::context& context, const HttpEndpoint& endpoint, const std::string& host) {
  const auto material = endpoint.tls ? endpoint.tls() : TlsMaterial{};
  if (!material) throw std::runtime_error(material.error().message);
  auto* native = context.native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_cert_store(native, X509_STORE_new());  // the system's roots are not asked
  if (!material->ca_pem.empty()) context.add_certificate_authority(bytes_of(material->ca_pem));
  if (!material->certificate_pem.empty()) {
    context.use_certificate_chain(bytes_of(material->certificate_pem));
    context.use_private_key(bytes_of(material->key_pem), asio::ssl::context::pem);
  }
  auto expected = std::make_unique<Expected>(
      Expected{material->server_name.empty() ? host : material->server_name, material->verify});
  if (SSL_CTX_set_ex_data(native, expected_index(), expected.get()) == 1) (void)expected.release();
  SSL_CTX_set_cert_verify_callback(native, check_server, nullptr);
}

// ---- requests ----------------------------------------------------------------------------------------

HttpFailure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const http::http_exception& error) {
    const auto code = error.error_code().value();
    if (code == ETIMEDOUT || code == ETIME) return {HttpFailure::Kind::timeout, "no answer in time"};
    if (code == ECANCELED) return {HttpFailure::Kind::cancelled, "cancelled"};
    // The library reports refused connections and unknown hosts as EHOSTUNREACH.
    const bool unsent = code == EHOSTUNREACH || code == ECONNREFUSED || code == ENETUNREACH;
    return {unsent ? HttpFailure::Kind::unsent : HttpFailure::Kind::broken, error.what()};
  } catch (const pplx::task_canceled&) {
    return {HttpFailure::Kind::cancelled, "cancelled"};
  } catch (const std::exception& error) {
    return {HttpFailure::Kind::broken, error.what()};
  }
}

HttpResponse head_of(const http::http_response& response) {
  HttpResponse out;
  out.status = response.status_code();
  const auto header = response.headers().find("Retry-After");
  if (header != response.headers().end()) {
    int seconds = 0;
    const auto& text = header->second;
    if (std::from_chars(text.data(), text.data() + text.size(), seconds).ec == std::errc() && seconds >= 0)
      out.retry_after = std::chrono::seconds(seconds);
  }
  return out;
}

http::http_request made(const HttpRequest& request, const std::string& user_agent) {
  http::http_request out(request.method);
  out.set_request_uri(web::uri(request.path));
  out.headers().add("Accept", "application/json");
  if (!user_agent.empty()) out.headers().add("User-Agent", user_agent);
  if (!request.authorization.empty()) out.headers().add("Authorization", request.authorization);
  if (!request.body.empty()) out.set_body(request.body, request.content_type);
  return out;
}

/// One request on its way. The answer, the time limit and cancellation race; the first one wins.
struct Call {
  explicit Call(HttpClient::Done wanted) : done(std::move(wanted)), timer(client_loop()) {}
  void finish(tl::expected<HttpResponse, HttpFailure> outcome) {
    if (!done) return;
    timer.cancel();
    const auto answer = std::exchange(done, nullptr);
    answer(std::move(outcome));
  }
  HttpClient::Done done;
  asio::steady_timer timer;
  pplx::cancellation_token_source cancellation;
};

void receive(const std::shared_ptr<Call>& call, const pplx::task<http::http_response>& task) {
  try {
    auto response = task.get();
    auto head = std::make_shared<HttpResponse>(head_of(response));
    response.extract_utf8string(true).then([call, head](const pplx::task<std::string>& reading) {
      try {
        head->body = reading.get();
        call->finish(std::move(*head));
      } catch (...) {
        call->finish(tl::unexpected(failure_of(std::current_exception())));
      }
    });
  } catch (...) {
    call->finish(tl::unexpected(failure_of(std::current_exception())));
  }
}

// ---- streams -----------------------------------------------------------------------------------------

/// A stream buffer that hands on what is written into it; nothing can be read from it.
class PushBuffer final : public concurrency::streams::details::streambuf_state_manager<uint8_t> {
 public:
  using Sink = std::function<void(std::string_view)>;
  explicit PushBuffer(Sink sink)
      : concurrency::streams::details::streambuf_state_manager<uint8_t>(std::ios_base::out),
        sink_(std::move(sink)) {}

  bool can_seek() const override { return false; }
  bool has_size() const override { return false; }
  std::size_t buffer_size(std::ios_base::openmode) const override { return 0; }
  void set_buffer_size(std::size_t, std::ios_base::openmode) override {}
  std::size_t in_avail() const override { return 0; }
  pos_type getpos(std::ios_base::openmode) const override { return traits::eof(); }
  pos_type seekpos(pos_type, std::ios_base::openmode) override { return traits::eof(); }
  pos_type seekoff(off_type, std::ios_base::seekdir, std::ios_base::openmode) override {
    return traits::eof();
  }
  bool acquire(uint8_t*&, std::size_t&) override { return false; }
  void release(uint8_t*, std::size_t) override {}

 protected:
  uint8_t* _alloc(std::size_t) override { return nullptr; }
  void _commit(std::size_t) override {}
  pplx::task<int_type> _putc(uint8_t byte) override {
    const char one = static_cast<char>(byte);
    sink_(std::string_view(&one, 1));
    return pplx::task_from_result<int_type>(byte);
  }
  pplx::task<std::size_t> _putn(const uint8_t* bytes, std::size_t count) override {
    sink_(std::string_view(reinterpret_cast<const char*>(bytes), count));
    return pplx::task_from_result(count);
  }
  pplx::task<std::size_t> _getn(uint8_t*, std::size_t) override {
    return pplx::task_from_result<std::size_t>(0);
  }
  std::size_t _scopy(uint8_t*, std::size_t) override { return 0; }
  pplx::task<int_type> _bumpc() override { return no_byte(); }
  int_type _sbumpc() override { return traits::eof(); }
  pplx::task<int_type> _getc() override { return no_byte(); }
  int_type _sgetc() override { return traits::eof(); }
  pplx::task<int_type> _nextc() override { return no_byte(); }
  pplx::task<int_type> _ungetc() override { return no_byte(); }
  pplx::task<bool> _sync() override { return pplx::task_from_result(true); }

 private:
  static pplx::task<int_type> no_byte() { return pplx::task_from_result<int_type>(traits::eof()); }
  Sink sink_;
};

class Stream final : public HttpStream, public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(HttpStreamHandler handler) : handler_(std::move(handler)) {}

  void cancel() override {
    ended_ = true;
    cancellation_.cancel();
    client_.reset();
  }

  void start(std::unique_ptr<http::client::http_client> client, http::http_request request) {
    client_ = std::move(client);
    auto buffer = std::make_shared<PushBuffer>([weak = weak_from_this()](std::string_view bytes) {
      if (const auto self = weak.lock()) self->take(bytes);
    });
    const concurrency::streams::streambuf<uint8_t> shared(buffer);
    request.set_response_stream(concurrency::streams::ostream(shared));
    client_->request(request, cancellation_.get_token())
        .then(
            [self = shared_from_this()](const pplx::task<http::http_response>& task) { self->begun(task); });
  }

  void fail(HttpFailure failure) { end(std::move(failure)); }

 private:
  void begun(const pplx::task<http::http_response>& task) {
    try {
      auto response = task.get();
      head(head_of(response));
      response.content_ready().then(
          [self = shared_from_this()](const pplx::task<http::http_response>& whole) {
            try {
              whole.get();
              self->end(std::nullopt);
            } catch (...) {
              self->end(failure_of(std::current_exception()));
            }
          });
    } catch (...) {
      end(failure_of(std::current_exception()));
    }
  }
  /// Bytes may come before the library tells the head.
  void take(std::string_view bytes) {
    if (ended_) return;
    if (head_known_)
      handler_.on_data(bytes);
    else
      early_.append(bytes);
  }
  void head(const HttpResponse& response) {
    if (ended_) return;
    head_known_ = true;
    handler_.on_head(response);
    const auto bytes = std::exchange(early_, {});
    if (!ended_ && !bytes.empty()) handler_.on_data(bytes);
  }
  void end(std::optional<HttpFailure> failure) {
    if (ended_) return;
    ended_ = true;
    client_.reset();
    handler_.on_end(std::move(failure));
  }

  HttpStreamHandler handler_;
  std::unique_ptr<http::client::http_client> client_;
  pplx::cancellation_token_source cancellation_;
  bool head_known_ = false;
  bool ended_ = false;
  std::string early_;
};

// ---- client ------------------------------------------------------------------------------------------

class Client final : public HttpClient {
 public:
  explicit Client(HttpEndpoint endpoint) : endpoint_(std::move(endpoint)), uri_(endpoint_.url) {
    requests_ = connect(std::chrono::seconds(60));  // each request has a shorter limit of its own
  }

  void send(HttpRequest request, std::chrono::milliseconds limit, Done done) override {
    const auto call = std::make_shared<Call>(std::move(done));
    call->timer.expires_after(limit);
    call->timer.async_wait([call](const boost::system::error_code& stopped) {
      if (stopped) return;
      call->finish(tl::unexpected(HttpFailure{HttpFailure::Kind::timeout, "no answer in time"}));
      call->cancellation.cancel();
    });
    try {
      requests_->request(made(request, endpoint_.user_agent), call->cancellation.get_token())
          .then([call](const pplx::task<http::http_response>& task) { receive(call, task); });
    } catch (...) {
      call->finish(tl::unexpected(failure_of(std::current_exception())));
    }
  }

  std::shared_ptr<HttpStream> stream(HttpRequest request, std::chrono::milliseconds silence,
                                     HttpStreamHandler handler) override {
    const auto out = std::make_shared<Stream>(std::move(handler));
    try {
      out->start(connect(silence), made(request, endpoint_.user_agent));
    } catch (...) {
      post([out, failure = failure_of(std::current_exception())] { out->fail(failure); });
    }
    return out;
  }

 private:
  std::unique_ptr<http::client::http_client> connect(std::chrono::milliseconds silence) const {
    http::client::http_client_config config;
    config.set_timeout(silence);
    config.set_max_redirects(0);
    auto host = uri_.host();
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    config.set_ssl_context_callback(
        [endpoint = endpoint_, host](asio::ssl::context& context) { prepare_tls(context, endpoint, host); });
    return std::make_unique<http::client::http_client>(uri_, config);
  }

  HttpEndpoint endpoint_;
  web::uri uri_;
  std::unique_ptr<http::client::http_client> requests_;
};

}  // namespace

void post(std::function<void()> work) { client_loop().post(std::move(work)); }

void post_after(std::chrono::milliseconds delay, std::function<void()> work) {
  auto timer = std::make_shared<asio::steady_timer>(client_loop(), delay);
  timer->async_wait([timer, work = std::move(work)](const boost::system::error_code& stopped) {
    if (!stopped) work();
  });
}

bool on_client_thread() { return std::this_thread::get_id() == client_thread(); }

void run_on_client_thread(const std::function<void()>& work) {
  if (on_client_thread()) return work();
  std::promise<void> finished;
  post([&] {
    work();
    finished.set_value();
  });
  finished.get_future().wait();
}

Result<std::unique_ptr<HttpClient>> HttpClient::make(HttpEndpoint endpoint) {
  const auto url = endpoint.url;
  const auto wrong = [&](const std::string& why) {
    return fail(Reason::invalid_argument,
                "server \"" + url + "\" is no http(s) URL" + (why.empty() ? "" : ": " + why));
  };
  client_loop();  // before the library starts its pool on its own
  try {
    const web::uri parsed(url);
    if ((parsed.scheme() != "https" && parsed.scheme() != "http") || parsed.host().empty()) return wrong("");
    return std::unique_ptr<HttpClient>(new Client(std::move(endpoint)));
  } catch (const std::exception& error) {
    return wrong(error.what());
  }
}

}  // namespace pillar::crd::kube
