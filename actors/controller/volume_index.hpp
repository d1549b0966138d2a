#pragma once
// Every volume record in memory, indexed for what would otherwise need a scan of the store: listings, counts
// per node, who presents which host NQN, what still depends on an agent, store, protocol or class. Fed by the
// watch and, so that a caller sees its own write at once, by the operations.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "crd/types.hpp"
#include "messages/error.hpp"

namespace pillar::controller {

/// A page of volumes in the order of their ids.
struct VolumePage {
  std::vector<std::shared_ptr<const crd::VolumeState>> items;
  bool more = false;
};

/// Thread-safe.
class VolumeIndex : public std::enable_shared_from_this<VolumeIndex> {
 public:
  VolumeIndex() = default;
  VolumeIndex(const VolumeIndex&) = delete;
  VolumeIndex& operator=(const VolumeIndex&) = delete;

  /// Takes in a record as stored. An older resource version than the known one of the same life is ignored:
  /// the watch may report a state that an operation has already gone past.
  void apply(const crd::VolumeState& state);
  /// Forgets the record of this life for good; another life under the name stays, and late news of this one
  /// are ignored.
  void erase(const std::string& record_name, const std::string& uid);
  /// Keeps only what is in `present` (record names): after a list that follows an interrupted watch. Records
  /// that were applied by operations after `begin_resync` stay.
  void finish_resync(const std::set<std::string>& present);
  void begin_resync();

  /// Up to `limit` volumes whose id is greater than `after`.
  VolumePage page(const std::optional<std::string>& after, std::size_t limit) const;
  std::shared_ptr<const crd::VolumeState> find(const std::string& volume_id) const;

  /// Up to `limit` volume ids whose record was made from `value` (`origin`: one of the k_origin_
  /// annotations), and how many there are in all.
  struct Dependents {
    std::size_t count = 0;
    std::vector<std::string> names;
  };
  Dependents made_from(std::string_view origin, const std::string& value, std::size_t limit) const;
  /// Ids of the agent's volumes whose condition ExportReconciled has this reason.
  std::set<std::string> with_export_reason(const std::string& agent, std::string_view reason) const;
  Dependents on_agent_names(const std::string& agent, std::size_t limit) const;

  /// Room for one publication, held while its record is being written.
  class Reservation {
   public:
    Reservation() = default;
    ~Reservation();
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    friend class VolumeIndex;
    std::shared_ptr<VolumeIndex> index_;
    std::string node_id_;
    std::string initiator_id_;
    std::string volume_id_;
  };
  /// Checks a publication against all other volumes and holds its place: HOST_NQN_DUPLICATE when another node
  /// id has a publication with this host NQN (reported-faults row B02), RESOURCE_EXHAUSTED when the node
  /// already holds `max_per_node` other volumes (0: no limit, row R03). Two calls at once never both take the
  /// last place.
  Result<Reservation> reserve(const std::string& volume_id, const std::string& node_id,
                              const std::string& initiator_id, std::uint32_t max_per_node);

  /// Counts for metrics: volumes by phase, and not reconciled exports by reason.
  struct Counts {
    std::map<std::string, std::size_t> by_phase;
    std::map<std::string, std::size_t> unreconciled;
  };
  Counts counts() const;

 private:
  using State = std::shared_ptr<const crd::VolumeState>;
  void link(const State& state);
  void unlink(const State& state);
  void release(const Reservation& reservation);

  static constexpr std::size_t k_remembered = 4096;

  mutable std::mutex mutex_;
  std::map<std::string, State> by_id_;
  std::map<std::string, State> by_record_;
  std::map<std::string, std::set<std::string>> by_agent_;  // agent -> volume ids
  std::map<std::pair<std::string, std::string>, std::set<std::string>> by_export_reason_;  // agent, reason
  std::map<std::string, std::multiset<std::string>> nodes_of_initiator_;  // host NQN -> node ids
  std::map<std::string, std::multiset<std::string>> volumes_of_node_;     // node id -> volume ids
  std::map<std::pair<std::string, std::string>, std::set<std::string>> by_origin_;
  std::set<std::string> gone_;  // uids of erased records, the last k_remembered of them
  std::deque<std::string> gone_order_;
  std::set<std::string> fresh_;  // records applied since begin_resync
  bool resyncing_ = false;
};

}  // namespace pillar::controller
