#include "hostio/modules.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

#include "hostio/lvm.hpp"
#include "hostio/mounts.hpp"

namespace pillar::hostio {
namespace {

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? std::string(&name.release[0]) : "unknown";
}

HealthItem item_of(std::string name, const Result<void>& result) {
  return {std::move(name), result.has_value(), result ? "" : result.error().message};
}

Result<void> check_configfs(const HostRoots& roots, const std::string& configfs) {
  const auto table = MountTable::read(roots);
  if (!table) return tl::unexpected(table.error());
  const auto layers = table->layers_at(configfs);
  if (!layers.empty() && layers.front().fs_type == "configfs") return {};
  return fail(Reason::configfs_missing, "configfs is not mounted on " + configfs +
                                            ": run `mount -t configfs configfs " + configfs +
                                            "` on the host, and pass it into the container");
}

Result<void> check_nvmet_tree(const std::string& configfs) {
  if (::access((configfs + "/nvmet/subsystems").c_str(), W_OK) == 0) return {};
  return fail(Reason::configfs_missing,
              "nvmet is loaded but " + configfs +
                  "/nvmet/subsystems is not writable: mount configfs read-write into the container");
}

}  // namespace

Result<void> ensure_module(CommandRunner& runner, const std::string& module, const HostRoots& roots,
                           Deadline deadline) {
  // sysfs spells names with underscores; modprobe answers 0 for built-in ones.
  std::string name = module;
  std::replace(name.begin(), name.end(), '-', '_');
  if (::access((roots.sys + "/module/" + name).c_str(), F_OK) == 0) return {};
  const auto loaded = run_checked(runner, Command{"modprobe", {module}, deadline});
  if (loaded) return {};
  const std::string remedy =
      "kernel " + kernel_release() + " could not load module " + module + " (" + loaded.error().message +
      "): install the kernel's modules package, or load it on the host with `modprobe " + module + "`";
  return fail(Reason::module_missing, remedy, {{"module", module}});
}

std::vector<HealthItem> preflight_target(CommandRunner& runner, const HostRoots& roots,
                                         const std::string& configfs, Deadline deadline) {
  std::vector<HealthItem> items;
  const Result<void> mounted = check_configfs(roots, configfs);
  items.push_back(item_of("configfs", mounted));
  Result<void> nvmet = ensure_module(runner, "nvmet", roots, deadline);
  if (nvmet && mounted) nvmet = check_nvmet_tree(configfs);
  items.push_back(item_of("nvmet", nvmet));
  items.push_back(item_of("nvmet-tcp", ensure_module(runner, "nvmet-tcp", roots, deadline)));
  return items;
}

HealthItem preflight_lvm(CommandRunner& runner, const std::vector<std::string>& volume_groups,
                         const HostRoots& roots, Deadline deadline) {
  DirectWiper unused;
  Lvm::Options options;
  options.roots = roots;
  Lvm lvm(runner, unused, options);
  for (const std::string& vg : volume_groups)
    if (const auto info = lvm.pool_info(vg, deadline); !info) return {"lvm", false, info.error().message};
  return {"lvm", true, ""};
}

}  // namespace pillar::hostio
