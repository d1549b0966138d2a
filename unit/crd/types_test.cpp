#include "crd/types.hpp"

#include <cstdlib>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "crd/yaml.hpp"

using namespace pillar;
using namespace pillar::crd;
using nlohmann::json;

namespace {

/// The errors of reading `value` as T, one text each.
template <class T>
std::string errors_of(const json& value) {
  const auto read = decode<T>(value, "spec");
  if (read) return "";
  std::string out;
  for (const auto& error : read.error()) out += (out.empty() ? "" : " | ") + to_string(error);
  return out;
}

VolumeState full_volume() {
  VolumeState out;
  out.metadata.name = "pvc-1";
  out.metadata.finalizers = {"pillar-csi.bhyoo.com/volume"};
  out.spec = {
      "storage-1/nvmeof-tcp/lvm-lv/vg0/pvc-1", "vg0/pvc-1", "storage-1", "lvm-lv", "nvmeof-tcp", 1 << 30,
      ClaimRef{"u1", "default", "data"},       Resolved{}};
  out.spec.resolved->backend.lvm = LvmBackend{"vg0", "tp", ProvisioningMode::thin};
  out.spec.resolved->protocol.nvmeof_tcp.emplace();
  out.spec.resolved->protocol.nvmeof_tcp->max_queue_size = 64;
  out.spec.resolved->filesystem = {FsType::xfs, {"-K"}, {"noatime"}};
  auto& status = out.status;
  status.phase = VolumePhase::create_partial;
  status.partial_failure =
      PartialFailure{"ExportVolume", "2026-01-01T00:00:00Z", "AgentUnavailable", "no route", true, false};
  status.backend_device_path = "/dev/vg0/pvc-1";
  status.capacity_bytes = 1 << 30;
  status.export_info = ExportInfo{"nqn.x", "10.0.0.1", 4420, "vg0/pvc-1"};
  status.export_spec = ExportSpec{"10.0.0.1", 4420, false, 16384};
  status.published_nodes = {{"node-a", "nqn.a", "SINGLE_NODE_WRITER", true, true}};
  status.publication_generation = 9;
  status.deleting = true;
  status.formatted = Formatted{FsType::xfs, "2026-01-01T00:00:00Z"};
  status.resize_required = true;
  set_condition(status.conditions, {"Ready", ConditionStatus::no, "Why", "text", "", 3});
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("crd types");

TEST_CASE("quantities") {
  const std::pair<const char*, std::int64_t> good[] = {{"0", 0},
                                                       {"4096", 4096},
                                                       {"1Ki", 1024},
                                                       {"10Gi", 10LL << 30},
                                                       {"1.5Gi", 3LL << 29},
                                                       {"1k", 1000},
                                                       {"1G", 1000000000},
                                                       {"1e9", 1000000000},
                                                       {"2E3", 2000},
                                                       {"+5", 5},
                                                       {"7Ei", 7LL << 60},
                                                       {"0.1", 1},
                                                       {"9223372036854775807", 9223372036854775807LL},
                                                       {"1E", 1000000000000000000}};
  for (const auto& [text, bytes] : good) {
    const auto parsed = parse_quantity(text);
    REQUIRE_MESSAGE(parsed, text);
    CHECK_MESSAGE(*parsed == bytes, text);
  }
  for (const char* bad : {"", "-1", "1Gb", "Gi", "1 Gi", "1.2.3", "8Ei", "9223372036854775808", "1e19",
                          "0x10", "1m", "99999999999999999999999999999999999999999999", "."})
    CHECK_FALSE_MESSAGE(parse_quantity(bad), bad);
  for (const std::int64_t value :
       {0LL, 1LL, 1000LL, 1024LL, 1LL << 20, 3LL << 29, (1LL << 40) + 1, 7LL << 60})
    CHECK(parse_quantity(format_quantity(value)).value() == value);
  CHECK(format_quantity(10LL << 30) == "10Gi");
  CHECK(format_quantity(3LL << 29) == "1536Mi");
  CHECK(format_quantity(1000) == "1000");
}

TEST_CASE("conditions: the time moves with the status only, equal conditions write nothing") {
  Conditions conditions;
  CHECK(set_condition(conditions, {"Ready", ConditionStatus::no, "Starting", "", "2026-01-01T00:00:00Z", 1}));
  CHECK_FALSE(set_condition(conditions, {"Ready", ConditionStatus::no, "Starting", "", "", 1}));
  CHECK(set_condition(conditions,
                      {"Ready", ConditionStatus::no, "Waiting", "for x", "2027-01-01T00:00:00Z", 2}));
  CHECK(conditions[0].last_transition_time == "2026-01-01T00:00:00Z");
  CHECK_FALSE(condition_true(conditions, "Ready"));
  CHECK(set_condition(conditions, {"Ready", ConditionStatus::yes, "Fine", "", "2028-01-01T00:00:00Z", 2}));
  CHECK(conditions[0].last_transition_time == "2028-01-01T00:00:00Z");
  CHECK(condition_true(conditions, "Ready"));
  CHECK(conditions.size() == 1);
  CHECK(remove_condition(conditions, "Ready"));
  CHECK_FALSE(remove_condition(conditions, "Ready"));
  CHECK(find_condition(conditions, "Ready") == nullptr);
}

TEST_CASE("a whole volume record survives the way to JSON and back") {
  const auto volume = full_volume();
  const auto object = to_object(volume);
  const auto reread = object_from_json(json::parse(to_json(object).dump()));
  REQUIRE(reread);
  CHECK(*reread == object);
  const auto back = from_object<VolumeState>(*reread);
  REQUIRE_MESSAGE(back, (back ? "" : back.error().message));
  CHECK(*back == volume);
  const auto& status = object.status.json();
  for (const char* key :
       {"phase", "partialFailure", "backendDevicePath", "exportInfo", "exportSpec", "publishedNodes",
        "publicationGeneration", "deleting", "formatted", "resizeRequired", "conditions"})
    CHECK_MESSAGE(status.contains(key), key);
  CHECK(status["exportInfo"].contains("targetID"));
  CHECK(status["publishedNodes"][0].contains("initiatorID"));
  CHECK(object.spec.json().contains("agentVolumeID"));
  CHECK_FALSE(from_object<PillarAgent>(*reread));
  CHECK(encode(VolumeStatus{}).empty());
}

TEST_CASE("Q01: reading is strict and names every wrong field") {
  CHECK(errors_of<StoreSpec>(json::parse(R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v"}}})")) == "");
  CHECK(errors_of<StoreSpec>(json::object()) == "spec.agentRef: is required | spec.backend: is required");
  CHECK(errors_of<StoreSpec>(json::parse(R"({"agentRef":"","backend":{"lvm":{"volumeGroup":5}}})")) ==
        "spec.agentRef = \"\": must not be empty | spec.backend.lvm.volumeGroup = 5: must be a string");
  CHECK(
      errors_of<StoreSpec>(json::parse(R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v","typo":1}}})"))
          .starts_with("spec.backend.lvm.typo = 1: unknown field; known here: volumeGroup, thinPool"));
  CHECK(errors_of<StoreSpec>(json::parse(R"({"agentRef":"a","backend":{}})"))
            .find("exactly one of zfs, lvm must be set") != std::string::npos);
  CHECK(errors_of<StoreSpec>(json::parse(R"({"agentRef":"a","backend":{"ceph":{}}})"))
            .find("spec.backend.ceph") != std::string::npos);
  CHECK(errors_of<StoreSpec>("text") == "spec = \"text\": must be an object");
  CHECK(errors_of<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"port":"4420"}}})")) ==
        "spec.protocol.nvmeofTcp.port = \"4420\": must be an integer");
  CHECK(errors_of<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"acl":"no"}}})")) ==
        "spec.protocol.nvmeofTcp.acl = \"no\": must be true or false");
  CHECK(errors_of<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"port":1.5}}})")).find("integer") !=
        std::string::npos);
  CHECK(errors_of<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"port":18446744073709551615}}})"))
            .find("too large") != std::string::npos);
}

TEST_CASE("null is unset, upstream shapes read unchanged, our defaults apply") {
  const auto spec =
      decode<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"maxQueueSize":null}}})"), "spec");
  REQUIRE(spec);
  CHECK(spec->protocol.nvmeof_tcp->port == 4420);
  CHECK(spec->protocol.nvmeof_tcp->acl);
  CHECK_FALSE(spec->protocol.nvmeof_tcp->max_queue_size);
  CHECK(encode(*spec) == json::parse(R"({"protocol":{"nvmeofTcp":{"port":4420,"acl":true}}})"));
  const auto agent = decode<AgentSpec>(
      json::parse(R"({"nodeRef":{"name":"n","addressType":"InternalIP","port":9500}})"), "spec");
  REQUIRE(agent);
  CHECK(agent->node_ref->name == "n");
  const auto open = decode<ProtocolSpec>(json::parse(R"({"protocol":{"nvmeofTcp":{"acl":false}}})"), "spec");
  CHECK_FALSE(open->protocol.nvmeof_tcp->acl);
}

TEST_CASE("generic objects: envelope errors") {
  const auto problem = [](const char* text) {
    const auto read = object_from_json(json::parse(text));
    return read ? std::string() : read.error().message;
  };
  CHECK(problem(R"({"apiVersion":"pillar-csi.bhyoo.com/v1alpha1","kind":"PillarStore","metadata":{"name":"x",
        "managedFields":[],"creationTimestamp":null}})") == "");
  CHECK(problem(R"({"apiVersion":"v1","kind":"PillarStore","metadata":{"name":"x"}})").find("apiVersion") !=
        std::string::npos);
  CHECK(problem(R"({"apiVersion":"pillar-csi.bhyoo.com/v1alpha1","kind":"Pod","metadata":{"name":"x"}})")
            .find("PillarVolumeState") != std::string::npos);
  CHECK(problem(R"({"apiVersion":"pillar-csi.bhyoo.com/v1alpha1","kind":"PillarStore","metadata":{}})")
            .find("metadata.name: is required") != std::string::npos);
  CHECK(
      problem(
          R"({"apiVersion":"pillar-csi.bhyoo.com/v1alpha1","kind":"PillarStore","metadata":{"name":"x"},"spce":{}})")
          .find("spce") != std::string::npos);
  CHECK(problem("[]").find("must be an object") != std::string::npos);
  CHECK(
      problem(
          R"({"apiVersion":"pillar-csi.bhyoo.com/v1alpha1","kind":"PillarStore","metadata":{"name":"x"},"spec":[1]})")
          .find("spec = [1]: must be an object") != std::string::npos);
}

TEST_CASE("kinds by word, timestamps") {
  CHECK(kind_from_word("pst").value() == Kind::store);
  CHECK(kind_from_word("PillarStores").value() == Kind::store);
  CHECK(kind_from_word("pillarvolumestate").value() == Kind::volume);
  CHECK_FALSE(kind_from_word("pods"));
  CHECK(timestamp_seconds("1970-01-02T00:00:01Z").value() == 86401);
  CHECK(timestamp_seconds("1970-01-02T00:00:01.123456Z").value() == 86401);
  CHECK(timestamp_seconds(timestamp_now()).has_value());
  for (const char* bad : {"", "yesterday", "2026-01-01", "2026-01-01T00:00:00+02:00"})
    CHECK_FALSE(timestamp_seconds(bad));
}

TEST_CASE("YAML: core schema, positions, several documents") {
  const auto documents = parse_yaml(
      "---\na: 1\nb:\n  - x: yes\n    y: \"1\"\n---\n# nothing\n---\nc: {d: 0x10, e: ~, f: 1.5}\n", "m.yaml");
  REQUIRE_MESSAGE(documents, (documents ? "" : documents.error().message));
  REQUIRE(documents->size() == 2);
  const auto& first = documents->front();
  CHECK(first.value.json() == json::parse(R"({"a":1,"b":[{"x":"yes","y":"1"}]})"));
  CHECK(first.position_of("b[0].y") == Position{5, 5});
  CHECK(first.position_of("b[0].missing.deep") == first.position_of("b[0]"));
  CHECK(first.position_of("elsewhere") == first.start);
  CHECK(documents->back().value.json() == json::parse(R"({"c":{"d":16,"e":null,"f":1.5}})"));
  CHECK(parse_yaml("{\t\"a\":\t[1, true, \"x\\n\\u00e9\"]}", "j").value().front().value.json() ==
        json::parse(R"({"a":[1,true,"x\né"]})"));
  CHECK(parse_yaml_value("", "x").value().empty());
  CHECK_FALSE(parse_yaml_value("a: 1\n---\nb: 2", "x"));
  // 010 is octal for some and decimal for others: no number here.
  CHECK(parse_yaml_value("a: 010", "x").value().json()["a"] == "010");
}

TEST_CASE("YAML: duplicates, syntax errors, odd keys, tags and bombs are refused with a place") {
  const auto problem = [](const std::string& text) {
    const auto read = parse_yaml(text, "m.yaml");
    return read ? std::string("accepted") : read.error().message;
  };
  CHECK(problem("a:\n  b: 1\n  b: 2\n") == "m.yaml:3:3: a.b: duplicate key; keep one of them");
  CHECK(problem("a: [1\nb: 2").starts_with("m.yaml:2:"));
  CHECK(problem("[a, b]: 1\n").find("plain word") != std::string::npos);
  CHECK(problem("a: !!binary aGk=\n").find("tag") != std::string::npos);
  CHECK(problem("a: *missing\n").starts_with("m.yaml:1:"));
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 9; ++i) {
    const auto below = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? "," : "") + below;
    bomb += "]\n";
  }
  CHECK(problem(bomb).find("too many values") != std::string::npos);
  CHECK(problem(std::string(200, '[')).starts_with("m.yaml"));
  CHECK(problem(std::string(5 << 20, ' ')).find("larger") != std::string::npos);
}

TEST_SUITE_END();
