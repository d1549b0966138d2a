#pragma once
// node::Host on the real machine: hostio through blocking pools, connects through the connector.

#include <functional>
#include <memory>
#include <string>

#include "actors/node/host.hpp"
#include "actors/runtime/blocking_pool.hpp"
#include "actors/runtime/cell.hpp"
#include "actors/runtime/executor.hpp"
#include "hostio/block_device.hpp"
#include "hostio/helper_process.hpp"
#include "hostio/host_helpers.hpp"
#include "hostio/nvme/fabrics.hpp"
#include "hostio/nvme/host_identity.hpp"
#include "hostio/process.hpp"
#include "messages/call.hpp"

namespace pillar::node {

/// Bounds of everything that waits for the kernel, a device or a peer.
struct NodeLimits {
  std::size_t parallel_connects = 8;  ///< row O10
  Clock::duration quick = std::chrono::seconds(10);
  Clock::duration connect = std::chrono::seconds(30);
  Clock::duration device = std::chrono::seconds(30);
  Clock::duration size = std::chrono::seconds(20);
  Clock::duration disconnect = std::chrono::seconds(30);
  Clock::duration probe = std::chrono::seconds(30);
  Clock::duration format = std::chrono::minutes(30);  ///< mkfs, fsck: outlive the caller (row G09)
  Clock::duration mount = std::chrono::minutes(2);    ///< log replay
  Clock::duration unmount = std::chrono::seconds(30);
  Clock::duration flush = std::chrono::seconds(60);
  Clock::duration grow = std::chrono::minutes(10);
  Clock::duration stats = std::chrono::seconds(2);  ///< row I01
  Clock::duration health = std::chrono::seconds(5);
};

/// One connect, for the connector.
struct ConnectJob {
  SessionTarget session;
  hostio::FabricsTunables tunables;
};
using ConnectCall = Call<ConnectJob, Done>;

/// Where things are.
struct MachineOptions {
  std::string state_dir;
  std::string kubelet_dir;  ///< where mounts have to be seen on the host; empty: not checked
  hostio::HostRoots roots;
  hostio::HostIdentity identity;
  NodeLimits limits;
  std::string helper_program = "/proc/self/exe";
  runtime::Services services;
};

/// What all volumes of the process share. Thread-safe; kept alive by the jobs that use it.
class Machine {
 public:
  explicit Machine(MachineOptions options);

  const MachineOptions& options() const { return options_; }
  const hostio::HelperCall& helper() const { return helper_; }
  const hostio::Fabrics& fabrics() const { return fabrics_; }
  hostio::CommandRunner& runner() { return runner_; }
  /// For calls that end soon: records, sysfs, statfs in its helper.
  runtime::BlockingPool& quick() { return quick_; }
  /// For calls that wait: connect, mkfs, mount, unmount, disconnect.
  runtime::BlockingPool& slow() { return slow_; }

  /// mountinfo and sysfs now. Blocking, opens nothing.
  Result<KernelView> view() const;
  /// Whether mounts made here are seen on the host (row H09). Blocking.
  Result<void> check_mounts_seen() const;
  /// Connects. Blocking.
  Result<void> connect(const ConnectJob& job) const;

 private:
  MachineOptions options_;
  hostio::ProcessRunner runner_;
  hostio::HelperRunner helpers_;
  hostio::HelperCall helper_;
  hostio::Fabrics fabrics_;
  runtime::BlockingPool quick_;
  runtime::BlockingPool slow_;
};

/// The host as one actor sees it: continues in `executor`, connects through `connector`.
std::shared_ptr<Host> make_linux_host(std::shared_ptr<Machine> machine,
                                      std::shared_ptr<runtime::TimedExecutor> executor,
                                      std::function<void(ConnectCall)> connector);

/// This boot's id (/proc/sys/kernel/random/boot_id). IO_ERROR when it cannot be read.
Result<std::string> read_boot_id(const hostio::HostRoots& roots);

}  // namespace pillar::node
