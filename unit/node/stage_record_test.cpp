#include <doctest/doctest.h>

#include "actors/node/stage_record.hpp"
#include "messages/ids.hpp"

using namespace pillar;
using namespace pillar::node;

TEST_SUITE_BEGIN("node/stage_record");

namespace {

StageRecord sample() {
  StageRecord record;
  record.volume_id = "storage-1/nvmeof-tcp/lvm-lv/vg0/pvc-1";
  record.phase = Phase::mounted;
  record.usage = {VolumeMode::mount, AccessMode::single_node_writer, "xfs", "rw,noatime,nouuid", false};
  record.session = {"nvmeof-tcp", "nqn.2026-01.com.bhyoo.pillar-csi:c:storage-1:vg0_2fpvc-1", "10.0.0.5",
                    4420, "u"};
  record.device = RecordedDevice{"/dev/nvme0n1", {259, 3}};
  record.stagings = {{"/stage/a", StagingState::staged, hostio::DeviceNumber{259, 3}},
                     {"/stage/b", StagingState::staging, std::nullopt}};
  record.publications = {{"/pods/1", true, AccessMode::single_node_multi_writer, true}};
  record.marker = "m";
  record.generation = 9;
  record.boot_id = "boot";
  return record;
}

}  // namespace

TEST_CASE("a record survives encoding, A07: with both of its staging paths") {
  const auto record = sample();
  const auto back = decode(encode(record), record_file_name(record.volume_id));
  REQUIRE(back);
  CHECK(*back == record);
  StageRecord empty;
  empty.volume_id = "v";
  empty.session.nqn = record.session.nqn;
  CHECK(decode(encode(empty)).value() == empty);
}

TEST_CASE("every changed byte of a record is noticed, whatever it turns the text into") {
  const std::string text = encode(sample());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    const auto back = decode(bad);
    if (back) CHECK_MESSAGE(*back == sample(), "byte ", at);  // white space is the only harmless change
    if (!back) CHECK(back.error().reason == Reason::state_corrupt);
  }
  CHECK_FALSE(decode(text.substr(0, text.size() / 2)));
  CHECK_FALSE(decode(""));
  CHECK_FALSE(decode("[]"));
}

TEST_CASE("a record in the file of another volume is not used") {
  CHECK_FALSE(decode(encode(sample()), record_file_name("other")));
}

TEST_CASE("record file names are a hash: nothing of the id reaches the path") {
  const auto name = record_file_name("../../etc/passwd");
  CHECK(name.size() == 64 + 5);
  CHECK(name.find('/') == std::string::npos);
  CHECK(name != record_file_name("../../etc/passwd2"));
}

TEST_SUITE_END();
