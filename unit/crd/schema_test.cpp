#include "crd/schema.hpp"

#include <fstream>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "crd/yaml.hpp"
#include "tools/pillarctl/commands.hpp"

using namespace pillar;
using namespace pillar::crd;
using nlohmann::json;

namespace {

const json& spec_of(const json& definition) {
  return definition.at("spec").at("versions").at(0).at("schema").at("openAPIV3Schema");
}

/// Calls `see` with every schema below `schema` and its path.
void walk(const json& schema, const std::string& path,
          const std::function<void(const std::string&, const json&)>& see) {
  see(path, schema);
  if (schema.contains("properties"))
    for (const auto& [key, inner] : schema["properties"].items()) walk(inner, path + "." + key, see);
  if (schema.contains("items")) walk(schema["items"], path + "[]", see);
}

}  // namespace

TEST_SUITE_BEGIN("crd schema");

TEST_CASE("charts/crds holds what the types say (write it anew with pillarctl crds KIND)") {
  for (const auto kind : k_kinds) {
    const auto path = PILLAR_SOURCE_ROOT "/charts/crds/" + std::string(info(kind).plural) + ".yaml";
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    CHECK_MESSAGE(text.str() == pillarctl::definition_yaml(kind), path);
    const auto documents = parse_yaml(text.str(), path);
    REQUIRE_MESSAGE(documents, path);
    REQUIRE(documents->size() == 1);
    CHECK(documents->front().value.json() == definition_of(kind));
  }
}

TEST_CASE("names, scope, status subresource and columns are those of docs/interfaces.md") {
  for (const auto kind : k_kinds) {
    const auto definition = definition_of(kind);
    CHECK(definition["metadata"]["name"] == std::string(info(kind).plural) + ".pillar-csi.bhyoo.com");
    CHECK(definition["spec"]["scope"] == "Cluster");
    CHECK(definition["spec"]["names"]["shortNames"] == json{info(kind).short_name});
    const auto& version = definition["spec"]["versions"][0];
    CHECK(version["subresources"].contains("status"));
    CHECK(version["additionalPrinterColumns"].back()["name"] == "Age");
  }
  const auto columns = [](Kind kind) {
    std::string out;
    const auto definition = definition_of(kind);
    for (const auto& column : definition["spec"]["versions"][0]["additionalPrinterColumns"])
      if (!column.contains("priority")) out += column["name"].get<std::string>() + " ";
    return out;
  };
  CHECK(columns(Kind::agent) == "Address Version Ready Age ");
  CHECK(columns(Kind::store) == "Agent Pool Total Available Ready Age ");
  CHECK(columns(Kind::protocol) == "Type Classes Ready Age ");
  CHECK(columns(Kind::storage_class) == "Store Protocol StorageClass Ready Age ");
  CHECK(columns(Kind::volume) == "Phase Agent Backend Protocol Nodes Age ");
}

TEST_CASE("every field of spec and status has a description; every rule a message") {
  for (const auto kind : k_kinds) {
    const auto definition = definition_of(kind);
    for (const char* part : {"spec", "status"})
      walk(spec_of(definition)["properties"][part], std::string(to_string(kind)) + "." + part,
           [](const std::string& path, const json& schema) {
             if (!path.ends_with("[]")) CHECK_MESSAGE(schema.contains("description"), path);
             for (const auto& rule : schema.value("x-kubernetes-validations", json::array()))
               CHECK_MESSAGE(!rule.value("message", "").empty(), path);
           });
  }
}

TEST_CASE("defaults and ranges come from the types") {
  const auto definition = definition_of(Kind::protocol);
  const auto& nvme =
      spec_of(definition)["properties"]["spec"]["properties"]["protocol"]["properties"]["nvmeofTcp"];
  CHECK(nvme["properties"]["port"]["default"] == 4420);
  CHECK(nvme["properties"]["acl"]["default"] == true);
  CHECK(nvme["properties"]["maxQueueSize"]["minimum"] == 16);
  CHECK(nvme["properties"]["maxQueueSize"]["maximum"] == 1024);
  CHECK_FALSE(nvme["properties"]["maxQueueSize"].contains("default"));
  CHECK(nvme["properties"]["auth"]["properties"]["type"]["enum"] == json{"None", "DHCHAP", "MutualDHCHAP"});
}

TEST_SUITE_END();
