#pragma once
// A storage node in memory, and a Host on it that can stop or fail at any call.

#include <coroutine>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/agent/host.hpp"
#include "actors/agent/volume_ops.hpp"
#include "hostio/configfs/nvmet_executor.hpp"
#include "hostio/configfs/nvmet_reader.hpp"
#include "unit/hostio/fake_configfs.hpp"

namespace pillar::agent::testing {

namespace nvmet = hostio::nvmet;

/// What survives a crash of the agent: the state directory, the volume group, configfs.
struct World {
  std::map<AgentVolumeId, Mark> marks;
  std::map<AgentVolumeId, ExportRecord> records;
  std::map<AgentVolumeId, hostio::LogicalVolume> volumes;  ///< uid empty: not ours
  hostio::testing::FakeConfigfs configfs;
  bool seeded = true;
  bool writable = true;
  std::uint64_t sequence = 0;
  int mark_writes = 0;
  int record_writes = 0;

  World() {
    configfs.before = [this](const std::string& op) { on_change(op); };
  }
  void on_change(const std::string& op) { trace.push_back("configfs " + op); }
  std::vector<std::string> trace;  ///< durable and kernel-visible steps in order

  std::string dump() const {
    std::string text;
    for (const auto& [id, mark] : marks)
      text += "mark " + id.str() + " " + mark.uid + " " + std::to_string(mark.generation) + " " +
              std::string(to_string(mark.state)) + "\n";
    for (const auto& [id, record] : records) text += "record " + encode_record(record);
    for (const auto& [id, lv] : volumes)
      text += "lv " + id.str() + " " + lv.uid + " " + std::to_string(lv.size_bytes) + "\n";
    return text + configfs.dump();
  }
};

constexpr std::uint64_t k_extent = 4ULL << 20U;

/// One run of the agent on a world. `stop_at` counts the points before and after each call's effect: at that
/// one the coroutine stays suspended for ever, as if the process had died there. `fail_at` counts calls: that
/// one fails.
class FakeHost final : public Host {
 public:
  explicit FakeHost(World& world) : world_(world) {
    nvmet::Executor::Hooks hooks;
    hooks.check_device = [](const std::string&, const std::string&) { return Result<void>{}; };
    hooks.before = [this](const nvmet::Action&) -> Result<void> {
      if (points_++ != stop_at) return {};
      stopped = true;
      return fail(Reason::injected_fault, "stopped inside a plan");
    };
    executor_ = std::make_unique<nvmet::Executor>(world.configfs, std::move(hooks));
  }

  int stop_at = -1;
  int fail_at = -1;
  bool stopped = false;
  bool drained_flag = false;
  bool gated_flag = false;
  bool barrier_hangs = false;
  int barriers_started = 0;
  std::set<std::string> pending_barriers;
  std::map<std::string, int> decisions;
  int points() const { return points_; }
  int calls() const { return calls_; }
  /// The hanging disable returns.
  void finish_barrier(const std::string& nqn) {
    (void)executor_->run(hanging_[nqn]);
    pending_barriers.erase(nqn);
  }

  Result<void> check_pool(const AgentVolumeId& volume, const std::string&) const override {
    if (volume.pool == "vg0") return {};
    return fail(Reason::invalid_argument, "pool " + volume.pool + " is not configured; configured: vg0");
  }
  Result<void> check_bind_address(const IpAddress& address) const override {
    if (address.text == "10.0.0.5") return {};
    return fail(Reason::invalid_argument, "address " + address.text + " is not allowed");
  }
  bool drained() const override { return drained_flag; }
  bool gated() const override { return gated_flag; }
  std::string device_path(const AgentVolumeId& volume) const override {
    return "/dev/" + volume.pool + "/" + volume.name;
  }
  std::optional<AgentVolumeId> volume_of_nqn(const std::string& nqn) const override {
    for (const auto& [id, record] : world_.records)
      if (record.nqn == nqn) return id;
    return std::nullopt;
  }
  void count_decision(std::string_view op, const std::string& decision) override {
    ++decisions[std::string(op) + " " + decision];
  }

  Task<Result<StoredMark>> read_mark(AgentVolumeId volume) override {
    StoredMark stored;
    stored.seeded = world_.seeded;
    if (const auto it = world_.marks.find(volume); it != world_.marks.end()) stored.mark = it->second;
    co_return stored;
  }
  Task<Result<Mark>> write_mark(Mark mark) override {
    if (auto e = co_await enter("write_mark"); e) co_return tl::unexpected(*e);
    if (!world_.writable) co_return fail(Reason::state_unwritable, "state directory is read-only");
    mark.sequence = ++world_.sequence;
    ++world_.mark_writes;
    world_.trace.push_back("mark " + mark.volume.str());
    world_.marks[mark.volume] = mark;
    co_await leave();
    co_return mark;
  }
  Task<Result<std::optional<ExportRecord>>> read_record(AgentVolumeId volume) override {
    const auto it = world_.records.find(volume);
    if (it == world_.records.end()) co_return std::nullopt;
    co_return it->second;
  }
  Task<Result<void>> write_record(StateStore::RecordChange change) override {
    if (!change.record && world_.records.count(change.volume) == 0) co_return Result<void>{};
    if (auto e = co_await enter("write_record"); e) co_return tl::unexpected(*e);
    if (!world_.writable) co_return fail(Reason::state_unwritable, "state directory is read-only");
    ++world_.record_writes;
    if (change.record)
      world_.records[change.volume] = *change.record;
    else
      world_.records.erase(change.volume);
    co_await leave();
    co_return Result<void>{};
  }

  Task<Result<std::optional<hostio::LogicalVolume>>> find(AgentVolumeId volume) override {
    const auto it = world_.volumes.find(volume);
    if (it == world_.volumes.end()) co_return std::nullopt;
    if (it->second.uid.empty()) co_return fail(Reason::not_owned, volume.str() + " is not ours");
    co_return it->second;
  }
  Task<Result<hostio::LogicalVolume>> create(AgentVolumeId volume, std::string uid,
                                             hostio::SizeRange range) override {
    if (auto e = co_await enter("create"); e) co_return tl::unexpected(*e);
    auto size = hostio_round(range);
    if (!size) co_return tl::unexpected(size.error());
    if (const auto it = world_.volumes.find(volume); it != world_.volumes.end()) {
      if (it->second.uid != uid) co_return fail(Reason::not_owned, volume.str() + " is not of this life");
      if (it->second.size_bytes < range.required)
        co_return fail(Reason::already_exists, volume.str() + " exists with another size");
      co_return it->second;
    }
    world_.trace.push_back("lvcreate " + volume.str());
    world_.configfs.devices.insert(device_path(volume));
    world_.volumes[volume] = {volume, uid, *size, true, true, device_path(volume)};
    co_await leave();
    co_return world_.volumes[volume];
  }
  Task<Result<hostio::LogicalVolume>> extend(AgentVolumeId volume, std::string uid,
                                             hostio::SizeRange range) override {
    if (auto e = co_await enter("extend"); e) co_return tl::unexpected(*e);
    auto owned = require(volume, uid);
    if (!owned) co_return tl::unexpected(owned.error());
    auto size = hostio_round(range);
    if (!size) co_return tl::unexpected(size.error());
    if ((*owned)->size_bytes < *size) {
      world_.trace.push_back("lvextend " + volume.str());
      (*owned)->size_bytes = *size;
    }
    co_await leave();
    co_return **owned;
  }
  Task<Result<void>> remove(AgentVolumeId volume, std::string uid) override {
    if (auto e = co_await enter("remove"); e) co_return tl::unexpected(*e);
    const auto it = world_.volumes.find(volume);
    if (it == world_.volumes.end()) co_return Result<void>{};
    if (it->second.uid != uid) co_return fail(Reason::not_owned, volume.str() + " is not of this life");
    world_.trace.push_back("lvremove " + volume.str());
    world_.configfs.devices.erase(device_path(volume));
    world_.volumes.erase(it);
    co_await leave();
    co_return Result<void>{};
  }
  Task<Result<hostio::LvDevice>> activate(AgentVolumeId volume, std::string uid) override {
    if (auto e = co_await enter("activate"); e) co_return tl::unexpected(*e);
    auto owned = require(volume, uid);
    if (!owned) co_return tl::unexpected(owned.error());
    co_return hostio::LvDevice{device_path(volume), {253, 7}, (*owned)->size_bytes};
  }
  Task<Result<void>> change_owner(AgentVolumeId volume, std::string old_uid, std::string new_uid) override {
    if (auto e = co_await enter("change_owner"); e) co_return tl::unexpected(*e);
    const auto it = world_.volumes.find(volume);
    if (it == world_.volumes.end()) co_return fail(Reason::not_found, volume.str() + " does not exist");
    if (it->second.uid != old_uid && it->second.uid != new_uid)
      co_return fail(Reason::not_owned, volume.str() + " is not ours");
    it->second.uid = new_uid;
    co_await leave();
    co_return Result<void>{};
  }

  Task<Result<std::optional<nvmet::LiveSubsystem>>> read_export(std::string nqn) override {
    if (pending_barriers.count(nqn) > 0) co_return fail(Reason::access_not_ended, nqn + " has not ended");
    co_return nvmet::read_subsystem(world_.configfs, nqn);
  }
  Task<Result<void>> configure(std::string, nvmet::Plan plan) override {
    if (auto e = co_await enter("configure"); e) co_return tl::unexpected(*e);
    auto done = executor_->run(plan);
    co_await leave();
    co_return done;
  }
  Task<Result<void>> barrier(std::string nqn, nvmet::Plan plan) override {
    if (auto e = co_await enter("barrier"); e) co_return tl::unexpected(*e);
    ++barriers_started;
    if (barrier_hangs) {
      pending_barriers.insert(nqn);
      hanging_[nqn] = plan;
      co_return fail(Reason::access_not_ended, nqn + " has not ended");
    }
    auto done = executor_->run(plan);
    co_await leave();
    co_return done;
  }
  Task<Result<std::uint16_t>> port_id(Endpoint endpoint) override {
    auto live = nvmet::read_ports(world_.configfs);
    if (!live) co_return tl::unexpected(live.error());
    const nvmet::DesiredPort desired{endpoint.address.text, endpoint.address.v6, endpoint.port, 0};
    auto plan = nvmet::plan_port(desired, *live);
    if (!plan) co_return tl::unexpected(plan.error());
    if (plan->actions.empty()) co_return plan->id;
    if (auto e = co_await enter("port_id"); e) co_return tl::unexpected(*e);
    auto made = executor_->run(plan->actions);
    co_await leave();
    if (!made) co_return tl::unexpected(made.error());
    co_return plan->id;
  }
  Task<Result<void>> open(Endpoint, std::string, nvmet::Plan plan) override {
    if (auto e = co_await enter("open"); e) co_return tl::unexpected(*e);
    auto done = executor_->run(plan);
    co_await leave();
    co_return done;
  }

 private:
  /// Suspends for ever at the chosen point.
  struct Point {
    bool stop = false;
    std::optional<Error> error;
    bool await_ready() const noexcept { return !stop; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    std::optional<Error> await_resume() { return std::move(error); }
  };
  Point enter(const char* name) {
    Point point{stop_here(), std::nullopt};
    if (calls_++ == fail_at)
      point.error = fail(Reason::injected_fault, std::string(name) + " failed").value();
    return point;
  }
  Point leave() { return Point{stop_here(), std::nullopt}; }
  bool stop_here() {
    if (stopped || points_++ == stop_at) stopped = true;
    return stopped;
  }

  Result<hostio::LogicalVolume*> require(const AgentVolumeId& volume, const std::string& uid) {
    const auto it = world_.volumes.find(volume);
    if (it == world_.volumes.end()) return fail(Reason::not_found, volume.str() + " does not exist");
    if (it->second.uid != uid) return fail(Reason::not_owned, volume.str() + " is not of this life");
    return &it->second;
  }
  static Result<std::uint64_t> hostio_round(hostio::SizeRange range) {
    const std::uint64_t size = (range.required + k_extent - 1) / k_extent * k_extent;
    if (range.limit != 0 && size > range.limit) return fail(Reason::out_of_range, "limit is below the size");
    return size == 0 ? k_extent : size;
  }

  World& world_;
  std::unique_ptr<nvmet::Executor> executor_;
  std::map<std::string, nvmet::Plan> hanging_;
  int points_ = 0;
  int calls_ = 0;
};

// --- requests
// -------------------------------------------------------------------------------------------------

inline const AgentVolumeId k_volume{"vg0", "pvc-1"};
inline const std::string k_nqn = export_identity("c", "a", k_volume).nqn;
inline const std::string k_host_a = "nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-0000-0000-000000000001";
inline const std::string k_host_b = "nqn.2014-08.org.nvmexpress:uuid:bbbbbbbb-0000-0000-0000-000000000002";

template <class Request>
std::shared_ptr<Request> request_of(std::uint64_t generation, const std::string& uid = "u1",
                                    const AgentVolumeId& volume = k_volume) {
  auto request = std::make_shared<Request>();
  request->mutable_token()->set_volume_uid(uid);
  request->mutable_token()->set_generation(generation);
  request->mutable_volume()->set_agent_volume_id(volume.str());
  request->mutable_volume()->set_backend_type("lvm-lv");
  return request;
}
inline void fill_spec(v1::ExportSpec& spec, const AgentVolumeId& volume = k_volume, bool acl = true) {
  const ExportIdentity identity = export_identity("c", "a", volume);
  spec.set_bind_address("10.0.0.5");
  spec.set_port(4420);
  spec.set_acl_enabled(acl);
  spec.set_nqn(identity.nqn);
  spec.set_namespace_uuid(identity.namespace_uuid);
  spec.set_serial(identity.serial);
}
inline std::shared_ptr<v1::CreateVolumeRequest> create_request(std::uint64_t generation,
                                                               std::uint64_t size = 1U << 30U,
                                                               const std::string& uid = "u1") {
  auto request = request_of<v1::CreateVolumeRequest>(generation, uid);
  request->set_required_bytes(size);
  return request;
}
inline std::shared_ptr<v1::ExportVolumeRequest> export_request(std::uint64_t generation, bool acl = true) {
  auto request = request_of<v1::ExportVolumeRequest>(generation);
  fill_spec(*request->mutable_spec(), k_volume, acl);
  return request;
}
inline std::shared_ptr<v1::AllowInitiatorRequest> allow_request(std::uint64_t generation,
                                                                const std::string& host, bool acl = true) {
  auto request = request_of<v1::AllowInitiatorRequest>(generation);
  fill_spec(*request->mutable_spec(), k_volume, acl);
  request->mutable_initiator()->set_host_nqn(host);
  return request;
}
inline std::shared_ptr<v1::DenyInitiatorRequest> deny_request(std::uint64_t generation,
                                                              const std::string& host) {
  auto request = request_of<v1::DenyInitiatorRequest>(generation);
  request->set_nqn(k_nqn);
  request->set_host_nqn(host);
  return request;
}
inline std::shared_ptr<v1::DeleteVolumeRequest> delete_request(std::uint64_t generation,
                                                               const std::string& uid = "u1") {
  auto request = request_of<v1::DeleteVolumeRequest>(generation, uid);
  request->set_nqn(k_nqn);
  return request;
}
inline std::shared_ptr<ReconcileOne> reconcile_request(std::uint64_t generation,
                                                       std::vector<std::string> hosts, bool acl = true) {
  auto request = std::make_shared<ReconcileOne>();
  v1::DesiredVolume& desired = request->desired;
  desired.mutable_token()->set_volume_uid("u1");
  desired.mutable_token()->set_generation(generation);
  desired.mutable_volume()->set_agent_volume_id(k_volume.str());
  fill_spec(*desired.mutable_spec(), k_volume, acl);
  for (const std::string& host : hosts) desired.add_initiators()->set_host_nqn(host);
  return request;
}

/// Runs an operation to its end; none when it was stopped on the way.
template <class T>
std::optional<Result<T>> run(Task<Result<T>> task) {
  task.start();
  if (!task.done()) return std::nullopt;
  return task.take();
}
/// Runs an operation on a fresh agent over `world`.
template <class Operation, class Request>
auto run_on(World& world, Operation operation, const std::shared_ptr<Request>& request) {
  auto host = std::make_shared<FakeHost>(world);
  auto result = run(operation(host, request));
  return *result;
}

}  // namespace pillar::agent::testing
