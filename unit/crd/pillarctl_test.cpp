#include "tools/pillarctl/commands.hpp"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "crd/sqlite_store.hpp"
#include "crd/types.hpp"
#include "store_conformance.hpp"
#include "tools/pillarctl/cli.hpp"
#include "tools/pillarctl/output.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace std::chrono_literals;

namespace {

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
  bool has(const std::string& text) const { return (out + err).find(text) != std::string::npos; }
};

/// A store of its own and pillarctl on it.
struct Shell {
  Shell() {
    char name[] = "/tmp/pillarctl-XXXXXX";
    directory = mkdtemp(name);
    url = "sqlite://" + directory + "/store.db";
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  ~Shell() {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }
  Outcome run(std::vector<std::string> arguments, const std::string& input = "") const {
    std::istringstream in(input);
    std::ostringstream out;
    std::ostringstream err;
    const int status = pillarctl::run(arguments, url, in, out, err);
    return {status, out.str(), err.str()};
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory + "/" + name) << text;
    return directory + "/" + name;
  }
  std::unique_ptr<SqliteStore> open() const {
    SqliteOptions options;
    options.path = directory + "/store.db";
    return SqliteStore::open(options).value();
  }
  std::string directory;
  std::string url;
};

const std::string k_agent = R"(apiVersion: pillar-csi.bhyoo.com/v1alpha1
kind: PillarAgent
metadata:
  name: storage-1
  labels: {a: "1"}
spec:
  external: {address: 10.0.0.1, port: 9500}
)";
const std::string k_store = R"(apiVersion: pillar-csi.bhyoo.com/v1alpha1
kind: PillarStore
metadata:
  name: fast
spec:
  agentRef: storage-1
  backend:
    lvm:
      volumeGroup: vg0
)";

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  text.replace(text.find(what), what.size(), with);
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("pillarctl");

TEST_CASE("apply creates, leaves alone, changes; get shows") {
  const Shell shell;
  const auto manifests = k_agent + "---\n" + k_store;
  const auto first = shell.run({"apply", "-f", "-"}, manifests);
  CHECK_MESSAGE(first.status == 0, first.err);
  CHECK(
      first.out ==
      "pillaragent.pillar-csi.bhyoo.com/storage-1 created\npillarstore.pillar-csi.bhyoo.com/fast created\n");
  CHECK(shell.run({"apply", "-f", "-"}, manifests).out ==
        "pillaragent.pillar-csi.bhyoo.com/storage-1 unchanged\npillarstore.pillar-csi.bhyoo.com/fast "
        "unchanged\n");
  const auto changed = replaced(k_agent, "{a: \"1\"}", "{b: \"2\"}");
  CHECK(shell.run({"apply", "-f", shell.write("a.yaml", changed)}).out.find("configured") !=
        std::string::npos);
  const auto json = nlohmann::json::parse(shell.run({"get", "pa", "storage-1", "-o", "json"}).out);
  CHECK(json["metadata"]["labels"] == nlohmann::json::parse(R"({"a":"1","b":"2"})"));
  CHECK(json["metadata"]["generation"] == 1);
  CHECK(shell.run({"apply", "-f", "-"}, json.dump()).out.find("unchanged") != std::string::npos);

  const auto table = shell.run({"get", "pst"});
  CHECK(
      table.out.starts_with("NAME   AGENT       BACKEND   POOL   TOTAL    AVAILABLE   READY     AGE\n"
                            "fast   storage-1   lvm       vg0    <none>   <none>      Unknown   "));
  CHECK(shell.run({"get", "pillarstore/fast", "-o", "name"}).out ==
        "pillarstore.pillar-csi.bhyoo.com/fast\n");
  CHECK(shell.run({"get", "pst", "--no-headers"}).out.starts_with("fast "));
  CHECK(shell.run({"get", "pst", "-o", "wide"}).has("REASON"));
  const auto none = shell.run({"get", "psc"});
  CHECK(none.status == 0);
  CHECK(none.err == "No resources found\n");
  const auto missing = shell.run({"get", "pst", "nope"});
  CHECK(missing.status == 1);
  CHECK(missing.err == "error: PillarStore/nope does not exist\n");
  CHECK(shell.run({"describe", "pst", "fast"}).has("volumeGroup: vg0"));
}

TEST_CASE("YAML output applies again unchanged") {
  const Shell shell;
  REQUIRE(shell.run({"apply", "-f", "-"}, k_agent + "---\n" + k_store).status == 0);
  for (const char* kind : {"pa/storage-1", "pst/fast"}) {
    const auto text = shell.run({"get", kind, "-o", "yaml"}).out;
    const auto again = shell.run({"apply", "-f", "-"}, text);
    CHECK_MESSAGE(again.out.find("unchanged") != std::string::npos, text << again.err);
  }
}

TEST_CASE("errors name file, line and field, and nothing is applied when one document is wrong") {
  const Shell shell;
  const auto file = shell.write("bad.yaml", k_agent + "---\n" + replaced(k_store, "vg0", "../etc"));
  const auto bad = shell.run({"apply", "-f", file});
  CHECK(bad.status == 1);
  CHECK(bad.err.starts_with("error: " + file + ":17:"));
  CHECK(bad.has("PillarStore/fast: spec.backend.lvm.volumeGroup = \"../etc\""));
  CHECK(shell.run({"apply", "-f", file}).out.empty());
  CHECK(shell.run({"get", "pa"}).status == 1);  // not even the store was made
  const auto several = shell.run({"validate", "-f", "-"}, replaced(replaced(k_store, "agentRef", "agentref"),
                                                                   "PillarStore", "PillarStore"));
  CHECK(several.status == 1);
  CHECK(several.has("stdin:5:1: PillarStore/fast: spec.agentRef: is required"));
  CHECK(several.has("stdin:6:3"));
  CHECK(shell.run({"validate", "-f", "-"}, k_agent + "---\n" + k_agent).has("occurs twice"));
  CHECK(shell.run({"validate", "-f", "-"}, "a: 1\na: 2\n").has("stdin:2:1: a: duplicate key"));
  CHECK(shell.run({"validate", "-f", "-"}, "").has("holds no resources"));
  CHECK(shell.run({"validate", "-f", shell.directory + "/absent"}).has("No such file"));
  CHECK(shell.run({"validate", "-f", shell.directory}).status == 1);
  CHECK(shell.run({"validate", "-f", "-"}, k_store).out == "pillarstore.pillar-csi.bhyoo.com/fast valid\n");
  REQUIRE(shell.run({"apply", "-f", "-"}, k_store).status == 0);
  const auto moved = shell.run({"apply", "-f", "-"}, replaced(k_store, "vg0", "vg1"));
  CHECK(moved.status == 1);
  CHECK(moved.err.starts_with("error: stdin:9:7: PillarStore/fast: spec.backend.lvm.volumeGroup"));
  CHECK(moved.has("immutable"));
}

TEST_CASE("apply leaves status, finalizers and foreign labels alone") {
  const Shell shell;
  REQUIRE(shell.run({"apply", "-f", "-"}, k_store).status == 0);
  {
    const auto store = shell.open();
    auto object = test::get(*store, Kind::store, "fast").value();
    object.metadata.labels["controller"] = "yes";
    object.metadata.finalizers = {"pillar-csi.bhyoo.com/store-protection"};
    object = test::update(*store, object).value();
    object.status = Doc::of({{"capacity", {{"total", "1Gi"}}}});
    REQUIRE(test::update_status(*store, object));
  }
  const auto thin = replaced(k_store, "volumeGroup: vg0", "volumeGroup: vg0\n      provisioningMode: linear");
  CHECK(shell.run({"apply", "-f", "-"}, thin).has("unchanged"));
  const auto json = nlohmann::json::parse(shell.run({"get", "pst", "fast", "-o", "json"}).out);
  CHECK(json["status"]["capacity"]["total"] == "1Gi");
  CHECK(json["metadata"]["labels"]["controller"] == "yes");
  CHECK(json["metadata"]["finalizers"].size() == 1);
}

TEST_CASE("wait and delete follow the watch and give up at the time limit") {
  const Shell shell;
  REQUIRE(shell.run({"apply", "-f", "-"}, k_store).status == 0);
  const auto late = shell.run({"wait", "pst/fast", "--for=condition=Ready", "--timeout=100ms"});
  CHECK(late.status == 1);
  CHECK(late.has("timed out"));
  CHECK(shell.run({"wait", "pst/nope", "--for=condition=Ready", "--timeout=5s"}).has("does not exist"));
  CHECK(shell.run({"wait", "pst/nope", "--for=delete"}).status == 0);

  const auto store = shell.open();
  std::thread controller([&] {
    std::this_thread::sleep_for(150ms);
    auto object = from_object<PillarStore>(test::get(*store, Kind::store, "fast").value()).value();
    set_condition(object.status.conditions, {"Ready", ConditionStatus::yes, "Fine", "", "", 1});
    CHECK(test::update_status(*store, to_object(object)));
  });
  const auto met = shell.run({"wait", "pst", "fast", "--for", "condition=ready=True", "--timeout", "1s"});
  CHECK(met.status == 1);  // condition types are case-sensitive
  controller.join();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(shell.run({"wait", "pst", "fast", "--for=condition=Ready", "--timeout=10s"}).has("condition met"));
  CHECK(std::chrono::steady_clock::now() - begin < 2s);

  auto held = test::get(*store, Kind::store, "fast").value();
  held.metadata.finalizers = {"pillar-csi.bhyoo.com/store-protection"};
  held = test::update(*store, held).value();
  const auto blocked = shell.run({"delete", "pst", "fast", "--timeout=100ms"});
  CHECK(blocked.status == 1);
  CHECK(blocked.has("timed out"));
  std::thread releaser([&] {
    std::this_thread::sleep_for(150ms);
    auto object = test::get(*store, Kind::store, "fast").value();
    object.metadata.finalizers.clear();
    CHECK(test::update(*store, object));
  });
  const auto gone = shell.run({"delete", "pst", "fast", "--timeout=10s"});
  CHECK_MESSAGE(gone.status == 0, gone.err);
  releaser.join();
  CHECK(shell.run({"delete", "pst", "fast"}).status == 1);
  CHECK(shell.run({"delete", "pst", "fast", "--ignore-not-found"}).status == 0);
}

TEST_CASE("a wrong command line is status 2, a wrong store status 1") {
  const Shell shell;
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"frobnicate"},
                                             {"get"},
                                             {"get", "pods"},
                                             {"apply"},
                                             {"apply", "-f"},
                                             {"apply", "-f", "x", "pst"},
                                             {"get", "pst", "-o", "xml"},
                                             {"delete", "pst"},
                                             {"wait", "pst/x"},
                                             {"wait", "pst/x", "--for=Ready"},
                                             {"wait", "pst/x", "--for=delete", "--timeout=-1s"},
                                             {"get", "pst", "--frob"},
                                             {"get", "pst/"},
                                             {"--store"},
                                             {"delete", "pst", "x", "-f", "y"}}) {
    const auto outcome = shell.run(words);
    CHECK_MESSAGE(outcome.status == 2, words.front() << ": " << outcome.err);
    CHECK(outcome.err.starts_with("error: "));
  }
  CHECK(shell.run({}).status == 0);
  CHECK(shell.run({"version"}).has("pillarctl 0"));
  CHECK(shell.run({"get", "pst", "--store=etcd://x"}).status == 1);
  CHECK(shell.run({"get", "pst"}).has("does not exist"));
}

TEST_CASE("input without an end is refused, not read until memory is full") {
  /// Endless zeros, as /dev/zero.
  struct Endless : std::streambuf {
    int_type underflow() override {
      CHECK(++blocks < 1000);
      setg(block, block, block + sizeof block);
      return 0;
    }
    char block[65536] = {};
    int blocks = 0;
  };
  Endless zeros;
  std::istream in(&zeros);
  std::ostringstream out;
  std::ostringstream err;
  CHECK(pillarctl::run({"validate", "-f", "-"}, "", in, out, err) == 1);
  CHECK(err.str() == "error: stdin: larger than 4 MiB\n");
}

TEST_CASE("durations, ages and YAML scalars") {
  CHECK(pillarctl::parse_duration("30s").value() == 30s);
  CHECK(pillarctl::parse_duration("1h2m3s4ms").value() == 3723004ms);
  CHECK(pillarctl::parse_duration("10").value() == 10s);
  for (const char* bad : {"", "s", "10x", "-5s", "5s5", "99999999999999999999s"})
    CHECK_FALSE(pillarctl::parse_duration(bad));
  const std::pair<int, const char*> ages[] = {
      {5, "5s"},        {119, "119s"},  {130, "2m10s"},   {600, "10m"},    {7200, "120m"},      {10800, "3h"},
      {12000, "3h20m"}, {90000, "25h"}, {180000, "2d2h"}, {864000, "10d"}, {90000000, "2y311d"}};
  for (const auto& [seconds, text] : ages) CHECK(pillarctl::human_duration(seconds) == text);
  CHECK(pillarctl::to_yaml(nlohmann::json::parse(
            R"({"a":"true","b":[1,{"x":"y","z":[]}],"c":{},"d":"10Gi","e":{"f":null},"g.h/i":"a: b\n"})")) ==
        "a: \"true\"\nb:\n- 1\n- x: \"y\"\n  z: []\nc: {}\nd: \"10Gi\"\ne:\n  f: null\ng.h/i: \"a: b\\n\"\n");
}

TEST_CASE("the example manifests are valid") {
  const Shell shell;
  std::vector<std::string> arguments{"apply"};
  for (const char* name : {"agent", "store", "protocol", "storage-class"}) {
    arguments.emplace_back("-f");
    arguments.push_back(std::string(PILLAR_SOURCE_ROOT) + "/charts/examples/" + name + ".yaml");
  }
  const auto applied = shell.run(arguments);
  CHECK_MESSAGE(applied.status == 0, applied.err);
  CHECK(shell.run({"get", "psc"}).has("fast-nvme"));
}

TEST_SUITE_END();

namespace {

/// A record as a controller leaves it, at generation 7, published to one node.
VolumeState stored_volume(SqliteStore& store, const std::string& reason, bool exported) {
  VolumeState volume;
  volume.metadata.name = "v";
  volume.metadata.finalizers = {"pillar-csi.bhyoo.com/volume"};
  volume.spec.volume_id = "storage-1/nvmeof-tcp/lvm-lv/vg0/v";
  volume.spec.agent_ref = "storage-1";
  volume.spec.agent_volume_id = "vg0/v";
  volume.spec.backend_type = "lvm-lv";
  volume.spec.protocol_type = "nvmeof-tcp";
  std::promise<Result<Object>> made;
  store.create(to_object(volume), [&](Result<Object> object) { made.set_value(std::move(object)); });
  auto object = made.get_future().get();
  REQUIRE_MESSAGE(object.has_value(), (object ? "" : object.error().message));
  volume = from_object<VolumeState>(*object).value();
  volume.status.phase = VolumePhase::ready;
  volume.status.capacity_bytes = 1 << 30;
  volume.status.publication_generation = 7;
  if (exported) volume.status.export_spec = ExportSpec{"10.0.0.5", 4420, true, {}};
  PublishedNode node;
  node.node_id = "worker-a";
  node.initiator_id = "nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-4000-8000-000000000001";
  node.access_mode = "SINGLE_NODE_WRITER";
  volume.status.published_nodes = {node};
  Condition condition;
  condition.type = "ExportReconciled";
  condition.status = ConditionStatus::no;
  condition.reason = reason;
  condition.message = "the agent says: generation 9";
  set_condition(volume.status.conditions, condition);
  std::promise<Result<Object>> written;
  store.update_status(to_object(volume), [&](Result<Object> o) { written.set_value(std::move(o)); });
  object = written.get_future().get();
  REQUIRE_MESSAGE(object.has_value(), (object ? "" : object.error().message));
  return from_object<VolumeState>(*object).value();
}

VolumeState volume_now(SqliteStore& store) {
  std::promise<Result<Object>> read;
  store.get(Kind::volume, "v", [&](Result<Object> object) { read.set_value(std::move(object)); });
  return from_object<VolumeState>(read.get_future().get().value()).value();
}

}  // namespace

TEST_CASE("pillarctl fence accept-rollback: only the record and the generation that were named go on") {
  const Shell shell;
  const auto store = shell.open();
  const auto before = stored_volume(*store, "FenceAhead", true);
  const auto accept = [&](const std::string& uid, const std::string& generation) {
    return shell.run({"fence", "accept-rollback", "v", "--uid", uid, "--generation", generation});
  };
  CHECK(shell.run({"fence", "accept-rollback", "v"}).status == 2);
  CHECK(shell.run({"fence", "adopt", "v", "--uid", "u", "--generation", "9"}).status == 2);
  CHECK(accept(before.metadata.uid, "0").status == 2);
  CHECK(accept("another", "9").has(before.metadata.uid));
  CHECK(accept(before.metadata.uid, "7").has("generation 9"));
  CHECK(volume_now(*store) == before);
  const auto done = accept(before.metadata.uid, "9");
  CHECK_MESSAGE(done.status == 0, done.err);
  CHECK(done.has("generation 10"));
  CHECK(done.has("worker-a"));
  const auto after = volume_now(*store);
  CHECK(after.status.publication_generation == 10);
  CHECK(after.status.published_nodes == before.status.published_nodes);
  CHECK(find_condition(after.status.conditions, "ExportReconciled")->reason == "RollbackAccepted");
  CHECK(accept(before.metadata.uid, "11").has("nothing to accept"));
  CHECK(shell.run({"fence", "accept-rollback", "w", "--uid", "u", "--generation", "9"}).status == 1);
}

TEST_CASE("pillarctl export-spec set: three explicit parts, once") {
  const Shell shell;
  const auto store = shell.open();
  stored_volume(*store, "ExportSpecMissing", false);
  const auto set = [&](const std::string& address, const std::string& acl) {
    return shell.run({"export-spec", "set", "v", "--bind-address", address, "--port", "4420", acl});
  };
  CHECK(shell.run({"export-spec", "set", "v", "--bind-address", "10.0.0.5", "--port", "4420"}).status == 2);
  CHECK(set("10.0.0.5", "--acl").status == 2);
  CHECK(set("nowhere", "--acl=true").has("nowhere"));
  const auto done = set("10.0.0.5", "--acl=false");
  CHECK_MESSAGE(done.status == 0, done.err);
  CHECK(done.has("any host"));
  const auto after = volume_now(*store);
  REQUIRE(after.status.export_spec.has_value());
  CHECK(*after.status.export_spec == ExportSpec{"10.0.0.5", 4420, false, {}});
  CHECK(after.status.publication_generation == 8);
  CHECK(set("10.0.0.6", "--acl=true").has("already: 10.0.0.5"));
}
