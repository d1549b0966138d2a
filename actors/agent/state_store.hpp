#pragma once
// The agent's durable state (docs/fencing.md sections 1, 2 and 7): epoch, sequence and seeded flag, the
// fencing marks, and the last desired exports. Blocking and thread-safe; one object per process, guarded by a
// lock on the directory. Everything it hands out is already durable unless it says `uncertain`.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/agent/fencing.hpp"
#include "hostio/durable_file.hpp"
#include "hostio/flock.hpp"

namespace pillar::agent {

/// What is stored about one volume's fencing.
struct StoredMark {
  std::optional<Mark> mark;
  bool seeded = false;
  /// A write of this mark failed half way: nothing may rely on it until it was written again.
  bool uncertain = false;
};

/// Who may use an export, as last granted.
struct RecordedInitiator {
  std::string host_nqn;
  bool readonly = false;
  friend bool operator==(const RecordedInitiator&, const RecordedInitiator&) = default;
};

/// The desired export of a volume as of one token; the cache a restore starts from.
struct ExportRecord {
  AgentVolumeId volume;
  Token token;
  std::string bind_address;
  std::uint16_t port = 0;
  bool acl_enabled = true;
  std::uint32_t in_capsule_data_size = 0;
  std::string nqn;
  std::string namespace_uuid;
  std::string serial;
  std::vector<RecordedInitiator> initiators;  ///< sorted by NQN

  /// Equal except for the token's generation.
  bool same_export(const ExportRecord& other) const;
};

/// JSON text of a record with its crc32c, and back; STATE_CORRUPT on any damage.
std::string encode_record(const ExportRecord& record);
Result<ExportRecord> decode_record(std::string_view file_name, std::string_view text);
std::string record_file_name(const AgentVolumeId& volume);

/// The state directory.
class StateStore {
 public:
  /// Running time between two ticks of the tombstone clock, and how many of them a tombstone is kept: 30
  /// days.
  static constexpr std::chrono::hours k_tick_interval{6};
  static constexpr std::size_t k_tombstone_ticks = 120;

  /// Locks and loads `directory`, creating it when missing. STATE_LOCKED, STATE_UNWRITABLE, IO_ERROR. A
  /// missing or damaged meta.json starts a new, unseeded epoch; damaged marks stay and refuse their volumes.
  static Result<std::unique_ptr<StateStore>> open(const std::string& directory,
                                                  hostio::DurableHook hook = {});
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;
  ~StateStore() = default;

  std::string epoch() const;       ///< 32 hex digits
  std::uint64_t sequence() const;  ///< highest durable one
  bool seeded() const;
  std::size_t corrupt_marks() const;

  /// The mark of `volume`; MARK_CORRUPT when its file cannot be trusted.
  Result<StoredMark> mark(const AgentVolumeId& volume) const;
  /// Writes marks with one directory sync; each gets the next sequence. One result per mark, in order.
  /// STATE_UNWRITABLE or IO_ERROR: the mark must be taken as not written. CONFLICT: it would undo a later
  /// one.
  std::vector<Result<Mark>> write_marks(std::vector<Mark> marks);

  /// The seeding of docs/fencing.md section 2. EPOCH_UNKNOWN when `epoch` is not ours.
  Result<std::uint64_t> seed_marks(const std::string& epoch, const std::vector<Seed>& seeds,
                                   std::uint64_t known_sequence);
  /// The caller has seen `sequence` of `epoch`. A higher one than ours means that this state was restored
  /// from a backup: unseeds. True when it did.
  bool note_known_sequence(const std::string& epoch, std::uint64_t sequence);

  /// Drain is on; survives restarts.
  bool drained() const;
  Result<void> set_drained(bool drained);

  /// Advances the tombstone clock by one interval of running time.
  Result<void> tick();
  /// Forgets the tombstones of volumes absent from `listed`, the controller's complete list, once they are
  /// old enough; how many.
  Result<std::size_t> prune_tombstones(const std::set<AgentVolumeId>& listed);

  std::optional<ExportRecord> record(const AgentVolumeId& volume) const;
  std::vector<ExportRecord> records() const;
  /// The volume whose record names `nqn`.
  std::optional<AgentVolumeId> volume_of_nqn(const std::string& nqn) const;
  /// One change: a record to keep, or none to drop what is kept for `volume`.
  struct RecordChange {
    AgentVolumeId volume;
    std::optional<ExportRecord> record;
  };
  /// Applies changes with one directory sync; one result each.
  std::vector<Result<void>> write_records(const std::vector<RecordChange>& changes);

 private:
  struct Entry {
    std::optional<Mark> mark;
    std::optional<Error> corrupt;
    bool uncertain = false;
  };
  struct Meta {
    std::string epoch;
    std::uint64_t sequence = 0;
    bool seeded = false;
    bool drained = false;
    std::vector<std::uint64_t> ticks;
  };

  StateStore(std::string directory, hostio::DurableHook hook, hostio::DirectoryLock lock);
  Result<void> load();
  Result<void> load_meta();
  Result<void> load_marks();
  Result<void> load_records();
  Result<void> write_meta(const Meta& meta);
  Result<void> may_replace(const Mark& mark) const;
  std::string marks_directory() const { return directory_ + "/generations"; }
  std::string records_directory() const { return directory_ + "/exports"; }

  const std::string directory_;
  const hostio::DurableHook hook_;
  hostio::DirectoryLock lock_;
  std::mutex writing_;       // one commit at a time; taken before data_
  mutable std::mutex data_;  // never held over I/O
  Meta meta_;
  std::map<std::string, Entry> marks_;  // by file name
  std::map<AgentVolumeId, ExportRecord> records_;
};

}  // namespace pillar::agent
