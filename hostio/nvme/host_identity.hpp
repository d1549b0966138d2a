#pragma once
// Who this node is on NVMe-oF: one durable (hostnqn, hostid) pair, always passed explicitly. The kernel
// refuses a host NQN that comes with another host id (reported-faults rows B01, B04).

#include <optional>
#include <string>
#include <string_view>

#include "messages/error.hpp"

namespace pillar::hostio {

/// The pair that every connect carries.
struct HostIdentity {
  std::string nqn;
  std::string id;  ///< lower-case dashed UUID
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

struct HostIdentityPaths {
  std::string nqn_file = "/etc/nvme/hostnqn";
  std::string id_file = "/etc/nvme/hostid";
};

/// What the two files mean together. Pure: `nqn_text` and `id_text` are the contents, nullopt for a missing
/// file, `fresh_uuid` the identity to use when both are missing.
struct HostIdentityDecision {
  HostIdentity identity;
  bool write_nqn = false;
  bool write_id = false;
};
Result<HostIdentityDecision> decide_host_identity(const HostIdentityPaths& paths,
                                                  std::optional<std::string_view> nqn_text,
                                                  std::optional<std::string_view> id_text,
                                                  const std::string& fresh_uuid);

/// Reads the pair, creating it durably when both files are absent (both from one random UUID, the id first,
/// so that a crash in between leaves a file from which the other is derived). STATE_CORRUPT, naming file and
/// remedy, for an empty or malformed file, for an all-zero UUID, and when the one file present does not give
/// the other; an existing identity is never replaced. The caller keeps the value for the life of the process:
/// files that vanish later change nothing.
Result<HostIdentity> load_or_create_host_identity(const HostIdentityPaths& paths);

}  // namespace pillar::hostio
