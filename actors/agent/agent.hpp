#pragma once
// The agent as one object: built from its configuration, asked by Calls, shut down in order. Front doors
// (gRPC, tests) need nothing else.

#include <chrono>
#include <memory>

#include "actors/agent/backend.hpp"
#include "actors/agent/config.hpp"
#include "actors/runtime/cell.hpp"
#include "hostio/configfs/nvmet_executor.hpp"
#include "hostio/durable_file.hpp"
#include "hostio/process.hpp"
#include "messages/agent.pb.h"
#include "messages/call.hpp"

namespace pillar::agent {

/// Bounds of waits on the host.
struct AgentLimits {
  Clock::duration command = std::chrono::seconds(90);     ///< one backend operation
  Clock::duration barrier = std::chrono::seconds(8);      ///< answer "access not yet ended" after this
  Clock::duration prepare = std::chrono::seconds(30);     ///< one volume's share of a reconcile
  Clock::duration retry_first = std::chrono::seconds(5);  ///< of exports that could not be restored
  Clock::duration retry_max = std::chrono::minutes(1);
  Clock::duration capacity_cache = std::chrono::seconds(10);
  Clock::duration health_cache = std::chrono::seconds(10);
  Clock::duration first_look =
      std::chrono::seconds(5);    ///< for whoever asks while the host was never looked at
  std::size_t fan_out = 32;       ///< volumes reconciled at once
  std::size_t volume_queue = 16;  ///< calls waiting per volume
};

/// The host behind the agent; tests replace members.
struct AgentHost {
  std::shared_ptr<hostio::CommandRunner> runner = {};  ///< for health checks; none: they are left out
  std::shared_ptr<Backend> backend = {};
  std::shared_ptr<hostio::ConfigfsOps> nvmet = {};
  hostio::nvmet::DeviceCheck check_device = hostio::nvmet::check_block_device;
};

/// The real host that `config` points to, with metrics of its commands.
AgentHost make_real_host(const AgentConfig& config, const runtime::Services& services);

/// What an agent is made of beside its configuration.
struct AgentParts {
  runtime::Services services = {};
  AgentHost host = {};
  AgentLimits limits = {};
  hostio::DurableHook durable_hook = {};  ///< failpoint of the state directory
};

/// A running agent. Thread-safe. Every call is answered, at the latest when the agent is shut down.
class AgentApp {
 public:
  /// Locks and loads the state directory, starts the actors and begins to prepare the recorded exports.
  /// STATE_LOCKED, STATE_UNWRITABLE, IO_ERROR, INVALID_ARGUMENT.
  static Result<std::unique_ptr<AgentApp>> start(AgentConfig config, AgentParts parts);
  AgentApp(const AgentApp&) = delete;
  AgentApp& operator=(const AgentApp&) = delete;
  /// shutdown(5 s) unless that was done.
  ~AgentApp();

  // One function per RPC of messages/proto/agent.proto.
  void send(Call<v1::GetCapabilitiesRequest, v1::GetCapabilitiesResponse> call);
  void send(Call<v1::HealthCheckRequest, v1::HealthCheckResponse> call);
  void send(Call<v1::GetCapacityRequest, v1::GetCapacityResponse> call);
  void send(Call<v1::ListVolumesRequest, v1::ListVolumesResponse> call);
  void send(Call<v1::ListExportsRequest, v1::ListExportsResponse> call);
  void send(Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse> call);
  void send(Call<v1::DeleteVolumeRequest, v1::DeleteVolumeResponse> call);
  void send(Call<v1::ExpandVolumeRequest, v1::ExpandVolumeResponse> call);
  void send(Call<v1::ExportVolumeRequest, v1::ExportVolumeResponse> call);
  void send(Call<v1::UnexportVolumeRequest, v1::UnexportVolumeResponse> call);
  void send(Call<v1::AllowInitiatorRequest, v1::AllowInitiatorResponse> call);
  void send(Call<v1::DenyInitiatorRequest, v1::DenyInitiatorResponse> call);
  void send(Call<v1::ReconcileStateRequest, v1::ReconcileStateResponse> call);
  void send(Call<v1::SeedMarksRequest, v1::SeedMarksResponse> call);
  void send(Call<v1::AdoptLifecycleRequest, v1::AdoptLifecycleResponse> call);
  void send(Call<v1::DrainRequest, v1::DrainResponse> call);

  /// Ports still wait for the first complete ReconcileState.
  bool gated() const;
  /// Stops all actors; calls in flight are answered UNAVAILABLE. False when something was still there after
  /// `limit`.
  bool shutdown(Clock::duration limit);

 private:
  struct Impl;
  explicit AgentApp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pillar::agent
