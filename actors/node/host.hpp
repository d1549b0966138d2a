#pragma once
// What the node's operations need from the machine, as a port: LinuxHost binds it to hostio through the
// blocking pool, unit tests to a machine made of values. Every method may suspend; none throws.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/node/decisions.hpp"
#include "actors/runtime/task.hpp"
#include "hostio/filesystem.hpp"
#include "hostio/mounts.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "hostio/nvme/topology.hpp"
#include "hostio/probe.hpp"
#include "messages/error.hpp"

namespace pillar::node {

/// A device and what mkfs is to make on it.
struct MkfsJob {
  hostio::NvmeNamespace device;
  std::string fs_type;
  std::vector<std::string> options;
};

/// A mount of the volume's device.
struct MountJob {
  hostio::NvmeNamespace device;
  std::string target;
  std::string fs_type;
  hostio::MountOptions options;
};

/// A bind mount of a directory.
struct BindJob {
  std::string source;
  std::string target;
  bool readonly = false;
};

class Host {
 public:
  template <class T>
  using Answer = runtime::Task<Result<T>>;

  Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  virtual ~Host() = default;

  // Stage records: whole files, replaced atomically and durably; `name` from record_file_name.
  /// nullopt when there is no such record.
  virtual Answer<std::optional<std::string>> read_record(std::string name) = 0;
  virtual Answer<void> write_record(std::string name, std::string text) = 0;
  virtual Answer<void> remove_record(std::string name) = 0;
  /// Renames a corrupt record out of the way, kept as evidence; yields the new path.
  virtual Answer<std::string> set_aside_record(std::string name) = 0;
  virtual Answer<std::vector<std::string>> list_records() = 0;

  // The kernel's state.
  virtual Answer<KernelView> view() = 0;
  /// Names of devices stacked on this one (dm, md), from sysfs `holders`.
  virtual Answer<std::vector<std::string>> holders(hostio::NvmeNamespace device) = 0;
  /// True while a superblock of `fs_type` on the device is active: mounted anywhere, in any mount namespace,
  /// or still being written out by an unmount.
  virtual Answer<bool> superblock_active(std::string fs_type, hostio::NvmeNamespace device) = 0;

  // Sessions. Each call is bounded; timeouts are errors with a retriable code.
  virtual Answer<void> connect(SessionTarget session, hostio::FabricsTunables tunables) = 0;
  /// Ends every session to exactly this NQN and waits until it has left sysfs.
  virtual Answer<void> disconnect(std::string nqn) = 0;
  /// The block device of the session, waited for with rescans (row C05).
  virtual Answer<hostio::NvmeNamespace> wait_device(SessionTarget session) = 0;
  /// The block device grown to at least `bytes`, waited for with rescans (row L01).
  virtual Answer<hostio::NvmeNamespace> wait_size(SessionTarget session, std::uint64_t bytes) = 0;

  // The device. Each call proves first that the node still stands for `device.number`.
  virtual Answer<hostio::Content> probe(hostio::NvmeNamespace device) = 0;
  virtual Answer<void> mkfs(MkfsJob job) = 0;
  /// Clears what our own cut-off mkfs left; for FormatDecision::clear_and_format only.
  virtual Answer<void> clear_interrupted_format(hostio::NvmeNamespace device) = 0;
  virtual Answer<hostio::FsckOutcome> fsck(std::string fs_type, hostio::NvmeNamespace device) = 0;
  virtual Answer<void> set_read_only(hostio::NvmeNamespace device, bool read_only) = 0;
  virtual Answer<void> grow(std::string fs_type, hostio::NvmeNamespace device, std::string mount_point) = 0;

  // Paths and mounts.
  /// The form mountinfo uses, without a trailing slash.
  virtual Answer<std::string> canonical(std::string path) = 0;
  virtual Answer<void> make_directory(std::string path) = 0;
  /// Removes an empty directory or an empty file; missing is success. Never recursive.
  virtual Answer<void> remove_target(std::string path) = 0;
  virtual Answer<void> mount(MountJob job) = 0;
  virtual Answer<void> bind(BindJob job) = 0;
  /// Binds the device node onto the file `target`, created when missing.
  virtual Answer<void> bind_node(hostio::NvmeNamespace device, std::string target) = 0;
  /// Every layer at the path, topmost first.
  virtual Answer<hostio::UnmountOutcome> unmount_all(std::string path) = 0;
  /// syncfs.
  virtual Answer<void> flush(std::string path) = 0;
  virtual Answer<hostio::FilesystemStats> stats(std::string path) = 0;
  /// Asks the filesystem itself, with a bound; writes nothing that stays.
  virtual Answer<hostio::FilesystemVerdict> filesystem_health(hostio::MountEntry entry, bool readonly,
                                                              bool device_live) = 0;
};

}  // namespace pillar::node
