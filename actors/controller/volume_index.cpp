#include "actors/controller/volume_index.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "actors/controller/records.hpp"

namespace pillar::controller {
namespace {

// Resource versions are opaque to the API, but both stores make them rise; text that is no number sorts
// lowest.
std::uint64_t version_number(const std::string& text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

template <class Map, class Key, class Value>
void drop_one(Map& map, const Key& key, const Value& value) {
  const auto found = map.find(key);
  if (found == map.end()) return;
  const auto entry = found->second.find(value);
  if (entry != found->second.end()) found->second.erase(entry);
  if (found->second.empty()) map.erase(found);
}

/// Key in by_export_reason_; the reason is empty before there is a condition.
std::pair<std::string, std::string> export_reason(const crd::VolumeState& state) {
  const auto* reconciled = crd::find_condition(state.status.conditions, k_export_reconciled);
  return {state.spec.agent_ref, reconciled == nullptr ? std::string() : reconciled->reason};
}

}  // namespace

void VolumeIndex::apply(const crd::VolumeState& state) {
  const auto fresh = std::make_shared<const crd::VolumeState>(state);
  const std::lock_guard lock(mutex_);
  if (gone_.contains(state.metadata.uid)) return;
  if (resyncing_) fresh_.insert(state.metadata.name);
  const auto known = by_record_.find(state.metadata.name);
  if (known != by_record_.end()) {
    if (version_number(known->second->metadata.resource_version) >
        version_number(state.metadata.resource_version))
      return;
    unlink(State(known->second));
  }
  link(fresh);
}

void VolumeIndex::erase(const std::string& record_name, const std::string& uid) {
  const std::lock_guard lock(mutex_);
  if (!uid.empty() && gone_.insert(uid).second) {
    gone_order_.push_back(uid);
    if (gone_order_.size() > k_remembered) {
      gone_.erase(gone_order_.front());
      gone_order_.pop_front();
    }
  }
  const auto known = by_record_.find(record_name);
  if (known == by_record_.end() || (!uid.empty() && known->second->metadata.uid != uid)) return;
  unlink(State(known->second));
}

void VolumeIndex::begin_resync() {
  const std::lock_guard lock(mutex_);
  resyncing_ = true;
  fresh_.clear();
}

void VolumeIndex::finish_resync(const std::set<std::string>& present) {
  const std::lock_guard lock(mutex_);
  std::vector<State> gone;
  for (const auto& [name, state] : by_record_)
    if (!present.contains(name) && !fresh_.contains(name)) gone.push_back(state);
  for (const auto& state : gone) unlink(state);
  resyncing_ = false;
  fresh_.clear();
}

void VolumeIndex::link(const State& state) {
  by_record_[state->metadata.name] = state;
  by_id_[state->spec.volume_id] = state;
  by_agent_[state->spec.agent_ref].insert(state->spec.volume_id);
  by_export_reason_[export_reason(*state)].insert(state->spec.volume_id);
  for (const auto& origin : {k_origin_store, k_origin_protocol, k_origin_class}) {
    const auto found = state->metadata.annotations.find(std::string(origin));
    if (found != state->metadata.annotations.end()) by_origin_[*found].insert(state->spec.volume_id);
  }
  for (const auto& entry : state->status.published_nodes) {
    nodes_of_initiator_[entry.initiator_id].insert(entry.node_id);
    volumes_of_node_[entry.node_id].insert(state->spec.volume_id);
  }
}

void VolumeIndex::unlink(const State& state) {
  by_record_.erase(state->metadata.name);
  by_id_.erase(state->spec.volume_id);
  drop_one(by_agent_, state->spec.agent_ref, state->spec.volume_id);
  drop_one(by_export_reason_, export_reason(*state), state->spec.volume_id);
  for (const auto& origin : {k_origin_store, k_origin_protocol, k_origin_class}) {
    const auto found = state->metadata.annotations.find(std::string(origin));
    if (found != state->metadata.annotations.end())
      drop_one(by_origin_, std::pair<std::string, std::string>(*found), state->spec.volume_id);
  }
  for (const auto& entry : state->status.published_nodes) {
    drop_one(nodes_of_initiator_, entry.initiator_id, entry.node_id);
    drop_one(volumes_of_node_, entry.node_id, state->spec.volume_id);
  }
}

VolumePage VolumeIndex::page(const std::optional<std::string>& after, std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  VolumePage page;
  auto at = after ? by_id_.upper_bound(*after) : by_id_.begin();
  for (; at != by_id_.end() && page.items.size() < limit; ++at) page.items.push_back(at->second);
  page.more = at != by_id_.end();
  return page;
}

std::shared_ptr<const crd::VolumeState> VolumeIndex::find(const std::string& volume_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(volume_id);
  return found == by_id_.end() ? nullptr : found->second;
}

VolumeIndex::Dependents VolumeIndex::made_from(std::string_view origin, const std::string& value,
                                               std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_origin_.find({std::string(origin), value});
  if (found == by_origin_.end()) return {};
  Dependents dependents{found->second.size(), {}};
  for (const auto& id : found->second) {
    if (dependents.names.size() == limit) break;
    dependents.names.push_back(id);
  }
  return dependents;
}

VolumeIndex::Dependents VolumeIndex::on_agent_names(const std::string& agent, std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_agent_.find(agent);
  if (found == by_agent_.end()) return {};
  Dependents dependents{found->second.size(), {}};
  for (const auto& id : found->second) {
    if (dependents.names.size() == limit) break;
    dependents.names.push_back(id);
  }
  return dependents;
}

Result<VolumeIndex::Reservation> VolumeIndex::reserve(const std::string& volume_id,
                                                      const std::string& node_id,
                                                      const std::string& initiator_id,
                                                      std::uint32_t max_per_node) {
  const std::lock_guard lock(mutex_);
  if (const auto nodes = nodes_of_initiator_.find(initiator_id); nodes != nodes_of_initiator_.end())
    for (const auto& other : nodes->second)
      if (other != node_id)
        return fail(Reason::host_nqn_duplicate,
                    "nodes " + other + " and " + node_id + " present the same host NQN " + initiator_id +
                        "; give each node its own /etc/nvme/hostnqn, or unpublish what the other still holds",
                    {{"node", other}, {"other_node", node_id}});
  if (const auto held = volumes_of_node_.find(node_id); max_per_node != 0 && held != volumes_of_node_.end()) {
    std::set<std::string> others(held->second.begin(), held->second.end());
    others.erase(volume_id);
    if (others.size() >= max_per_node)
      return fail(Reason::no_space, "node " + node_id + " already holds " + std::to_string(others.size()) +
                                        " volumes of this driver, the limit is " +
                                        std::to_string(max_per_node) + "; unpublish one or raise the limit");
  }
  Reservation reservation;
  reservation.index_ = shared_from_this();
  reservation.node_id_ = node_id;
  reservation.initiator_id_ = initiator_id;
  reservation.volume_id_ = volume_id;
  nodes_of_initiator_[initiator_id].insert(node_id);
  volumes_of_node_[node_id].insert(volume_id);
  return reservation;
}

void VolumeIndex::release(const Reservation& reservation) {
  const std::lock_guard lock(mutex_);
  drop_one(nodes_of_initiator_, reservation.initiator_id_, reservation.node_id_);
  drop_one(volumes_of_node_, reservation.node_id_, reservation.volume_id_);
}

std::set<std::string> VolumeIndex::with_export_reason(const std::string& agent,
                                                      std::string_view reason) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_export_reason_.find({agent, std::string(reason)});
  return found == by_export_reason_.end() ? std::set<std::string>() : found->second;
}

VolumeIndex::Counts VolumeIndex::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts;
  for (const auto& [name, state] : by_record_) {
    ++counts.by_phase[std::string(crd::to_string(state->status.phase))];
    const auto* reconciled = crd::find_condition(state->status.conditions, k_export_reconciled);
    if (reconciled != nullptr && reconciled->status != crd::ConditionStatus::yes)
      ++counts.unreconciled[reconciled->reason];
  }
  return counts;
}

VolumeIndex::Reservation::~Reservation() {
  if (index_) index_->release(*this);
}

VolumeIndex::Reservation::Reservation(Reservation&& other) noexcept
    : index_(std::exchange(other.index_, nullptr)),
      node_id_(std::move(other.node_id_)),
      initiator_id_(std::move(other.initiator_id_)),
      volume_id_(std::move(other.volume_id_)) {}

VolumeIndex::Reservation& VolumeIndex::Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    if (index_) index_->release(*this);
    index_ = std::exchange(other.index_, nullptr);
    node_id_ = std::move(other.node_id_);
    initiator_id_ = std::move(other.initiator_id_);
    volume_id_ = std::move(other.volume_id_);
  }
  return *this;
}

}  // namespace pillar::controller
