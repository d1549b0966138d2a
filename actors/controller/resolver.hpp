#pragma once
// Host names to addresses.

#include <memory>

#include "actors/controller/link_ops.hpp"
#include "actors/runtime/blocking_pool.hpp"

namespace pillar::controller {

/// getaddrinfo in `pool`: the first address of a name, in the system's order of preference. AGENT_UNAVAILABLE
/// when it has none or the answer takes too long.
HostResolver system_resolver(std::shared_ptr<runtime::BlockingPool> pool);

}  // namespace pillar::controller
