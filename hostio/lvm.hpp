#pragma once
// LVM linear volumes: the `lvm-lv` backend. Every command gets a device filter that keeps LVM off NVMe-oF
// initiator devices (a scan of one in `connecting` hangs) and off LVs (a guest's volume group inside a volume
// must not be seen, row F05), a deadline and a fixed environment. Blocking; metadata changes of one pool must
// not overlap.
//
// Ownership: an LV of ours carries the tag `pillar-csi.uid=<volume uid>`, set by the lvcreate that makes it.
// An LV without it, or with another uid, is never adopted, resized, activated or removed: NOT_OWNED.
//
// Blankness: lvcreate wipes known signatures and the first 4 KiB of a new LV only; its extents hold whatever
// was there before. create() therefore zeroes the first and the last MiB (all places where file systems,
// partition tables, RAID and LVM keep what identifies them) and then adds the tag `pillar-csi.wiped=1`. A
// crash in between is redone; an LV with that tag is never wiped again, and one without it is never handed
// out. The extents between are not erased: a raw block user can read what a deleted volume left there.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hostio/block_device.hpp"
#include "hostio/process.hpp"
#include "messages/ids.hpp"

namespace pillar::hostio {

/// A volume group.
struct VolumeGroup {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t extent_bytes = 0;
};

/// A logical volume of ours.
struct LogicalVolume {
  AgentVolumeId id;
  std::string uid;  ///< from the ownership tag
  std::uint64_t size_bytes = 0;
  bool wiped = false;  ///< creation is complete
  bool active = false;
  std::string device_path = {};  ///< /dev/<vg>/<lv>
};

/// An active, verified device.
struct LvDevice {
  std::string path;
  DeviceNumber number;
  std::uint64_t size_bytes = 0;
};

/// A size request in bytes; 0 as limit: none.
struct SizeRange {
  std::uint64_t required = 0;
  std::uint64_t limit = 0;
};

/// `range.required` rounded up to the extent, at least one extent. OUT_OF_RANGE when the limit is below the
/// required or the rounded size, or when the size cannot be represented (rows J01, J02, J04, J08).
Result<std::uint64_t> round_to_extents(SizeRange range, std::uint64_t extent_bytes);

/// Device-mapper name of an LV: parts joined by '-', each '-' inside a part doubled.
std::string dm_name(const AgentVolumeId& id);

/// The `--config` text for the initiator devices found under `sysfs`, and for a host without udevd.
std::string lvm_config(const std::string& sysfs, const std::vector<std::string>& accept_devices,
                       bool udev_running);

/// Zeroes the first and the last MiB of a device; replaceable in tests.
class DeviceWiper {
 public:
  DeviceWiper() = default;
  DeviceWiper(const DeviceWiper&) = delete;
  DeviceWiper& operator=(const DeviceWiper&) = delete;
  virtual ~DeviceWiper() = default;
  virtual Result<void> zero_ends(const LvDevice& device) = 0;
};

/// Zeroes the first and the last MiB (all of it when smaller) through `fd` and syncs. `name` is for messages.
Result<void> zero_ends(int fd, std::uint64_t size_bytes, const std::string& name);

/// Writes with O_DIRECT and O_EXCL (refused with DEVICE_BUSY while anything has the device mounted or
/// mapped), after checking that path, device number and size are the expected ones.
class DirectWiper : public DeviceWiper {
 public:
  Result<void> zero_ends(const LvDevice& device) override;
};

/// The LVM of one host.
class Lvm {
 public:
  struct Options {
    HostRoots roots = {};
    /// Regular expressions of the only devices to scan ("^/dev/vd"); empty: everything but initiator devices.
    std::vector<std::string> accept_devices = {};
    /// Bound of the wait for a device node (row F09).
    std::chrono::milliseconds node_wait{10000};
    /// Present while udevd runs; without it LVM makes the nodes itself.
    std::string udev_control = "/run/udev/control";
    /// The device number of a node; replaced in tests.
    std::function<Result<DeviceNumber>(const std::string& path)> node_number = device_number_of_node;
  };

  Lvm(CommandRunner& runner, DeviceWiper& wiper);
  Lvm(CommandRunner& runner, DeviceWiper& wiper, Options options);

  /// POOL_MISSING when the volume group is not there.
  Result<VolumeGroup> pool_info(const std::string& vg, Deadline deadline);

  /// Makes the LV for `uid`, or finishes an unfinished one. An existing LV of the same uid is returned when
  /// its size fits `range`, else ALREADY_EXISTS (row J06). NO_SPACE when it does not fit, be it now
  /// or ever: another pool may have room. NOT_OWNED when the name is taken by an LV that is not of this uid.
  Result<LogicalVolume> create(const AgentVolumeId& id, const std::string& uid, SizeRange range,
                               Deadline deadline);

  /// The LV by name, whatever its uid; nullopt when there is none. NOT_OWNED without our tag, POOL_MISSING
  /// when the volume group is gone (a missing pool is not a deleted volume).
  Result<std::optional<LogicalVolume>> find(const AgentVolumeId& id, Deadline deadline);

  /// Every LV of ours in `vg`.
  Result<std::vector<LogicalVolume>> list(const std::string& vg, Deadline deadline);

  /// Grows to at least range.required; equal or smaller is success with the current size, never shrinks
  /// (L03). NO_SPACE when space lacks now, OUT_OF_RANGE when the pool can never hold it (L06) or the limit
  /// forbids it.
  Result<LogicalVolume> extend(const AgentVolumeId& id, const std::string& uid, SizeRange range,
                               Deadline deadline);

  /// Removes the LV; success when there is none. DEVICE_BUSY naming holders and mount points (F05),
  /// DELETION_BLOCKED naming snapshots (F12), NOT_OWNED.
  Result<void> remove(const AgentVolumeId& id, const std::string& uid, Deadline deadline);

  /// Activates the LV (also one flagged skip-activation, F08), waits for its node and verifies by the
  /// device-mapper uuid that the node is this LV. DEVICE_MISSING after the bound, DEVICE_MISMATCH, NOT_FOUND.
  Result<LvDevice> activate(const AgentVolumeId& id, const std::string& uid, Deadline deadline);

  /// Replaces the ownership tag `old_uid` by `new_uid` in one step (AdoptLifecycle). Success when it already
  /// has `new_uid`.
  Result<void> change_owner(const AgentVolumeId& id, const std::string& old_uid, const std::string& new_uid,
                            Deadline deadline);

 private:
  struct Row;

  Command command(const std::string& program, std::vector<std::string> args, Deadline deadline) const;
  Result<CommandResult> run(const Command& command);
  Result<std::vector<Row>> report(std::vector<std::string> target, Deadline deadline);
  Result<std::optional<Row>> find_row(const AgentVolumeId& id, Deadline deadline);
  Result<std::optional<Row>> find_owned(const AgentVolumeId& id, const std::string& uid, Deadline deadline);
  Result<Row> require_owned(const AgentVolumeId& id, const std::string& uid, Deadline deadline);
  Result<Row> make_lv(const AgentVolumeId& id, const std::string& uid, SizeRange range, Deadline deadline);
  Result<Row> finish(const Row& row, Deadline deadline);
  Result<Row> resume(const Row& row, Deadline deadline);
  Result<LvDevice> activate_row(Row row, Deadline deadline);
  Result<LvDevice> wait_for_node(const Row& row, Deadline deadline);
  Result<LvDevice> verified_device(const Row& row) const;
  Result<void> refuse_dependents(const Row& row, Deadline deadline);
  Result<void> refuse_users(const Row& row) const;
  LogicalVolume volume_of(const Row& row) const;
  bool udev_running() const;

  CommandRunner& runner_;
  DeviceWiper& wiper_;
  Options options_;
};

}  // namespace pillar::hostio
