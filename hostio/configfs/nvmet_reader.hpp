#pragma once
// Reads the live nvmet tree.

#include <optional>
#include <vector>

#include "hostio/configfs/configfs_ops.hpp"
#include "hostio/configfs/nvmet_model.hpp"

namespace pillar::hostio::nvmet {

/// The subsystem `nqn`, nullopt when it does not exist. Touches only that subsystem and, by name, its link in
/// each port: cost does not grow with the number of exports. MODULE_MISSING when there is no nvmet tree at
/// all (an unreadable target is not an empty one).
Result<std::optional<LiveSubsystem>> read_subsystem(ConfigfsOps& ops, const std::string& nqn);

/// Every subsystem that carries our NQN prefix, with links found under any name. Full scan: for ListExports
/// and reconcile only.
Result<std::vector<LiveSubsystem>> read_our_subsystems(ConfigfsOps& ops);

/// Every port, ours or not.
Result<std::vector<LivePort>> read_ports(ConfigfsOps& ops);

}  // namespace pillar::hostio::nvmet
