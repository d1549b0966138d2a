#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "csi/registration.hpp"

using namespace pillar;
using namespace pillar::csi_front;
namespace fs = std::filesystem;

namespace {

/// A registration socket as the kubelet sees it.
struct Registered {
  fs::path folder;
  std::vector<std::pair<bool, std::string>> verdicts;
  RegistrationService service{"d.example.com", "/plugins/d/csi.sock",
                              [this](bool taken, const std::string& error) {
                                verdicts.push_back({taken, error});
                              }};
  std::unique_ptr<Server> server;

  Registered() {
    std::string name = (fs::temp_directory_path() / "pillar-reg-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    start();
  }
  ~Registered() {
    server.reset();
    fs::remove_all(folder);
  }
  Endpoint endpoint() const { return registration_endpoint(folder.string(), "d.example.com").value(); }
  void start() {
    auto started = Server::start({endpoint()}, {&service});
    REQUIRE(started);
    server = std::move(*started);
  }
  std::unique_ptr<pluginregistration::Registration::Stub> kubelet() const {
    return pluginregistration::Registration::NewStub(
        grpc::CreateChannel(endpoint().target, grpc::InsecureChannelCredentials()));
  }
};

}  // namespace

TEST_SUITE_BEGIN("csi/registration");

TEST_CASE("the socket's name tells plugins apart, and the folder must be absolute") {
  CHECK(registration_endpoint("/reg", "d.example.com").value().path == "/reg/d.example.com-reg.sock");
  const auto relative = registration_endpoint("reg", "d.example.com");
  REQUIRE_FALSE(relative);
  CHECK(relative.error().message.find("reg") != std::string::npos);
  CHECK_FALSE(registration_endpoint("tcp://1.2.3.4:5", "d.example.com"));
  CHECK_FALSE(registration_endpoint("/" + std::string(120, 'a'), "d.example.com"));
}

TEST_CASE("the kubelet is told what this is, and its verdict is heard, each time") {
  Registered plugin;
  for (int start = 0; start < 2; ++start) {
    grpc::ClientContext asking;
    pluginregistration::PluginInfo info;
    REQUIRE(plugin.kubelet()->GetInfo(&asking, {}, &info).ok());
    CHECK(info.type() == "CSIPlugin");
    CHECK(info.name() == "d.example.com");
    CHECK(info.endpoint() == "/plugins/d/csi.sock");
    REQUIRE(info.supported_versions_size() == 1);
    CHECK(info.supported_versions(0) == "1.0.0");

    grpc::ClientContext telling;
    pluginregistration::RegistrationStatus status;
    status.set_plugin_registered(start == 1);
    if (start == 0) status.set_error("no such driver");
    pluginregistration::RegistrationStatusResponse none;
    REQUIRE(plugin.kubelet()->NotifyRegistrationStatus(&telling, status, &none).ok());
  }
  REQUIRE(plugin.verdicts.size() == 2);
  CHECK(plugin.verdicts[0] == std::pair<bool, std::string>{false, "no such driver"});
  CHECK(plugin.verdicts[1] == std::pair<bool, std::string>{true, ""});
}

TEST_CASE("the socket goes with the program, so that the kubelet notices, and comes back with it") {
  Registered plugin;
  const fs::path socket = plugin.endpoint().path;
  CHECK(fs::exists(socket));
  plugin.server.reset();
  CHECK_FALSE(fs::exists(socket));
  plugin.start();
  CHECK(fs::exists(socket));
}
