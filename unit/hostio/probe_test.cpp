#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "hostio/filesystem.hpp"
#include "hostio/probe.hpp"
#include "temp_dir.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using pillar::hostio::testing::TempDir;

namespace {

constexpr std::uint64_t k_mib = 1ULL << 20U;

/// A sparse image with some bytes in it.
class Image {
 public:
  explicit Image(std::uint64_t bytes = 16 * k_mib) : bytes_(bytes) {
    std::ofstream(path()).close();
    std::filesystem::resize_file(path(), bytes);
  }
  std::string path() const { return dir_ / "image"; }
  std::uint64_t bytes() const { return bytes_; }

  void put(std::uint64_t at, std::string_view data) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
  }
  std::string get(std::uint64_t at, std::size_t size) const {
    std::ifstream file(path(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    std::string out(size, '\0');
    file.read(out.data(), static_cast<std::streamsize>(size));
    return out;
  }
  void resize(std::uint64_t bytes) const { std::filesystem::resize_file(path(), bytes); }
  void format(std::string_view fs) const {
    ProcessRunner runner;
    const auto made = make_filesystem(runner, fs, {}, path(), Deadline::after(60s));
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  }
  Content probe() const {
    const auto content = probe_here(path());
    REQUIRE(content);
    return *content;
  }

 private:
  TempDir dir_;
  std::uint64_t bytes_;
};

std::string le(std::uint64_t value, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i) & 0xffU);
  return out;
}

std::uint32_t crc32(std::string_view data, std::uint32_t crc) {
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? crc >> 1U ^ 0xedb88320U : crc >> 1U;
  }
  return crc;
}

/// Sector 1 of an LVM physical volume.
std::string lvm_label(bool good_checksum) {
  std::string body = le(32, 4) + "LVM2 001" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345";
  body += le(16 * k_mib, 8);
  body.resize(512 - 20, '\0');
  const auto crc = crc32(body, 0xf597a6cfU) ^ (good_checksum ? 0U : 1U);
  return "LABELONE" + le(1, 8) + le(crc, 4) + body;
}

std::string mbr(char type) {
  std::string sector(512, '\0');
  const std::string entry = std::string("\0\0\2\0", 4) + std::string(1, type) +
                            std::string("\xff\xff\xff", 3) + le(2048, 4) + le(8192, 4);
  sector.replace(446, entry.size(), entry);
  sector[510] = '\x55';
  sector[511] = '\xaa';
  return sector;
}

std::string gpt_header(std::uint64_t bytes) {
  const std::uint64_t last = bytes / 512 - 1;
  const std::string entries(128 * 128, '\0');
  const auto header = [&](std::uint32_t crc) {
    return "EFI PART" + le(0x00010000, 4) + le(92, 4) + le(crc, 4) + le(0, 4) + le(1, 8) + le(last, 8) +
           le(34, 8) + le(last - 33, 8) + "0123456789abcdef" + le(2, 8) + le(128, 4) + le(128, 4) +
           le(crc32(entries, 0xffffffffU) ^ 0xffffffffU, 4);
  };
  return header(crc32(header(0), 0xffffffffU) ^ 0xffffffffU);
}

/// md version 1.0 metadata, which stands at the end of the device.
std::string md_superblock(std::uint64_t sector) {
  std::string block = le(0xa92b4efc, 4) + le(1, 4) + le(0, 8) + "0123456789abcdef" + "host:0";
  block.resize(72, '\0');
  block += le(1, 4) + le(0, 4) + le(1024, 8) + le(0, 4) + le(2, 4);
  block.resize(128, '\0');
  block += le(0, 8) + le(sector, 8) + le(sector, 8);
  block.resize(256, '\0');
  return block;
}

Reason refusal(const Content& content, bool formatted = false, bool marker = false) {
  const auto decision = decide_format(content, "ext4", formatted, marker);
  REQUIRE(!decision);
  CHECK(!decision.error().message.empty());
  return decision.error().reason;
}

}  // namespace

TEST_CASE("a zeroed image is blank, whatever its size") {
  for (const std::uint64_t bytes : {16 * k_mib, 2 * k_mib, k_mib, k_mib / 2, std::uint64_t{64} << 30U}) {
    CAPTURE(bytes);
    const Image image(bytes);
    CHECK(image.probe().kind == ContentKind::blank);
    CHECK(image.probe().device_bytes == bytes);
  }
}

TEST_CASE("G01: what cannot be read is not blank") {
  CHECK(Image(0).probe().kind == ContentKind::unreadable);
  CHECK(probe_here("/nonexistent/device").error().reason == Reason::device_missing);
  CHECK(!probe_here("/dev/null"));
  CHECK(!probe_here("/tmp"));
  Content unreadable;
  CHECK(refusal(unreadable) == Reason::device_unreadable);
  CHECK(refusal(unreadable, true) == Reason::device_unreadable);
  CHECK(refusal(unreadable, false, true) == Reason::device_unreadable);
}

TEST_CASE("G01: one byte in the first or last MiB is data") {
  for (const std::uint64_t at :
       {std::uint64_t{0}, std::uint64_t{1337}, k_mib - 1, 15 * k_mib, 16 * k_mib - 1}) {
    CAPTURE(at);
    const Image image;
    image.put(at, "x");
    const auto content = image.probe();
    CHECK(content.kind == ContentKind::foreign);
    CHECK(!content.signature);
    CHECK(content.what.find(std::to_string(at)) != std::string::npos);
    CHECK(refusal(content) == Reason::foreign_content);
  }
}

TEST_CASE("ext4 and xfs are recognised with their size") {
  for (const std::string fs : {"ext4", "xfs"}) {
    CAPTURE(fs);
    const Image image(320 * k_mib);
    image.format(fs);
    const auto content = image.probe();
    CHECK(content.kind == ContentKind::filesystem);
    CHECK(content.type == fs);
    CHECK(content.uuid.size() == 36);
    CHECK(content.filesystem_bytes == image.bytes());
    CHECK(!content.checksum_bad);
    CHECK(!content.incomplete);
    CHECK(decide_format(content, fs, false, false).value() == FormatDecision::use);
    CHECK(decide_format(content, fs, true, true).value() == FormatDecision::use);
    CHECK(!decide_format(content, fs == "xfs" ? "ext4" : "xfs", false, true));
    SUBCASE("D18: a device smaller than its filesystem is refused") {
      image.resize(310 * k_mib);
      const auto smaller = image.probe();
      const auto decision = decide_format(smaller, fs, true, false);
      REQUIRE(!decision);
      CHECK(decision.error().reason == Reason::device_mismatch);
    }
  }
}

TEST_CASE("G04: an xfs superblock over ext4 is ambiguous") {
  const Image xfs(320 * k_mib);
  xfs.format("xfs");
  const Image image(64 * k_mib);
  image.format("ext4");
  image.put(0, xfs.get(0, 512));
  const auto content = image.probe();
  CHECK(content.kind == ContentKind::ambiguous);
  CHECK(refusal(content) == Reason::foreign_content);
  CHECK(refusal(content, false, true) == Reason::foreign_content);
}

TEST_CASE("G04: a filesystem and a partition table together are ambiguous or not ours") {
  const Image image(64 * k_mib);
  image.format("ext4");
  image.put(0, mbr('\x83'));
  image.put(512, gpt_header(image.bytes()));
  const auto content = image.probe();
  CHECK(content.kind == ContentKind::ambiguous);
  CHECK(refusal(content) == Reason::foreign_content);
}

TEST_CASE("G04: everything that is not a filesystem of ours is refused") {
  struct Row {
    const char* what;
    std::uint64_t at;
    std::string bytes;
    const char* says;
  };
  std::string luks = "LUKS\xba\xbe" + std::string("\0\1", 2);
  luks.resize(168, '\0');
  luks += "3f2c8f0e-7b1d-4a52-9b7e-1c2d3e4f5a6b";
  std::string swap(4096, '\0');
  swap.replace(1024, 12, le(1, 4) + le(4095, 4) + le(0, 4));
  swap.replace(4096 - 10, 10, "SWAPSPACE2");
  const std::uint64_t md_at = (16 * k_mib / 512 - 16) & ~7ULL;
  std::string noise;
  std::uint32_t state = 12345;
  for (int i = 0; i < 65536; ++i) noise += static_cast<char>((state = state * 1664525U + 1013904223U) >> 24U);
  const Row rows[] = {
      {"LVM label", 512, lvm_label(true), "LVM2_member"},
      {"LVM label with a bad checksum", 512, lvm_label(false), "LVM2_member"},
      {"LUKS header", 0, luks, "crypto_LUKS"},
      {"swap", 0, swap, "swap"},
      {"md metadata at the end", md_at * 512, md_superblock(md_at), ""},
      {"MBR", 0, mbr('\x83'), "partition table (dos)"},
      {"random bytes", 0, noise, "without a known signature"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    const Image image;
    image.put(row.at, row.bytes);
    const auto content = image.probe();
    CAPTURE(content.what);
    CHECK(content.kind == ContentKind::foreign);
    CHECK(content.what.find(row.says) != std::string::npos);
    CHECK(refusal(content) == Reason::foreign_content);
    CHECK(refusal(content, true) == Reason::foreign_content);
  }
}

TEST_CASE("G04: a partition table (GPT) is refused") {
  const Image image;
  image.put(0, mbr('\xee'));
  image.put(512, gpt_header(image.bytes()));
  const auto content = image.probe();
  CHECK(content.kind == ContentKind::foreign);
  CHECK(content.what == "partition table (gpt)");
  CHECK(content.signature);
}

TEST_CASE("G04: a damaged LVM label is seen as damaged") {
  const Image image;
  image.put(512, lvm_label(false));
  CHECK(image.probe().checksum_bad);
  CHECK(refusal(image.probe(), false, true) == Reason::foreign_content);
}

TEST_CASE("format decisions") {
  Content blank;
  blank.kind = ContentKind::blank;
  blank.device_bytes = k_mib;
  CHECK(decide_format(blank, "ext4", false, false).value() == FormatDecision::format);
  CHECK(decide_format(blank, "ext4", false, true).value() == FormatDecision::format);
  // A volume that held data and looks blank is a disaster, not a new volume.
  CHECK(refusal(blank, true) == Reason::data_loss);
  CHECK(refusal(blank, true, true) == Reason::data_loss);

  Content scraps;
  scraps.kind = ContentKind::foreign;
  scraps.what = "data without a known signature at byte 4096";
  CHECK(refusal(scraps) == Reason::foreign_content);
  CHECK(decide_format(scraps, "ext4", false, true).value() == FormatDecision::clear_and_format);
  CHECK(refusal(scraps, true, true) == Reason::foreign_content);

  Content cut;
  cut.kind = ContentKind::filesystem;
  cut.type = "xfs";
  cut.incomplete = true;
  CHECK(decide_format(cut, "xfs", false, true).value() == FormatDecision::clear_and_format);
  CHECK(decide_format(cut, "xfs", false, false).error().reason == Reason::filesystem_corrupt);
  CHECK(decide_format(cut, "xfs", true, true).error().reason == Reason::filesystem_corrupt);

  Content damaged;
  damaged.kind = ContentKind::filesystem;
  damaged.type = "ext4";
  damaged.checksum_bad = true;
  CHECK(refusal(damaged, true) == Reason::filesystem_corrupt);
  CHECK(refusal(damaged, false, true) == Reason::filesystem_corrupt);
}

TEST_CASE("an unfinished mkfs.xfs is seen, cleared and blank again") {
  const Image image(320 * k_mib);
  image.format("xfs");
  image.put(126, "\1");
  const auto content = image.probe();
  const bool cleared_by_marker = decide_format(content, "xfs", false, true).has_value();
  CHECK(cleared_by_marker);
  REQUIRE(clear_here(image.path(), std::nullopt));
  CHECK(image.probe().kind == ContentKind::blank);
}

TEST_CASE("superblock sizes") {
  std::vector<unsigned char> block(1024, 0);
  CHECK(!ext_superblock_bytes(block));
  CHECK(!xfs_superblock_bytes(block));
  CHECK(!ext_superblock_bytes({}));
  CHECK(!xfs_superblock_bytes({}));
  block[56] = 0x53;
  block[57] = 0xef;
  block[4] = 1;
  block[24] = 2;
  CHECK(ext_superblock_bytes(block) == 4096);
  block[336] = 1;  // high half, only with the 64bit feature
  CHECK(ext_superblock_bytes(block) == 4096);
  block[96] = 0x80;
  CHECK(ext_superblock_bytes(block) == ((1ULL << 32U) + 1) * 4096);
  block[24] = 7;
  CHECK(!ext_superblock_bytes(block));

  std::vector<unsigned char> sector(512, 0);
  std::memcpy(sector.data(), "XFSB", 4);
  sector[6] = 0x10;   // block size 4096
  sector[15] = 0x03;  // blocks
  CHECK(xfs_superblock_bytes(sector) == 3 * 4096);
  sector[8] = 0xff;
  CHECK(!xfs_superblock_bytes(sector));
}

TEST_CASE("a finding travels from the helper unchanged") {
  Content content;
  content.kind = ContentKind::filesystem;
  content.type = "xfs";
  content.uuid = "u";
  content.what = "w";
  content.device_bytes = 5;
  content.filesystem_bytes = 4;
  content.signature = content.checksum_bad = content.incomplete = true;
  const auto back = content_from(to_json(content));
  CHECK(to_json(back) == to_json(content));
  CHECK(content_from(to_json(Content{})).kind == ContentKind::unreadable);
}

TEST_CASE("C06: the probe verb proves the device before it reads") {
  const Image image;
  const auto answer =
      probe_device(run_host_verb_here, image.path(), DeviceNumber{259, 1}, Deadline::after(1s));
  REQUIRE(!answer);
  CHECK(answer.error().reason == Reason::device_mismatch);
}
