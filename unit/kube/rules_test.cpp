#include "rule_cases.hpp"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cluster.hpp"
#include "crd/validation.hpp"
#include "store_conformance.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::kube;
using namespace pillar::crd::test;
using nlohmann::json;

namespace {

json object_json(Kind kind, const std::string& name, const std::string& spec) {
  return {{"apiVersion", k_api_version},
          {"kind", to_string(kind)},
          {"metadata", {{"name", name}}},
          {"spec", json::parse(spec)}};
}

/// The server's own verdict: what we send is not looked at before.
Result<json> write(Client& client, const std::string& method, const std::string& path, const json& body) {
  return call(client, request(method, path + "?fieldValidation=Strict", body));
}

std::string verdict(const Result<json>& answer) {
  if (answer) return "accepted";
  return answer.error().reason == Reason::invalid_argument ? "refused" : answer.error().message;
}

std::string expected(const RuleCase& one) { return one.refused.empty() ? "accepted" : "refused"; }

std::string words(const Result<json>& answer) { return answer ? "" : answer.error().message; }

}  // namespace

TEST_SUITE_BEGIN("rules");

TEST_CASE("the API server judges every new object as crd/validation.hpp does") {
  clear_all();
  const auto client = admin();
  for (const auto& one : new_object_cases()) {
    const auto answer = write(*client, "POST", path_of(one.kind), object_json(one.kind, "x", one.after));
    CHECK_MESSAGE(verdict(answer) == expected(one), one.after << " -> " << words(answer));
    if (answer) CHECK(call(*client, request("DELETE", path_of(one.kind, "x"), nullptr)));
  }
}

TEST_CASE("the API server judges every change as crd/validation.hpp does") {
  clear_all();
  const auto client = admin();
  for (const auto& one : change_cases()) {
    const auto stored = write(*client, "POST", path_of(one.kind), object_json(one.kind, "x", one.before));
    REQUIRE_MESSAGE(stored, one.before << " -> " << words(stored));
    auto changed = *stored;
    changed["spec"] = json::parse(one.after);
    const auto answer = write(*client, "PUT", path_of(one.kind, "x"), changed);
    CHECK_MESSAGE(verdict(answer) == expected(one),
                  one.before << " to " << one.after << " -> " << words(answer));
    CHECK(call(*client, request("DELETE", path_of(one.kind, "x"), nullptr)));
  }
}

TEST_CASE("the API server judges every status as crd/validation.hpp does") {
  clear_all();
  const auto client = admin();
  for (const auto& one : status_cases()) {
    auto object =
        write(*client, "POST", path_of(one.kind), object_json(one.kind, "x", valid_spec(one.kind))).value();
    object["status"] = json::parse(one.before);
    object = write(*client, "PUT", path_of(one.kind, "x") + "/status", object).value();
    object["status"] = json::parse(one.after);
    const auto answer = write(*client, "PUT", path_of(one.kind, "x") + "/status", object);
    CHECK_MESSAGE(verdict(answer) == expected(one), one.after << " -> " << words(answer));
    CHECK(call(*client, request("DELETE", path_of(one.kind, "x"), nullptr)));
  }
}

TEST_CASE("defaults are the server's as they are ours") {
  clear_all();
  const auto client = admin();
  for (const auto kind : k_kinds) {
    Object fresh;
    fresh.kind = kind;
    fresh.metadata.name = "x";
    fresh.spec = Doc::of(json::parse(valid_spec(kind)));
    auto ours = admit(fresh, nullptr)->spec.json();
    // Only the code can say that a class is named like the object.
    if (kind == Kind::storage_class) ours["storageClass"].erase("name");
    const auto theirs = write(*client, "POST", path_of(kind), object_json(kind, "x", valid_spec(kind)));
    REQUIRE_MESSAGE(theirs, words(theirs));
    CHECK((*theirs)["spec"] == ours);
  }
}

TEST_CASE("a refusal names the field and says what is accepted") {
  const auto client = admin();
  const auto both =
      write(*client, "POST", path_of(Kind::agent),
            object_json(Kind::agent, "x", R"({"nodeRef":{"name":"n"},"external":{"address":"a","port":1}})"));
  CHECK(words(both).find("exactly one of nodeRef, external") != std::string::npos);
  CHECK(both.error().details.at("field") == "spec");
  const auto thin = write(
      *client, "POST", path_of(Kind::store),
      object_json(Kind::store, "x",
                  R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v","provisioningMode":"thin"}}})"));
  CHECK(words(thin).find("needs thinPool") != std::string::npos);
  const auto typo =
      write(*client, "POST", path_of(Kind::store),
            object_json(Kind::store, "x",
                        R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v","thinpool":"t"}}})"));
  CHECK(words(typo).find("thinpool") != std::string::npos);
}

TEST_CASE("one bad object does no harm to the others (Q01)") {
  clear_all();
  KubernetesStore store(admin());
  REQUIRE(create(store, store_object("good")));
  auto huge = store_object("huge");
  huge.metadata.annotations["a"] = std::string(1 << 20, 'x');
  CHECK(create(store, huge).error().reason == Reason::invalid_argument);
  const auto client = admin();
  auto raw = object_json(Kind::store, "huge", valid_spec(Kind::store));
  raw["metadata"]["annotations"]["a"] = std::string(1 << 20, 'x');
  CHECK(write(*client, "POST", path_of(Kind::store), raw).error().reason == Reason::invalid_argument);
  raw["metadata"].erase("annotations");
  raw["spec"]["backend"]["zfs"] = {{"pool", "p"},
                                   {"properties", {{"compression", std::string(4 << 20, 'x')}}}};
  CHECK(write(*client, "POST", path_of(Kind::store), raw).error().reason == Reason::invalid_argument);
  CHECK(list(store, Kind::store)->items.size() == 1);
}

TEST_CASE("a record that outgrows the server is refused and stays as it was") {
  clear_all();
  KubernetesStore store(admin());
  auto object = create(store, agent_object("a")).value();
  object.status = Doc::of({{"agentVersion", std::string(2 << 20, 'x')}});
  const auto answer = update_status(store, object);
  REQUIRE_FALSE(answer);
  CHECK_MESSAGE(answer.error().reason == Reason::invalid_argument, answer.error().message);
  CHECK(get(store, Kind::agent, "a")->status.empty());
}

TEST_CASE("the example manifests apply by kubectl, unchanged, and are shown readably") {
  clear_all();
  const auto applied = kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/examples");
  CHECK(applied.find("pillarstorageclass.pillar-csi.bhyoo.com/fast-nvme created") != std::string::npos);
  CHECK(kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/examples").find("configured") == std::string::npos);
  const auto table = kubectl("get pst,psc,pa,pstr,pvst");
  CHECK(table.find("AGENT") != std::string::npos);
  CHECK(kubectl("get pst fast --no-headers").find("storage-1   vg0") != std::string::npos);
  CHECK(kubectl("get pillar -o name").find("pillaragent.pillar-csi.bhyoo.com/storage-1") !=
        std::string::npos);
  CHECK(kubectl("explain pst.spec.backend.lvm.provisioningMode").find("has its space") != std::string::npos);
}

TEST_CASE("a class made by kubectl keeps the name it has by default") {
  clear_all();
  kubectl("apply -f " PILLAR_SOURCE_ROOT "/charts/examples");
  KubernetesStore store(admin());
  auto made = get(store, Kind::storage_class, "fast-nvme").value();
  made.metadata.add_finalizer("pillar-csi.bhyoo.com/storage-class-protection");
  const auto written = update(store, made);
  REQUIRE_MESSAGE(written, (written ? "" : written.error().message));
  CHECK(written->spec.json()["storageClass"]["name"] == "fast-nvme");
  CHECK(update(store, *written)->metadata.resource_version == written->metadata.resource_version);
  clear_all();
}

TEST_SUITE_END();
