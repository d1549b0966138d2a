#pragma once
// What this node durably knows about a volume it has attached (docs/fencing.md section 5). The record is the
// only thing NodeUnstageVolume has to go by: the orchestrator sends it neither capability nor context.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hostio/block_device.hpp"
#include "messages/access_modes.hpp"
#include "messages/error.hpp"

namespace pillar::node {

/// How far the volume as a whole has come.
enum class Phase : std::uint8_t {
  intent,      ///< a session may exist, nothing was verified
  attached,    ///< the device was found and its identity proved
  formatting,  ///< mkfs may have written to the device
  mounted,     ///< at least one staging path is complete (for block volumes: usable)
  unstaging,   ///< the last staging path is being taken down
};
std::string_view to_string(Phase phase);

enum class StagingState : std::uint8_t { staging, staged, unstaging };
std::string_view to_string(StagingState state);

/// One staging path. Two persistent volumes over one volume handle give two of them (reported-faults row
/// A07).
struct Staging {
  std::string path;
  StagingState state = StagingState::staging;
  std::optional<hostio::DeviceNumber> device;  ///< what was mounted there
  friend bool operator==(const Staging&, const Staging&) = default;
};

/// Where the volume is exported.
struct SessionTarget {
  std::string type = "nvmeof-tcp";
  std::string nqn;
  std::string address;  ///< canonical IP literal; in a record: where the session goes
  std::uint16_t port = 0;
  std::string namespace_uuid;
  friend bool operator==(const SessionTarget&, const SessionTarget&) = default;
  /// The same export, wherever it listens.
  bool same_export(const SessionTarget& other) const {
    return type == other.type && nqn == other.nqn && namespace_uuid == other.namespace_uuid;
  }
};

/// The block device as it was when it was verified last.
struct RecordedDevice {
  std::string node;
  hostio::DeviceNumber number;
  friend bool operator==(const RecordedDevice&, const RecordedDevice&) = default;
};

/// A target path handed to a pod. Whether it is still in use is always read from mountinfo.
struct Publication {
  std::string target;
  bool readonly = false;
  AccessMode access = AccessMode::single_node_writer;
  bool bound = false;  ///< false: the bind may be half done
  friend bool operator==(const Publication&, const Publication&) = default;
};

/// How the volume is used; the same for all its staging paths.
struct Usage {
  VolumeMode mode = VolumeMode::mount;
  AccessMode access = AccessMode::single_node_writer;
  std::string fs_type;        ///< mount only
  std::string mount_options;  ///< normalised, hostio::MountOptions::str()
  bool readonly = false;      ///< staged read-only
  friend bool operator==(const Usage&, const Usage&) = default;
};

struct StageRecord {
  std::string volume_id;
  Phase phase = Phase::intent;
  Usage usage;
  SessionTarget session;
  std::optional<RecordedDevice> device;
  std::vector<Staging> stagings;
  std::vector<Publication> publications;
  std::string marker;            ///< random, names one attempt to format
  std::uint64_t generation = 0;  ///< publication generation the marker belongs to
  std::string boot_id;
  friend bool operator==(const StageRecord&, const StageRecord&) = default;

  Staging* find_staging(std::string_view path);
  const Staging* find_staging(std::string_view path) const;
  const Publication* find_publication(std::string_view target) const;
  /// Adds or replaces the publication of `publication.target`.
  void put_publication(Publication publication);
  void drop_publication(std::string_view target);
  void drop_staging(std::string_view path);
  /// True when some staging path is complete.
  bool any_staged() const;
  /// True when `number` is a device this record has used.
  bool used(hostio::DeviceNumber number) const;
};

/// File name of the record of `volume_id` (lower-case hex SHA-256 and ".json").
std::string record_file_name(std::string_view volume_id);

/// The record as JSON with its checksum.
std::string encode(const StageRecord& record);

/// Parses and checks a record. STATE_CORRUPT (the caller sets the file aside and treats it as missing) when
/// it is no record, its checksum does not match, its schema is newer, or it belongs into another file than
/// `file_name` (empty: not checked).
Result<StageRecord> decode(std::string_view text, std::string_view file_name = {});

}  // namespace pillar::node
