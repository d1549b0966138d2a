#include "cluster.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "store_conformance.hpp"

namespace pillar::crd::test {
namespace {

using namespace std::chrono_literals;

/// Installs the definitions once per program, the way the documentation says.
void install() {
  static const bool k_installed = [] {
    kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/crds");
    kubectl("wait --for=condition=Established --timeout=30s crd --all");
    return true;
  }();
  (void)k_installed;
}

}  // namespace

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value)
    throw std::runtime_error(std::string(name) +
                             " is not set: run by integration/kubernetes/with-control-plane");
  return value;
}

kube::ClientOptions admin_options() {
  install();
  kube::ClientOptions out;
  auto config = kube::load_kubeconfig(variable("KUBECONFIG"));
  if (!config) throw std::runtime_error(config.error().message);
  out.config = std::move(*config);
  return out;
}

std::shared_ptr<kube::Client> admin() {
  auto client = kube::Client::make(admin_options());
  if (!client) throw std::runtime_error(client.error().message);
  return *client;
}

std::string kubectl(const std::string& arguments, int* status) {
  FILE* pipe = popen((variable("PILLAR_KUBE_KUBECTL") + " " + arguments + " 2>&1").c_str(), "re");
  if (!pipe) throw std::runtime_error("kubectl cannot be run");
  std::string out;
  char bytes[4096];
  while (const auto count = std::fread(bytes, 1, sizeof bytes, pipe)) out.append(bytes, count);
  const int code = pclose(pipe);
  if (status)
    *status = code;
  else
    REQUIRE_MESSAGE(code == 0, "kubectl " << arguments << ": " << out);
  return out;
}

void clear_all() {
  kube::KubernetesStore store(admin());
  for (const auto kind : k_kinds) {
    const auto page = list(store, kind);
    REQUIRE_MESSAGE(page, (page ? "" : page.error().message));
    for (auto object : page->items) {
      const auto removed = remove(store, kind, object.metadata.name);
      if (!removed || removed->gone) continue;
      object = removed->object;
      object.metadata.finalizers.clear();
      CHECK(update(store, object));
    }
  }
}

Result<nlohmann::json> call(kube::Client& client, kube::Request wanted) {
  std::promise<Result<nlohmann::json>> answer;
  auto future = answer.get_future();
  client.call(std::move(wanted), [&](Result<nlohmann::json> result) { answer.set_value(std::move(result)); });
  return future.get();
}

kube::Request request(const std::string& method, const std::string& path, const nlohmann::json& body) {
  kube::Request out;
  out.method = method;
  out.path = path;
  out.subject = path;
  if (!body.is_null()) out.body = body.dump();
  return out;
}

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 2000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

}  // namespace pillar::crd::test
