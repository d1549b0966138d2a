#pragma once
// Handlers that keep one actor's bad luck from spreading: CAF 0.17's defaults kill the receiver of an error
// message, bounce unexpected messages and print to stdout.

#include <caf/scheduled_actor.hpp>

#include "actors/runtime/cell.hpp"

namespace pillar::runtime {

/// Installs our error, default, down and exception handlers on `self`; all log with the actor's path and
/// count into pillar_csi_actor_failures_total. An exception ends the actor (its registry restarts it).
void harden(caf::scheduled_actor* self, std::shared_ptr<ActorCell> cell);

}  // namespace pillar::runtime
