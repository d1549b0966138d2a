#pragma once
// The agents as the controller sees them, without gRPC: one client per agent, and the directory that finds
// it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "messages/agent.pb.h"
#include "messages/deadline.hpp"
#include "messages/error.hpp"

namespace pillar::controller {

namespace pb = ::pillar::agent::v1;

/// One agent. Each call answers exactly once, on any thread, by its deadline at the latest: refusals of the
/// agent with their reason and details, an agent that cannot be reached with AGENT_UNAVAILABLE naming it and
/// its address.
class AgentClient {
 public:
  template <class Response>
  using Answer = std::function<void(Result<Response>)>;

  AgentClient() = default;
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;
  virtual ~AgentClient() = default;

  virtual void call(pb::GetCapabilitiesRequest, Deadline, Answer<pb::GetCapabilitiesResponse>) = 0;
  virtual void call(pb::HealthCheckRequest, Deadline, Answer<pb::HealthCheckResponse>) = 0;
  virtual void call(pb::GetCapacityRequest, Deadline, Answer<pb::GetCapacityResponse>) = 0;
  virtual void call(pb::CreateVolumeRequest, Deadline, Answer<pb::CreateVolumeResponse>) = 0;
  virtual void call(pb::DeleteVolumeRequest, Deadline, Answer<pb::DeleteVolumeResponse>) = 0;
  virtual void call(pb::ExpandVolumeRequest, Deadline, Answer<pb::ExpandVolumeResponse>) = 0;
  virtual void call(pb::ExportVolumeRequest, Deadline, Answer<pb::ExportVolumeResponse>) = 0;
  virtual void call(pb::AllowInitiatorRequest, Deadline, Answer<pb::AllowInitiatorResponse>) = 0;
  virtual void call(pb::DenyInitiatorRequest, Deadline, Answer<pb::DenyInitiatorResponse>) = 0;
  virtual void call(pb::ReconcileStateRequest, Deadline, Answer<pb::ReconcileStateResponse>) = 0;
  virtual void call(pb::SeedMarksRequest, Deadline, Answer<pb::SeedMarksResponse>) = 0;
};

/// Makes the client of the agent `name` at `target` ("10.0.0.5:9500", "[fd00::1]:9500", "store-1.lan:9500"; a
/// host name is resolved whenever a connection is made).
using AgentClientFactory =
    std::function<std::shared_ptr<AgentClient>(const std::string& name, const std::string& target)>;

/// Held by a volume operation while it may talk to an agent. A full synchronisation of the agent waits for
/// all of them and then reads the records, so that "this list is complete" is true when the agent acts on it.
class AgentLease {
 public:
  AgentLease() = default;
  AgentLease(std::shared_ptr<AgentClient> client, std::string bind_address, std::shared_ptr<void> hold)
      : client_(std::move(client)), bind_address_(std::move(bind_address)), hold_(std::move(hold)) {}

  const std::shared_ptr<AgentClient>& client() const { return client_; }
  /// The agent's IP literal, where its exports listen; what its host name stands for at the moment.
  const std::string& bind_address() const { return bind_address_; }

 private:
  std::shared_ptr<AgentClient> client_;
  std::string bind_address_;
  std::shared_ptr<void> hold_;
};

/// Finds agents by PillarAgent name. Thread-safe.
class AgentDirectory {
 public:
  AgentDirectory() = default;
  AgentDirectory(const AgentDirectory&) = delete;
  AgentDirectory& operator=(const AgentDirectory&) = delete;
  virtual ~AgentDirectory() = default;

  using LeaseAnswer = std::function<void(Result<AgentLease>)>;

  /// The agent's client, for one operation. AGENT_UNAVAILABLE while the agent is not known, not reachable or
  /// being synchronised.
  virtual Result<AgentLease> lease(const std::string& agent) = 0;
  /// The same, answered once, on any thread: at once, or, while the agent is being synchronised, when that
  /// has ended. Holding what is returned is waiting; whoever drops it is not answered any more.
  virtual std::shared_ptr<void> lease_when_synchronised(const std::string& agent, LeaseAnswer answer) = 0;
  /// Empty while the agent answers, else what is wrong with it, for health answers.
  virtual std::string problem(const std::string& agent) const = 0;
  /// Size of a pool in which one volume cannot be larger than the pool (linear LVM); nullopt when not known.
  virtual std::optional<std::uint64_t> size_bound(const std::string& agent,
                                                  const std::string& pool) const = 0;
  /// The agent itself has said that it needs a synchronisation (its marks are gone, its exports are not
  /// restored yet): nobody gets a new lease until it was looked at, which happens now.
  virtual void check_soon(const std::string& agent) = 0;
};

}  // namespace pillar::controller
