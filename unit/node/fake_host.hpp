#pragma once
// A worker node made of values: exports that may be reachable, sessions, devices, a mount table and a state
// directory. It can fail or hang at any call, and be crashed or rebooted between calls.

#include <algorithm>
#include <coroutine>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/node/host.hpp"
#include "messages/ids.hpp"

namespace pillar::node::testing {

inline constexpr const char* k_host_nqn =
    "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// A volume as its storage node exports it.
struct FakeExport {
  std::string address = "10.0.0.5";
  std::uint16_t port = 4420;
  std::uint64_t size = 1ULL << 30U;
  hostio::Content content{hostio::ContentKind::blank, "", "", "blank", 1ULL << 30U};
  int mkfs_runs = 0;
  bool reachable = true;
};

struct FakeSession {
  hostio::NvmeNamespace device;
  hostio::ControllerState state = hostio::ControllerState::live;
  std::string address;
  std::uint16_t port = 0;
  std::string host_nqn = k_host_nqn;
};

struct FakeMount {
  std::string target;
  std::string source;
  std::string root = "/";
  std::string fs_type;
  hostio::DeviceNumber device;
  bool readonly = false;
  bool superblock_readonly = false;
  std::string attributes;  ///< ",noatime"
};

/// When and how a call is cut off.
struct CutOff {
  int at = 0;            ///< number of the call, from 1; 0: never
  bool before = false;   ///< before its effect, otherwise after it
  bool partial = false;  ///< mkfs only: half of its effect
};

class FakeMachine {
 public:
  std::map<std::string, std::string> records;
  std::vector<std::string> set_aside;
  std::map<std::string, FakeExport> exports;  ///< by NQN
  std::map<std::string, FakeSession> sessions;
  std::vector<FakeMount> mounts;
  std::set<std::string> paths;
  std::set<hostio::DeviceNumber> gone;
  std::map<std::string, std::string> links;                 ///< directory prefix -> what it resolves to
  std::set<std::string> dead_filesystems;                   ///< by NQN
  std::set<std::string> active_superblocks;                 ///< by NQN: mounted in another namespace
  std::map<std::string, std::vector<std::string>> stacked;  ///< holders by NQN
  std::map<std::string, Error> failures;                    ///< by method, each time
  std::optional<Error> hidden;                              ///< mounts are not seen on the host
  std::vector<std::string> log;
  CutOff cut;
  int calls = 0;
  std::string boot_id = "boot-1";

  void reboot() {
    sessions.clear();
    mounts.clear();
    gone.clear();
    boot_id = "boot-2";
  }
  /// The target is lost for good: controllers and device vanish, mounts stay.
  void lose_device(const std::string& nqn) {
    const auto at = sessions.find(nqn);
    if (at == sessions.end()) return;
    gone.insert(at->second.device.number);
    sessions.erase(at);
  }
  std::size_t layers(const std::string& target) const {
    return static_cast<std::size_t>(
        std::count_if(mounts.begin(), mounts.end(), [&](const auto& each) { return each.target == target; }));
  }
  int count(const std::string& method) const {
    return static_cast<int>(std::count(log.begin(), log.end(), method));
  }

  KernelView view() const {
    KernelView out;
    std::string text = "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
    int id = 30;
    for (const auto& each : mounts) {
      const std::string vfs = (each.readonly ? "ro" : "rw") + each.attributes;
      text += std::to_string(id++) + " 20 " + each.device.str() + " " + each.root + " " + each.target + " " +
              vfs + " - " + each.fs_type + " " + each.source + " " +
              (each.superblock_readonly ? "ro" : "rw") + "\n";
      if (each.fs_type == "devtmpfs") out.bound_nodes[each.target] = bound.at(each.target);
    }
    out.mounts = hostio::MountTable::parse(text).value();
    for (const auto& [nqn, session] : sessions) {
      hostio::NvmeSubsystem subsystem;
      subsystem.nqn = nqn;
      hostio::NvmeController controller;
      controller.name = "nvme" + std::to_string(session.device.number.minor);
      controller.nqn = nqn;
      controller.state = session.state;
      controller.address = session.address;
      controller.port = session.port;
      controller.host_nqn = session.host_nqn;
      subsystem.controllers.push_back(controller);
      subsystem.namespaces.push_back(session.device);
      out.subsystems.push_back(subsystem);
    }
    out.gone = gone;
    out.hidden = hidden;
    return out;
  }

  std::map<std::string, hostio::DeviceNumber> bound;  ///< targets of device nodes
  unsigned next_minor = 1;

  std::string nqn_of(hostio::DeviceNumber number) const {
    for (const auto& [nqn, session] : sessions)
      if (session.device.number == number) return nqn;
    return {};
  }
};

/// Suspends for ever when told to: the process was killed here.
struct Cut {
  bool now = false;
  bool await_ready() const noexcept { return !now; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume() const noexcept {}
};

class FakeHost final : public Host {
 public:
  explicit FakeHost(std::shared_ptr<FakeMachine> machine) : m_(std::move(machine)) {}

  Answer<std::optional<std::string>> read_record(std::string name) override {
    if (auto failed = enter("read_record")) co_return tl::unexpected(*failed);
    co_await cut(true);
    std::optional<std::string> text;
    if (const auto at = m_->records.find(name); at != m_->records.end()) text = at->second;
    co_await cut(false);
    co_return text;
  }
  Answer<void> write_record(std::string name, std::string text) override {
    return act("write_record", [this, name, text] { m_->records[name] = text; });
  }
  Answer<void> remove_record(std::string name) override {
    return act("remove_record", [this, name] { m_->records.erase(name); });
  }
  Answer<std::string> set_aside_record(std::string name) override {
    if (auto failed = enter("set_aside_record")) co_return tl::unexpected(*failed);
    co_await cut(true);
    m_->set_aside.push_back(m_->records[name]);
    m_->records.erase(name);
    co_await cut(false);
    co_return name + ".corrupt";
  }
  Answer<std::vector<std::string>> list_records() override {
    if (auto failed = enter("list_records")) co_return tl::unexpected(*failed);
    std::vector<std::string> names;
    for (const auto& [name, text] : m_->records) names.push_back(name);
    co_return names;
  }
  Answer<KernelView> view() override {
    if (auto failed = enter("view")) co_return tl::unexpected(*failed);
    co_await cut(true);
    co_return m_->view();
  }
  Answer<std::vector<std::string>> holders(hostio::NvmeNamespace device) override {
    if (auto failed = enter("holders")) co_return tl::unexpected(*failed);
    co_return m_->stacked[m_->nqn_of(device.number)];
  }
  Answer<bool> superblock_active(std::string fs_type, hostio::NvmeNamespace device) override {
    static_cast<void>(fs_type);
    if (auto failed = enter("superblock_active")) co_return tl::unexpected(*failed);
    co_return m_->active_superblocks.contains(m_->nqn_of(device.number));
  }

  Answer<void> connect(SessionTarget session, hostio::FabricsTunables tunables) override {
    static_cast<void>(tunables);
    const auto at = m_->exports.find(session.nqn);
    const auto open = m_->sessions.find(session.nqn);
    const bool there = open != m_->sessions.end() && open->second.address == session.address;
    const bool reachable = at != m_->exports.end() && at->second.reachable;
    if (!reachable || (at->second.address != session.address && !there)) {
      if (auto failed = enter("connect")) co_return tl::unexpected(*failed);
      co_return fail(Reason::connect_failed, "no target at " + session.address);
    }
    std::function<void()> effect = [this, session, at] { open_session(session, at->second); };
    Answer<void> task = act("connect", effect);
    co_return co_await task;
  }
  Answer<void> disconnect(std::string nqn) override {
    // Mounts of the device stay, dead.
    return act("disconnect", [this, nqn] { m_->lose_device(nqn); });
  }
  Answer<hostio::NvmeNamespace> wait_device(SessionTarget session) override {
    if (auto failed = enter("wait_device")) co_return tl::unexpected(*failed);
    co_await cut(true);
    const auto at = m_->sessions.find(session.nqn);
    if (at == m_->sessions.end()) co_return fail(Reason::device_missing, "no device");
    co_return at->second.device;
  }
  Answer<hostio::NvmeNamespace> wait_size(SessionTarget session, std::uint64_t bytes) override {
    if (auto failed = enter("wait_size")) co_return tl::unexpected(*failed);
    co_await cut(true);
    const auto at = m_->sessions.find(session.nqn);
    if (at == m_->sessions.end()) co_return fail(Reason::device_missing, "no device");
    at->second.device.size_bytes = m_->exports.at(session.nqn).size;
    if (at->second.device.size_bytes < bytes) co_return fail(Reason::resize_pending, "still too small");
    co_return at->second.device;
  }

  Answer<hostio::Content> probe(hostio::NvmeNamespace device) override {
    if (auto failed = enter("probe")) co_return tl::unexpected(*failed);
    co_await cut(true);
    co_return m_->exports.at(m_->nqn_of(device.number)).content;
  }
  Answer<void> mkfs(MkfsJob job) override {
    if (auto failed = enter("mkfs")) co_return tl::unexpected(*failed);
    co_await cut(true);
    auto& volume = m_->exports.at(m_->nqn_of(job.device.number));
    volume.content.kind = hostio::ContentKind::foreign;
    volume.content.what = "plain data";
    const Cut halfway{m_->cut.at == m_->calls && m_->cut.partial};
    co_await halfway;
    volume.content = {
        hostio::ContentKind::filesystem, job.fs_type, "uuid", job.fs_type, volume.size, volume.size};
    volume.content.signature = true;
    ++volume.mkfs_runs;
    co_await cut(false);
    co_return Result<void>();
  }
  Answer<void> clear_interrupted_format(hostio::NvmeNamespace device) override {
    return act("clear_interrupted_format", [this, device] {
      m_->exports.at(m_->nqn_of(device.number)).content.kind = hostio::ContentKind::blank;
    });
  }
  Answer<hostio::FsckOutcome> fsck(std::string fs_type, hostio::NvmeNamespace device) override {
    static_cast<void>(fs_type);
    static_cast<void>(device);
    if (auto failed = enter("fsck")) co_return tl::unexpected(*failed);
    co_await cut(true);
    co_return hostio::FsckOutcome::clean;
  }
  Answer<void> set_read_only(hostio::NvmeNamespace device, bool read_only) override {
    return act("set_read_only", [this, device, read_only] {
      m_->sessions.at(m_->nqn_of(device.number)).device.read_only = read_only;
    });
  }
  Answer<void> grow(std::string fs_type, hostio::NvmeNamespace device, std::string mount_point) override {
    static_cast<void>(fs_type);
    static_cast<void>(mount_point);
    return act("grow", [this, device] {
      auto& volume = m_->exports.at(m_->nqn_of(device.number));
      volume.content.filesystem_bytes = volume.size;
    });
  }

  Answer<std::string> canonical(std::string path) override {
    if (auto failed = enter("canonical")) co_return tl::unexpected(*failed);
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    for (const auto& [from, to] : m_->links)
      if (path.starts_with(from)) co_return to + path.substr(from.size());
    co_return path;
  }
  Answer<void> make_directory(std::string path) override {
    return act("make_directory", [this, path] { m_->paths.insert(path); });
  }
  Answer<void> remove_target(std::string path) override {
    return act("remove_target", [this, path] { m_->paths.erase(path); });
  }
  Answer<void> mount(MountJob job) override {
    return act("mount", [this, job] {
      FakeMount made{job.target, job.device.node, "/", job.fs_type, job.device.number, job.options.read_only};
      made.superblock_readonly = job.device.read_only;
      for (const auto& attribute : job.options.attributes) made.attributes += "," + attribute;
      m_->mounts.push_back(made);
      m_->paths.insert(job.target);
    });
  }
  Answer<void> bind(BindJob job) override {
    return act("bind", [this, job] {
      const auto source = std::find_if(m_->mounts.rbegin(), m_->mounts.rend(),
                                       [&](const auto& each) { return each.target == job.source; });
      FakeMount made = *source;
      made.target = job.target;
      made.readonly = made.readonly || job.readonly;
      m_->mounts.push_back(made);
    });
  }
  Answer<void> bind_node(hostio::NvmeNamespace device, std::string target) override {
    return act("bind_node", [this, device, target] {
      m_->mounts.push_back(FakeMount{target, "udev", "/" + device.name, "devtmpfs", {0, 5}, false});
      m_->bound[target] = device.number;
      m_->paths.insert(target);
    });
  }
  Answer<hostio::UnmountOutcome> unmount_all(std::string path) override {
    if (auto failed = enter("unmount_all")) co_return tl::unexpected(*failed);
    co_await cut(true);
    std::erase_if(m_->mounts, [&](const auto& each) { return each.target == path; });
    m_->bound.erase(path);
    co_await cut(false);
    co_return hostio::UnmountOutcome::unmounted;
  }
  Answer<void> flush(std::string path) override {
    static_cast<void>(path);
    return act("flush", [] {});
  }
  Answer<hostio::FilesystemStats> stats(std::string path) override {
    static_cast<void>(path);
    if (auto failed = enter("stats")) co_return tl::unexpected(*failed);
    co_return hostio::FilesystemStats{1000, 600, 400, 100, 90, 10};
  }
  Answer<hostio::FilesystemVerdict> filesystem_health(hostio::MountEntry entry, bool readonly,
                                                      bool device_live) override {
    static_cast<void>(readonly);
    if (auto failed = enter("filesystem_health")) co_return tl::unexpected(*failed);
    if (m_->gone.contains(entry.device) || m_->dead_filesystems.contains(m_->nqn_of(entry.device)))
      co_return hostio::FilesystemVerdict{hostio::FilesystemHealth::dead, "journal aborted"};
    if (!device_live)
      co_return hostio::FilesystemVerdict{hostio::FilesystemHealth::stalled, "no live controller"};
    co_return hostio::FilesystemVerdict{};
  }

 private:
  void open_session(const SessionTarget& target, const FakeExport& volume) {
    if (m_->sessions.contains(target.nqn)) return;
    FakeSession session;
    const unsigned minor = m_->next_minor++;
    session.device.name = "nvme" + std::to_string(minor) + "n1";
    session.device.node = "/dev/" + session.device.name;
    session.device.number = {259, minor};
    session.device.uuid = export_identity_of_nqn(target.nqn).namespace_uuid;
    session.device.size_bytes = volume.size;
    session.address = target.address;
    session.port = target.port;
    m_->sessions[target.nqn] = session;
  }
  std::optional<Error> enter(const std::string& method) {
    ++m_->calls;
    m_->log.push_back(method);
    const auto at = m_->failures.find(method);
    return at == m_->failures.end() ? std::nullopt : std::optional(at->second);
  }
  Cut cut(bool before) const {
    return Cut{m_->cut.at == m_->calls && m_->cut.before == before && !m_->cut.partial};
  }
  Answer<void> act(std::string method, std::function<void()> effect) {
    if (auto failed = enter(method)) co_return tl::unexpected(*failed);
    co_await cut(true);
    effect();
    co_await cut(false);
    co_return Result<void>();
  }

  std::shared_ptr<FakeMachine> m_;
};

}  // namespace pillar::node::testing
