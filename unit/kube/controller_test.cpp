// pillar-controller itself on a cluster.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "actors/controller/csi_nodes.hpp"
#include "cluster.hpp"
#include "crd/types.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using nlohmann::json;

namespace {

/// A running pillar-controller; killed at the end.
class Controller {
 public:
  Controller() {
    char name[] = "/tmp/pillar-controller-XXXXXX";
    folder_ = mkdtemp(name);
    std::vector<std::string> words{PILLAR_BUILD_ROOT "/tools/pillar-controller",
                                   "--kubeconfig=" + variable("KUBECONFIG"),
                                   "--cluster-id=test",
                                   "--listen=unix://" + folder_ + "/csi.sock",
                                   "--metrics-listen",
                                   "",
                                   "--health-listen",
                                   ""};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const auto log = folder_ + "/log";
    for (const int fd : {1, 2})
      posix_spawn_file_actions_addopen(&files, fd, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    REQUIRE(posix_spawn(&pid_, words[0].c_str(), &files, nullptr, arguments.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&files);
  }
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;
  ~Controller() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string folder_;
  pid_t pid_ = 0;
};

/// "True", "False", ... of a condition; empty when there is none.
std::string condition(Store& store, Kind kind, const std::string& name, const std::string& type) {
  const auto object = get(store, kind, name);
  if (!object) return "";
  for (const auto& one : object->status.json().value("conditions", json::array()))
    if (one["type"] == type) return one["status"];
  return "";
}

}  // namespace

TEST_SUITE_BEGIN("controller");

TEST_CASE(
    "the controller follows a cluster: conditions, finalizers, and nothing is written when nothing happens") {
  clear_all();
  KubernetesStore store(admin());
  auto agent = agent_object("storage-1");  // nobody listens there
  agent.spec = Doc::of({{"external", {{"address", "127.0.0.1"}, {"port", 1}}}});
  REQUIRE(create(store, agent));
  for (const char* file : {"store", "protocol", "storage-class"})
    kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/examples/" + std::string(file) + ".yaml");
  const Controller controller;
  REQUIRE(eventually([&] { return condition(store, Kind::storage_class, "fast-nvme", "Ready") == "False"; }));
  CHECK(eventually([&] { return condition(store, Kind::store, "fast", "AgentReady") == "False"; }));
  CHECK(eventually([&] { return condition(store, Kind::protocol, "nvme", "Ready") == "True"; }));
  CHECK(kubectl("get pstr nvme --no-headers").find("nvmeof-tcp") != std::string::npos);
  CHECK(get(store, Kind::store, "fast")->metadata.has_finalizer("pillar-csi.bhyoo.com/store-protection"));
  // A change made by another client is seen.
  kubectl("delete psc fast-nvme");
  CHECK(eventually(
      [&] { return get(store, Kind::protocol, "nvme")->status.json().value("storageClassCount", 1) == 0; }));
  const auto versions = [&] {
    std::string out;
    for (const auto kind : k_kinds) {
      const auto page = list(store, kind);
      if (page)
        for (const auto& object : page->items)
          out += object.metadata.name + "@" + object.metadata.resource_version + " ";
    }
    return out;
  };
  // An agent out of reach is dialled again and again; what was said of it settles, and then nothing is
  // written.
  bool quiet = false;
  for (int i = 0; i < 6 && !quiet; ++i) {
    const auto before = versions();
    std::this_thread::sleep_for(std::chrono::seconds(5));
    quiet = versions() == before;
  }
  CHECK(quiet);
  clear_all();
}

TEST_CASE("host NQNs come from the annotation of CSINode, and follow it") {
  const auto client = admin();
  const std::string path = "/apis/storage.k8s.io/v1/csinodes";
  const std::string nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
  const json node{{"apiVersion", "storage.k8s.io/v1"},
                  {"kind", "CSINode"},
                  {"metadata", {{"name", "worker-1"}}},
                  {"spec", {{"drivers", json::array()}}}};
  REQUIRE(call(*client, request("POST", path, node)));
  const controller::CsiNodes nodes(client);
  REQUIRE(eventually([&] { return nodes.initiator("worker-1").error().reason == Reason::host_nqn_missing; }));
  auto patch =
      request("PATCH", path + "/worker-1",
              {{"metadata", {{"annotations", {{std::string(controller::k_host_nqn_annotation), nqn}}}}}});
  patch.content_type = "application/merge-patch+json";
  REQUIRE(call(*client, patch));
  REQUIRE(eventually([&] { return nodes.initiator("worker-1").has_value(); }));
  CHECK(nodes.initiator("worker-1").value() == nqn);
  CHECK(nodes.initiator("worker-2").error().reason == Reason::not_found);
  REQUIRE(call(*client, request("DELETE", path + "/worker-1", nullptr)));
  CHECK(eventually([&] { return nodes.initiator("worker-1").error().reason == Reason::not_found; }));
}

TEST_SUITE_END();
