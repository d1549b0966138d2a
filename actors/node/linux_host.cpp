#include "actors/node/linux_host.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "hostio/durable_file.hpp"
#include "hostio/exhaustion.hpp"
#include "hostio/filesystem.hpp"
#include "hostio/mounts.hpp"
#include "hostio/probe.hpp"
#include "hostio/sysfs.hpp"
#include "messages/ids.hpp"

namespace pillar::node {
namespace {

/// How long a job may wait for a worker before it is given up unrun.
constexpr Clock::duration k_queueing = std::chrono::seconds(30);

hostio::ProcessRunner::Options runner_options(const runtime::Services& services) {
  hostio::ProcessRunner::Options options;
  options.observer = [metrics = services.metrics](std::string_view executable, std::string_view result,
                                                  Clock::duration duration) {
    metrics
        ->histogram("pillar_csi_exec_duration_seconds", "Run time of external programs",
                    {{"executable", std::string(executable)}, {"result", std::string(result)}})
        .observe(std::chrono::duration<double>(duration).count());
  };
  return options;
}

runtime::BlockingPoolOptions pool_options(const MachineOptions& options, const char* name,
                                          std::size_t threads, std::size_t hard_cap) {
  runtime::BlockingPoolOptions pool;
  pool.name = name;
  pool.threads = threads;
  pool.queue = 4096;
  pool.hard_cap = hard_cap;
  pool.metrics = options.services.metrics;
  return pool;
}

/// Names in a directory; an error instead of an empty list when it could not be looked at.
Result<std::vector<std::string>> names_in(const std::string& directory) {
  const auto before = hostio::exhausted_reads();
  auto names = hostio::list_directory(directory);
  if (auto whole = hostio::check_not_exhausted(before, directory); !whole)
    return tl::unexpected(whole.error());
  return names;
}

std::string last_component(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// Binds of device nodes and what the nodes stand for; stat of a devtmpfs inode touches no device.
void find_bound_nodes(KernelView& view) {
  for (const auto& each : view.mounts.entries()) {
    if (each.fs_type != "devtmpfs" && each.fs_type != "tmpfs") continue;
    if (!last_component(each.root).starts_with("nvme")) continue;
    if (const auto number = hostio::device_number_of_node(each.target))
      view.bound_nodes[each.target] = *number;
  }
}

void find_gone_devices(const hostio::HostRoots& roots, KernelView& view) {
  for (const auto& each : view.mounts.entries())
    if (each.device.major != 0 && !hostio::block_device_exists(roots, each.device))
      view.gone.insert(each.device);
  for (const auto& [target, number] : view.bound_nodes)
    if (!hostio::block_device_exists(roots, number)) view.gone.insert(number);
}

Result<void> mounts_seen(const MachineOptions& options, const hostio::MountTable& mounts) {
  if (options.kubelet_dir.empty()) return {};
  return hostio::check_propagation(mounts, options.kubelet_dir, hostio::in_namespace_of_init(options.roots));
}

Result<void> same_node(const hostio::NvmeNamespace& device) {
  const auto number = hostio::device_number_of_node(device.node);
  if (!number) return tl::unexpected(number.error());
  if (*number == device.number) return {};
  return fail(Reason::device_missing, device.node + " is " + number->str() + " now, not " +
                                          device.number.str() + " any more; it is tried again");
}

Result<void> remove_empty(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0)
    return errno == ENOENT || errno == ENOTDIR ? Result<void>()
                                               : tl::unexpected(errno_error(errno, "look at " + path));
  int failed = 0;
  if (S_ISDIR(st.st_mode)) {
    failed = ::rmdir(path.c_str());
  } else if (S_ISREG(st.st_mode) && st.st_size == 0) {
    failed = ::unlink(path.c_str());
  } else {
    return fail(
        Reason::target_occupied, Code::failed_precondition,
        path + " is neither a directory nor an empty file; it was not made by a publish, remove it by hand");
  }
  if (failed == 0 || errno == ENOENT) return {};
  if (errno == ENOTEMPTY || errno == EEXIST)
    return fail(
        Reason::target_occupied, Code::failed_precondition,
        path + " is not empty after the unmount: its files lie on the node's own disk; move them away");
  return tl::unexpected(errno_error(errno, "remove " + path));
}

Result<void> make_directory_here(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  struct stat st {};
  if (!error && ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return {};
  if (error) return tl::unexpected(errno_error(error.value(), "make directory " + path));
  return fail(Reason::target_occupied, path + " exists and is no directory; remove it");
}

class LinuxHost final : public Host {
 public:
  LinuxHost(std::shared_ptr<Machine> machine, std::shared_ptr<runtime::TimedExecutor> executor,
            std::function<void(ConnectCall)> connector)
      : m_(std::move(machine)), executor_(std::move(executor)), connector_(std::move(connector)) {}

  Answer<std::optional<std::string>> read_record(std::string name) override {
    return on_record<std::optional<std::string>>(
        "read stage record", name, [m = m_, name](Deadline) -> Result<std::optional<std::string>> {
          auto text = hostio::read_file(path_of(*m, name));
          if (text) return std::optional(std::move(*text));
          if (text.error().code == Code::not_found) return std::optional<std::string>();
          // Too large or no regular file: as corrupt as one with a bad
          // checksum.
          if (text.error().reason == Reason::state_corrupt) return std::optional<std::string>("");
          return tl::unexpected(text.error());
        });
  }
  Answer<void> write_record(std::string name, std::string text) override {
    return on_record<void>("write stage record", name, [m = m_, name, text](Deadline) {
      return hostio::write_file_durable(path_of(*m, name), text, 0600);
    });
  }
  Answer<void> remove_record(std::string name) override {
    return on_record<void>("remove stage record", name,
                           [m = m_, name](Deadline) { return hostio::remove_durable(path_of(*m, name)); });
  }
  Answer<std::string> set_aside_record(std::string name) override {
    return on_record<std::string>(
        "set stage record aside", name, [m = m_, name](Deadline) -> Result<std::string> {
          const std::string aside = path_of(*m, name) + ".corrupt-" + uuid_v4().substr(0, 8);
          if (std::rename(path_of(*m, name).c_str(), aside.c_str()) != 0 && errno != ENOENT)
            return tl::unexpected(errno_error(errno, "rename " + path_of(*m, name)));
          return aside;
        });
  }
  Answer<std::vector<std::string>> list_records() override {
    return quick<std::vector<std::string>>(
        "list stage records", [m = m_](Deadline) -> Result<std::vector<std::string>> {
          auto names = names_in(m->options().state_dir);
          if (names) std::erase_if(*names, [](const std::string& name) { return !name.ends_with(".json"); });
          return names;
        });
  }

  Answer<KernelView> view() override {
    return quick<KernelView>("read mountinfo and sysfs", [m = m_](Deadline) { return m->view(); });
  }
  Answer<std::vector<std::string>> holders(hostio::NvmeNamespace device) override {
    return quick<std::vector<std::string>>(
        "read holders",
        [device](Deadline) -> Result<std::vector<std::string>> { return names_in(device.dir + "/holders"); });
  }
  Answer<bool> superblock_active(std::string fs_type, hostio::NvmeNamespace device) override {
    return quick<bool>("look for an active superblock", [m = m_, fs_type, device](Deadline) -> Result<bool> {
      // Both filesystems register the device by its name while the superblock lives.
      const std::string path = m->options().roots.sys + "/fs/" + fs_type + "/" + device.name;
      return ::access(path.c_str(), F_OK) == 0;
    });
  }

  Answer<void> connect(SessionTarget session, hostio::FabricsTunables tunables) override {
    auto job = std::make_shared<const ConnectJob>(ConnectJob{std::move(session), tunables});
    const auto deadline = Deadline::after(m_->options().limits.connect + k_queueing);
    runtime::Async<Result<Done>> answer(
        executor_, [job, deadline, connector = connector_](runtime::Async<Result<Done>>::Complete complete) {
          connector(ConnectCall{job, deadline, Reply<Done>(std::move(complete))});
        });
    auto done = co_await answer;
    if (!done) co_return tl::unexpected(done.error());
    co_return Result<void>();
  }
  Answer<void> disconnect(std::string nqn) override {
    const auto limit = m_->options().limits.disconnect;
    return slow<void>(limit, "disconnect " + nqn, "disconnect " + nqn,
                      [m = m_, nqn](Deadline deadline) { return m->fabrics().disconnect(nqn, deadline); });
  }
  Answer<hostio::NvmeNamespace> wait_device(SessionTarget session) override {
    const auto limit = m_->options().limits.device;
    return slow<hostio::NvmeNamespace>(
        limit, "wait for the device of " + session.nqn, {}, [m = m_, session](Deadline deadline) {
          return m->fabrics().wait_for_namespace(session.nqn, session.namespace_uuid, deadline);
        });
  }
  Answer<hostio::NvmeNamespace> wait_size(SessionTarget session, std::uint64_t bytes) override {
    const auto limit = m_->options().limits.size;
    return slow<hostio::NvmeNamespace>(
        limit, "wait for the size of " + session.nqn, {}, [m = m_, session, bytes](Deadline deadline) {
          return m->fabrics().wait_for_size(session.nqn, session.namespace_uuid, bytes, deadline);
        });
  }

  Answer<hostio::Content> probe(hostio::NvmeNamespace device) override {
    const auto limit = m_->options().limits.probe;
    return slow<hostio::Content>(
        limit, "probe " + device.node, key(device), [m = m_, device](Deadline deadline) {
          return hostio::probe_device(m->helper(), device.node, device.number, deadline);
        });
  }
  Answer<void> mkfs(MkfsJob job) override {
    const auto limit = m_->options().limits.format;
    return slow<void>(limit, "mkfs on " + job.device.node, key(job.device),
                      [m = m_, job](Deadline deadline) -> Result<void> {
                        if (auto same = same_node(job.device); !same) return same;
                        return hostio::make_filesystem(m->runner(), job.fs_type, job.options, job.device.node,
                                                       deadline);
                      });
  }
  Answer<void> clear_interrupted_format(hostio::NvmeNamespace device) override {
    const auto limit = m_->options().limits.probe;
    return slow<void>(limit, "clear " + device.node, key(device), [m = m_, device](Deadline deadline) {
      return hostio::clear_interrupted_format(m->helper(), device.node, device.number, deadline);
    });
  }
  Answer<hostio::FsckOutcome> fsck(std::string fs_type, hostio::NvmeNamespace device) override {
    const auto limit = m_->options().limits.format;
    return slow<hostio::FsckOutcome>(
        limit, "check " + device.node, key(device),
        [m = m_, fs_type, device](Deadline deadline) -> Result<hostio::FsckOutcome> {
          if (auto same = same_node(device); !same) return tl::unexpected(same.error());
          return hostio::check_filesystem(m->runner(), fs_type, device.node, deadline);
        });
  }
  Answer<void> set_read_only(hostio::NvmeNamespace device, bool read_only) override {
    const auto limit = m_->options().limits.probe;
    return slow<void>(limit, "set the read-only flag of " + device.node, key(device),
                      [m = m_, device, read_only](Deadline deadline) {
                        return hostio::set_device_read_only(m->helper(), device.node, device.number,
                                                            read_only, deadline);
                      });
  }
  Answer<void> grow(std::string fs_type, hostio::NvmeNamespace device, std::string mount_point) override {
    const auto limit = m_->options().limits.grow;
    return slow<void>(limit, "grow " + mount_point, key(device),
                      [m = m_, fs_type, device, mount_point](Deadline deadline) -> Result<void> {
                        if (auto same = same_node(device); !same) return same;
                        return hostio::grow_filesystem(m->runner(), fs_type, device.node, mount_point,
                                                       deadline);
                      });
  }

  Answer<std::string> canonical(std::string path) override {
    return quick<std::string>("resolve " + path,
                              [path](Deadline) { return hostio::canonical_mount_path(path); });
  }
  Answer<void> make_directory(std::string path) override {
    return quick<void>("make directory " + path, [path](Deadline) { return make_directory_here(path); });
  }
  Answer<void> remove_target(std::string path) override {
    return quick<void>("remove " + path, [path](Deadline) { return remove_empty(path); });
  }
  Answer<void> mount(MountJob job) override {
    const auto limit = m_->options().limits.mount;
    return slow<void>(limit, "mount " + job.target, key(job.device), [m = m_, job](Deadline deadline) {
      const hostio::MountRequest request{job.device.node, job.device.number, job.target, job.fs_type,
                                         job.options};
      return hostio::mount_filesystem(m->helper(), m->options().roots, request, deadline);
    });
  }
  Answer<void> bind(BindJob job) override {
    const auto limit = m_->options().limits.quick;
    return slow<void>(limit, "bind " + job.target, "path " + job.target, [m = m_, job](Deadline) {
      return hostio::bind_mount(m->options().roots, job.source, job.target, job.readonly);
    });
  }
  Answer<void> bind_node(hostio::NvmeNamespace device, std::string target) override {
    const auto limit = m_->options().limits.quick;
    return slow<void>(limit, "bind " + target, "path " + target, [m = m_, device, target](Deadline) {
      return hostio::bind_device_node(m->options().roots, device.node, device.number, target);
    });
  }
  Answer<hostio::UnmountOutcome> unmount_all(std::string path) override {
    const auto limit = m_->options().limits.unmount;
    return slow<hostio::UnmountOutcome>(
        limit, "unmount " + path, "path " + path, [m = m_, path](Deadline deadline) {
          return hostio::unmount_all_layers(m->helper(), m->options().roots, path, deadline);
        });
  }
  Answer<void> flush(std::string path) override {
    const auto limit = m_->options().limits.flush;
    return slow<void>(limit, "flush " + path, "flush " + path, [m = m_, path](Deadline deadline) {
      return hostio::sync_filesystem(m->helper(), path, deadline);
    });
  }
  Answer<hostio::FilesystemStats> stats(std::string path) override {
    const auto limit = m_->options().limits.stats;
    return run<hostio::FilesystemStats>(
        m_->quick(), limit, "statfs " + path, "statfs " + path,
        [m = m_, path](Deadline deadline) { return hostio::filesystem_stats(m->helper(), path, deadline); });
  }
  Answer<hostio::FilesystemVerdict> filesystem_health(hostio::MountEntry entry, bool readonly,
                                                      bool device_live) override {
    const auto limit = m_->options().limits.health;
    return run<hostio::FilesystemVerdict>(
        m_->quick(), limit, "check " + entry.target, "health " + entry.target,
        [m = m_, entry, readonly, device_live](Deadline deadline) {
          return hostio::check_filesystem_health(m->helper(), m->options().roots, entry, readonly,
                                                 device_live, deadline);
        });
  }

 private:
  static std::string path_of(const Machine& machine, const std::string& name) {
    return machine.options().state_dir + "/" + name;
  }
  static std::string key(const hostio::NvmeNamespace& device) { return "device " + device.number.str(); }

  /// `fn(Deadline)` on a worker. Its own deadline is `limit` from when it starts; the helper processes end by
  /// then, so the job's is only the last resort.
  template <class T, class Fn>
  Answer<T> run(runtime::BlockingPool& pool, Clock::duration limit, std::string what, std::string job_key,
                Fn fn) {
    runtime::JobOptions options;
    options.what = std::move(what);
    options.key = std::move(job_key);
    auto job = [fn = std::move(fn), limit]() mutable -> Result<T> { return fn(Deadline::after(limit)); };
    runtime::Async<Result<T>> answer =
        pool.run<T>(executor_, Deadline::after(limit + k_queueing), std::move(job), std::move(options));
    co_return co_await answer;
  }
  template <class T, class Fn>
  Answer<T> quick(std::string what, Fn fn) {
    return run<T>(m_->quick(), m_->options().limits.quick, std::move(what), {}, std::move(fn));
  }
  /// A write that hangs in the disk may still replace the file when it returns: no other one before that.
  template <class T, class Fn>
  Answer<T> on_record(std::string what, const std::string& name, Fn fn) {
    return run<T>(m_->quick(), m_->options().limits.quick, std::move(what), "record " + name, std::move(fn));
  }
  template <class T, class Fn>
  Answer<T> slow(Clock::duration limit, std::string what, std::string job_key, Fn fn) {
    return run<T>(m_->slow(), limit, std::move(what), std::move(job_key), std::move(fn));
  }

  std::shared_ptr<Machine> m_;
  std::shared_ptr<runtime::TimedExecutor> executor_;
  std::function<void(ConnectCall)> connector_;
};

}  // namespace

Machine::Machine(MachineOptions options)
    : options_(std::move(options)),
      runner_(runner_options(options_.services)),
      helpers_(runner_, options_.helper_program),
      helper_(hostio::helper_call(helpers_)),
      fabrics_(options_.roots, helper_),
      quick_(pool_options(options_, "quick", 4, 64)),
      slow_(pool_options(options_, "slow", 16, 64)) {}

Result<KernelView> Machine::view() const {
  KernelView view;
  auto mounts = hostio::MountTable::read(options_.roots);
  if (!mounts) return tl::unexpected(mounts.error());
  view.mounts = std::move(*mounts);
  if (auto seen = mounts_seen(options_, view.mounts); !seen) view.hidden = seen.error();
  auto subsystems = fabrics_.topology().subsystems();
  if (!subsystems) return tl::unexpected(subsystems.error());
  view.subsystems = std::move(*subsystems);
  find_bound_nodes(view);
  find_gone_devices(options_.roots, view);
  return view;
}

Result<void> Machine::check_mounts_seen() const {
  const auto mounts = hostio::MountTable::read(options_.roots);
  if (!mounts) return tl::unexpected(mounts.error());
  return mounts_seen(options_, *mounts);
}

Result<void> Machine::connect(const ConnectJob& job) const {
  auto address = IpAddress::parse(job.session.address);
  if (!address) return tl::unexpected(address.error());
  const hostio::FabricsTarget target{job.session.nqn, *address, job.session.port, options_.identity,
                                     job.tunables};
  auto session = fabrics_.connect(target, Deadline::after(options_.limits.connect));
  if (!session) return tl::unexpected(session.error());
  return {};
}

std::shared_ptr<Host> make_linux_host(std::shared_ptr<Machine> machine,
                                      std::shared_ptr<runtime::TimedExecutor> executor,
                                      std::function<void(ConnectCall)> connector) {
  return std::make_shared<LinuxHost>(std::move(machine), std::move(executor), std::move(connector));
}

Result<std::string> read_boot_id(const hostio::HostRoots& roots) {
  const std::string path = roots.proc + "/sys/kernel/random/boot_id";
  auto id = hostio::read_attribute(path);
  if (id && !id->empty()) return *id;
  return fail(Reason::io_error, path + " cannot be read; is procfs mounted at " + roots.proc + "?");
}

}  // namespace pillar::node
