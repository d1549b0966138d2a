#pragma once
// Decisions of the reconcile coordinator, without actors.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/agent/volume_ops.hpp"
#include "hostio/configfs/nvmet_model.hpp"

namespace pillar::agent {

/// INVALID_ARGUMENT when a volume or a subsystem name is listed twice: the list would contradict itself.
Result<void> check_reconcile_list(const v1::ReconcileStateRequest& request);

/// The subsystems among `live` that no entry of the list names and that are open to somebody.
std::vector<std::string> stray_exports(const v1::ReconcileStateRequest& request,
                                       const std::vector<hostio::nvmet::LiveSubsystem>& live);

/// Records usable for a restore without the controller: exactly as new as their volume's open mark. Anything
/// older may name an initiator whose access was taken since.
bool record_usable(const ExportRecord& record, const StoredMark& stored);

/// One line of the answer.
v1::ReconcileResult reconcile_result(const std::string& volume, const Result<ReconcileOutcome>& outcome);

/// The volumes that were excluded from a restore, by id; retried until a later list supersedes them.
class Excluded {
 public:
  void put(const v1::DesiredVolume& desired) { volumes_[desired.volume().agent_volume_id()] = desired; }
  void drop(const std::string& volume) { volumes_.erase(volume); }
  bool empty() const { return volumes_.empty(); }
  std::vector<v1::DesiredVolume> all() const {
    std::vector<v1::DesiredVolume> out;
    for (const auto& [id, desired] : volumes_) out.push_back(desired);
    return out;
  }

 private:
  std::map<std::string, v1::DesiredVolume> volumes_;
};

/// True when a failed reconcile may succeed later without anybody asking again.
bool worth_retrying(const Error& error);

}  // namespace pillar::agent
