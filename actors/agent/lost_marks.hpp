#pragma once
// Volumes whose object is there and whose fencing mark is not, although the agent is seeded (docs/fencing.md
// section 2). Their changes are refused in any case; this is what makes the controller restore the marks.

#include <spdlog/spdlog.h>

#include <mutex>
#include <set>

#include "messages/ids.hpp"

namespace pillar::agent {

/// Only in memory: after a restart they are found again. Thread-safe.
class LostMarks {
 public:
  void note(const AgentVolumeId& volume) {
    {
      const std::lock_guard lock(mutex_);
      if (!volumes_.insert(volume).second) return;
    }
    spdlog::error(
        "volume {} has no fencing mark: its file was removed; its changes are refused until the controller "
        "has "
        "restored the mark",
        volume.str());
  }
  bool none() const {
    const std::lock_guard lock(mutex_);
    return volumes_.empty();
  }
  std::set<AgentVolumeId> all() const {
    const std::lock_guard lock(mutex_);
    return volumes_;
  }
  /// `seeded` were noted before a seeding that has succeeded. Its list was complete: what it did not name has
  /// no record, so nobody will ask for it.
  void forget(const std::set<AgentVolumeId>& seeded) {
    const std::lock_guard lock(mutex_);
    for (const AgentVolumeId& volume : seeded) volumes_.erase(volume);
  }

 private:
  mutable std::mutex mutex_;
  std::set<AgentVolumeId> volumes_;
};

}  // namespace pillar::agent
