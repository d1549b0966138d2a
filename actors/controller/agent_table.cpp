#include "actors/controller/agent_table.hpp"

#include <algorithm>

namespace pillar::controller {

AgentTable::AgentTable(std::function<void(const std::string&)> check_soon)
    : check_soon_(std::move(check_soon)) {}

Result<AgentLease> AgentTable::lease_locked(const std::string& agent) const {
  const auto found = entries_.find(agent);
  const bool known = found != entries_.end();
  if (known && found->second.state == State::up) {
    const auto& entry = found->second;
    return AgentLease(entry.client, entry.bind_address, entry.hold);
  }
  if (known && found->second.state == State::syncing)
    return fail(Reason::agent_unavailable, "agent " + agent + " is being synchronised; repeat");
  const std::string problem = known ? found->second.problem : "no connection to it is known";
  return fail(Reason::agent_unavailable,
              "agent " + agent + " is not available: " + problem + "; see PillarAgent/" + agent);
}

Result<AgentLease> AgentTable::lease(const std::string& agent) {
  std::unique_lock lock(mutex_);
  auto answer = lease_locked(agent);
  const auto found = entries_.find(agent);
  const bool down = found == entries_.end() || found->second.state == State::down;
  lock.unlock();
  if (down && check_soon_) check_soon_(agent);
  return answer;
}

std::shared_ptr<void> AgentTable::lease_when_synchronised(const std::string& agent, LeaseAnswer answer) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(agent);
    if (found != entries_.end() && found->second.state == State::syncing) {
      auto& waiting = found->second.waiting;
      std::erase_if(waiting, [](const Waiting& each) { return each.expired(); });
      auto token = std::make_shared<LeaseAnswer>(std::move(answer));
      waiting.push_back(token);
      return token;
    }
  }
  answer(lease(agent));
  return nullptr;
}

/// Answers those who still wait. Outside of the lock: an answer may come back here.
void AgentTable::settle(const std::string& agent, std::vector<Waiting> waiting) {
  for (const auto& each : waiting)
    if (const auto answer = each.lock()) (*answer)(lease(agent));
}

std::string AgentTable::problem(const std::string& agent) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(agent);
  if (found == entries_.end()) return "no connection to it is known";
  return found->second.state == State::down ? found->second.problem : std::string();
}

std::optional<std::uint64_t> AgentTable::size_bound(const std::string& agent, const std::string& pool) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(agent);
  if (found == entries_.end()) return std::nullopt;
  const auto& pools = found->second.pools;
  const auto match = std::find_if(pools.begin(), pools.end(), [&](const auto& each) {
    return each.name == pool && each.type == "lvm" && each.thin_pool.empty() && each.total > 0;
  });
  if (match == pools.end()) return std::nullopt;
  return static_cast<std::uint64_t>(match->total);
}

void AgentTable::check_soon(const std::string& agent) {
  if (!check_soon_) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(agent);
    if (found != entries_.end() && found->second.state == State::up) found->second.state = State::syncing;
  }
  check_soon_(agent);
}

void AgentTable::set_down(const std::string& agent, std::string problem) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = entries_[agent];
    entry.state = State::down;
    entry.problem = std::move(problem);
    waiting.swap(entry.waiting);
  }
  settle(agent, std::move(waiting));
}

void AgentTable::set_syncing(const std::string& agent) {
  const std::lock_guard lock(mutex_);
  entries_[agent].state = State::syncing;
}

std::size_t AgentTable::leases(const std::string& agent) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(agent);
  return found == entries_.end() ? 0 : static_cast<std::size_t>(found->second.hold.use_count() - 1);
}

void AgentTable::set_up(const std::string& agent, std::shared_ptr<AgentClient> client,
                        std::string bind_address, std::vector<crd::DiscoveredPool> pools) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = entries_[agent];
    entry.state = State::up;
    entry.problem.clear();
    entry.client = std::move(client);
    entry.bind_address = std::move(bind_address);
    entry.pools = std::move(pools);
    waiting.swap(entry.waiting);
  }
  settle(agent, std::move(waiting));
}

void AgentTable::remove(const std::string& agent) {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(agent);
    if (found == entries_.end()) return;
    waiting.swap(found->second.waiting);
    entries_.erase(found);
  }
  settle(agent, std::move(waiting));
}

}  // namespace pillar::controller
