// The whole agent in one process: real actors, real state directory, simulated kernel tree and volume group.

#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "actors/agent/agent.hpp"
#include "actors/agent/fencing.hpp"
#include "unit/hostio/fake_configfs.hpp"
#include "unit/hostio/temp_dir.hpp"

using namespace pillar;
using namespace pillar::agent;
using namespace std::chrono_literals;
using hostio::testing::FakeConfigfs;
using hostio::testing::TempDir;

TEST_SUITE_BEGIN("agent/app");

namespace {

/// FakeConfigfs for many threads, with a gate in front of namespace disables.
class SharedConfigfs final : public hostio::ConfigfsOps {
 public:
  template <class Fn>
  auto locked(Fn fn) {
    const std::lock_guard lock(mutex);
    return fn();
  }

  hostio::ErrnoResult<void> make_dir(const std::string& path) override {
    return locked([&] { return tree.make_dir(path); });
  }
  hostio::ErrnoResult<void> remove_dir(const std::string& path) override {
    return locked([&] { return tree.remove_dir(path); });
  }
  hostio::ErrnoResult<std::string> read(const std::string& path) override {
    return locked([&] { return tree.read(path); });
  }
  hostio::ErrnoResult<void> write(const std::string& path, const std::string& value) override {
    if (path.ends_with("/enable") && value == "0" && path.find(hanging_volume) != std::string::npos) {
      ++disables;
      std::unique_lock lock(hang_mutex);
      released.wait(lock, [this] { return !hang; });
    }
    return locked([&] { return tree.write(path, value); });
  }
  hostio::ErrnoResult<void> link(const std::string& target, const std::string& path) override {
    return locked([&] { return tree.link(target, path); });
  }
  hostio::ErrnoResult<void> unlink(const std::string& path) override {
    return locked([&] { return tree.unlink(path); });
  }
  hostio::ErrnoResult<std::string> link_target(const std::string& path) override {
    return locked([&] { return tree.link_target(path); });
  }
  hostio::ErrnoResult<std::vector<std::string>> list(const std::string& path) override {
    return locked([&] { return tree.list(path); });
  }

  void release() {
    {
      const std::lock_guard lock(hang_mutex);
      hang = false;
    }
    released.notify_all();
  }

  std::mutex mutex;
  FakeConfigfs tree;
  std::mutex hang_mutex;
  std::condition_variable released;
  bool hang = false;
  std::string hanging_volume = "none";
  std::atomic<int> disables{0};
};

/// A volume group in memory. Thread-safe.
class MemoryBackend final : public Backend {
 public:
  explicit MemoryBackend(std::shared_ptr<SharedConfigfs> configfs) : configfs_(std::move(configfs)) {}

  Result<hostio::VolumeGroup> pool_info(const std::string& pool, Deadline) override {
    const std::lock_guard lock(mutex);
    ++looks;
    return hostio::VolumeGroup{pool, 100ULL << 30U, free_bytes(), 4U << 20U};
  }
  Result<std::vector<hostio::LogicalVolume>> list(const std::string&, Deadline) override {
    const std::lock_guard lock(mutex);
    std::vector<hostio::LogicalVolume> out;
    for (const auto& [id, lv] : volumes) out.push_back(lv);
    return out;
  }
  Result<std::optional<hostio::LogicalVolume>> find(const AgentVolumeId& id, Deadline) override {
    const std::lock_guard lock(mutex);
    const auto it = volumes.find(id);
    if (it == volumes.end()) return std::nullopt;
    return it->second;
  }
  Result<hostio::LogicalVolume> create(const AgentVolumeId& id, const std::string& uid,
                                       hostio::SizeRange range, Deadline) override {
    ++changing;
    overlapped = overlapped || changing > 1;
    std::this_thread::sleep_for(1ms);
    --changing;
    const std::lock_guard lock(mutex);
    auto [it, made] = volumes.try_emplace(
        id, hostio::LogicalVolume{id, uid, range.required, true, true, "/dev/" + id.str()});
    if (it->second.uid != uid) return fail(Reason::not_owned, "not ours");
    configfs_->locked([&] { return configfs_->tree.devices.insert("/dev/" + id.str()).second; });
    return it->second;
  }
  Result<hostio::LogicalVolume> extend(const AgentVolumeId& id, const std::string&, hostio::SizeRange range,
                                       Deadline) override {
    const std::lock_guard lock(mutex);
    auto& lv = volumes.at(id);
    lv.size_bytes = std::max(lv.size_bytes, range.required);
    return lv;
  }
  Result<void> remove(const AgentVolumeId& id, const std::string&, Deadline) override {
    const std::lock_guard lock(mutex);
    volumes.erase(id);
    return {};
  }
  Result<hostio::LvDevice> activate(const AgentVolumeId& id, const std::string&, Deadline) override {
    ++activating;
    while (sick) std::this_thread::sleep_for(2ms);
    --activating;
    const std::lock_guard lock(mutex);
    if (broken.count(id.name) > 0) return fail(Reason::device_missing, "no device of " + id.str());
    if (volumes.count(id) == 0) return fail(Reason::not_found, id.str() + " does not exist");
    return hostio::LvDevice{"/dev/" + id.str(), {253, 1}, volumes.at(id).size_bytes};
  }
  Result<void> change_owner(const AgentVolumeId& id, const std::string&, const std::string& uid,
                            Deadline) override {
    const std::lock_guard lock(mutex);
    volumes.at(id).uid = uid;
    return {};
  }
  void set_broken(const std::string& name, bool is) {
    const std::lock_guard lock(mutex);
    if (is)
      broken.insert(name);
    else
      broken.erase(name);
  }

  std::mutex mutex;
  std::map<AgentVolumeId, hostio::LogicalVolume> volumes;
  std::set<std::string> broken;
  int looks = 0;
  std::atomic<int> activating{0};
  std::atomic<bool> sick{false};  ///< commands hang
  std::atomic<int> changing{0};
  std::atomic<bool> overlapped{false};

 private:
  std::uint64_t free_bytes() const {
    std::uint64_t used = 0;
    for (const auto& [id, lv] : volumes) used += lv.size_bytes;
    return (100ULL << 30U) - used;
  }
  std::shared_ptr<SharedConfigfs> configfs_;
};

/// One storage node; the agent on it can be started and stopped.
struct Node {
  TempDir dir;
  std::shared_ptr<SharedConfigfs> configfs = std::make_shared<SharedConfigfs>();
  std::shared_ptr<MemoryBackend> backend = std::make_shared<MemoryBackend>(configfs);
  runtime::Services services;
  bool self_restore = false;
  std::unique_ptr<AgentApp> app;

  Node() {
    spdlog::set_level(spdlog::level::off);
    services.chaos = std::make_shared<runtime::Chaos>(true);
    start();
  }
  ~Node() {
    configfs->release();
    app.reset();
    spdlog::set_level(spdlog::level::info);
  }
  void start() {
    AgentConfig config;
    config.backends = {{"vg0"}};
    config.state_dir = dir / "state";
    config.self_restore = self_restore;
    AgentParts parts;
    parts.services = services;
    parts.host.backend = backend;
    parts.host.nvmet = configfs;
    parts.host.check_device = [](const std::string&, const std::string&) { return Result<void>{}; };
    parts.limits.barrier = 150ms;
    parts.limits.prepare = 2s;
    parts.limits.retry_first = 50ms;
    // The last answer may arrive a moment before the last thread has let go of the directory.
    for (int i = 0;; ++i) {
      auto started = AgentApp::start(config, parts);
      if (!started && i < 100) {
        std::this_thread::sleep_for(20ms);
        continue;
      }
      REQUIRE_MESSAGE(started.has_value(), (started ? std::string() : started.error().message));
      app = std::move(*started);
      return;
    }
  }
  void stop() { app.reset(); }

  template <class Response, class Request>
  Result<Response> ask(Request request, Clock::duration limit = 20s) {
    auto promise = std::make_shared<std::promise<Result<Response>>>();
    auto future = promise->get_future();
    app->send(Call<Request, Response>{
        std::make_shared<const Request>(std::move(request)), Deadline::after(limit),
        Reply<Response>([promise](Result<Response> result) { promise->set_value(std::move(result)); })});
    REQUIRE(future.wait_for(30s) == std::future_status::ready);
    return future.get();
  }

  v1::HealthCheckResponse health(std::string epoch = "", std::uint64_t sequence = 0) {
    v1::HealthCheckRequest request;
    request.set_known_epoch(epoch);
    request.set_known_sequence(sequence);
    return ask<v1::HealthCheckResponse>(request).value();
  }
  void seed() {
    v1::SeedMarksRequest request;
    request.set_epoch(health().epoch());
    REQUIRE(ask<v1::SeedMarksResponse>(request).has_value());
  }
  /// A node with an agent that is seeded and open.
  void open() {
    seed();
    REQUIRE(reconcile({}).has_value());
  }

  static AgentVolumeId volume(const std::string& name) { return {"vg0", name}; }
  static std::string nqn(const std::string& name) { return export_identity("c", "a", volume(name)).nqn; }
  template <class Request>
  static Request request(const std::string& name, std::uint64_t generation) {
    Request out;
    out.mutable_token()->set_volume_uid("uid-" + name);
    out.mutable_token()->set_generation(generation);
    out.mutable_volume()->set_agent_volume_id("vg0/" + name);
    return out;
  }
  static void fill(v1::ExportSpec& spec, const std::string& name) {
    const ExportIdentity identity = export_identity("c", "a", volume(name));
    spec.set_bind_address("10.0.0.5");
    spec.set_port(4420);
    spec.set_acl_enabled(true);
    spec.set_nqn(identity.nqn);
    spec.set_namespace_uuid(identity.namespace_uuid);
    spec.set_serial(identity.serial);
  }
  Result<v1::CreateVolumeResponse> create(const std::string& name, std::uint64_t generation) {
    auto r = request<v1::CreateVolumeRequest>(name, generation);
    r.set_required_bytes(1U << 30U);
    return ask<v1::CreateVolumeResponse>(r);
  }
  Result<v1::ExportVolumeResponse> export_it(const std::string& name, std::uint64_t generation) {
    auto r = request<v1::ExportVolumeRequest>(name, generation);
    fill(*r.mutable_spec(), name);
    return ask<v1::ExportVolumeResponse>(r);
  }
  Result<v1::AllowInitiatorResponse> allow(const std::string& name, std::uint64_t generation,
                                           const std::string& host) {
    auto r = request<v1::AllowInitiatorRequest>(name, generation);
    fill(*r.mutable_spec(), name);
    r.mutable_initiator()->set_host_nqn(host);
    return ask<v1::AllowInitiatorResponse>(r);
  }
  Result<v1::DenyInitiatorResponse> deny(const std::string& name, std::uint64_t generation,
                                         const std::string& host) {
    auto r = request<v1::DenyInitiatorRequest>(name, generation);
    r.set_nqn(nqn(name));
    r.set_host_nqn(host);
    return ask<v1::DenyInitiatorResponse>(r);
  }
  void publish(const std::string& name, const std::string& host) {
    REQUIRE(create(name, 1).has_value());
    REQUIRE(export_it(name, 2).has_value());
    REQUIRE(allow(name, 3, host).has_value());
    REQUIRE(connect(host, name));
  }
  static v1::DesiredVolume desired(const std::string& name, std::uint64_t generation,
                                   const std::string& host) {
    auto out = request<v1::DesiredVolume>(name, generation);
    fill(*out.mutable_spec(), name);
    if (!host.empty()) out.add_initiators()->set_host_nqn(host);
    return out;
  }
  Result<v1::ReconcileStateResponse> reconcile(const std::vector<v1::DesiredVolume>& volumes,
                                               bool complete = true,
                                               std::optional<std::uint64_t> sequence = {}) {
    const auto now = health();
    v1::ReconcileStateRequest r;
    for (const auto& entry : volumes) *r.add_volumes() = entry;
    r.set_complete(complete);
    r.set_epoch(now.epoch());
    r.set_sequence(sequence.value_or(now.sequence()));
    return ask<v1::ReconcileStateResponse>(r);
  }
  bool connect(const std::string& host, const std::string& name) {
    return configfs->locked([&] { return configfs->tree.connect(host, nqn(name)); });
  }
  bool ended(const std::string& host, const std::string& name) {
    return configfs->locked([&] { return configfs->tree.access_ended(host, nqn(name)); });
  }
  std::vector<std::string> log() {
    return configfs->locked([&] { return configfs->tree.log; });
  }
};

const std::string k_a = "nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-0000-0000-000000000001";
const std::string k_b = "nqn.2014-08.org.nvmexpress:uuid:bbbbbbbb-0000-0000-0000-000000000002";

template <class T>
Reason reason_of(const Result<T>& result) {
  REQUIRE_FALSE(result.has_value());
  return result.error().reason;
}

bool eventually(const std::function<bool()>& condition, Clock::duration limit = 10s) {
  const auto end = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

}  // namespace

TEST_CASE("a fresh agent refuses every change until seeded, and every allow until the first complete list") {
  Node node;
  CHECK(reason_of(node.create("v1", 1)) == Reason::epoch_unknown);
  CHECK(reason_of(node.reconcile({})) == Reason::epoch_unknown);
  node.seed();
  REQUIRE(node.create("v1", 1).has_value());
  REQUIRE(node.export_it("v1", 2).has_value());
  CHECK(reason_of(node.allow("v1", 3, k_a)) == Reason::restore_pending);
  CHECK(node.health().gated());
  REQUIRE(node.reconcile({Node::desired("v1", 2, "")}).has_value());
  CHECK_FALSE(node.health().gated());
  REQUIRE(node.allow("v1", 3, k_a).has_value());
  CHECK(node.connect(k_a, "v1"));
}

TEST_CASE("a whole life through the actors; lists, capacity and metrics follow") {
  Node node;
  node.open();
  node.publish("v1", k_a);
  v1::GetCapacityRequest capacity;
  capacity.set_pool("vg0");
  CHECK(node.ask<v1::GetCapacityResponse>(capacity)->maximum_volume_bytes() == 99ULL << 30U);
  const int looks = node.backend->looks;
  CHECK(node.ask<v1::GetCapacityResponse>(capacity)->pool().available_bytes() == 99ULL << 30U);
  CHECK(node.backend->looks == looks);
  capacity.set_pool("vg7");
  const auto unknown = node.ask<v1::GetCapacityResponse>(capacity);
  CHECK(reason_of(unknown) == Reason::invalid_argument);
  CHECK(unknown.error().message.find("configured: vg0") != std::string::npos);
  const auto volumes = node.ask<v1::ListVolumesResponse>(v1::ListVolumesRequest{});
  REQUIRE(volumes->volumes_size() == 1);
  CHECK(volumes->volumes(0).volume_uid() == "uid-v1");
  const auto exports = node.ask<v1::ListExportsResponse>(v1::ListExportsRequest{});
  REQUIRE(exports->exports_size() == 1);
  CHECK(exports->exports(0).agent_volume_id() == "vg0/v1");
  CHECK(exports->exports(0).linked());
  CHECK(node.ask<v1::GetCapabilitiesResponse>(v1::GetCapabilitiesRequest{})->pools(0).name() == "vg0");
  const auto provisioned = [&] {
    return node.services.metrics->text().find("pool_provisioned_bytes{pool=\"vg0\"} 0");
  };
  CHECK(provisioned() == std::string::npos);
  REQUIRE(node.deny("v1", 4, k_a).has_value());
  CHECK(node.ended(k_a, "v1"));
  auto remove = Node::request<v1::DeleteVolumeRequest>("v1", 5);
  remove.set_nqn(Node::nqn("v1"));
  REQUIRE(node.ask<v1::DeleteVolumeResponse>(remove).has_value());
  CHECK(node.backend->volumes.empty());
  CHECK(node.ask<v1::ListExportsResponse>(v1::ListExportsRequest{})->exports_size() == 0);
  REQUIRE(node.ask<v1::GetCapabilitiesResponse>(v1::GetCapabilitiesRequest{}).has_value());
  CHECK(provisioned() != std::string::npos);  // also without a GetCapacity
  const std::string metrics = node.services.metrics->text();
  CHECK(metrics.find("pillar_csi_agent_fencing_decisions_total{") != std::string::npos);
  CHECK(metrics.find("pillar_csi_pool_available_bytes{pool=\"vg0\"}") != std::string::npos);
}

TEST_CASE("a killed volume actor answers UNAVAILABLE, and its successor goes on from what is durable") {
  for (const char* step : {"write_mark", "create_volume", "answer"}) {
    CAPTURE(std::string(step));
    Node node;
    node.open();
    runtime::ChaosPoint point;
    point.path = "agent/volume/vg0/v1";
    point.step = step;
    point.kind = runtime::ChaosKind::kill;
    REQUIRE(node.services.chaos->add(point).has_value());
    const auto killed = node.create("v1", 4);
    REQUIRE_FALSE(killed.has_value());
    CHECK(killed.error().code == Code::unavailable);
    // A repeat that is quicker than the news of the death is answered UNAVAILABLE too.
    CHECK(eventually([&] { return node.create("v1", 4).has_value(); }));
    CHECK(node.backend->volumes.size() == 1);
    CHECK(reason_of(node.create("v1", 3)) == Reason::stale_generation);
  }
}

TEST_CASE(
    "killed marks, pool and port actors: UNAVAILABLE or a repeat, never silence, and the repeat works") {
  Node node;
  node.open();
  node.publish("v1", k_a);
  for (const char* path : {"agent/pool/*", "agent/port/*", "agent/volume/*"}) {
    runtime::ChaosPoint point;
    point.path = path;
    point.step = "*";
    point.kind = runtime::ChaosKind::kill;
    REQUIRE(node.services.chaos->add(point).has_value());
  }
  std::uint64_t generation = 4;
  CHECK(eventually([&] { return node.deny("v1", ++generation, k_a).has_value(); }));
  CHECK(node.ended(k_a, "v1"));
}

TEST_CASE(
    "I1 I4: while a disable hangs the answer is ACCESS_NOT_ENDED, others go on, and nothing is done twice") {
  Node node;
  node.open();
  node.publish("stuck", k_a);
  node.publish("fine", k_a);
  node.configfs->hanging_volume = "stuck";
  node.configfs->hang = true;
  CHECK(reason_of(node.deny("stuck", 4, k_a)) == Reason::access_not_ended);
  const auto begin = Clock::now();
  CHECK(reason_of(node.deny("stuck", 5, k_a)) == Reason::access_not_ended);
  CHECK(Clock::now() - begin < 2s);
  CHECK(reason_of(node.allow("stuck", 6, k_b)) == Reason::access_not_ended);
  REQUIRE(node.deny("fine", 4, k_a).has_value());
  CHECK(node.ended(k_a, "fine"));
  CHECK(node.configfs->disables == 1);
  node.configfs->release();
  CHECK(eventually([&] { return node.deny("stuck", 7, k_a).has_value(); }));
  CHECK(node.ended(k_a, "stuck"));
  CHECK(node.configfs->disables == 1);
}

TEST_CASE("I1: the successor of a volume actor that died during the barrier does not take it for ended") {
  Node node;
  node.open();
  node.publish("stuck", k_a);
  node.configfs->hanging_volume = "stuck";
  node.configfs->hang = true;
  CHECK(reason_of(node.deny("stuck", 4, k_a)) == Reason::access_not_ended);
  runtime::ChaosPoint point;
  point.path = "agent/volume/vg0/stuck";
  point.step = "write_mark";
  point.kind = runtime::ChaosKind::kill;
  REQUIRE(node.services.chaos->add(point).has_value());
  CHECK(node.deny("stuck", 5, k_a).error().code == Code::unavailable);
  CHECK(eventually([&] {
    const auto denied = node.deny("stuck", 6, k_a);
    REQUIRE_FALSE(denied.has_value());
    return denied.error().reason == Reason::access_not_ended;
  }));
  node.configfs->release();
  CHECK(eventually([&] { return node.deny("stuck", 7, k_a).has_value(); }));
}

TEST_CASE(
    "F01: after a reboot everything is prepared before anything is linked; a broken one does not hold the "
    "rest") {
  Node node;
  node.open();
  for (const char* name : {"a", "b", "c", "d"}) node.publish(name, k_a);
  node.stop();
  node.configfs->locked([&] {
    node.configfs->tree.reboot();
    return 0;
  });
  node.configfs->locked([&] {
    node.configfs->tree.log.clear();
    return 0;
  });
  node.backend->set_broken("c", true);
  node.start();
  CHECK(node.app->gated());
  std::vector<v1::DesiredVolume> volumes;
  for (const char* name : {"a", "b", "c", "d"}) volumes.push_back(Node::desired(name, 3, k_a));
  const auto early = node.reconcile({volumes[0]}, false);
  REQUIRE(early.has_value());
  CHECK(early->results(0).reason() == "RESTORE_PENDING");
  CHECK_FALSE(node.connect(k_a, "a"));
  const auto restored = node.reconcile(volumes);
  REQUIRE(restored.has_value());
  for (const auto& result : restored->results()) {
    const bool broken = result.agent_volume_id() == "vg0/c";
    CHECK(result.ok() != broken);
    if (broken) CHECK(result.reason() == "DEVICE_MISSING");
  }
  const auto log = node.log();
  const auto is_link = [](const std::string& op) { return op.starts_with("link ports/"); };
  const auto first = std::find_if(log.begin(), log.end(), is_link);
  REQUIRE(std::count_if(log.begin(), log.end(), is_link) == 3);
  CHECK(std::all_of(first, first + 3, is_link));
  for (const char* name : {"a", "b", "d"}) CHECK(node.connect(k_a, name));
  node.backend->set_broken("c", false);
  CHECK(eventually([&] { return node.connect(k_a, "c"); }));
}

TEST_CASE("selfRestore: links the recorded exports without the controller, but none that moved on since") {
  Node node;
  node.open();
  node.publish("kept", k_a);
  node.publish("moved", k_a);
  node.stop();
  // A mark that is newer than the record: access may have been taken after it was written.
  {
    auto text = [&](const Mark& mark) { return encode_mark(mark); };
    Mark mark{Node::volume("moved"), "uid-moved", 9, LifeState::open, {}, 99};
    node.dir.put("state/generations/" + mark_file_name(mark.volume), text(mark));
  }
  node.configfs->locked([&] {
    node.configfs->tree.reboot();
    return 0;
  });
  node.self_restore = true;
  node.start();
  CHECK(eventually([&] { return node.connect(k_a, "kept"); }));
  CHECK_FALSE(node.connect(k_a, "moved"));
  CHECK(node.app->gated());
}

TEST_CASE(
    "a complete list closes what it does not name and says so; a delayed one leaves newer volumes alone") {
  Node node;
  node.open();
  node.publish("v1", k_a);
  const std::uint64_t old_sequence = 0;
  const auto delayed = node.reconcile({}, true, old_sequence);
  REQUIRE(delayed.has_value());
  CHECK_FALSE(node.ended(k_a, "v1"));
  const auto listed = node.reconcile({Node::desired("v1", 3, k_a)});
  REQUIRE(listed.has_value());
  CHECK_FALSE(listed->results(0).changed());
  const auto closed = node.reconcile({});
  REQUIRE(closed.has_value());
  REQUIRE(closed->results_size() == 1);
  CHECK(closed->results(0).agent_volume_id() == "vg0/v1");
  CHECK(closed->results(0).changed());
  CHECK(node.ended(k_a, "v1"));
  CHECK(node.backend->volumes.size() == 1);
}

TEST_CASE("B08: steady-state reconciles write nothing to configfs") {
  Node node;
  node.open();
  std::vector<v1::DesiredVolume> volumes;
  for (int i = 0; i < 50; ++i) {
    const std::string name = "v" + std::to_string(i);
    node.publish(name, k_a);
    volumes.push_back(Node::desired(name, 3, k_a));
  }
  REQUIRE(node.reconcile(volumes).has_value());
  const auto before = node.log().size();
  for (int i = 0; i < 3; ++i) {
    const auto again = node.reconcile(volumes);
    REQUIRE(again.has_value());
    for (const auto& result : again->results()) CHECK((result.ok() && !result.changed()));
  }
  CHECK(node.log().size() == before);
}

TEST_CASE("I4: commands that hang on a sick disk do not keep access from being ended") {
  Node node;
  node.open();
  node.publish("v", k_a);
  constexpr int k_hanging = 12;  // more than there are workers for commands
  for (int i = 0; i < k_hanging; ++i) REQUIRE(node.create("sick" + std::to_string(i), 1).has_value());
  node.backend->sick = true;
  for (int i = 0; i < k_hanging; ++i) {
    auto r = Node::request<v1::ExportVolumeRequest>("sick" + std::to_string(i), 2);
    Node::fill(*r.mutable_spec(), "sick" + std::to_string(i));
    node.app->send(Call<v1::ExportVolumeRequest, v1::ExportVolumeResponse>{
        std::make_shared<const v1::ExportVolumeRequest>(std::move(r)), Deadline::after(20s),
        Reply<v1::ExportVolumeResponse>([](const Result<v1::ExportVolumeResponse>&) {})});
  }
  CHECK(eventually([&] { return node.backend->activating >= 8; }));
  auto deny = Node::request<v1::DenyInitiatorRequest>("v", 4);
  deny.set_nqn(Node::nqn("v"));
  deny.set_host_nqn(k_a);
  CHECK(node.ask<v1::DenyInitiatorResponse>(deny, 5s).has_value());
  CHECK(node.ended(k_a, "v"));
  node.backend->sick = false;
}

TEST_CASE("F02: parallel calls on many volumes and on one; metadata changes of a pool never overlap") {
  Node node;
  node.open();
  std::atomic<int> answered{0};
  std::atomic<int> granted{0};
  const int count = 64;
  for (int i = 0; i < count; ++i) {
    auto r = Node::request<v1::CreateVolumeRequest>("v" + std::to_string(i % 8), 1);
    r.set_required_bytes(1U << 30U);
    node.app->send(Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse>{
        std::make_shared<const v1::CreateVolumeRequest>(r), Deadline::after(20s),
        Reply<v1::CreateVolumeResponse>([&](const Result<v1::CreateVolumeResponse>& result) {
          granted += result ? 1 : 0;
          ++answered;
        })});
  }
  CHECK(eventually([&] { return answered == count; }));
  CHECK(granted == count);
  CHECK(node.backend->volumes.size() == 8);
  CHECK_FALSE(node.backend->overlapped);
}

TEST_CASE(
    "one mark removed while the agent was away: nothing is restored before it was seeded, then everything "
    "is") {
  Node node;
  node.open();
  node.publish("v1", k_a);
  node.publish("v2", k_b);
  const auto before = node.health();
  node.stop();
  REQUIRE(std::filesystem::remove(node.dir / ("state/generations/" + mark_file_name(Node::volume("v1")))));
  node.start();
  CHECK(eventually([&] { return !node.health(before.epoch(), before.sequence()).seeded(); }));
  const auto everything = {Node::desired("v1", 3, k_a), Node::desired("v2", 3, k_b)};
  CHECK(reason_of(node.reconcile(everything)) == Reason::epoch_unknown);
  CHECK(node.health().gated());
  v1::SeedMarksRequest seed;
  seed.set_epoch(before.epoch());
  for (const char* name : {"v1", "v2"}) {
    v1::SeedMark& mark = *seed.add_marks();
    mark.set_agent_volume_id(Node::volume(name).str());
    mark.set_volume_uid("uid-" + std::string(name));
    mark.set_generation(3);
  }
  REQUIRE(node.ask<v1::SeedMarksResponse>(seed).has_value());
  CHECK(node.health().seeded());
  const auto restored = node.reconcile(everything);
  REQUIRE(restored.has_value());
  for (const auto& result : restored->results()) CHECK(result.ok());
  CHECK(reason_of(node.allow("v1", 2, k_b)) == Reason::stale_generation);
  CHECK(node.deny("v1", 4, k_a).has_value());
}

TEST_CASE("an object of ours whose mark nobody has seen go: reported with its first request, others go on") {
  Node node;
  node.open();
  REQUIRE(node.create("v1", 1).has_value());
  const AgentVolumeId found = Node::volume("found");
  {
    const std::lock_guard lock(node.backend->mutex);
    node.backend->volumes[found] = {found, "uid-found", 1U << 30U, true, true, "/dev/vg0/found"};
  }
  CHECK(node.health().seeded());
  CHECK(reason_of(node.create("found", 7)) == Reason::epoch_unknown);
  CHECK_FALSE(node.health().seeded());
  CHECK(node.export_it("v1", 2).has_value());
  SUBCASE("recorded: its mark is seeded") {
    v1::SeedMarksRequest seed;
    seed.set_epoch("another");
    CHECK_FALSE(node.ask<v1::SeedMarksResponse>(seed).has_value());
    CHECK_FALSE(node.health().seeded());
    seed.set_epoch(node.health().epoch());
    v1::SeedMark& mark = *seed.add_marks();
    mark.set_agent_volume_id(found.str());
    mark.set_volume_uid("uid-found");
    mark.set_generation(7);
    REQUIRE(node.ask<v1::SeedMarksResponse>(seed).has_value());
    CHECK(node.health().seeded());
    CHECK(node.create("found", 7).has_value());
    CHECK(reason_of(node.create("found", 6)) == Reason::stale_generation);
  }
  SUBCASE("not recorded: it stays refused and holds nothing up") {
    node.seed();
    CHECK(node.health().seeded());
    CHECK(reason_of(node.create("found", 7)) == Reason::epoch_unknown);
  }
}

TEST_CASE("drain survives a restart; a restored backup is noticed; epoch and sequence are reported") {
  Node node;
  node.open();
  REQUIRE(node.create("v1", 1).has_value());
  v1::DrainRequest drain;
  drain.set_enable(true);
  REQUIRE(node.ask<v1::DrainResponse>(drain).has_value());
  node.stop();
  node.start();
  const auto health = node.health();
  CHECK(health.drained());
  CHECK(health.seeded());
  CHECK(health.sequence() >= 1);
  CHECK(reason_of(node.create("v2", 1)) == Reason::drained);
  CHECK(node.health(health.epoch(), health.sequence()).seeded());
  CHECK_FALSE(node.health(health.epoch(), health.sequence() + 1).seeded());
  CHECK(reason_of(node.deny("v1", 2, k_a)) == Reason::epoch_unknown);
}

TEST_CASE("shutdown answers what is in flight") {
  Node node;
  node.open();
  runtime::ChaosPoint point;
  point.path = "agent/volume/*";
  point.step = "write_mark";
  point.kind = runtime::ChaosKind::pause;
  REQUIRE(node.services.chaos->add(point).has_value());
  std::promise<Result<v1::CreateVolumeResponse>> promise;
  auto r = Node::request<v1::CreateVolumeRequest>("v1", 1);
  node.app->send(Call<v1::CreateVolumeRequest, v1::CreateVolumeResponse>{
      std::make_shared<const v1::CreateVolumeRequest>(r), Deadline::after(60s),
      Reply<v1::CreateVolumeResponse>(
          [&](Result<v1::CreateVolumeResponse> result) { promise.set_value(result); })});
  std::this_thread::sleep_for(50ms);
  CHECK(node.app->shutdown(5s));
  auto future = promise.get_future();
  REQUIRE(future.wait_for(5s) == std::future_status::ready);
  CHECK(future.get().error().code == Code::unavailable);
}
