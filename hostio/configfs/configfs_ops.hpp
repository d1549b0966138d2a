#pragma once
// The seven things one can do in configfs. Paths are relative to the nvmet directory
// ("subsystems/NQN/attr_serial"). Errors are raw errno values; meaning is added by the executor.

#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace pillar::hostio {

/// Value or errno.
template <class T>
using ErrnoResult = tl::expected<T, int>;

/// Access to an nvmet configfs tree: the real one or the simulation of the unit tests.
class ConfigfsOps {
 public:
  ConfigfsOps() = default;
  ConfigfsOps(const ConfigfsOps&) = delete;
  ConfigfsOps& operator=(const ConfigfsOps&) = delete;
  virtual ~ConfigfsOps() = default;

  virtual ErrnoResult<void> make_dir(const std::string& path) = 0;
  virtual ErrnoResult<void> remove_dir(const std::string& path) = 0;
  /// Attribute text as the kernel shows it.
  virtual ErrnoResult<std::string> read(const std::string& path) = 0;
  virtual ErrnoResult<void> write(const std::string& path, const std::string& value) = 0;
  /// Makes the link `path` to the item `target` (both relative to the nvmet directory).
  virtual ErrnoResult<void> link(const std::string& target, const std::string& path) = 0;
  virtual ErrnoResult<void> unlink(const std::string& path) = 0;
  /// Last component of what the link `path` points to.
  virtual ErrnoResult<std::string> link_target(const std::string& path) = 0;
  /// Entry names, sorted.
  virtual ErrnoResult<std::vector<std::string>> list(const std::string& path) = 0;
};

/// The kernel's tree.
class PosixConfigfs : public ConfigfsOps {
 public:
  /// `root` is the nvmet directory, absolute.
  explicit PosixConfigfs(std::string root = "/sys/kernel/config/nvmet");

  ErrnoResult<void> make_dir(const std::string& path) override;
  ErrnoResult<void> remove_dir(const std::string& path) override;
  ErrnoResult<std::string> read(const std::string& path) override;
  ErrnoResult<void> write(const std::string& path, const std::string& value) override;
  ErrnoResult<void> link(const std::string& target, const std::string& path) override;
  ErrnoResult<void> unlink(const std::string& path) override;
  ErrnoResult<std::string> link_target(const std::string& path) override;
  ErrnoResult<std::vector<std::string>> list(const std::string& path) override;

 private:
  std::string full(const std::string& path) const { return root_ + "/" + path; }
  std::string root_;
};

}  // namespace pillar::hostio
