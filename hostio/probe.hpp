#pragma once
// What is on a device, decided so that "cannot tell" never looks like "nothing" (docs/fencing.md section 6,
// reported-faults rows G01, G04, D18).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "hostio/block_device.hpp"
#include "hostio/host_helpers.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

enum class ContentKind : std::uint8_t {
  blank,       ///< readable, no signature of any kind, first and last MiB zero: the only kind that may be
               ///< formatted
  filesystem,  ///< exactly one filesystem, `type` and `uuid` say which
  foreign,     ///< something else: a partition table, RAID or LVM member, encryption header, swap, plain data
  ambiguous,   ///< more than one signature
  unreadable,  ///< an area that must be read could not be read: nothing is known
};
std::string_view to_string(ContentKind kind);

/// The finding.
struct Content {
  ContentKind kind = ContentKind::unreadable;
  std::string type;  ///< filesystem type for `filesystem`
  std::string uuid;
  std::string what;  ///< for the operator: what was seen, or which read failed and why
  std::uint64_t device_bytes = 0;
  std::uint64_t filesystem_bytes = 0;  ///< size by the superblock (ext4, xfs), 0 unknown
  bool signature = false;              ///< libblkid knows what it is
  bool checksum_bad = false;           ///< the signature's own checksum does not match
  bool incomplete = false;             ///< xfs: mkfs never finished; the kernel refuses to mount it
};
nlohmann::json to_json(const Content& content);
Content content_from(const nlohmann::json& json);

/// Size of an ext2/3/4 filesystem from the 1024 bytes at offset 1024; nullopt when it is none.
std::optional<std::uint64_t> ext_superblock_bytes(std::span<const unsigned char> block);
/// Size of an xfs filesystem from its first sector; nullopt when it is none.
std::optional<std::uint64_t> xfs_superblock_bytes(std::span<const unsigned char> sector);

/// Reads and probes `path` (block device or image file) in the calling process. Only failure to open is an
/// Error; what cannot be read is ContentKind::unreadable. Can hang on a dead device: use probe_device.
Result<Content> probe_here(const std::string& path);

/// Proves that `node` is `expected` and probes it, in a helper process. COMMAND_TIMEOUT at the deadline.
Result<Content> probe_device(const HelperCall& helper, const std::string& node, DeviceNumber expected,
                             Deadline deadline);

enum class FormatDecision : std::uint8_t {
  format,            ///< blank: mkfs
  clear_and_format,  ///< what our own interrupted mkfs left: clear_interrupted_format, then mkfs
  use,               ///< holds the wanted filesystem
};
/// Whether stage may go on with what was found. `wanted_fs`: requested type; `recorded_formatted`: the
/// controller knows that this volume was formatted; `redo_marker`: this node's own record says that its mkfs
/// was cut off (docs/fencing.md section 6). A complete filesystem is never formatted over, marker or not:
/// another node may have made it. Errors: DEVICE_UNREADABLE, FOREIGN_CONTENT, DATA_LOSS (recorded as
/// formatted and blank), DEVICE_MISMATCH (device smaller than its filesystem, row D18), FILESYSTEM_CORRUPT.
Result<FormatDecision> decide_format(const Content& content, std::string_view wanted_fs,
                                     bool recorded_formatted, bool redo_marker);

/// Zeroes the first and last MiB of the device, in a helper process. Only after
/// FormatDecision::clear_and_format.
Result<void> clear_interrupted_format(const HelperCall& helper, const std::string& node,
                                      DeviceNumber expected, Deadline deadline);
/// The same in the calling process; an image file when `expected` is unset.
Result<void> clear_here(const std::string& path, std::optional<DeviceNumber> expected);

}  // namespace pillar::hostio
