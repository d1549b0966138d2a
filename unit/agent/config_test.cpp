#include <doctest/doctest.h>

#include "actors/agent/config.hpp"

using namespace pillar;
using namespace pillar::agent;

TEST_SUITE_BEGIN("agent/config");

TEST_CASE("config: the documented file") {
  const auto config = parse_config("agent.yaml", R"(
backends:
  - lvm:
      volumeGroup: vg0
      provisioningMode: linear
  - lvm: {volumeGroup: vg1, thinPool: ""}
bindAddresses: [10.0.0.5, "FD00::1"]
selfRestore: true
)");
  REQUIRE_MESSAGE(config.has_value(), config.error().message);
  REQUIRE(config->backends.size() == 2);
  CHECK(config->backends[0].volume_group == "vg0");
  CHECK(config->backends[1].volume_group == "vg1");
  CHECK(config->bind_addresses.at(1).text == "fd00::1");
  CHECK(config->self_restore);
}

TEST_CASE("config: every refusal names file, line and key") {
  struct Row {
    const char* text;
    const char* message;
  };
  const Row rows[] = {
      {"", "a.yaml:1: the file is empty"},
      {"backends: []\n", "a.yaml:1: key 'backends' lists no backend"},
      {"backends:\n  - lvm: {volumeGroup: vg0}\nfoo: 1\n", "a.yaml:3: unknown key 'foo'"},
      {"backends:\n  - lvm:\n      volumeGroup: vg0\n      volumegroup: x\n",
       "a.yaml:4: unknown key 'volumegroup'"},
      {"backends:\n  - lvm:\n      volumeGroup: vg0\n      volumeGroup: vg1\n",
       "a.yaml:4: key 'volumeGroup' appears twice"},
      {"backends: []\nbackends: []\n", "a.yaml:2: key 'backends' appears twice"},
      {"backends:\n  - lvm: {volumeGroup: vg0}\n  - lvm: {volumeGroup: vg0}\n",
       "a.yaml:3: volume group 'vg0'"},
      {"backends:\n  - lvm: {}\n", "needs the key 'volumeGroup'"},
      {"backends:\n  - {}\n", "needs exactly one of: lvm"},
      {"backends:\n  - lvm: {volumeGroup: ../x}\n", "a.yaml:2: key 'volumeGroup'"},
      {"backends:\n  - lvm: {volumeGroup: vg0, provisioningMode: thin}\n", "thin is not supported yet"},
      {"backends:\n  - lvm: {volumeGroup: vg0, thinPool: tp}\n", "thin provisioning is not supported yet"},
      {"backends:\n  - lvm: {volumeGroup: vg0, provisioningMode: fat}\n", "must be linear, not 'fat'"},
      {"backends:\n  - zfs: {pool: tank}\n", "ZFS is not supported yet"},
      {"backends: 3\n", "a.yaml:1: key 'backends' must be a list"},
      {"- a\n", "a.yaml:1: the file must be a mapping"},
      {"selfRestore: maybe\n", "a.yaml:1: key 'selfRestore' must be true or false"},
      {"bindAddresses: [localhost]\n", "a.yaml:1: key 'bindAddresses'"},
      {"backends: [\n", "a.yaml:2: "},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.text));
    const auto config = parse_config("a.yaml", row.text);
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().reason == Reason::invalid_argument);
    CHECK_MESSAGE(config.error().message.find(row.message) != std::string::npos, config.error().message);
  }
}

TEST_CASE("config: a missing file is named") {
  const auto config = load_config("/nonexistent/agent.yaml");
  REQUIRE_FALSE(config.has_value());
  CHECK(config.error().message.find("/nonexistent/agent.yaml") != std::string::npos);
}

TEST_CASE("config: an empty file is told from one that cannot be read") {
  const auto empty = load_config("/dev/null");
  REQUIRE_FALSE(empty.has_value());
  CHECK(empty.error().message.find("/dev/null:1: the file is empty") != std::string::npos);
  const auto folder = load_config("/");
  REQUIRE_FALSE(folder.has_value());
  CHECK(folder.error().message.find("configuration file / cannot be read") != std::string::npos);
}
