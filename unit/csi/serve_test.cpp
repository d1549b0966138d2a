#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "csi/server.hpp"
#include "csi/services.hpp"

using namespace pillar;
using namespace pillar::csi_front;
using namespace std::chrono_literals;

namespace {

// An application that answers by name: what a test wants to see happen is in the volume id.
struct App {
  std::vector<Call<csi::v1::DeleteVolumeRequest, csi::v1::DeleteVolumeResponse>> kept;
  std::mutex lock;
  Deadline seen;

  void send(Call<csi::v1::DeleteVolumeRequest, csi::v1::DeleteVolumeResponse> call) {
    const std::string id = call.request->volume_id();
    std::lock_guard guard(lock);
    seen = call.deadline;
    if (id == "ok") return call.reply(csi::v1::DeleteVolumeResponse{});
    if (id == "refuse")
      return call.reply(
          fail(Reason::still_published, "volume refuse is published to worker-a", {{"node", "worker-a"}}));
    if (id == "long")
      return call.reply(fail(Reason::command_timeout, "lvs " + std::string(20000, 'x') + "\xff\xc3\xa4",
                             {{"program", "lvs"}, {"words", std::string(9000, 'y')}}));
    if (id == "bytes")
      return call.reply(fail(Reason::command_failed, "lvs said \xff\xfe and \xc3\xa4", {{"said", "\x80"}}));
    if (id == "throw") throw std::runtime_error("boom");
    if (id == "bad_alloc") throw std::bad_alloc();
    if (id == "keep") kept.push_back(std::move(call));
    // "drop": the answer slot dies here.
  }
  template <class Request, class Response>
  void send(Call<Request, Response> call) {
    call.reply(Response{});
  }
};

struct Fixture {
  App app;
  std::vector<std::string> log;
  std::mutex log_lock;
  ControllerService<App> service{app, [this](const CallRecord& record) {
                                   std::lock_guard guard(log_lock);
                                   log.push_back(std::string(record.method) + " " +
                                                 std::string(record.subject) + " " +
                                                 std::string(to_string(record.code)));
                                 }};
  std::string path = "/tmp/pillar-serve-" + std::to_string(::getpid()) + ".sock";
  std::unique_ptr<Server> server;
  std::unique_ptr<csi::v1::Controller::Stub> stub;

  Fixture() {
    server = Server::start({Endpoint::parse(path).value()}, {&service}).value();
    stub =
        csi::v1::Controller::NewStub(grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
  }
  ~Fixture() {
    server->shutdown(100ms, [this] {
      std::lock_guard guard(app.lock);
      app.kept.clear();
    });
  }
  grpc::Status remove(const std::string& id, std::chrono::milliseconds timeout = 5s) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    csi::v1::DeleteVolumeRequest request;
    request.set_volume_id(id);
    csi::v1::DeleteVolumeResponse response;
    return stub->DeleteVolume(&context, request, &response);
  }
};

}  // namespace

TEST_SUITE_BEGIN("csi/serve");

TEST_CASE_FIXTURE(Fixture, "answers, refusals and their ErrorInfo travel") {
  CHECK(remove("ok").ok());
  const auto status = remove("refuse");
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  const Error error = from_status(status);
  CHECK(error.reason == Reason::still_published);
  CHECK(error.details.at("node") == "worker-a");
  CHECK(error.message.find("worker-a") != std::string::npos);
  std::lock_guard guard(log_lock);
  CHECK(log == std::vector<std::string>{"DeleteVolume ok OK", "DeleteVolume refuse FAILED_PRECONDITION"});
}

TEST_CASE_FIXTURE(Fixture,
                  "an error too long for gRPC's trailers is shortened and keeps its code and reason") {
  const auto status = remove("long");
  CHECK(status.error_code() == static_cast<grpc::StatusCode>(info(Reason::command_timeout).code));
  const Error error = from_status(status);
  CHECK(error.reason == Reason::command_timeout);
  CHECK(error.details.at("program") == "lvs");
  CHECK(error.message.size() > 2000);
  CHECK(error.message.ends_with("..."));
}

TEST_CASE_FIXTURE(Fixture, "an error with bytes that are no text keeps its reason") {
  const Error error = from_status(remove("bytes"));
  CHECK(error.reason == Reason::command_failed);
  CHECK(error.message == "lvs said ?? and \xc3\xa4");
  CHECK(error.details.at("said") == "?");
}

TEST_CASE_FIXTURE(Fixture, "O13: an exception in a handler ends that call alone") {
  CHECK(remove("throw").error_code() == grpc::StatusCode::INTERNAL);
  CHECK(remove("bad_alloc").error_code() == grpc::StatusCode::INTERNAL);
  CHECK(remove("ok").ok());
}

TEST_CASE_FIXTURE(Fixture, "a dropped answer slot is UNAVAILABLE, never silence") {
  CHECK(remove("drop").error_code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE_FIXTURE(Fixture, "the client's deadline travels with the message") {
  CHECK(remove("keep", 300ms).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  std::lock_guard guard(app.lock);
  REQUIRE(app.kept.size() == 1);
  CHECK(app.seen.at - Clock::now() < 300ms);
  // Answering after the client has gone is harmless.
  app.kept[0].reply(csi::v1::DeleteVolumeResponse{});
}

TEST_CASE_FIXTURE(Fixture, "shutdown ends calls whose actors died") {
  grpc::Status status;
  std::thread client([&] { status = remove("keep"); });
  for (;;) {
    std::lock_guard guard(app.lock);
    if (!app.kept.empty()) break;
  }
  server->shutdown(50ms, [this] {
    std::lock_guard guard(app.lock);
    app.kept.clear();
  });
  client.join();
  CHECK_FALSE(status.ok());
  server = Server::start({Endpoint::parse(path).value()}, {&service}).value();
}

TEST_CASE_FIXTURE(Fixture, "RPCs that are not served answer UNIMPLEMENTED") {
  grpc::ClientContext context;
  csi::v1::CreateSnapshotResponse response;
  CHECK(stub->CreateSnapshot(&context, {}, &response).error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("errors of peers that send no ErrorInfo are understood by their code") {
  CHECK(from_status({grpc::StatusCode::UNAVAILABLE, "connection refused"}).reason ==
        Reason::agent_unavailable);
  CHECK(from_status({grpc::StatusCode::NOT_FOUND, "x"}).reason == Reason::not_found);
  CHECK(from_status({grpc::StatusCode::UNKNOWN, "x"}).reason == Reason::internal);
}

TEST_SUITE_END();
