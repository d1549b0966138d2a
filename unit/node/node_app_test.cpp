// The real actors on a fake machine.

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "actors/node/actors.hpp"
#include "actors/node/node.hpp"
#include "requests_fixture.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace pillar::node::testing;
using namespace std::chrono_literals;

TEST_SUITE_BEGIN("node/app");

namespace {

const Volume vol;

/// A host whose mkfs and statfs wait until they are let go.
class SlowHost final : public Host {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool mkfs_open = true;
    bool stats_open = true;
    int mkfs_waiting = 0;
    std::vector<std::function<void()>> parked;

    /// Suspends the caller until open_all().
    template <class Complete>
    void park(Complete complete) {
      const std::lock_guard lock(mutex);
      parked.push_back([complete] { complete(runtime::Unit{}); });
      changed.notify_all();
    }
    void open_all() {
      std::vector<std::function<void()>> waiting;
      {
        const std::lock_guard lock(mutex);
        mkfs_open = stats_open = true;
        waiting.swap(parked);
      }
      for (const auto& each : waiting) each();
    }
    bool wait_parked(std::size_t count) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, 10s, [&] { return parked.size() >= count; });
    }
  };

  SlowHost(std::shared_ptr<FakeMachine> machine, std::shared_ptr<std::mutex> mutex,
           std::shared_ptr<Gate> gate, std::shared_ptr<runtime::TimedExecutor> executor)
      : inner_(std::move(machine)),
        mutex_(std::move(mutex)),
        gate_(std::move(gate)),
        executor_(std::move(executor)) {}

  Answer<std::optional<std::string>> read_record(std::string name) override {
    return locked<std::optional<std::string>>([=, this] { return inner_.read_record(name); });
  }
  Answer<void> write_record(std::string name, std::string text) override {
    return locked<void>([=, this] { return inner_.write_record(name, text); });
  }
  Answer<void> remove_record(std::string name) override {
    return locked<void>([=, this] { return inner_.remove_record(name); });
  }
  Answer<std::string> set_aside_record(std::string name) override {
    return locked<std::string>([=, this] { return inner_.set_aside_record(name); });
  }
  Answer<std::vector<std::string>> list_records() override {
    return locked<std::vector<std::string>>([this] { return inner_.list_records(); });
  }
  Answer<KernelView> view() override {
    return locked<KernelView>([this] { return inner_.view(); });
  }
  Answer<std::vector<std::string>> holders(hostio::NvmeNamespace device) override {
    return locked<std::vector<std::string>>([=, this] { return inner_.holders(device); });
  }
  Answer<bool> superblock_active(std::string fs_type, hostio::NvmeNamespace device) override {
    return locked<bool>([=, this] { return inner_.superblock_active(fs_type, device); });
  }
  Answer<void> connect(SessionTarget session, hostio::FabricsTunables tunables) override {
    return locked<void>([=, this] { return inner_.connect(session, tunables); });
  }
  Answer<void> disconnect(std::string nqn) override {
    return locked<void>([=, this] { return inner_.disconnect(nqn); });
  }
  Answer<hostio::NvmeNamespace> wait_device(SessionTarget session) override {
    return locked<hostio::NvmeNamespace>([=, this] { return inner_.wait_device(session); });
  }
  Answer<hostio::NvmeNamespace> wait_size(SessionTarget session, std::uint64_t bytes) override {
    return locked<hostio::NvmeNamespace>([=, this] { return inner_.wait_size(session, bytes); });
  }
  Answer<hostio::Content> probe(hostio::NvmeNamespace device) override {
    return locked<hostio::Content>([=, this] { return inner_.probe(device); });
  }
  Answer<void> mkfs(MkfsJob job) override {
    if (!is_open(gate_->mkfs_open)) co_await parked();
    std::function<Answer<void>()> inner = [=, this] { return inner_.mkfs(job); };
    Answer<void> task = locked<void>(inner);
    co_return co_await task;
  }
  Answer<void> clear_interrupted_format(hostio::NvmeNamespace device) override {
    return locked<void>([=, this] { return inner_.clear_interrupted_format(device); });
  }
  Answer<hostio::FsckOutcome> fsck(std::string fs_type, hostio::NvmeNamespace device) override {
    return locked<hostio::FsckOutcome>([=, this] { return inner_.fsck(fs_type, device); });
  }
  Answer<void> set_read_only(hostio::NvmeNamespace device, bool read_only) override {
    return locked<void>([=, this] { return inner_.set_read_only(device, read_only); });
  }
  Answer<void> grow(std::string fs_type, hostio::NvmeNamespace device, std::string mount_point) override {
    return locked<void>([=, this] { return inner_.grow(fs_type, device, mount_point); });
  }
  Answer<std::string> canonical(std::string path) override {
    return locked<std::string>([=, this] { return inner_.canonical(path); });
  }
  Answer<void> make_directory(std::string path) override {
    return locked<void>([=, this] { return inner_.make_directory(path); });
  }
  Answer<void> remove_target(std::string path) override {
    return locked<void>([=, this] { return inner_.remove_target(path); });
  }
  Answer<void> mount(MountJob job) override {
    return locked<void>([=, this] { return inner_.mount(job); });
  }
  Answer<void> bind(BindJob job) override {
    return locked<void>([=, this] { return inner_.bind(job); });
  }
  Answer<void> bind_node(hostio::NvmeNamespace device, std::string target) override {
    return locked<void>([=, this] { return inner_.bind_node(device, target); });
  }
  Answer<hostio::UnmountOutcome> unmount_all(std::string path) override {
    return locked<hostio::UnmountOutcome>([=, this] { return inner_.unmount_all(path); });
  }
  Answer<void> flush(std::string path) override {
    return locked<void>([=, this] { return inner_.flush(path); });
  }
  Answer<hostio::FilesystemStats> stats(std::string path) override {
    if (!is_open(gate_->stats_open)) co_await parked();
    std::function<Answer<hostio::FilesystemStats>()> inner = [=, this] { return inner_.stats(path); };
    Answer<hostio::FilesystemStats> task = locked<hostio::FilesystemStats>(inner);
    co_return co_await task;
  }
  Answer<hostio::FilesystemVerdict> filesystem_health(hostio::MountEntry entry, bool readonly,
                                                      bool device_live) override {
    return locked<hostio::FilesystemVerdict>(
        [=, this] { return inner_.filesystem_health(entry, readonly, device_live); });
  }

 private:
  /// The fake's calls end at once; several actors share its machine.
  template <class T>
  Answer<T> locked(std::function<Answer<T>()> call) {
    const std::lock_guard lock(*mutex_);
    Answer<T> task = call();
    task.start();
    co_return task.take();
  }
  bool is_open(const bool& gate) const {
    const std::lock_guard lock(gate_->mutex);
    return gate;
  }
  runtime::Async<runtime::Unit> parked() {
    return runtime::Async<runtime::Unit>(
        executor_,
        [gate = gate_](runtime::Async<runtime::Unit>::Complete complete) { gate->park(complete); });
  }

  FakeHost inner_;
  std::shared_ptr<std::mutex> mutex_;
  std::shared_ptr<Gate> gate_;
  std::shared_ptr<runtime::TimedExecutor> executor_;
};

/// A node plugin on a fake machine.
struct App {
  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<SlowHost::Gate> gate = std::make_shared<SlowHost::Gate>();
  std::atomic<bool> usable = true;
  std::atomic<bool> mounts_seen = true;
  std::unique_ptr<NodeApp> app;

  explicit App(bool standalone = false) {
    machine->exports[vol.nqn] = FakeExport();
    machine->exports[Volume("pvc-2").nqn] = FakeExport();
    NodeConfig config;
    config.node_name = "worker-1";
    config.identity = {k_host_nqn, "11111111-2222-3333-4444-555555555555"};
    config.standalone = standalone;
    config.max_volumes_per_node = 20;
    NodeParts parts;
    parts.boot_id = "boot-1";
    parts.nvme_tcp_usable = [this] { return usable.load(); };
    parts.mounts_seen = [this]() -> Result<void> {
      if (mounts_seen) return {};
      return fail(Reason::dependency_missing, "set mountPropagation: Bidirectional");
    };
    parts.host = [m = machine, l = mutex, g = gate](std::shared_ptr<runtime::TimedExecutor> executor) {
      return std::make_shared<SlowHost>(m, l, g, std::move(executor));
    };
    app = NodeApp::start(std::move(config), std::move(parts)).value();
  }
  ~App() { gate->open_all(); }

  template <class Response, class Request>
  std::future<Result<Response>> send(Request request, Clock::duration patience = 20s) {
    auto promise = std::make_shared<std::promise<Result<Response>>>();
    auto future = promise->get_future();
    app->send(Call<Request, Response>{
        std::make_shared<const Request>(std::move(request)), Deadline::after(patience),
        Reply<Response>([promise](Result<Response> r) { promise->set_value(std::move(r)); })});
    return future;
  }
  template <class Response, class Request>
  Result<Response> call(Request request) {
    return send<Response>(std::move(request)).get();
  }
  void close(bool SlowHost::Gate::*which) {
    const std::lock_guard lock(gate->mutex);
    (*gate).*which = false;
  }
};

using Stage = ::csi::v1::NodeStageVolumeResponse;
using Stats = ::csi::v1::NodeGetVolumeStatsResponse;

::csi::v1::NodeGetVolumeStatsRequest stats_of(const Volume& volume) {
  ::csi::v1::NodeGetVolumeStatsRequest request;
  request.set_volume_id(volume.id);
  request.set_volume_path(volume.staging());
  return request;
}

}  // namespace

TEST_CASE("a life of a volume through the actors") {
  App node;
  REQUIRE(node.call<Stage>(vol.stage()));
  REQUIRE(node.call<::csi::v1::NodePublishVolumeResponse>(vol.publish("a")));
  CHECK(node.call<Stats>(stats_of(vol))->usage_size() == 2);
  REQUIRE(node.call<::csi::v1::NodeUnpublishVolumeResponse>(vol.unpublish("a")));
  REQUIRE(node.call<::csi::v1::NodeUnstageVolumeResponse>(vol.unstage()));
  CHECK(node.machine->sessions.empty());
}

TEST_CASE(
    "G09, I05: a call that finds its volume busy is ABORTED at once, others are served, mkfs runs once") {
  App node;
  node.close(&SlowHost::Gate::mkfs_open);
  auto first = node.send<Stage>(vol.stage(), 500ms);
  REQUIRE(node.gate->wait_parked(1));
  const auto begin = Clock::now();
  const auto second = node.call<Stage>(vol.stage());
  REQUIRE_FALSE(second);
  CHECK(second.error().code == Code::aborted);
  CHECK(Clock::now() - begin < 5s);
  // The caller of the first gives up at its deadline; the work goes on.
  const auto late = first.get();
  REQUIRE_FALSE(late);
  CHECK((late.error().code == Code::deadline_exceeded || late.error().code == Code::unavailable));
  CHECK(node.call<Stage>(vol.stage()).error().code == Code::aborted);
  node.gate->open_all();
  Result<Stage> done = fail(Reason::internal, "");
  for (int i = 0; i < 100 && !done; ++i) {
    done = node.call<Stage>(vol.stage());
    if (!done) std::this_thread::sleep_for(50ms);
  }
  REQUIRE(done);
  CHECK(node.machine->exports.at(vol.nqn).mkfs_runs == 1);
}

TEST_CASE("another volume is served while one hangs") {
  App node;
  node.close(&SlowHost::Gate::mkfs_open);
  auto stuck = node.send<Stage>(vol.stage());
  REQUIRE(node.gate->wait_parked(1));
  auto block = Volume("pvc-2").stage(true);
  CHECK(node.call<Stage>(block));
  node.gate->open_all();
  CHECK(stuck.get());
}

TEST_CASE("I01: stats run beside a change of the volume, equal calls share one statfs") {
  App node;
  REQUIRE(node.call<Stage>(vol.stage()));
  node.close(&SlowHost::Gate::stats_open);
  std::vector<std::future<Result<Stats>>> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(node.send<Stats>(stats_of(vol)));
  REQUIRE(node.gate->wait_parked(1));
  REQUIRE(node.call<::csi::v1::NodePublishVolumeResponse>(vol.publish("a")));
  node.gate->open_all();
  for (auto& each : waiting) CHECK(each.get());
  CHECK(node.machine->count("stats") == 1);
}

TEST_CASE("calls in flight are answered when the plugin is shut down") {
  App node;
  node.close(&SlowHost::Gate::mkfs_open);
  auto stuck = node.send<Stage>(vol.stage());
  REQUIRE(node.gate->wait_parked(1));
  CHECK(node.app->shutdown(10s));
  const auto answer = stuck.get();
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == Code::unavailable);
}

TEST_CASE("NodeGetInfo: node id, limit, topology only while volumes can be attached (C09)") {
  App node;
  auto info = node.call<::csi::v1::NodeGetInfoResponse>(::csi::v1::NodeGetInfoRequest());
  REQUIRE(info);
  CHECK(info->node_id() == "worker-1");
  CHECK(info->max_volumes_per_node() == 20);
  CHECK(info->accessible_topology().segments().at("topology.pillar-csi.bhyoo.com/nvmeof") == "true");
  node.usable = false;
  info = node.call<::csi::v1::NodeGetInfoResponse>(::csi::v1::NodeGetInfoRequest());
  REQUIRE(info);
  CHECK_FALSE(info->has_accessible_topology());
  const auto health =
      node.call<::csi::v1::NodeGetStorageHealthResponse>(::csi::v1::NodeGetStorageHealthRequest());
  REQUIRE(health);
  CHECK(health->backend_health_size() == 1);
  CHECK(App(true).app->node_id() == std::string("worker-1/") + k_host_nqn);
}

TEST_CASE("a node name or NQN that makes no node id is refused at start") {
  CHECK_FALSE(make_node_id("Worker_1", false, k_host_nqn));
  CHECK_FALSE(make_node_id("worker-1", false, "not an nqn"));
  CHECK_FALSE(make_node_id(std::string(250, 'a'), true, k_host_nqn));
  CHECK(make_node_id(std::string(250, 'a'), false, k_host_nqn));
}

TEST_CASE("a configuration that cannot be meant is refused at start") {
  NodeConfig config;
  config.node_name = "worker-1";
  config.identity.nqn = k_host_nqn;
  config.max_volumes_per_node = -1;
  CHECK(NodeApp::start(config).error().code == Code::invalid_argument);
  config.max_volumes_per_node = 0;
  for (const char* prefix : {"", "kubelet", "/var/../etc", "/etc/kubelet"}) {
    config.allowed_prefixes = {"/var/lib/kubelet", prefix};
    CHECK(NodeApp::start(config).error().code == Code::invalid_argument);
  }
}

TEST_CASE("only what works is advertised") {
  App node;
  const auto answer =
      node.call<::csi::v1::NodeGetCapabilitiesResponse>(::csi::v1::NodeGetCapabilitiesRequest());
  REQUIRE(answer);
  std::set<int> types;
  for (const auto& each : answer->capabilities()) types.insert(each.rpc().type());
  using Rpc = ::csi::v1::NodeServiceCapability::RPC;
  CHECK(types == std::set<int>{Rpc::STAGE_UNSTAGE_VOLUME, Rpc::GET_VOLUME_STATS, Rpc::EXPAND_VOLUME,
                               Rpc::VOLUME_CONDITION, Rpc::SINGLE_NODE_MULTI_WRITER, Rpc::GET_VOLUME_HEALTH,
                               Rpc::GET_STORAGE_HEALTH});
  const auto plugin = node.call<::csi::v1::GetPluginInfoResponse>(::csi::v1::GetPluginInfoRequest());
  CHECK(plugin->name() == "pillar-csi.bhyoo.com");
  CHECK(node.call<::csi::v1::ProbeResponse>(::csi::v1::ProbeRequest())->ready().value());
}

TEST_CASE("H09: Probe, storage health and a metric say that mounts are not seen on the host") {
  App node;
  node.mounts_seen = false;
  const auto probe = node.call<::csi::v1::ProbeResponse>(::csi::v1::ProbeRequest());
  REQUIRE_FALSE(probe);
  CHECK(probe.error().reason == Reason::dependency_missing);
  CHECK(probe.error().code == Code::failed_precondition);
  const auto health =
      node.call<::csi::v1::NodeGetStorageHealthResponse>(::csi::v1::NodeGetStorageHealthRequest());
  REQUIRE(health);
  REQUIRE(health->backend_health_size() == 1);
  CHECK(health->backend_health(0).reason() == "MountsHidden");
  node.mounts_seen = true;
  CHECK(node.call<::csi::v1::ProbeResponse>(::csi::v1::ProbeRequest()));
}

TEST_CASE(
    "O10: no more connects at once than allowed, the rest in order; one whose caller is gone is dropped") {
  runtime::System system;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> started;
  std::vector<std::function<void(Result<Done>)>> running;
  const auto connector = spawn_connector(
      system,
      [&](std::shared_ptr<const ConnectJob> job, std::function<void(Result<Done>)> done) {
        const std::lock_guard lock(mutex);
        started.push_back(job->session.nqn);
        running.push_back(std::move(done));
        changed.notify_all();
      },
      2);
  std::atomic<int> answered{0};
  const auto send = [&](const std::string& nqn, Deadline deadline) {
    auto job = std::make_shared<ConnectJob>();
    job->session.nqn = nqn;
    caf::anon_send(connector,
                   ConnectCall{job, deadline, Reply<Done>([&](const Result<Done>&) { ++answered; })});
  };
  for (const char* nqn : {"1", "2"}) send(nqn, Deadline::never());
  send("late", Deadline::after(-1s));
  for (const char* nqn : {"3", "4"}) send(nqn, Deadline::never());
  const auto wait_started = [&](std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 10s, [&] { return started.size() >= count; });
  };
  REQUIRE(wait_started(2));
  std::this_thread::sleep_for(50ms);
  for (std::size_t next = 0; next < 4; ++next) {
    std::function<void(Result<Done>)> done;
    {
      const std::lock_guard lock(mutex);
      CHECK(started.size() <= next + 2);
      done = running[next];
    }
    done(Done{});
    REQUIRE(wait_started(std::min<std::size_t>(next + 3, 4)));
  }
  CHECK(started == std::vector<std::string>{"1", "2", "3", "4"});
  for (int i = 0; i < 200 && answered < 5; ++i) std::this_thread::sleep_for(10ms);
  CHECK(answered == 5);
  CHECK(system.shutdown(10s));
}

TEST_SUITE_END();
