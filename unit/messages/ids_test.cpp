#include <set>

#include <doctest/doctest.h>

#include "messages/ids.hpp"

using namespace pillar;

TEST_SUITE_BEGIN("messages/ids");

TEST_CASE("agent volume ids have one strict grammar") {
  CHECK(AgentVolumeId::parse("vg0/pvc-1").value().str() == "vg0/pvc-1");
  for (const char* bad : {"", "/", "vg0", "vg0/", "/x", "vg0/a/b", "vg0/..", "vg0/a..b", "../x", "vg0/a b",
                          "vg0/-a", ".vg/a", "vg0/a\nb", "vg0/\xc3\xa9", "vg0/a;b", "vg0/a%2fb"})
    CHECK_MESSAGE(!AgentVolumeId::parse(bad), bad);
  CHECK_FALSE(AgentVolumeId::parse("vg0/" + std::string(64, 'a')));
  CHECK(AgentVolumeId::parse("vg0/" + std::string(63, 'a')));
}

TEST_CASE("K07: malformed volume ids are refused with the form that is expected") {
  const auto good = VolumeId::parse("storage-1/nvmeof-tcp/lvm-lv/vg0/pvc-1");
  REQUIRE(good);
  CHECK(good->agent == "storage-1");
  CHECK(good->str() == "storage-1/nvmeof-tcp/lvm-lv/vg0/pvc-1");
  for (const char* bad :
       {"", "x", "a/b/c/d/e", "storage-1/nvmeof-tcp/lvm-lv/vg0", "Storage/nvmeof-tcp/lvm-lv/vg0/a",
        "storage-1/nvmeof-tcp/lvm-lv/vg0/../etc", "storage-1/nvmeof-tcp/rbd/vg0/a"}) {
    const auto parsed = VolumeId::parse(bad);
    REQUIRE_MESSAGE(!parsed, bad);
    CHECK(parsed.error().code == Code::invalid_argument);
    CHECK(parsed.error().message.find("<agent>/<protocol>") != std::string::npos);
  }
  CHECK_FALSE(VolumeId::parse("a/nvmeof-tcp/lvm-lv/vg0/" + std::string(300, 'x')));
}

TEST_CASE("J09: any CO name becomes a usable, distinct volume name") {
  CHECK(volume_name_for("pvc-1234").value() == "pvc-1234");
  std::set<std::string> seen;
  const std::string common(120, 'p');
  for (const std::string& name :
       {std::string("a/b"), std::string("a..b"), std::string("-lead"), std::string("\xc3\xa9"),
        std::string("\xf0\x9f\x92\xbe"), std::string("snapshot1"), std::string("pvmove0"),
        std::string("x_tmeta"), common + "1", common + "2", std::string("a b"), std::string("v-x")}) {
    const auto mapped = volume_name_for(name);
    REQUIRE_MESSAGE(mapped, name);
    CHECK(mapped->size() <= 63);
    CHECK(AgentVolumeId::parse("vg0/" + *mapped));
    CHECK(seen.insert(*mapped).second);
  }
  CHECK_FALSE(volume_name_for(""));
  CHECK_FALSE(volume_name_for("a\nb"));
  CHECK_FALSE(volume_name_for(std::string(1025, 'a')));
}

TEST_CASE("a volume id that would be too long uses the hash of the name") {
  const std::string agent(50, 'a');
  const auto id = make_volume_id(agent, "nvmeof-tcp", "lvm-lv", "vg0", std::string(63, 'n'));
  REQUIRE(id);
  CHECK(id->str().size() <= k_max_volume_id);
  CHECK(id->volume.name.starts_with("v-"));
  CHECK_FALSE(make_volume_id(std::string(120, 'a'), "nvmeof-tcp", "lvm-lv", "vg0", "x"));
}

TEST_CASE("export identities are stable, valid and never shared") {
  const AgentVolumeId volume{"vg0", "pvc-1"};
  const auto one = export_identity("c1", "storage-1", volume);
  CHECK(one.nqn == "nqn.2026-01.com.bhyoo.pillar-csi:c1:storage-1:vg0_2fpvc-1");
  CHECK(one.namespace_uuid == export_identity("c1", "storage-1", volume).namespace_uuid);
  CHECK(one.serial.size() == 20);
  CHECK(is_our_nqn(one.nqn));
  std::set<std::string> nqns{one.nqn};
  CHECK(nqns.insert(export_identity("c2", "storage-1", volume).nqn).second);
  CHECK(nqns.insert(export_identity("c1", "storage-1", {"vg0_2fpvc", "1"}).nqn).second);
  CHECK(nqns.insert(export_identity("c1:storage-1", "x", volume).nqn).second);
  CHECK(nqns.insert(export_identity("c1", "storage-1:x", volume).nqn).second);
  const auto longest =
      export_identity("c1", std::string(253, 'a'), {std::string(63, 'p'), std::string(63, 'n')});
  CHECK(longest.nqn.size() <= 223);
  CHECK(is_our_nqn(longest.nqn));
}

TEST_CASE("NQN validity") {
  CHECK(is_valid_nqn("nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-0000-0000-000000000001"));
  for (const std::string& bad :
       {std::string("x"), std::string("nqn.2014-08.org a"), std::string("nqn.2014-08.org/x"),
        std::string("nqn.2014-08.org,x=y"), "nqn.2014-08." + std::string(223, 'a')})
    CHECK_FALSE(is_valid_nqn(bad));
}

TEST_CASE("file names are escaped injectively and stay inside the directory") {
  CHECK(escape_file_name("vg0/pvc-1") == "vg0%2Fpvc-1");
  CHECK(escape_file_name(".") == "%2E");
  CHECK(escape_file_name("..") == "%2E.");
  CHECK(escape_file_name("a%2Fb") != escape_file_name("a/b"));
  const auto hashed = escape_file_name(std::string(300, 'x'));
  CHECK(hashed.starts_with("h-"));
  CHECK(hashed.size() < 64);
  CHECK(escape_file_name(hashed) != hashed);
}

TEST_CASE("object names follow DNS-1123") {
  for (const char* good : {"a", "storage-1", "a.b", "0a"}) CHECK(is_object_name(good));
  for (const char* bad : {"", "A", "-a", "a-", "a..b", ".a", "a.", "a_b", "a/b", "a.-b"})
    CHECK_FALSE(is_object_name(bad));
}

TEST_CASE("hashes and UUIDs match published vectors") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_base32("abc") == "xj4bnp4pahh6uqkbidpf3lrceoyagyndsylxvhfucd7wd4qacwwq");
  CHECK(uuid_v5("http://example.com") == "8c9ddcb0-8084-5a7f-a988-1095ab18b5df");
  CHECK(uuid_v4() != uuid_v4());
}

TEST_CASE("C12: addresses are compared as addresses") {
  CHECK(IpAddress::parse("FD00:0:0::1").value() == IpAddress::parse("[fd00::1]").value());
  CHECK(IpAddress::parse("10.0.0.5").value().text == "10.0.0.5");
  CHECK(IpAddress::parse("fe80::1%eth0").value().text == "fe80::1%eth0");
  for (const char* bad :
       {"", "localhost", "10.0.0", "10.0.0.5:4420", "10.0.0.5%eth0", "::1%", "fe80::1%a b", "1.2.3.4,x=y"})
    CHECK_FALSE_MESSAGE(IpAddress::parse(bad), bad);
}

TEST_SUITE_END();
