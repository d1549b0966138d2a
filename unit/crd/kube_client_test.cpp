#include "crd/kube/client.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "crd/kube/mirror.hpp"
#include "crd/kube/store.hpp"
#include "fake_api_server.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// Options against the fake server, quick enough for tests.
ClientOptions quick(const FakeApiServer& server) {
  ClientOptions out;
  out.config.source = "test";
  out.config.server = server.url();
  out.attempt_limit = 400ms;
  out.call_limit = 3s;
  out.first_pause = 5ms;
  out.longest_pause = 50ms;
  out.watch_silence = 300ms;
  return out;
}

std::shared_ptr<Client> client_of(const ClientOptions& options) {
  auto made = Client::make(options);
  REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  return *made;
}

Result<json> call(Client& client, Request request) {
  std::promise<Result<json>> answer;
  auto future = answer.get_future();
  client.call(std::move(request), [&](Result<json> result) { answer.set_value(std::move(result)); });
  REQUIRE(future.wait_for(20s) == std::future_status::ready);
  return future.get();
}

Request read(const std::string& path = "/x") {
  Request out;
  out.path = path;
  out.subject = "PillarAgent/a";
  return out;
}
Request write(const std::string& method = "PUT") {
  auto out = read();
  out.method = method;
  out.body = "{}";
  return out;
}

std::string status(int code, const std::string& reason, const std::string& message,
                   const json& details = {}) {
  return json{{"kind", "Status"}, {"status", "Failure"}, {"code", code},
              {"reason", reason}, {"message", message},  {"details", details}}
      .dump();
}

std::string event(const std::string& type, const std::string& name, const std::string& version) {
  return json{{"type", type}, {"object", {{"metadata", {{"name", name}, {"resourceVersion", version}}}}}}
             .dump() +
         "\n";
}

/// The query parameter `key` of a request.
std::string query(const SeenRequest& request, const std::string& key) {
  const auto at = request.path.find(key + "=");
  if (at == std::string::npos) return "";
  const auto from = at + key.size() + 1;
  return request.path.substr(from, request.path.find('&', from) - from);
}

std::string page(const std::vector<std::string>& names, const std::string& version,
                 const std::string& next = "") {
  json items = json::array();
  for (const auto& name : names) items.push_back({{"metadata", {{"name", name}, {"resourceVersion", "1"}}}});
  return json{{"metadata", {{"resourceVersion", version}, {"continue", next}}}, {"items", items}}.dump();
}

struct TempFile {
  explicit TempFile(const std::string& text) : path("/tmp/pillar-kube-" + std::to_string(::getpid())) {
    write(text);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::remove(path.c_str()); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
  std::string path;
};

}  // namespace

TEST_SUITE_BEGIN("kubernetes client");

TEST_CASE("answers mean what the store's errors say") {
  const auto reason = [](int code, const std::string& body) {
    const auto error = error_of(code, body, "PillarAgent/a");
    CHECK(error.message.find("PillarAgent/a") != std::string::npos);
    return error.reason;
  };
  CHECK(reason(404, status(404, "NotFound", "x", {{"name", "a"}})) == Reason::not_found);
  CHECK(reason(409, status(409, "AlreadyExists", "x")) == Reason::already_exists);
  CHECK(reason(409, status(409, "Conflict", "x")) == Reason::conflict);
  CHECK(reason(400, status(400, "BadRequest", "x")) == Reason::invalid_argument);
  CHECK(reason(403, status(403, "Forbidden", "x")) == Reason::permission_denied);
  CHECK(reason(401, status(401, "Unauthorized", "x")) == Reason::store_unavailable);
  CHECK(reason(410, status(410, "Expired", "x")) == Reason::version_expired);
  CHECK(reason(429, status(429, "TooManyRequests", "x")) == Reason::store_unavailable);
  CHECK(reason(503, "overloaded") == Reason::store_unavailable);
  const auto invalid = error_of(
      422,
      status(
          422, "Invalid", "PillarAgent \"a\" is invalid",
          {{"causes", {{{"field", "spec.nodeRef"}, {"message", "Required value"}}, {{"message", "other"}}}}}),
      "PillarAgent/a");
  CHECK(invalid.message == "PillarAgent/a: spec.nodeRef: Required value; other");
  CHECK(invalid.details.at("field") == "spec.nodeRef");
}

TEST_CASE("an object that is too large is the caller's fault, under every name it has") {
  for (const auto& [code, text] :
       {std::pair(413, "Request entity too large: limit is 3145728"),
        std::pair(500, "etcdserver: request is too large"),
        std::pair(500, "rpc error: trying to send message larger than max (2 vs. 1)")}) {
    const auto error = error_of(code, status(code, "", text), "PillarStore/s");
    CHECK(error.reason == Reason::invalid_argument);
    CHECK(error.message.find("smaller") != std::string::npos);
  }
}

TEST_CASE("a collection that is not there is never read as an object that is not there (O05)") {
  const auto error = error_of(
      404, status(404, "NotFound", "the server could not find the requested resource"), "PillarAgent/a");
  CHECK(error.reason == Reason::store_unavailable);
  CHECK(error.message.find("CustomResourceDefinition") != std::string::npos);
  CHECK(error_of(404, "404 page not found", "PillarAgent/a").reason == Reason::store_unavailable);
}

TEST_CASE("reads outlive a storm of 500s, a closed connection, half an answer, silence and nonsense") {
  FakeApiServer server([](Exchange& exchange) {
    switch (exchange.number) {
      case 1:
        return exchange.answer(500, status(500, "InternalError", "storm"));
      case 2:
        return exchange.answer(503, "not JSON");
      case 3:
        return exchange.drop();
      case 4:
        exchange.raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":");
        return exchange.drop();
      case 5:
        return exchange.hang();
      case 6:
        return exchange.answer(200, "<html>a proxy's page</html>");
      default:
        return exchange.answer(200, R"({"good":true})");
    }
  });
  const auto client = client_of(quick(server));
  const auto answer = call(*client, read());
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  CHECK((*answer)["good"] == true);
  CHECK(server.seen().size() >= 7);
}

TEST_CASE("a read that cannot succeed ends within its limit and says where") {
  FakeApiServer server(
      [](Exchange& exchange) { exchange.answer(500, status(500, "InternalError", "storm")); });
  auto options = quick(server);
  options.call_limit = 300ms;
  const auto client = client_of(options);
  const auto begin = std::chrono::steady_clock::now();
  const auto answer = call(*client, read());
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == Code::unavailable);
  CHECK(answer.error().message.find("storm") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < 2s);
  // Pauses grow: a storm is not answered by a storm.
  CHECK(server.seen().size() < 25);
}

TEST_CASE("a write that may have been carried out is not repeated") {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"})
    for (int how = 0; how < 3; ++how) {
      FakeApiServer server([how](Exchange& exchange) {
        if (exchange.number > 1 || how == 0) return exchange.answer(500, status(500, "InternalError", "x"));
        how == 1 ? exchange.drop() : exchange.hang();
      });
      const auto client = client_of(quick(server));
      const auto answer = call(*client, write(method));
      REQUIRE_FALSE(answer);
      CHECK(answer.error().reason == Reason::store_unavailable);
      CHECK(server.seen().size() == 1);
    }
}

TEST_CASE("429 is obeyed: reads and writes come again, not before Retry-After") {
  std::vector<std::chrono::steady_clock::time_point> times;
  FakeApiServer server([&](Exchange& exchange) {
    times.push_back(std::chrono::steady_clock::now());
    if (exchange.number == 1)
      return exchange.answer(429, status(429, "TooManyRequests", "slow down"), "Retry-After: 1\r\n");
    exchange.answer(200, "{}");
  });
  const auto client = client_of(quick(server));
  CHECK(call(*client, write("POST")));
  REQUIRE(times.size() == 2);
  CHECK(times[1] - times[0] >= 1s);
}

TEST_CASE("429 that asks for more time than the call has is answered at once") {
  FakeApiServer server([&](Exchange& exchange) {
    exchange.answer(429, status(429, "TooManyRequests", "slow down"), "Retry-After: 3600\r\n");
  });
  const auto client = client_of(quick(server));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(call(*client, read()).error().code == Code::unavailable);
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
}

TEST_CASE("a server that does not listen is UNAVAILABLE, and writes wait for it") {
  auto options = quick(FakeApiServer([](Exchange&) {}));  // its port is closed again
  options.call_limit = 200ms;
  const auto client = client_of(options);
  for (const auto& request : {read(), write()}) {
    const auto answer = call(*client, request);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().reason == Reason::store_unavailable);
    CHECK(answer.error().message.find(options.config.server) != std::string::npos);
  }
  CHECK(client->stats().writes > 1);
}

TEST_CASE("an expired token is read again from its file, once per refusal") {
  const TempFile token("old\n");
  FakeApiServer server([&](Exchange& exchange) {
    if (exchange.request.headers.at("authorization") == "Bearer new") return exchange.answer(200, "{}");
    token.write("new\n");
    exchange.answer(401, status(401, "Unauthorized", "expired"));
  });
  auto options = quick(server);
  options.config.token.file = token.path;
  const auto client = client_of(options);
  CHECK(call(*client, write("POST")));
  CHECK(server.seen().size() == 2);
  CHECK(call(*client, read()));
  CHECK(server.seen().size() == 3);
}

TEST_CASE("a rotated token is used without a refusal, and a token that stays refused is said") {
  const TempFile token("first");
  FakeApiServer server([&](Exchange& exchange) {
    if (exchange.request.path == "/refuse") return exchange.answer(401, status(401, "Unauthorized", "who?"));
    exchange.answer(200, json{{"seen", exchange.request.headers.at("authorization")}}.dump());
  });
  auto options = quick(server);
  options.config.token.file = token.path;
  options.token_age = 50ms;
  const auto client = client_of(options);
  CHECK((*call(*client, read()))["seen"] == "Bearer first");
  token.write("second");
  std::this_thread::sleep_for(60ms);
  CHECK((*call(*client, read()))["seen"] == "Bearer second");
  std::remove(token.path.c_str());
  std::this_thread::sleep_for(60ms);
  CHECK((*call(*client, read()))["seen"] == "Bearer second");  // a rotation in progress
  const auto refused = call(*client, read("/refuse"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("token") != std::string::npos);
  CHECK(refused.error().message.find("second") == std::string::npos);
}

TEST_CASE("destroying the client answers what is under way") {
  FakeApiServer server([](Exchange& exchange) { exchange.hang(); });
  auto options = quick(server);
  options.attempt_limit = 30s;
  options.call_limit = 30s;
  auto client = client_of(options);
  std::promise<Result<json>> answer;
  client->call(read(), [&](Result<json> result) { answer.set_value(std::move(result)); });
  while (server.seen().empty()) std::this_thread::sleep_for(1ms);
  client.reset();
  auto future = answer.get_future();
  REQUIRE(future.wait_for(0s) == std::future_status::ready);
  CHECK(future.get().error().reason == Reason::shutting_down);
}

// ---- lists -------------------------------------------------------------------------------------------

TEST_CASE("a complete list is fetched in pages and begun anew when the server's history outruns it") {
  FakeApiServer server([](Exchange& exchange) {
    switch (exchange.number) {
      case 1:
        return exchange.answer(200, page({"a", "gone"}, "10", "t/1"));
      case 2:
        return exchange.answer(410, status(410, "Expired", "continue token is too old"));
      case 3:
        return exchange.answer(200, page({"a"}, "20", "t/2"));
      default:
        return exchange.answer(200, page({"b"}, "21"));
    }
  });
  KubernetesStore store(client_of(quick(server)));
  const auto all = list(store, Kind::agent);
  REQUIRE(all);
  REQUIRE(all->items.size() == 2);
  CHECK(all->items[0].metadata.name == "a");
  CHECK(all->items[1].metadata.name == "b");
  CHECK(all->resource_version == "20");
  const auto seen = server.seen();
  CHECK(query(seen[1], "continue") == "t%2F1");
  CHECK(query(seen[0], "limit") == "500");
  ListOptions options;
  options.limit = 2;
  options.continue_token = "old";
  FakeApiServer expired(
      [](Exchange& exchange) { exchange.answer(410, status(410, "Expired", "continue token is too old")); });
  KubernetesStore other(client_of(quick(expired)));
  CHECK(list(other, Kind::agent, options).error().reason == Reason::version_expired);
}

TEST_CASE("names that are none reach no path") {
  FakeApiServer server([](Exchange& exchange) { exchange.answer(200, "{}"); });
  KubernetesStore store(client_of(quick(server)));
  for (const char* name : {"", "..", "a/b", "A", "a?x=y", "a%2Fb"}) {
    CHECK(get(store, Kind::agent, name).error().reason == Reason::not_found);
    CHECK(remove(store, Kind::agent, name).error().reason == Reason::not_found);
    auto object = agent_object(name);
    object.metadata.resource_version = "1";
    CHECK(update(store, object).error().reason == Reason::not_found);
    CHECK(update_status(store, object).error().reason == Reason::not_found);
  }
  CHECK(server.seen().empty());
}

TEST_CASE("what a newer server adds to an object is left out") {
  const auto object = object_from_server(
      Kind::agent,
      json::parse(R"({"apiVersion":"x","kind":"y","new":1,"metadata":{"name":"a","uid":"u","new":{},
      "managedFields":[{}],"labels":{"k":"v","odd":1},"generation":3,"finalizers":["f",2],
      "ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"m","new":true}]},"spec":[],"status":null})"));
  CHECK(object.metadata.name == "a");
  CHECK(object.metadata.generation == 3);
  CHECK(object.metadata.labels == std::map<std::string, std::string>{{"k", "v"}});
  CHECK(object.metadata.finalizers == std::vector<std::string>{"f"});
  CHECK(object.metadata.owner_references.at(0).name == "n");
  CHECK(object.spec.empty());
  CHECK(object.status.empty());
}

// ---- watches -----------------------------------------------------------------------------------------

TEST_CASE("a watch resumes where it stopped: closed in a line, closed properly, silent, nonsense, refused") {
  std::atomic<int> watches{0};
  FakeApiServer server([&](Exchange& exchange) {
    if (query(exchange.request, "watch").empty())
      return exchange.answer(200, page({}, "25"));  // after a silence
    exchange.begin_stream();
    switch (++watches) {
      case 1:  // closed in the middle of a line
        exchange.chunk(event("ADDED", "a", "11"));
        exchange.chunk(event("MODIFIED", "a", "12").substr(0, 20));
        return exchange.drop();
      case 2:  // the line comes again; cut over chunks; then a proper end
        for (const char c : event("MODIFIED", "a", "12")) exchange.chunk(std::string(1, c));
        return exchange.end_stream();
      case 3:  // a bookmark moves the start, then silence
        exchange.chunk(event("BOOKMARK", "", "20"));
        return exchange.hang();
      case 4:
        exchange.chunk("this is no event\n" + event("ADDED", "never", "99"));
        return exchange.hang();
      case 5:
        exchange.chunk(R"({"type":"ERROR","object":{"code":500,"message":"etcd is gone"}})"
                       "\n");
        return exchange.hang();
      default:
        exchange.chunk(event("DELETED", "a", "21") + event("ADDED", "b", "22"));
        return exchange.hang();
    }
  });
  KubernetesStore store(client_of(quick(server)));
  Recorder recorder;
  recorder.start(store, Kind::agent, "10");
  CHECK(recorder.wait_for(5) ==
        std::vector<std::string>{"ADDED a@11", "MODIFIED a@12", "BOOKMARK@20", "DELETED a@21", "ADDED b@22"});
  recorder.stop();
  std::vector<std::string> starts;
  for (const auto& request : server.seen())
    if (!query(request, "watch").empty()) starts.push_back(query(request, "resourceVersion"));
  starts.resize(6);
  CHECK(starts == std::vector<std::string>{"10", "11", "12", "20", "20", "20"});
  CHECK(query(server.seen()[0], "allowWatchBookmarks") == "true");
}

TEST_CASE("an empty start lists first, in pages, then watches from the list's version") {
  FakeApiServer server([](Exchange& exchange) {
    if (exchange.number == 1) return exchange.answer(200, page({"a"}, "10", "next"));
    if (exchange.number == 2) return exchange.answer(200, page({"b"}, "11"));
    exchange.begin_stream();
    exchange.chunk(event("ADDED", "c", "12"));
    exchange.hang();
  });
  KubernetesStore store(client_of(quick(server)));
  Recorder recorder;
  recorder.start(store, Kind::agent, "");
  CHECK(recorder.wait_for(4) ==
        std::vector<std::string>{"ADDED a@1", "ADDED b@1", "BOOKMARK@10", "ADDED c@12"});
  recorder.stop();
  CHECK(query(server.seen()[2], "resourceVersion") == "10");
}

TEST_CASE("a watch ends with VERSION_EXPIRED when its place in the history is gone") {
  const auto end_of = [](const FakeApiServer::Script& script) {
    FakeApiServer server(script);
    KubernetesStore store(client_of(quick(server)));
    Recorder recorder;
    recorder.start(store, Kind::agent, "10");
    const auto end = recorder.wait_for_end();
    REQUIRE(end);
    CHECK(end->message.find("10") != std::string::npos);
    return end->reason;
  };
  CHECK(end_of([](Exchange& exchange) {
          exchange.answer(410, status(410, "Expired", "too old resource version"));
        }) == Reason::version_expired);
  CHECK(end_of([](Exchange& exchange) {
          exchange.begin_stream();
          exchange.chunk(R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})"
                         "\n");
          exchange.hang();
        }) == Reason::version_expired);
  CHECK(end_of([](Exchange& exchange) {  // the cluster was restored from an older backup
          exchange.answer(504, status(504, "Timeout", "Too large resource version: 10, current: 3"));
        }) == Reason::version_expired);
}

TEST_CASE("silence of a server that was restored to before our version is not taken for peace") {
  FakeApiServer server([](Exchange& exchange) {
    if (query(exchange.request, "watch").empty()) return exchange.answer(200, page({"a"}, "9"));
    exchange.begin_stream();
    exchange.hang();
  });
  KubernetesStore store(client_of(quick(server)));
  Recorder recorder;
  recorder.start(store, Kind::agent, "10");
  const auto end = recorder.wait_for_end();
  REQUIRE(end);
  CHECK(end->reason == Reason::version_expired);
}

TEST_CASE("a CRD removed under a watch ends it as unavailable, with no event (O05)") {
  FakeApiServer server([](Exchange& exchange) {
    if (exchange.number == 1) {
      exchange.begin_stream();
      exchange.chunk(event("ADDED", "a", "11"));
      return exchange.end_stream();
    }
    exchange.answer(404, status(404, "NotFound", "the server could not find the requested resource"));
  });
  KubernetesStore store(client_of(quick(server)));
  Recorder recorder;
  recorder.start(store, Kind::agent, "10");
  const auto end = recorder.wait_for_end();
  REQUIRE(end);
  CHECK(end->reason == Reason::store_unavailable);
  CHECK(recorder.wait_for(0) == std::vector<std::string>{"ADDED a@11"});
  Recorder listing;
  listing.start(store, Kind::agent, "");
  CHECK(listing.wait_for_end()->reason == Reason::store_unavailable);
  CHECK(listing.wait_for(0).empty());
}

TEST_CASE("a watch that cannot be had ends as unavailable after a few spaced attempts") {
  FakeApiServer server(
      [](Exchange& exchange) { exchange.answer(500, status(500, "InternalError", "storm")); });
  KubernetesStore store(client_of(quick(server)));
  Recorder recorder;
  recorder.start(store, Kind::agent, "10");
  const auto end = recorder.wait_for_end();
  REQUIRE(end);
  CHECK(end->reason == Reason::store_unavailable);
  CHECK(end->message.find("storm") != std::string::npos);
  CHECK(server.seen().size() == 5);
}

TEST_CASE("a watch whose token expires goes on with the new one") {
  const TempFile token("old");
  FakeApiServer server([&](Exchange& exchange) {
    if (exchange.request.headers.at("authorization") == "Bearer old") {
      token.write("new");
      return exchange.answer(401, status(401, "Unauthorized", "expired"));
    }
    exchange.begin_stream();
    exchange.chunk(event("ADDED", "a", "11"));
    exchange.hang();
  });
  auto options = quick(server);
  options.config.token.file = token.path;
  KubernetesStore store(client_of(options));
  Recorder recorder;
  recorder.start(store, Kind::agent, "10");
  CHECK(recorder.wait_for(1) == std::vector<std::string>{"ADDED a@11"});
  recorder.stop();
}

TEST_CASE("O03: what was deleted while a followed collection could not be watched is told as deleted") {
  std::atomic<int> lists{0};
  FakeApiServer server([&](Exchange& exchange) {
    if (!query(exchange.request, "watch").empty()) {
      if (query(exchange.request, "resourceVersion") == "10")
        return exchange.answer(410, status(410, "Expired", "too old resource version"));
      exchange.begin_stream();
      return exchange.hang();
    }
    switch (++lists) {
      case 1:
        return exchange.answer(200, page({"a", "b"}, "10"));
      case 2:  // no answer, and then no such collection: nothing is concluded from either
        return exchange.answer(403, status(403, "Forbidden", "rights are being changed"));
      case 3:
        return exchange.answer(404,
                               status(404, "NotFound", "the server could not find the requested resource"));
      default:
        return exchange.answer(200, page({"b", "c"}, "20"));
    }
  });
  std::mutex mutex;
  std::vector<std::string> told;
  const auto tell = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    told.push_back(text);
  };
  Mirror mirror(client_of(quick(server)), "/x", "things",
                {[&](const json& object) { tell("set " + object["metadata"]["name"].get<std::string>()); },
                 [&](const std::string& name) { tell("removed " + name); },
                 [&](const std::optional<Error>& error) { tell(error ? "failing" : "complete"); }});
  const auto size = [&] {
    const std::lock_guard lock(mutex);
    return told.size();
  };
  for (int i = 0; size() < 8 && i < 2000; ++i) std::this_thread::sleep_for(5ms);
  const std::lock_guard lock(mutex);
  CHECK(told == std::vector<std::string>{"set a", "set b", "complete", "failing", "failing", "set c",
                                         "removed a", "complete"});
}

TEST_CASE("many watches and calls begin and end at once without a handler running late") {
  FakeApiServer server([](Exchange& exchange) {
    if (exchange.request.path.find("watch=true") == std::string::npos) return exchange.answer(200, "{}");
    exchange.begin_stream();
    for (int i = 0; i < 50; ++i) exchange.chunk(event("ADDED", "a", std::to_string(i + 11)));
    exchange.hang();
  });
  const auto client = client_of(quick(server));
  KubernetesStore store(client);
  for (int round = 0; round < 40; ++round) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    std::atomic<int> late{0};
    std::atomic<int> events{0};
    auto watch = store.watch(Kind::agent, "10",
                             {[&, alive](const WatchEvent&) {
                                ++events;
                                if (!*alive) ++late;
                              },
                              nullptr});
    if (round % 2 == 0)
      for (int i = 0; events == 0 && i < 1000; ++i) std::this_thread::sleep_for(1ms);
    watch.reset();
    *alive = false;
    CHECK(call(*client, read()));
    CHECK(late == 0);
  }
}

TEST_SUITE_END();
