#include "crd/kube/config.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

using namespace pillar;
using namespace pillar::crd::kube;

namespace {

/// A directory that goes away with the test.
struct Scratch {
  Scratch() {
    char name[] = "/tmp/pillar-config-XXXXXX";
    path = mkdtemp(name);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
  std::string path;
};

constexpr const char* k_kubeconfig = R"(
apiVersion: v1
kind: Config
current-context: one
preferences: {}
contexts:
- {name: one, context: {cluster: c, user: certificate, namespace: storage}}
- {name: two, context: {cluster: inline, user: token}}
- {name: file, context: {cluster: c, user: tokenfile}}
- {name: anonymous, context: {cluster: c}}
- {name: plugin, context: {cluster: c, user: exec}}
- {name: proxied, context: {cluster: proxied, user: token}}
- {name: halves, context: {cluster: c, user: half}}
- {name: lost-user, context: {cluster: c, user: nobody}}
- {name: lost-cluster, context: {cluster: nowhere, user: token}}
- {name: broken, context: {cluster: badca, user: token}}
clusters:
- name: c
  cluster: {server: "https://k8s:6443", certificate-authority: pki/ca.crt, tls-server-name: kubernetes}
- name: inline
  cluster: {server: "https://[fd00::1]:6443", certificate-authority-data: "aGVs\nbG8=", insecure-skip-tls-verify: true}
- name: proxied
  cluster: {server: "https://k8s:6443", proxy-url: "http://proxy"}
- name: badca
  cluster: {server: "https://k8s:6443", certificate-authority-data: "not base64!"}
users:
- {name: certificate, user: {client-certificate: a.crt, client-key: /etc/a.key}}
- {name: token, user: {token: secret}}
- {name: tokenfile, user: {tokenFile: token}}
- {name: half, user: {client-certificate: a.crt}}
- {name: exec, user: {exec: {command: aws}}}
)";

}  // namespace

TEST_SUITE_BEGIN("kubernetes configuration");

TEST_CASE("base64") {
  CHECK(decode_base64("aGVsbG8=") == "hello");
  CHECK(decode_base64("aGVs\nbG8=\n") == "hello");
  CHECK(decode_base64("") == "");
  for (const char* bad : {"a", "aGVsbG8", "aG=sbG8=", "aGVsbG8?", "===="}) CHECK_FALSE(decode_base64(bad));
}

TEST_CASE("a kubeconfig gives server, certificates, tokens and namespace of a context") {
  const Scratch scratch;
  const auto path = scratch.write("config", k_kubeconfig);
  const auto one = load_kubeconfig(path);
  REQUIRE_MESSAGE(one, (one ? "" : one.error().message));
  CHECK(one->server == "https://k8s:6443");
  CHECK(one->server_name == "kubernetes");
  CHECK(one->ca.file == scratch.path + "/pki/ca.crt");
  CHECK(one->certificate.file == scratch.path + "/a.crt");
  CHECK(one->key.file == "/etc/a.key");
  CHECK(one->name_space == "storage");
  CHECK(one->verify);
  const auto two = load_kubeconfig(path, "two").value();
  CHECK(two.ca.data == "hello");
  CHECK(two.token.data == "secret");
  CHECK(two.name_space == "default");
  CHECK_FALSE(two.verify);
  CHECK(load_kubeconfig(path, "file")->token.file == scratch.path + "/token");
  CHECK(load_kubeconfig(path, "anonymous")->token.empty());
}

TEST_CASE("what a kubeconfig lacks or asks too much of is named") {
  const Scratch scratch;
  const auto path = scratch.write("config", k_kubeconfig);
  const auto refused = [&](const std::string& file, const std::string& context, const std::string& names) {
    const auto config = load_kubeconfig(file, context);
    REQUIRE_FALSE(config);
    CHECK_MESSAGE(config.error().message.find(names) != std::string::npos, config.error().message);
    return config.error().reason;
  };
  CHECK(refused(path, "plugin", "exec") == Reason::unsupported);
  CHECK(refused(path, "proxied", "proxy-url") == Reason::unsupported);
  CHECK(refused(path, "halves", "client-key") == Reason::invalid_argument);
  CHECK(refused(path, "lost-user", "nobody") == Reason::invalid_argument);
  CHECK(refused(path, "lost-cluster", "nowhere") == Reason::invalid_argument);
  CHECK(refused(path, "broken", "certificate-authority-data") == Reason::invalid_argument);
  CHECK(refused(path, "unknown", "unknown") == Reason::invalid_argument);
  CHECK(refused(scratch.write("empty", "{}"), "", "current-context") == Reason::invalid_argument);
  CHECK(refused(scratch.write("text", "- 1"), "", "Config") == Reason::invalid_argument);
  CHECK(refused(scratch.write("odd", "a: [1"), "", "odd") == Reason::invalid_argument);
  CHECK(refused(scratch.path + "/absent", "", "absent") == Reason::dependency_missing);
  CHECK(refused("", "", "kubeconfig") == Reason::not_found);
}

TEST_CASE("of several kubeconfig files the first that has a name wins, missing ones do not matter") {
  const Scratch scratch;
  const auto first = scratch.write("first", R"({"current-context": "mine", "users": [],
    "contexts": [{"name": "mine", "context": {"cluster": "c", "user": "token"}}]})");
  const auto second = scratch.write("second", k_kubeconfig);
  const auto config = load_kubeconfig(scratch.path + "/absent:" + first + ":" + second);
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  CHECK(config->server == "https://k8s:6443");
  CHECK(config->token.data == "secret");
}

TEST_CASE("a pod's configuration comes from its environment and its service account's files") {
  const Scratch scratch;
  unsetenv("KUBERNETES_SERVICE_HOST");
  CHECK(in_cluster_config(scratch.path).error().message.find("KUBERNETES_SERVICE_HOST") != std::string::npos);
  setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  CHECK(in_cluster_config(scratch.path).error().message.find("ca.crt") != std::string::npos);
  scratch.write("ca.crt", "ca");
  scratch.write("token", "t");
  CHECK(in_cluster_config(scratch.path)->name_space == "default");
  scratch.write("namespace", "storage\n");
  const auto config = in_cluster_config(scratch.path).value();
  CHECK(config.server == "https://[fd00::1]:443");
  CHECK(config.ca.read("ca").value() == "ca");
  CHECK(config.token.file == scratch.path + "/token");
  CHECK(config.name_space == "storage");
  unsetenv("KUBERNETES_SERVICE_HOST");
  unsetenv("KUBERNETES_SERVICE_PORT");
}

TEST_SUITE_END();
