#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "store_conformance.hpp"
#include "tools/pillarctl/commands.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::test;

namespace {

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

/// pillarctl on the test cluster.
Outcome ctl(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), {"--kubeconfig", variable("KUBECONFIG")});
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  const int status = pillarctl::run(arguments, "sqlite:///nowhere", in, out, err);
  return {status, out.str(), err.str()};
}

constexpr const char* k_examples = PILLAR_SOURCE_ROOT "/charts/examples/";

}  // namespace

TEST_SUITE_BEGIN("pillarctl");

TEST_CASE("the verbs of the embedded store work on a cluster") {
  clear_all();
  std::vector<std::string> apply{"apply"};
  for (const char* file : {"agent", "store", "protocol", "storage-class"})
    apply.insert(apply.end(), {"-f", std::string(k_examples) + file + ".yaml"});
  const auto made = ctl(apply);
  CHECK_MESSAGE(made.status == 0, made.err);
  CHECK(made.out.find("pillarstore.pillar-csi.bhyoo.com/fast created") != std::string::npos);
  const auto again = ctl(apply);
  CHECK(again.out.find("fast-nvme unchanged") != std::string::npos);
  CHECK(again.out.find("configured") == std::string::npos);
  CHECK(ctl({"get", "pst", "-o", "name"}).out == "pillarstore.pillar-csi.bhyoo.com/fast\n");
  CHECK(ctl({"get", "pst/fast"}).out.find("storage-1") != std::string::npos);
  CHECK(ctl({"describe", "psc", "fast-nvme"}).out.find("storeRef: fast") != std::string::npos);
  const auto waited = ctl({"wait", "pst", "fast", "--for=condition=Ready", "--timeout=1s"});
  CHECK(waited.status == 1);
  CHECK(waited.err.find("timed out") != std::string::npos);
  const auto removed = ctl({"delete", "pst", "fast"});
  CHECK_MESSAGE(removed.status == 0, removed.err);
  CHECK(ctl({"get", "pst", "fast"}).err.find("PillarStore/fast does not exist") != std::string::npos);
  CHECK(ctl({"delete", "pst", "fast", "--ignore-not-found"}).status == 0);
}

TEST_CASE("what kubectl applies pillarctl leaves unchanged, and the other way round") {
  clear_all();
  kubectl("apply -f " + std::string(k_examples) + "store.yaml");
  CHECK(ctl({"apply", "-f", std::string(k_examples) + "store.yaml"}).out.find("unchanged") !=
        std::string::npos);
  CHECK(kubectl("diff -f " + std::string(k_examples) + "store.yaml").empty());
}

TEST_CASE("an object that is held is deleted when the last finalizer goes") {
  clear_all();
  kube::KubernetesStore store(admin());
  auto object = store_object("held");
  object.metadata.finalizers = {"pillar-csi.bhyoo.com/store-protection"};
  REQUIRE(create(store, object));
  const auto timed_out = ctl({"delete", "pst", "held", "--timeout=1s"});
  CHECK(timed_out.status == 1);
  auto held = get(store, Kind::store, "held").value();
  CHECK(held.metadata.deleting());
  held.metadata.finalizers.clear();
  REQUIRE(update(store, held));
  CHECK(get(store, Kind::store, "held").error().reason == Reason::not_found);
}

TEST_CASE("a wrong manifest changes nothing; a wrong kubeconfig says which file") {
  clear_all();
  const auto wrong = ctl({"apply", "-f", "-"},
                         "apiVersion: pillar-csi.bhyoo.com/v1alpha1\nkind: PillarStore\n"
                         "metadata: {name: bad}\nspec: {agentRef: a, backend: {}}\n");
  CHECK(wrong.status == 1);
  CHECK(wrong.err.find("exactly one of zfs, lvm") != std::string::npos);
  CHECK(ctl({"get", "pst", "-o", "name"}).out.empty());
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  CHECK(pillarctl::run({"--kubeconfig=/absent", "get", "pst"}, "", in, out, err) == 1);
  CHECK(err.str().find("/absent") != std::string::npos);
}

TEST_SUITE_END();
