#pragma once
// Connecting to and disconnecting from NVMe/TCP subsystems through /dev/nvme-fabrics and sysfs. No discovery
// step, no external tool, no configuration file of other tools.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hostio/host_helpers.hpp"
#include "hostio/nvme/host_identity.hpp"
#include "hostio/nvme/topology.hpp"
#include "messages/deadline.hpp"
#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::hostio {

/// Tunables of one connection; unset means the kernel's default.
struct FabricsTunables {
  std::optional<std::int32_t> ctrl_loss_tmo;     ///< seconds, -1 for ever (kernel 600)
  std::optional<std::int32_t> reconnect_delay;   ///< seconds, 1.. (kernel 10)
  std::optional<std::int32_t> keep_alive_tmo;    ///< seconds, 1..3600 (kernel 5)
  std::optional<std::int32_t> fast_io_fail_tmo;  ///< seconds, -1 off (kernel off)
  std::optional<std::int32_t> nr_io_queues;      ///< 1..128
  std::optional<std::int32_t> queue_size;        ///< 16..1024 (kernel 128)
  friend bool operator==(const FabricsTunables&, const FabricsTunables&) = default;
};

/// INVALID_ARGUMENT naming the field, the value and its range (row E01).
Result<void> validate(const FabricsTunables& tunables);

/// What to connect to and as whom.
struct FabricsTarget {
  std::string nqn;
  IpAddress address;
  std::uint16_t port = 4420;
  HostIdentity host;
  FabricsTunables tunables;
};

/// The line for /dev/nvme-fabrics. INVALID_ARGUMENT for a bad NQN, port, host identity or tunable; nothing
/// that passes can add an option of its own (no comma, no control character).
Result<std::string> fabrics_option_string(const FabricsTarget& target);

/// "instance=3,cntlid=1" as read back after a connect.
struct FabricsReply {
  int instance = -1;
  int cntlid = -1;
};
std::optional<FabricsReply> parse_fabrics_reply(std::string_view text);

/// The error for a refused connect: what the errno means for NVMe/TCP and what to do. `stale`: controllers of
/// the same NQN under another identity.
Error fabrics_connect_error(int errno_value, const FabricsTarget& target,
                            const std::vector<NvmeController>& stale);

/// How a connect ended.
struct FabricsSession {
  NvmeController controller;
  bool already =
      false;  ///< the session existed; its timeouts were set to the wanted ones where they differed
};

/// The initiator. Every call blocks for at most its deadline: kernel writes that may hang run in a helper.
class Fabrics {
 public:
  Fabrics(HostRoots roots, HelperCall helper) : topology_(std::move(roots)), helper_(std::move(helper)) {}

  /// Connects, or finds the existing session of exactly this NQN, address and identity. CONNECT_FAILED with
  /// the remedy otherwise; DEADLINE_EXCEEDED when the kernel did not answer (it may still connect later:
  /// unstage disconnects by NQN). MODULE_MISSING when there is no fabrics device.
  Result<FabricsSession> connect(const FabricsTarget& target, Deadline deadline) const;

  /// Ends every session to exactly `nqn` (row D16: never another) and waits until the controllers have left
  /// sysfs. OK when there was none. DEVICE_BUSY naming the controllers that remain at the deadline (row D01).
  Result<void> disconnect(std::string_view nqn, Deadline deadline) const;

  /// Controllers of `nqn` that do not carry the identity `host`: left by an earlier identity of this node,
  /// they make the kernel refuse a new connect.
  Result<std::vector<NvmeController>> stale_controllers(std::string_view nqn, const HostIdentity& host) const;

  /// Ends those sessions only, and waits.
  Result<void> disconnect_stale(std::string_view nqn, const HostIdentity& host, Deadline deadline) const;

  /// Makes every live controller of `nqn` re-read its namespaces (rows C05, L01).
  Result<void> rescan(std::string_view nqn) const;

  /// Waits for the block device of `uuid` in `nqn`; rescans when it does not come by itself (row C05). At the
  /// deadline the error of NvmeTopology::find_namespace.
  Result<NvmeNamespace> wait_for_namespace(std::string_view nqn, std::string_view uuid,
                                           Deadline deadline) const;

  /// Waits until the namespace is at least `bytes` long, rescanning (row L01). RESIZE_PENDING at the
  /// deadline.
  Result<NvmeNamespace> wait_for_size(std::string_view nqn, std::string_view uuid, std::uint64_t bytes,
                                      Deadline deadline) const;

  const NvmeTopology& topology() const { return topology_; }

 private:
  Result<void> delete_controllers(std::string_view nqn, const std::vector<NvmeController>& which,
                                  Deadline deadline) const;
  Result<std::optional<NvmeController>> find_session(const FabricsTarget& target) const;
  Result<FabricsSession> reuse(NvmeController controller, const FabricsTunables& wanted) const;
  Result<int> write_connect(const std::string& options, Deadline deadline) const;

  NvmeTopology topology_;
  HelperCall helper_;
};

}  // namespace pillar::hostio
