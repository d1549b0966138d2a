#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <filesystem>

#include "hostio/durable_file.hpp"
#include "hostio/nvme/host_identity.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using pillar::hostio::testing::TempDir;

namespace {

const std::string k_uuid = "3f2c8f0e-7b1d-4a52-9b7e-1c2d3e4f5a6b";
const std::string k_nqn = "nqn.2014-08.org.nvmexpress:uuid:" + k_uuid;

HostIdentityPaths in(const TempDir& dir) { return {dir / "nvme/hostnqn", dir / "nvme/hostid"}; }

}  // namespace

TEST_CASE("B01: the first start makes one pair from one UUID, later starts read it") {
  const TempDir dir;
  const auto first = load_or_create_host_identity(in(dir));
  REQUIRE(first);
  CHECK(first->nqn == "nqn.2014-08.org.nvmexpress:uuid:" + first->id);
  const auto second = load_or_create_host_identity(in(dir));
  REQUIRE(second);
  CHECK(*second == *first);
  CHECK(read_file(dir / "nvme/hostnqn").value() == first->nqn + "\n");
}

TEST_CASE("programs that start at the same time agree on one identity") {
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    std::vector<std::string> seen(4);
    std::vector<std::thread> programs;
    for (auto& mine : seen)
      programs.emplace_back([&] {
        const auto identity = load_or_create_host_identity(in(dir));
        mine = identity ? identity->nqn + " " + identity->id : identity.error().message;
      });
    for (auto& each : programs) each.join();
    const auto kept = load_or_create_host_identity(in(dir)).value();
    for (const auto& mine : seen) CHECK(mine == kept.nqn + " " + kept.id);
  }
}

TEST_CASE("the identity of the host's own tools is taken over") {
  const TempDir dir;
  dir.put("nvme/hostnqn", k_nqn + "\n");
  dir.put("nvme/hostid", "AAAAAAAA-7B1D-4A52-9B7E-1C2D3E4F5A6B\n");
  const auto identity = load_or_create_host_identity(in(dir));
  REQUIRE(identity);
  CHECK(identity->nqn == k_nqn);
  CHECK(identity->id == "aaaaaaaa-7b1d-4a52-9b7e-1c2d3e4f5a6b");
}

TEST_CASE("a missing file is derived from the other one") {
  const TempDir dir;
  SUBCASE("host id from the NQN") { dir.put("nvme/hostnqn", k_nqn + "\n"); }
  SUBCASE("NQN from the host id") { dir.put("nvme/hostid", k_uuid + "\n"); }
  const auto identity = load_or_create_host_identity(in(dir));
  REQUIRE(identity);
  CHECK(identity->nqn == k_nqn);
  CHECK(identity->id == k_uuid);
  CHECK(read_file(dir / "nvme/hostnqn").value() == k_nqn + "\n");
  CHECK(read_file(dir / "nvme/hostid").value() == k_uuid + "\n");
}

TEST_CASE("B04: an empty or damaged identity file fails loudly and nothing is minted") {
  struct Row {
    const char* what;
    const char* nqn;
    const char* id;
    const char* names;
  };
  const std::string cut_nqn = k_nqn.substr(0, k_nqn.size() - 4);
  const std::string zero = "00000000-0000-0000-0000-000000000000";
  const std::string zero_nqn = "nqn.2014-08.org.nvmexpress:uuid:" + zero;
  const Row rows[] = {
      {"empty NQN file", "", k_uuid.c_str(), "hostnqn"},
      {"blank NQN file", "\n", nullptr, "hostnqn"},
      {"empty id file", k_nqn.c_str(), "", "hostid"},
      {"truncated NQN", cut_nqn.c_str(), nullptr, "hostnqn"},
      {"truncated id", nullptr, "3f2c8f0e-7b1d", "hostid"},
      {"not an NQN", "hello world", k_uuid.c_str(), "hostnqn"},
      {"all-zero id", nullptr, zero.c_str(), "hostid"},
      {"all-zero NQN", zero_nqn.c_str(), nullptr, "hostnqn"},
      {"id missing and no UUID in the NQN", "nqn.2020-01.org.example:host7", nullptr, "hostid"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    const TempDir dir;
    if (row.nqn != nullptr) dir.put("nvme/hostnqn", row.nqn);
    if (row.id != nullptr) dir.put("nvme/hostid", row.id);
    const auto identity = load_or_create_host_identity(in(dir));
    REQUIRE(!identity);
    CHECK(identity.error().reason == Reason::state_corrupt);
    CHECK(identity.error().message.find(row.names) != std::string::npos);
    CHECK(identity.error().message.find("restore") != std::string::npos);
    CHECK(std::filesystem::exists(dir / "nvme/hostnqn") == (row.nqn != nullptr));
    CHECK(std::filesystem::exists(dir / "nvme/hostid") == (row.id != nullptr));
  }
}
