#pragma once
// From desired and live state to an ordered list of small configfs actions. Pure. All of the kernel's
// ordering rules live here:
//  - up: identity and allowed_hosts, namespace attributes, enable; the port link LAST, because the first link
//    starts the listener and a linked subsystem is reachable at once;
//  - down: port unlink FIRST (tears all controllers of the subsystem down), then hosts, then enable=0, which
//    returns only when every I/O in flight has ended (the barrier); rmdir only after that;
//  - allow_any_host=0 before any allowed_hosts link, all links gone before allow_any_host=1 (EINVAL
//    otherwise);
//  - namespace attributes only while disabled (EBUSY), port attributes only while nothing is linked (EACCES):
//    compare before writing;
//  - every step of closing leaves a difference that the next plan sees, so a crash in between is finished by
//    planning again.

#include <string>
#include <vector>

#include "hostio/configfs/nvmet_model.hpp"

namespace pillar::hostio::nvmet {

enum class ActionKind : std::uint8_t {
  make_dir,      ///< EEXIST is success
  write,         ///< write `value` and read it back
  write_only,    ///< write `value`; the attribute cannot be read
  check_device,  ///< `path` (absolute) is the block device major:minor in `value` ("0:0": any)
  link,          ///< link `path` to the item `value`
  unlink,        ///< ENOENT is success
  remove_dir,    ///< ENOENT is success
  remove_host,   ///< rmdir of a host that others may still use: ENOENT, EBUSY, ENOTEMPTY are success
};

/// One idempotent step. Paths are relative to the nvmet directory.
struct Action {
  ActionKind kind{};
  std::string path;
  std::string value;
  friend bool operator==(const Action&, const Action&) = default;
};
using Plan = std::vector<Action>;

/// The way from the live to the desired state, in the order of execution.
struct ExportPlan {
  Plan close;    ///< port unlink, host unlinks
  Plan barrier;  ///< enable=0: may block until I/O in flight has ended, in D state with a stuck device
  Plan prepare;  ///< everything up to enable=1, or the removal of directories
  Plan open;     ///< the port link
  bool empty() const { return close.empty() && barrier.empty() && prepare.empty() && open.empty(); }
};

/// Brings an export exactly to `desired`. Empty in steady state (row B08).
ExportPlan plan_export(const DesiredExport& desired, const std::optional<LiveSubsystem>& live);

/// ExportVolume: identity and device as desired, access left as it is; a new export is left closed.
ExportPlan plan_prepare(const DesiredExport& desired, const std::optional<LiveSubsystem>& live);

/// AllowInitiator: adds `host_nqn` to those let in (acl disabled: opens for any host) and opens the export on
/// desired.access.port_id. desired.access.hosts is ignored: hosts that are in stay in.
ExportPlan plan_allow(const DesiredExport& desired, const std::string& host_nqn,
                      const std::optional<LiveSubsystem>& live);

/// DenyInitiator: removes `host_nqn` and tears all sessions of the export down by unlinking and relinking its
/// ports (desired.access.port_id when a crash left it unlinked), so that the others come back and the denied
/// one is refused. Recycles even when the host link is already gone. When no other host is left, or any host
/// may connect (the sessions cannot be told apart), this is plan_close.
ExportPlan plan_deny(const DesiredExport& desired, const std::string& host_nqn, const LiveSubsystem& live);

/// Ends all access: unlink from every port, remove every host, allow_any_host=0, then the barrier. The export
/// stays configured. Access has ended only when close AND barrier have returned.
ExportPlan plan_close(const LiveSubsystem& live);

/// plan_close, then removal of the whole subsystem.
ExportPlan plan_remove(const LiveSubsystem& live);

/// Makes connected initiators see a grown device. Empty when the namespace is missing or disabled (enabling
/// reads the size anyway).
Plan plan_revalidate(const LiveSubsystem& live);

/// The id that (address, port) hashes to, 1..65535. Ports of ours sit there or at one of the next
/// k_port_probes - 1 ids.
std::uint16_t derived_port_id(const std::string& address, std::uint16_t port);
inline constexpr unsigned k_port_probes = 64;

/// A port and what makes it ready to be linked to.
struct PortPlan {
  std::uint16_t id = 0;
  Plan actions;
};

/// Finds our port among all live ones, or the id to make it at. A port of somebody else is never changed:
/// PORT_CONFLICT when one already uses the address, when ours is in use with another inline data size, or
/// when no id is free.
Result<PortPlan> plan_port(const DesiredPort& desired, const std::vector<LivePort>& live);

/// `action` as text for logs and errors: "write subsystems/x/attr_serial = abc".
std::string describe(const Action& action);

}  // namespace pillar::hostio::nvmet
