#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cluster.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using nlohmann::json;

namespace {

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string pki(const std::string& name) { return variable("PILLAR_KUBE_PKI") + "/" + name; }

/// What the server answers to a request with this configuration.
Result<json> ask(const Config& config) {
  auto options = admin_options();
  options.config = config;
  options.call_limit = std::chrono::milliseconds(1500);
  return call(*Client::make(options).value(), request("GET", path_of(Kind::agent), nullptr));
}

/// Nobody yet, at the right server.
Config stranger() {
  Config out;
  out.source = "test";
  out.server = variable("PILLAR_KUBE_SERVER");
  out.ca.file = pki("ca.crt");
  return out;
}

std::string words(const Result<json>& answer) { return answer ? "" : answer.error().message; }

struct Scratch {
  Scratch() {
    char name[] = "/tmp/pillar-kube-XXXXXX";
    path = mkdtemp(name);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
  }
  std::string path;
};

}  // namespace

TEST_SUITE_BEGIN("connection");

TEST_CASE("client certificates, from files and inline, and tokens open the door") {
  auto config = stranger();
  config.certificate.file = pki("admin.crt");
  config.key.file = pki("admin.key");
  CHECK_MESSAGE(ask(config), words(ask(config)));
  Config inline_data = stranger();
  inline_data.ca = {file_text(pki("ca.crt")), ""};
  inline_data.certificate.data = file_text(pki("admin.crt"));
  inline_data.key.data = file_text(pki("admin.key"));
  CHECK_MESSAGE(ask(inline_data), words(ask(inline_data)));
  auto token = stranger();
  token.token.data = "admin-token";
  CHECK(ask(token));
}

TEST_CASE("strangers are told what they lack") {
  const auto nobody = ask(stranger());  // anonymous
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().reason == Reason::permission_denied);
  auto forbidden = stranger();
  forbidden.token.data = "nobody-token";
  CHECK(ask(forbidden).error().reason == Reason::permission_denied);
  CHECK(words(ask(forbidden)).find("\"nobody\" cannot list") != std::string::npos);
  auto wrong = stranger();
  wrong.token.data = "made-up";
  CHECK(ask(wrong).error().reason == Reason::store_unavailable);
  CHECK(words(ask(wrong)).find("made-up") == std::string::npos);
  auto other_ca = stranger();
  other_ca.certificate.file = pki("stranger.crt");
  other_ca.key.file = pki("stranger.key");
  CHECK_FALSE(ask(other_ca));
}

TEST_CASE("a server that cannot prove itself gets nothing: other CA, no CA, other name") {
  auto config = stranger();
  config.token.data = "admin-token";
  config.ca.file = pki("other-ca.crt");
  CHECK(ask(config).error().code == Code::unavailable);
  config.ca = {};
  CHECK_FALSE(ask(config));
  config.ca.file = pki("ca.crt");
  config.server_name = "kubernetes.default.svc";
  CHECK_MESSAGE(ask(config), words(ask(config)));
  config.server_name = "other.example.com";
  CHECK_FALSE(ask(config));
  config.server_name = "127.0.0.2";
  CHECK_FALSE(ask(config));
  config.verify = false;
  CHECK(ask(config));
  config.ca.file = pki("missing.crt");
  CHECK(words(ask(config)).find("missing.crt") != std::string::npos);
}

TEST_CASE("a certificate replaced on disk counts for the next connection") {
  const Scratch scratch;
  auto options = admin_options();
  options.config = stranger();
  options.config.certificate.file = scratch.path + "/tls.crt";
  options.config.key.file = scratch.path + "/tls.key";
  options.call_limit = std::chrono::milliseconds(1500);
  scratch.write("tls.crt", file_text(pki("stranger.crt")));
  scratch.write("tls.key", file_text(pki("stranger.key")));
  const auto client = Client::make(options).value();
  CHECK_FALSE(call(*client, request("GET", path_of(Kind::agent), nullptr)));
  scratch.write("tls.crt", file_text(pki("admin.crt")));
  scratch.write("tls.key", file_text(pki("admin.key")));
  const auto answer = call(*client, request("GET", path_of(Kind::agent), nullptr));
  CHECK_MESSAGE(answer, words(answer));
}

TEST_CASE("a pod's service account works, and goes on when its token is rotated") {
  const Scratch scratch;
  kubectl("create serviceaccount pillar --dry-run=client -o yaml > " + scratch.path + "/sa.yaml");
  kubectl("apply -f " + scratch.path + "/sa.yaml");
  kubectl("create clusterrolebinding pillar --clusterrole=cluster-admin --serviceaccount=default:pillar");
  const auto token = [] { return kubectl("create token pillar --duration=10m"); };
  const auto server = variable("PILLAR_KUBE_SERVER");
  setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1", 1);
  setenv("KUBERNETES_SERVICE_PORT", server.substr(server.rfind(':') + 1).c_str(), 1);
  scratch.write("ca.crt", file_text(pki("ca.crt")));
  scratch.write("token", token());
  scratch.write("namespace", "kube-system");
  const auto config = in_cluster_config(scratch.path);
  unsetenv("KUBERNETES_SERVICE_HOST");
  unsetenv("KUBERNETES_SERVICE_PORT");
  REQUIRE(config);
  auto options = admin_options();
  options.config = *config;
  const auto client = Client::make(options).value();
  CHECK(client->name_space() == "kube-system");
  CHECK(call(*client, request("GET", path_of(Kind::agent), nullptr)));
  // The old account and its tokens are gone; the kubelet has written a token of the new one.
  kubectl("delete serviceaccount pillar");
  kubectl("apply -f " + scratch.path + "/sa.yaml");
  scratch.write("token", token());
  CHECK(eventually([&] { return call(*client, request("GET", path_of(Kind::agent), nullptr)).has_value(); }));
  kubectl("delete clusterrolebinding/pillar serviceaccount/pillar");
}

TEST_SUITE_END();
