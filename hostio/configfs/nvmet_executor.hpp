#pragma once
// Performs plans, one action at a time. Blocking.

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "hostio/configfs/configfs_ops.hpp"
#include "hostio/configfs/nvmet_planner.hpp"

namespace pillar::hostio::nvmet {

/// Before each action; an error stops the plan there. Crash sweeps and fault injection.
using StepHook = std::function<Result<void>(const Action&)>;
/// A failed configfs operation: op from a fixed set (mkdir, write, read, link, unlink, rmdir), errno name
/// text.
using ErrorObserver = std::function<void(std::string_view op, int errno_value)>;
/// Verifies that `path` is the block device `major_minor` ("0:0": any block device).
using DeviceCheck = std::function<Result<void>(const std::string& path, const std::string& major_minor)>;

/// stat-based DeviceCheck: DEVICE_MISSING, DEVICE_MISMATCH.
Result<void> check_block_device(const std::string& path, const std::string& major_minor);

/// Runs plans on a tree. Holds no state of its own; use one per thread or share it.
class Executor {
 public:
  struct Hooks {
    StepHook before = {};
    ErrorObserver on_error = {};
    DeviceCheck check_device = check_block_device;
  };

  explicit Executor(ConfigfsOps& ops);
  Executor(ConfigfsOps& ops, Hooks hooks);

  /// Runs `plan` to its end or first error. Errors name the object, the attribute, the value and the errno.
  Result<void> run(const Plan& plan) const;
  /// close, barrier, prepare, open. The barrier may block: where that matters, run the parts one by one.
  Result<void> run(const ExportPlan& plan) const;
  /// Gated restore: after all exports were prepared, links them in one tight loop, port by port (a connect to
  /// a not yet linked subsystem of an open port makes the host give up for good). One result per plan; a
  /// failed one does not stop the others.
  std::vector<Result<void>> open_all(const std::vector<Plan>& plans) const;

 private:
  Result<void> perform(const Action& action) const;
  Result<void> do_write(const Action& action, bool read_back) const;
  Result<void> do_link(const Action& action) const;
  Result<void> do_remove(const Action& action) const;
  tl::unexpected<Error> failed(const Action& action, std::string_view op, int errno_value) const;

  ConfigfsOps& ops_;
  Hooks hooks_;
};

}  // namespace pillar::hostio::nvmet
