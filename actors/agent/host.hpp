#pragma once
// What the operations of a volume need from the outside: durable marks, the backend, nvmet. The agent binds
// it to its actors and the blocking pool; unit tests to simulations that fail and crash at every call.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "actors/agent/fencing.hpp"
#include "actors/agent/state_store.hpp"
#include "actors/runtime/task.hpp"
#include "hostio/configfs/nvmet_planner.hpp"
#include "hostio/lvm.hpp"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::agent {

using runtime::Task;

/// Where an export listens.
struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;
  std::uint32_t inline_data_size = 0;  ///< bytes, 0: kernel default

  /// "10.0.0.5:4420", "[fd00::1]:4420": key of the port actor.
  std::string key() const {
    return (address.v6 ? "[" + address.text + "]" : address.text) + ":" + std::to_string(port);
  }
};

/// Ports of an operation. Task-returning methods continue in the caller's executor; arguments are taken by
/// value because the call outlives its caller's full expression.
class Host {
 public:
  Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  virtual ~Host() = default;

  // What is configured; never waits.
  /// INVALID_ARGUMENT naming the configured pools unless this agent serves the volume's pool.
  virtual Result<void> check_pool(const AgentVolumeId& volume, const std::string& backend_type) const = 0;
  /// INVALID_ARGUMENT naming the allowed addresses unless exports may listen on `address`.
  virtual Result<void> check_bind_address(const IpAddress& address) const = 0;
  /// Drain is on: no new grants.
  virtual bool drained() const = 0;
  /// Ports wait for the first complete ReconcileState (docs/fencing.md section 7).
  virtual bool gated() const = 0;
  /// Path of the volume's device node; stable, whether it is active or not.
  virtual std::string device_path(const AgentVolumeId& volume) const = 0;
  /// The volume that an export record names `nqn` for.
  virtual std::optional<AgentVolumeId> volume_of_nqn(const std::string& nqn) const = 0;
  /// Counts an admission for the metric.
  virtual void count_decision(std::string_view op, const std::string& decision) = 0;

  // Durable state.
  virtual Task<Result<StoredMark>> read_mark(AgentVolumeId volume) = 0;
  /// Answers when the mark is durable.
  virtual Task<Result<Mark>> write_mark(Mark mark) = 0;
  virtual Task<Result<std::optional<ExportRecord>>> read_record(AgentVolumeId volume) = 0;
  virtual Task<Result<void>> write_record(StateStore::RecordChange change) = 0;

  // Backend; semantics of hostio::Lvm.
  virtual Task<Result<std::optional<hostio::LogicalVolume>>> find(AgentVolumeId volume) = 0;
  virtual Task<Result<hostio::LogicalVolume>> create(AgentVolumeId volume, std::string uid,
                                                     hostio::SizeRange range) = 0;
  virtual Task<Result<hostio::LogicalVolume>> extend(AgentVolumeId volume, std::string uid,
                                                     hostio::SizeRange range) = 0;
  virtual Task<Result<void>> remove(AgentVolumeId volume, std::string uid) = 0;
  virtual Task<Result<hostio::LvDevice>> activate(AgentVolumeId volume, std::string uid) = 0;
  virtual Task<Result<void>> change_owner(AgentVolumeId volume, std::string old_uid, std::string new_uid) = 0;

  // nvmet.
  /// The live subsystem. ACCESS_NOT_ENDED while a barrier of it has not returned, OPERATION_PENDING while a
  /// change begun by an earlier, dead operation is still being made.
  virtual Task<Result<std::optional<hostio::nvmet::LiveSubsystem>>> read_export(std::string nqn) = 0;
  /// Runs actions that do not wait for I/O.
  virtual Task<Result<void>> configure(std::string nqn, hostio::nvmet::Plan plan) = 0;
  /// Runs actions that return only when all I/O in flight has ended. ACCESS_NOT_ENDED after a bound; the
  /// actions go on and read_export() refuses until they have returned.
  virtual Task<Result<void>> barrier(std::string nqn, hostio::nvmet::Plan plan) = 0;
  /// Makes the port and yields its nvmet id. PORT_CONFLICT.
  virtual Task<Result<std::uint16_t>> port_id(Endpoint endpoint) = 0;
  /// Runs the actions that link the export into the port.
  virtual Task<Result<void>> open(Endpoint endpoint, std::string nqn, hostio::nvmet::Plan plan) = 0;
};

using HostPtr = std::shared_ptr<Host>;

}  // namespace pillar::agent
