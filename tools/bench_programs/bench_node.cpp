// pillar-bench-node: pillar-node on a kernel made of values. Everything else is the real program: front door,
// actors, pools, stage records on disk. Each host call still takes its turn in the pool that the real one
// uses.

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hostio/durable_file.hpp"
#include "hostio/flock.hpp"
#include "messages/ids.hpp"
#include "tools/node_service.hpp"

namespace {

using namespace pillar;
using hostio::NvmeNamespace;
using node::BindJob;
using node::KernelView;
using node::MkfsJob;
using node::MountJob;
using node::SessionTarget;

constexpr std::uint64_t k_device_bytes = 1ULL << 30U;
constexpr Clock::duration k_limit = std::chrono::seconds(60);

/// The sessions and mounts that a kernel would hold. Thread-safe.
class MemoryKernel {
 public:
  explicit MemoryKernel(std::string host_nqn) : host_nqn_(std::move(host_nqn)) {}

  /// Through the text of a mountinfo and its parser, as on a real machine.
  Result<KernelView> view() const {
    KernelView view;
    std::string text = "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
    {
      const std::lock_guard lock(mutex_);
      int id = 30;
      for (const auto& [target, mount] : mounts_)
        text += std::to_string(id++) + " 20 " + mount.number.str() + " / " + target +
                (mount.readonly ? " ro" : " rw") + mount.attributes + " - " + mount.fs_type + " " +
                mount.source + " rw\n";
      for (const auto& [nqn, session] : sessions_) view.subsystems.push_back(subsystem(nqn, session));
    }
    auto table = hostio::MountTable::parse(text);
    if (!table) return tl::unexpected(table.error());
    view.mounts = std::move(*table);
    return view;
  }

  void connect(const SessionTarget& target) {
    const std::lock_guard lock(mutex_);
    if (sessions_.contains(target.nqn)) return;
    Session session;
    session.target = target;
    session.device.number = {259, next_minor_++};
    session.device.name = "nvme" + std::to_string(session.device.number.minor) + "n1";
    session.device.node = "/dev/" + session.device.name;
    session.device.uuid = target.namespace_uuid;
    session.device.size_bytes = k_device_bytes;
    sessions_[target.nqn] = session;
  }
  void disconnect(const std::string& nqn) {
    const std::lock_guard lock(mutex_);
    sessions_.erase(nqn);
  }
  Result<NvmeNamespace> device(const std::string& nqn) const {
    const std::lock_guard lock(mutex_);
    const auto at = sessions_.find(nqn);
    if (at != sessions_.end()) return at->second.device;
    return fail(Reason::device_missing, nqn + " is not connected");
  }
  hostio::Content content(const NvmeNamespace& device) const {
    const std::lock_guard lock(mutex_);
    hostio::Content content;
    content.kind = hostio::ContentKind::blank;
    content.device_bytes = device.size_bytes;
    for (const auto& [nqn, session] : sessions_) {
      if (session.device.number != device.number || session.fs_type.empty()) continue;
      content.kind = hostio::ContentKind::filesystem;
      content.type = session.fs_type;
      content.filesystem_bytes = device.size_bytes;
      content.signature = true;
    }
    return content;
  }
  void format(const MkfsJob& job) {
    with_device(job.device, [&](Session& session) { session.fs_type = job.fs_type; });
  }
  void set_read_only(const NvmeNamespace& device, bool read_only) {
    with_device(device, [&](Session& session) { session.device.read_only = read_only; });
  }

  void mount(const MountJob& job) {
    Mount made{job.device.number, job.device.node, job.fs_type, {}, job.options.read_only};
    for (const auto& attribute : job.options.attributes) made.attributes += "," + attribute;
    const std::lock_guard lock(mutex_);
    mounts_[job.target] = std::move(made);
  }
  Result<void> bind(const BindJob& job) {
    const std::lock_guard lock(mutex_);
    const auto at = mounts_.find(job.source);
    if (at == mounts_.end()) return fail(Reason::not_found, job.source + " is not mounted");
    Mount made = at->second;
    made.readonly = made.readonly || job.readonly;
    mounts_[job.target] = std::move(made);
    return {};
  }
  void unmount(const std::string& path) {
    const std::lock_guard lock(mutex_);
    mounts_.erase(path);
  }

 private:
  struct Session {
    SessionTarget target;
    NvmeNamespace device;
    std::string fs_type;  ///< empty: blank
  };
  struct Mount {
    hostio::DeviceNumber number;
    std::string source;
    std::string fs_type;
    std::string attributes;  ///< ",noatime"
    bool readonly = false;
  };

  hostio::NvmeSubsystem subsystem(const std::string& nqn, const Session& session) const {
    hostio::NvmeController controller;
    controller.name = session.device.name;
    controller.nqn = nqn;
    controller.state = hostio::ControllerState::live;
    controller.address = session.target.address;
    controller.port = session.target.port;
    controller.host_nqn = host_nqn_;
    hostio::NvmeSubsystem out;
    out.nqn = nqn;
    out.controllers = {controller};
    out.namespaces = {session.device};
    return out;
  }
  template <class Fn>
  void with_device(const NvmeNamespace& device, Fn fn) {
    const std::lock_guard lock(mutex_);
    for (auto& [nqn, session] : sessions_)
      if (session.device.number == device.number) fn(session);
  }

  const std::string host_nqn_;
  mutable std::mutex mutex_;
  std::map<std::string, Session> sessions_;
  std::map<std::string, Mount> mounts_;
  unsigned next_minor_ = 0;
};

/// Records and paths are the real host's, all that concerns sessions, devices and mounts is the
/// MemoryKernel's.
class BenchHost final : public node::Host {
 public:
  BenchHost(std::shared_ptr<node::Machine> machine, std::shared_ptr<MemoryKernel> kernel,
            std::shared_ptr<runtime::TimedExecutor> executor)
      : machine_(std::move(machine)),
        kernel_(std::move(kernel)),
        executor_(executor),
        real_(node::make_linux_host(machine_, std::move(executor), [](const node::ConnectCall&) {})) {}

  Answer<std::optional<std::string>> read_record(std::string name) override {
    return real_->read_record(std::move(name));
  }
  Answer<void> write_record(std::string name, std::string text) override {
    return real_->write_record(std::move(name), std::move(text));
  }
  Answer<void> remove_record(std::string name) override { return real_->remove_record(std::move(name)); }
  Answer<std::string> set_aside_record(std::string name) override {
    return real_->set_aside_record(std::move(name));
  }
  Answer<std::vector<std::string>> list_records() override { return real_->list_records(); }
  Answer<std::string> canonical(std::string path) override { return real_->canonical(std::move(path)); }
  Answer<void> make_directory(std::string path) override { return real_->make_directory(std::move(path)); }
  Answer<void> remove_target(std::string path) override { return real_->remove_target(std::move(path)); }

  Answer<KernelView> view() override {
    return quick<KernelView>([k = kernel_] { return k->view(); });
  }
  Answer<std::vector<std::string>> holders(NvmeNamespace) override {
    return quick<std::vector<std::string>>([]() -> Result<std::vector<std::string>> { return {}; });
  }
  Answer<bool> superblock_active(std::string, NvmeNamespace) override {
    return quick<bool>([]() -> Result<bool> { return false; });
  }
  Answer<void> connect(SessionTarget session, hostio::FabricsTunables) override {
    return slow_act([k = kernel_, session] { k->connect(session); });
  }
  Answer<void> disconnect(std::string nqn) override {
    return slow_act([k = kernel_, nqn] { k->disconnect(nqn); });
  }
  Answer<NvmeNamespace> wait_device(SessionTarget session) override {
    return slow<NvmeNamespace>([k = kernel_, session] { return k->device(session.nqn); });
  }
  Answer<NvmeNamespace> wait_size(SessionTarget session, std::uint64_t) override {
    return wait_device(std::move(session));
  }
  Answer<hostio::Content> probe(NvmeNamespace device) override {
    return slow<hostio::Content>(
        [k = kernel_, device]() -> Result<hostio::Content> { return k->content(device); });
  }
  Answer<void> mkfs(MkfsJob job) override {
    return slow_act([k = kernel_, job] { k->format(job); });
  }
  Answer<void> clear_interrupted_format(NvmeNamespace) override {
    return slow_act([] {});
  }
  Answer<hostio::FsckOutcome> fsck(std::string, NvmeNamespace) override {
    return slow<hostio::FsckOutcome>(
        []() -> Result<hostio::FsckOutcome> { return hostio::FsckOutcome::clean; });
  }
  Answer<void> set_read_only(NvmeNamespace device, bool read_only) override {
    return slow_act([k = kernel_, device, read_only] { k->set_read_only(device, read_only); });
  }
  Answer<void> grow(std::string, NvmeNamespace, std::string) override {
    return slow_act([] {});
  }
  Answer<void> mount(MountJob job) override {
    return slow_act([k = kernel_, job] { k->mount(job); });
  }
  Answer<void> bind(BindJob job) override {
    return slow<void>([k = kernel_, job] { return k->bind(job); });
  }
  Answer<void> bind_node(NvmeNamespace, std::string) override {
    return slow<void>([]() -> Result<void> {
      return fail(Reason::invalid_argument, "raw block volumes are not part of the benchmark");
    });
  }
  Answer<hostio::UnmountOutcome> unmount_all(std::string path) override {
    return slow<hostio::UnmountOutcome>([k = kernel_, path]() -> Result<hostio::UnmountOutcome> {
      k->unmount(path);
      return hostio::UnmountOutcome::unmounted;
    });
  }
  Answer<void> flush(std::string) override {
    return slow_act([] {});
  }
  Answer<hostio::FilesystemStats> stats(std::string) override {
    return quick<hostio::FilesystemStats>([]() -> Result<hostio::FilesystemStats> {
      return hostio::FilesystemStats{k_device_bytes, k_device_bytes, 0, 65536, 65536, 0};
    });
  }
  Answer<hostio::FilesystemVerdict> filesystem_health(hostio::MountEntry, bool, bool) override {
    return quick<hostio::FilesystemVerdict>(
        []() -> Result<hostio::FilesystemVerdict> { return hostio::FilesystemVerdict{}; });
  }

 private:
  template <class T, class Fn>
  Answer<T> run(runtime::BlockingPool& pool, Fn fn) {
    const Deadline deadline = Deadline::after(k_limit);
    runtime::Async<Result<T>> answer = pool.run<T>(executor_, deadline, std::move(fn));
    co_return co_await answer;
  }
  template <class T, class Fn>
  Answer<T> quick(Fn fn) {
    return run<T>(machine_->quick(), std::move(fn));
  }
  template <class T, class Fn>
  Answer<T> slow(Fn fn) {
    return run<T>(machine_->slow(), std::move(fn));
  }
  template <class Fn>
  Answer<void> slow_act(Fn fn) {
    return slow<void>([fn = std::move(fn)]() -> Result<void> {
      fn();
      return {};
    });
  }

  std::shared_ptr<node::Machine> machine_;
  std::shared_ptr<MemoryKernel> kernel_;
  std::shared_ptr<runtime::TimedExecutor> executor_;
  std::shared_ptr<node::Host> real_;
};

Result<std::unique_ptr<tools::Service>> start(node::NodeConfig config, const runtime::Services& services) {
  // What NodeApp does itself when it is given no host.
  if (auto made = hostio::ensure_state_directory(config.state_dir); !made)
    return tl::unexpected(made.error());
  auto lock = hostio::DirectoryLock::acquire(config.state_dir);
  if (!lock) return tl::unexpected(lock.error());
  static const hostio::DirectoryLock k_held = std::move(*lock);
  config.kubelet_dir.clear();  // nothing is mounted
  config.identity = {"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
                     "11111111-2222-3333-4444-555555555555"};
  node::MachineOptions machine;
  machine.state_dir = config.state_dir;
  machine.roots = config.roots;
  machine.identity = config.identity;
  machine.services = services;
  node::NodeParts parts;
  parts.services = services;
  parts.nvme_tcp_usable = [] { return true; };
  parts.host = [m = std::make_shared<node::Machine>(std::move(machine)),
                k = std::make_shared<MemoryKernel>(config.identity.nqn)](
                   std::shared_ptr<runtime::TimedExecutor> executor) {
    return std::make_shared<BenchHost>(m, k, std::move(executor));
  };
  auto app = node::NodeApp::start(std::move(config), std::move(parts));
  if (!app) return tl::unexpected(app.error());
  return std::make_unique<tools::NodeService>(std::move(*app), services);
}

}  // namespace

int main(int argc, char** argv) {
  node::NodeConfig config;
  config.node_name = "bench-node";
  config.version = PILLAR_CSI_VERSION;
  config.standalone = true;
  config.kubelet_dir.clear();  // no mount is made, so nobody has to see one
  tools::Program program;
  program.name = "pillar-bench-node";
  program.description = "pillar-node without a kernel behind it; for tools/bench only";
  program.default_listen = "unix:///run/pillar-bench-node.sock";
  program.add_flags = [&config](CLI::App& cli) {
    cli.add_option("--state-dir", config.state_dir, "folder of stage records")->required();
  };
  program.start = [&config](const tools::Start& with) { return start(config, with.services); };
  return tools::run_program(argc, argv, program);
}
