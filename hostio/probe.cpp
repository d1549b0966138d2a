#include "hostio/probe.hpp"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "hostio/filesystem.hpp"
#include "hostio/lvm.hpp"

namespace pillar::hostio {
namespace {

constexpr std::uint64_t k_edge = 1ULL << 20U;
constexpr std::size_t k_align = 4096;
constexpr std::size_t k_ext_offset = 1024;

std::uint32_t le32(std::span<const unsigned char> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(bytes[at]) | static_cast<std::uint32_t>(bytes[at + 1]) << 8U |
         static_cast<std::uint32_t>(bytes[at + 2]) << 16U | static_cast<std::uint32_t>(bytes[at + 3]) << 24U;
}

std::uint64_t be(std::span<const unsigned char> bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8U | bytes[at + i];
  return value;
}

/// Memory for O_DIRECT.
struct Free {
  void operator()(unsigned char* memory) const { std::free(memory); }
};
struct AlignedBuffer {
  explicit AlignedBuffer(std::size_t size)
      : bytes(static_cast<unsigned char*>(std::aligned_alloc(k_align, size))), capacity(size) {}
  std::unique_ptr<unsigned char, Free> bytes;
  std::size_t capacity;
};

/// The part of the device [from, from + size) as it is on the medium, not in the page cache.
struct Area {
  std::uint64_t from = 0;
  std::vector<unsigned char> bytes;
  std::string problem;  ///< why it could not be read; empty: it was
};

Area read_area(int fd, std::uint64_t from, std::uint64_t size) {
  Area area{from, {}, {}};
  const auto rounded = (size + k_align - 1) / k_align * k_align;
  AlignedBuffer buffer(rounded);
  if (!buffer.bytes) {
    area.problem = "no memory";
    return area;
  }
  while (area.bytes.size() < size) {
    const auto got =
        ::pread(fd, buffer.bytes.get(), buffer.capacity, static_cast<off_t>(from + area.bytes.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      area.problem = "read at byte " + std::to_string(from + area.bytes.size()) + ": " +
                     (got == 0 ? "device ended early" : std::strerror(errno));
      return area;
    }
    const auto wanted = std::min<std::uint64_t>(static_cast<std::uint64_t>(got), size - area.bytes.size());
    area.bytes.insert(area.bytes.end(), buffer.bytes.get(), buffer.bytes.get() + wanted);
  }
  return area;
}

/// Offset of the first byte that is not zero.
std::optional<std::uint64_t> first_data(const Area& area) {
  const auto at =
      std::find_if(area.bytes.begin(), area.bytes.end(), [](unsigned char byte) { return byte != 0; });
  if (at == area.bytes.end()) return std::nullopt;
  return area.from + static_cast<std::uint64_t>(at - area.bytes.begin());
}

/// The device opened for reading past the page cache. A regular file may live where O_DIRECT does not exist.
Result<UniqueFd> open_direct(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!fd && errno == EINVAL) {
    UniqueFd plain(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st {};
    if (plain && ::fstat(plain.get(), &st) == 0 && S_ISREG(st.st_mode)) return plain;
    errno = EINVAL;
  }
  if (!fd) return tl::unexpected(errno_error(errno, "open " + path, Reason::device_missing));
  return fd;
}

Result<std::uint64_t> size_of(int fd, const std::string& path) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return tl::unexpected(errno_error(errno, "stat " + path));
  if (S_ISREG(st.st_mode)) return static_cast<std::uint64_t>(st.st_size);
  std::uint64_t bytes = 0;
  if (!S_ISBLK(st.st_mode)) return fail(Reason::device_mismatch, path + " is not a block device");
  if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0) return tl::unexpected(errno_error(errno, "size of " + path));
  return bytes;
}

std::string lookup(blkid_probe probe, const char* name) {
  const char* value = nullptr;
  if (blkid_probe_lookup_value(probe, name, &value, nullptr) != 0 || value == nullptr) return {};
  return value;
}

/// libblkid's part: signatures of filesystems, RAID, encryption and partition tables, those with a bad
/// checksum too (row G04: without that flag a damaged LVM label looks like nothing).
void probe_signatures(int fd, Content& content) {
  const std::unique_ptr<std::remove_pointer_t<blkid_probe>, void (*)(blkid_probe)> probe(blkid_new_probe(),
                                                                                         blkid_free_probe);
  const auto unreadable = [&](const std::string& why) {
    content.kind = ContentKind::unreadable;
    content.what = why;
  };
  if (!probe || blkid_probe_set_device(probe.get(), fd, 0, 0) != 0)
    return unreadable("libblkid cannot use the device");
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE | BLKID_SUBLKS_UUID | BLKID_SUBLKS_USAGE |
                                                     BLKID_SUBLKS_MAGIC | BLKID_SUBLKS_BADCSUM);
  blkid_probe_enable_partitions(probe.get(), 1);
  blkid_probe_set_partitions_flags(probe.get(), BLKID_PARTS_MAGIC | BLKID_PARTS_FORCE_GPT);
  errno = 0;
  const int rc = blkid_do_safeprobe(probe.get());
  if (rc == 1) {
    content.kind = ContentKind::blank;
    return;
  }
  if (rc == -2) {
    content.kind = ContentKind::ambiguous;
    content.signature = true;
    content.what = "more than one signature";
    return;
  }
  if (rc != 0)
    return unreadable(std::string("probing failed: ") + (errno != 0 ? std::strerror(errno) : "I/O error"));
  content.signature = true;
  content.type = lookup(probe.get(), "TYPE");
  content.uuid = lookup(probe.get(), "UUID");
  content.checksum_bad = lookup(probe.get(), "SBBADCSUM") == "1";
  const auto table = lookup(probe.get(), "PTTYPE");
  if (!content.type.empty() && !table.empty()) {
    content.kind = ContentKind::ambiguous;
    content.what = content.type + " and a partition table (" + table + ")";
  } else if (lookup(probe.get(), "USAGE") == "filesystem") {
    content.kind = ContentKind::filesystem;
    content.what = content.type + " filesystem";
  } else {
    content.kind = ContentKind::foreign;
    content.what = table.empty() ? content.type : "partition table (" + table + ")";
  }
  if (content.checksum_bad) content.what += " with a bad checksum";
}

/// xfs says in its superblock that mkfs has not finished (sb_inprogress).
bool xfs_incomplete(std::span<const unsigned char> sector) { return sector.size() > 126 && sector[126] != 0; }

void read_superblock(const Area& head, Content& content) {
  const std::span<const unsigned char> bytes(head.bytes);
  if (content.type == k_fs_xfs) {
    content.filesystem_bytes = xfs_superblock_bytes(bytes).value_or(0);
    content.incomplete = xfs_incomplete(bytes);
  } else if (bytes.size() >= 2 * k_ext_offset && content.type.starts_with("ext")) {
    content.filesystem_bytes = ext_superblock_bytes(bytes.subspan(k_ext_offset, k_ext_offset)).value_or(0);
  }
}

}  // namespace

std::string_view to_string(ContentKind kind) {
  switch (kind) {
    case ContentKind::blank:
      return "blank";
    case ContentKind::filesystem:
      return "filesystem";
    case ContentKind::foreign:
      return "foreign";
    case ContentKind::ambiguous:
      return "ambiguous";
    case ContentKind::unreadable:
      break;
  }
  return "unreadable";
}

std::optional<std::uint64_t> ext_superblock_bytes(std::span<const unsigned char> block) {
  constexpr std::uint32_t feature_64bit = 0x80;
  if (block.size() < k_ext_offset || block[56] != 0x53 || block[57] != 0xef) return std::nullopt;
  const auto log_block = le32(block, 24);
  if (log_block > 6) return std::nullopt;
  std::uint64_t blocks = le32(block, 4);
  if ((le32(block, 96) & feature_64bit) != 0) blocks |= static_cast<std::uint64_t>(le32(block, 336)) << 32U;
  if (blocks > UINT64_MAX >> (10U + log_block)) return std::nullopt;
  return blocks << (10U + log_block);
}

std::optional<std::uint64_t> xfs_superblock_bytes(std::span<const unsigned char> sector) {
  if (sector.size() < 512 || std::memcmp(sector.data(), "XFSB", 4) != 0) return std::nullopt;
  const auto block_size = be(sector, 4, 4);
  const auto blocks = be(sector, 8, 8);
  if (block_size < 512 || block_size > 65536 || blocks > UINT64_MAX / block_size) return std::nullopt;
  return block_size * blocks;
}

nlohmann::json to_json(const Content& content) {
  return {{"kind", std::string(to_string(content.kind))},
          {"type", content.type},
          {"uuid", content.uuid},
          {"what", content.what},
          {"device_bytes", content.device_bytes},
          {"filesystem_bytes", content.filesystem_bytes},
          {"signature", content.signature},
          {"checksum_bad", content.checksum_bad},
          {"incomplete", content.incomplete}};
}

Content content_from(const nlohmann::json& json) {
  Content content;
  const auto kind = json.at("kind").get<std::string>();
  for (const auto one :
       {ContentKind::blank, ContentKind::filesystem, ContentKind::foreign, ContentKind::ambiguous})
    if (kind == to_string(one)) content.kind = one;
  content.type = json.at("type").get<std::string>();
  content.uuid = json.at("uuid").get<std::string>();
  content.what = json.at("what").get<std::string>();
  content.device_bytes = json.at("device_bytes").get<std::uint64_t>();
  content.filesystem_bytes = json.at("filesystem_bytes").get<std::uint64_t>();
  content.signature = json.at("signature").get<bool>();
  content.checksum_bad = json.at("checksum_bad").get<bool>();
  content.incomplete = json.at("incomplete").get<bool>();
  return content;
}

Result<Content> probe_here(const std::string& path) {
  const auto fd = open_direct(path);
  if (!fd) return tl::unexpected(fd.error());
  const auto size = size_of(fd->get(), path);
  if (!size) return tl::unexpected(size.error());
  Content content;
  content.device_bytes = *size;
  if (*size == 0) {
    content.what = "the device has size 0";
    return content;
  }
  const auto edge = std::min(k_edge, *size);
  const auto tail_at = (*size - edge) / k_align * k_align;
  const auto head = read_area(fd->get(), 0, edge);
  const auto tail = read_area(fd->get(), tail_at, *size - tail_at);
  for (const auto* area : {&head, &tail}) {
    if (area->problem.empty()) continue;
    content.what = area->problem;
    return content;
  }
  const UniqueFd buffered(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!buffered) return tl::unexpected(errno_error(errno, "open " + path, Reason::device_missing));
  probe_signatures(buffered.get(), content);
  read_superblock(head, content);
  if (content.kind != ContentKind::blank) return content;
  const auto data = first_data(head) ? first_data(head) : first_data(tail);
  if (!data) return content;
  content.kind = ContentKind::foreign;
  content.what = "data without a known signature at byte " + std::to_string(*data);
  return content;
}

Result<Content> probe_device(const HelperCall& helper, const std::string& node, DeviceNumber expected,
                             Deadline deadline) {
  const auto answer = helper("probe", {{"node", node}, {"number", expected.str()}}, deadline);
  if (!answer) return tl::unexpected(with_context(answer.error(), "probe " + node));
  return content_from(*answer);
}

namespace {

tl::unexpected<Error> refuse_content(Reason reason, const Content& content, std::string_view why) {
  return fail(reason, "device content is " + std::string(to_string(content.kind)) + " (" +
                          (content.what.empty() ? "no signature, first and last MiB zero" : content.what) +
                          "): " + std::string(why));
}

/// What holds for a volume that carries a filesystem of the wanted type.
Result<FormatDecision> decide_use(const Content& content, bool may_redo) {
  if (content.incomplete) {
    if (may_redo) return FormatDecision::clear_and_format;
    return refuse_content(Reason::filesystem_corrupt, content,
                          "its mkfs never finished and not on this node; look at it by hand");
  }
  if (content.checksum_bad)
    return refuse_content(Reason::filesystem_corrupt, content, "repair it by hand; it was not touched");
  if (content.filesystem_bytes > content.device_bytes)
    return refuse_content(Reason::device_mismatch, content,
                          "the filesystem has " + std::to_string(content.filesystem_bytes) +
                              " bytes and the device only " + std::to_string(content.device_bytes) +
                              "; mounting it would lose data, grow the volume back");
  return FormatDecision::use;
}

}  // namespace

Result<FormatDecision> decide_format(const Content& content, std::string_view wanted_fs,
                                     bool recorded_formatted, bool redo_marker) {
  const bool may_redo = redo_marker && !recorded_formatted;
  switch (content.kind) {
    case ContentKind::unreadable:
      return refuse_content(Reason::device_unreadable, content,
                            "nothing is known about it and nothing was changed");
    case ContentKind::ambiguous:
      return refuse_content(Reason::foreign_content, content,
                            "it is not clear what it holds; remove the wrong signature by hand (wipefs)");
    case ContentKind::blank:
      if (!recorded_formatted) return FormatDecision::format;
      return refuse_content(
          Reason::data_loss, content,
          "the volume is recorded as formatted; its data is gone or another device is shown, "
          "it is not formatted again");
    case ContentKind::filesystem:
      if (content.type == wanted_fs) return decide_use(content, may_redo);
      return refuse_content(Reason::foreign_content, content,
                            "the volume is asked for as " + std::string(wanted_fs));
    case ContentKind::foreign:
      break;
  }
  if (may_redo && !content.signature) return FormatDecision::clear_and_format;
  return refuse_content(Reason::foreign_content, content,
                        "it is not formatted over; use the volume as a block volume or empty it by hand");
}

Result<void> clear_interrupted_format(const HelperCall& helper, const std::string& node,
                                      DeviceNumber expected, Deadline deadline) {
  const auto answer = helper("clear-signatures", {{"node", node}, {"number", expected.str()}}, deadline);
  if (!answer) return tl::unexpected(with_context(answer.error(), "clear " + node));
  return {};
}

Result<void> clear_here(const std::string& path, std::optional<DeviceNumber> expected) {
  Result<UniqueFd> fd = UniqueFd();
  if (expected) {
    fd = open_block_device(path, *expected, O_WRONLY | O_EXCL);  // O_EXCL: not while it is mounted
  } else {
    fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!*fd) return tl::unexpected(errno_error(errno, "open " + path));
  }
  if (!fd) return tl::unexpected(fd.error());
  const auto size = size_of(fd->get(), path);
  if (!size) return tl::unexpected(size.error());
  return zero_ends(fd->get(), *size, path);
}

}  // namespace pillar::hostio
