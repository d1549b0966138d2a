// cpprest's macro U() would break fmt.
#define _TURN_OFF_PLATFORM_STRING

#include "actors/runtime/metrics_http.hpp"

#include <charconv>
#include <mutex>

#include <cpprest/http_listener.h>
#include <pplx/threadpool.h>

#include "actors/runtime/logging.hpp"

namespace pillar::runtime {

namespace {

namespace http = web::http;

constexpr const char* k_text = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::size_t k_max_body = 64 * 1024;

/// The library's pool has 40 threads unless told otherwise, and it can be told once.
void limit_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    try {
      crossplat::threadpool::initialize_with_threads(1);
    } catch (const std::exception&) {
      // Another part of the program was first.
    }
  });
}

/// "http://host:port" for a listen address.
Result<std::string> url_of(const std::string& listen) {
  const auto colon = listen.rfind(':');
  unsigned port = 0;
  const char* end = listen.data() + listen.size();
  const bool number = colon != std::string::npos && colon + 1 < listen.size() &&
                      std::from_chars(listen.data() + colon + 1, end, port).ptr == end;
  std::string host = number ? listen.substr(0, colon) : "";
  const bool v6 = host.find(':') != std::string::npos;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!number || port == 0 || port > 65535 || (v6 && !bracketed)) {
    return fail(
        Reason::invalid_argument,
        "metrics address '" + listen + "' is not <address>:<port> (IPv6 in brackets, port 1 to 65535)");
  }
  if (host.empty()) host = "0.0.0.0";
  return "http://" + host + ":" + std::to_string(port);
}

http::http_response probe_response(const std::function<Result<void>()>& check) {
  const Result<void> state = check ? check() : Result<void>();
  http::http_response response(state ? http::status_codes::OK : http::status_codes::ServiceUnavailable);
  response.set_body(state ? std::string("ok\n") : state.error().message + "\n", k_text);
  return response;
}

class Server final : public MetricsHttp {
 public:
  Server(MetricsHttpOptions options, const std::string& url)
      : options_(std::make_shared<const MetricsHttpOptions>(std::move(options))), listener_(web::uri(url)) {
    listener_.support(http::methods::GET, [o = options_](const http::http_request& r) { get(*o, r); });
    listener_.support(http::methods::POST, [o = options_](http::http_request r) { post(o, std::move(r)); });
  }
  ~Server() override {
    try {
      listener_.close().wait();
    } catch (const std::exception& e) {
      log(spdlog::level::warn, std::string("metrics endpoint did not close cleanly: ") + e.what());
    }
  }
  void open() { listener_.open().wait(); }

 private:
  static void get(const MetricsHttpOptions& options, const http::http_request& request) {
    const auto path = request.relative_uri().path();
    if (path == "/metrics") {
      http::http_response response(http::status_codes::OK);
      response.set_body(options.services.metrics->text(), k_text);
      request.reply(response);
    } else if (path == "/healthz") {
      request.reply(probe_response(options.healthy));
    } else if (path == "/readyz") {
      request.reply(probe_response(options.ready));
    } else {
      request.reply(http::status_codes::NotFound, "no such page; there are /metrics, /healthz and /readyz\n");
    }
  }

  static void post(const std::shared_ptr<const MetricsHttpOptions>& options, http::http_request request) {
    if (request.relative_uri().path() != "/chaos") {
      request.reply(http::status_codes::NotFound, "nothing can be posted here\n");
      return;
    }
    if (!options->services.chaos->enabled()) {
      request.reply(http::status_codes::Forbidden, "fault injection is not enabled; start with --chaos\n");
      return;
    }
    if (request.headers().content_length() > k_max_body) {
      request.reply(http::status_codes::RequestEntityTooLarge, "the request is too long\n");
      return;
    }
    request.extract_string(true).then([options, request](const pplx::task<std::string>& body) {
      try {
        const auto answer = options->services.chaos->handle_json(body.get());
        http::http_response response(answer ? http::status_codes::OK : http::status_codes::BadRequest);
        response.set_body(answer ? *answer : answer.error().message + "\n",
                          answer ? "application/json" : k_text);
        request.reply(response);
      } catch (const std::exception& e) {
        request.reply(http::status_codes::BadRequest, std::string(e.what()) + "\n");
      }
    });
  }

  std::shared_ptr<const MetricsHttpOptions> options_;
  http::experimental::listener::http_listener listener_;
};

}  // namespace

Result<std::unique_ptr<MetricsHttp>> MetricsHttp::start(MetricsHttpOptions options) {
  const auto url = url_of(options.listen);
  if (!url) return tl::unexpected(url.error());
  limit_threads();
  const std::string listen = options.listen;
  try {
    auto server = std::make_unique<Server>(std::move(options), *url);
    server->open();
    return std::unique_ptr<MetricsHttp>(std::move(server));
  } catch (const std::exception& e) {
    return fail(Reason::io_error, "metrics endpoint cannot listen on '" + listen + "': " + e.what() +
                                      "; choose a free address of this host");
  }
}

}  // namespace pillar::runtime
