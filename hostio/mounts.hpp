#pragma once
// The mount table and the calls that change it. "Mounted" is always read from mountinfo, never from stat
// (docs/fencing.md section 5).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hostio/block_device.hpp"
#include "hostio/host_helpers.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::hostio {

/// One line of mountinfo, escapes decoded.
struct MountEntry {
  int id = 0;
  int parent = 0;
  std::string target;
  std::string source;  ///< as given at mount time: a name, never an identity
  std::string root;    ///< which part of the filesystem: "/" or the bound subtree or device node
  std::string fs_type;
  DeviceNumber device;
  std::string vfs_options;  ///< of this mount: "rw,noatime"
  std::string fs_options;   ///< of the superblock: "rw,errors=remount-ro"
  bool shared = false;      ///< mounts below it appear in the other mounts of its peer group
  bool slave = false;       ///< it takes mounts from another peer group and gives none back

  /// True when writes through this mount are refused: the mount or its superblock is read-only.
  bool read_only() const;
  /// True when the superblock is read-only.
  bool superblock_read_only() const;
};

/// True when the comma-separated `options` contain `name` (exact, or `name=...`).
bool has_mount_option(std::string_view options, std::string_view name);

/// A snapshot of mountinfo.
class MountTable {
 public:
  /// Reads `<proc>/self/mountinfo` through libmount (parsing only).
  static Result<MountTable> read(const HostRoots& roots = {});
  /// Parses the text of a mountinfo file.
  static Result<MountTable> parse(std::string_view mountinfo);

  const std::vector<MountEntry>& entries() const { return entries_; }
  /// Every mount at exactly `path`, the topmost (visible) first; empty: not a mount point.
  std::vector<MountEntry> layers_at(std::string_view path) const;
  /// Every mount of a filesystem that lives on `device`, bind mounts included (row D17).
  std::vector<MountEntry> mounts_of(DeviceNumber device) const;
  /// Every bind of a device node named `node_name` (a kernel name): the way raw block volumes are published.
  /// mountinfo shows it as root "/nvme0n1" of devtmpfs; whether the node still stands for the device is
  /// decided by device_number_of_node(target).
  std::vector<MountEntry> node_binds(std::string_view node_name) const;
  /// The mount that `path` lies in, the topmost; nullopt for an empty table.
  std::optional<MountEntry> holding(std::string_view path) const;
  /// Mount points below `path` (exclusive).
  std::vector<MountEntry> below(std::string_view path) const;

 private:
  std::vector<MountEntry> entries_;
};

/// `path` with every symbolic link of its parent directories resolved, its last component untouched (which
/// may be a dead mount): the form mountinfo uses (row N04). What does not exist yet is kept as written, below
/// what the rest resolves to. INVALID_ARGUMENT when `path` is not absolute or holds "..".
Result<std::string> canonical_mount_path(const std::string& path);

/// Whether this process lives in the mount namespace of process 1 and is not that process: then mounts need
/// not be carried anywhere. False when it cannot be told.
bool in_namespace_of_init(const HostRoots& roots);

/// Whether mounts made below `directory` appear on the host: the mount it lies in is shared with the host
/// (mountPropagation: Bidirectional), or it is a private root and this is the host's own namespace
/// (`host_namespace`). DEPENDENCY_MISSING with the remedy otherwise (reported-faults row H09).
Result<void> check_propagation(const MountTable& mounts, const std::string& directory, bool host_namespace);

/// Mount options that passed the allowlist, split as the kernel wants them.
struct MountOptions {
  bool read_only = false;
  std::vector<std::string> attributes;  ///< per-mount: nodev, nosuid, noexec, noatime, ...; sorted, unique
  std::vector<std::pair<std::string, std::string>> filesystem;  ///< (key, value); value empty for a flag
  friend bool operator==(const MountOptions&, const MountOptions&) = default;

  /// "ro,nodev,noatime,discard": for records and comparison.
  std::string str() const;
};

/// Splits and checks the user's mount flags (each may hold several, comma-separated; commas inside double
/// quotes do not split). INVALID_ARGUMENT naming the flag that is unknown, has a bad value, contradicts
/// another one, or is reserved to the driver. Read-only wins over a flag `rw` (row H03). xfs always gets
/// `nouuid` (row G06).
Result<MountOptions> parse_mount_options(std::string_view fs_type, const std::vector<std::string>& flags,
                                         bool read_only);

/// True when the mount is as `options` want it as far as mountinfo shows: read-only or not, and the per-mount
/// attributes (row H01).
bool mounted_as(const MountEntry& entry, const MountOptions& options);

/// What a mount is asked to do.
struct MountRequest {
  std::string device;   ///< device node
  DeviceNumber number;  ///< what the node must stand for
  std::string target;
  std::string fs_type;
  MountOptions options;
};

/// Mounts in a helper process and verifies in mountinfo that the topmost layer at the target is this device.
/// Uses the descriptor-based mount calls, so that a mount whose helper was killed at its deadline can never
/// appear later on a path that is in use by then (row I03). FILESYSTEM_CORRUPT when the kernel rejects the
/// superblock, DEVICE_MISSING, COMMAND_TIMEOUT, IO_ERROR otherwise, with the kernel's own words.
Result<void> mount_filesystem(const HelperCall& helper, const HostRoots& roots, const MountRequest& request,
                              Deadline deadline);

/// The mount itself, in the calling process; mount_filesystem is the one to use.
Result<void> mount_here(const MountRequest& request);
nlohmann::json to_json(const MountRequest& request);
MountRequest mount_request_from(const nlohmann::json& json);

/// Binds the mount point `source` to the existing directory `target`, read-only when asked (bind, then
/// remount: row H05), with `attributes` added to those of the source's mount, and verifies in mountinfo.
/// Undone when any step fails. NOT_STAGED when `source` is no mount point (row D07), TARGET_OCCUPIED when
/// `target` is one (row H06).
Result<void> bind_mount(const HostRoots& roots, const std::string& source, const std::string& target,
                        bool read_only, const std::vector<std::string>& attributes = {});

/// Binds the device node onto the file `target` (created, with its directory, when missing) for a raw block
/// publication. Read-only is a matter of the device flag (set_block_device_read_only): a read-only bind of a
/// node does not stop writes.
Result<void> bind_device_node(const HostRoots& roots, const std::string& node, DeviceNumber number,
                              const std::string& target);

/// How far an unmount got.
enum class UnmountOutcome : std::uint8_t {
  unmounted,  ///< the layer is gone
  flushing,  ///< left mountinfo, but the kernel still waits for its device; data may not be on the medium yet
};

/// Takes the topmost layer at `path` away, in a helper process. Nothing mounted there: unmounted. DEVICE_BUSY
/// when it is in use; COMMAND_TIMEOUT when it is still mounted at the deadline.
Result<UnmountOutcome> unmount_top(const HelperCall& helper, const HostRoots& roots, const std::string& path,
                                   Deadline deadline);

/// unmount_top until the path has no layer left (row D04, H06).
Result<UnmountOutcome> unmount_all_layers(const HelperCall& helper, const HostRoots& roots,
                                          const std::string& path, Deadline deadline);

}  // namespace pillar::hostio
