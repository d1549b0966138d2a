#pragma once
// The state of every agent link, shared between the links that write it and the operations that read it.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/controller/agent_client.hpp"
#include "crd/types.hpp"

namespace pillar::controller {

/// AgentDirectory of the running controller. Thread-safe.
class AgentTable final : public AgentDirectory, public std::enable_shared_from_this<AgentTable> {
 public:
  /// `check_soon` wakes the link of an agent.
  explicit AgentTable(std::function<void(const std::string&)> check_soon = {});

  Result<AgentLease> lease(const std::string& agent) override;
  std::shared_ptr<void> lease_when_synchronised(const std::string& agent, LeaseAnswer answer) override;
  std::string problem(const std::string& agent) const override;
  std::optional<std::uint64_t> size_bound(const std::string& agent, const std::string& pool) const override;
  void check_soon(const std::string& agent) override;

  /// The agent does not answer, or is not usable, for the reason given.
  void set_down(const std::string& agent, std::string problem);
  /// The agent is being synchronised: nobody gets a new lease.
  void set_syncing(const std::string& agent);
  /// Operations that still hold a lease.
  std::size_t leases(const std::string& agent) const;
  /// The agent is synchronised and serves at `bind_address`, an IP literal.
  void set_up(const std::string& agent, std::shared_ptr<AgentClient> client, std::string bind_address,
              std::vector<crd::DiscoveredPool> pools);
  void remove(const std::string& agent);

 private:
  enum class State : std::uint8_t { down, syncing, up };
  using Waiting = std::weak_ptr<LeaseAnswer>;
  struct Entry {
    State state = State::down;
    std::string problem = "not connected yet";
    std::shared_ptr<AgentClient> client;
    std::string bind_address;
    std::vector<crd::DiscoveredPool> pools;
    std::shared_ptr<int> hold = std::make_shared<int>(0);  // its use count is the number of leases + 1
    std::vector<Waiting> waiting;                          // for the end of the synchronisation
  };
  Result<AgentLease> lease_locked(const std::string& agent) const;
  void settle(const std::string& agent, std::vector<Waiting> waiting);

  const std::function<void(const std::string&)> check_soon_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace pillar::controller
