#pragma once
// A controller's surroundings for tests: the embedded store in a temporary directory with injected conflicts
// and crashes, a fake agent, and the configuration objects.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "actors/controller/plan.hpp"
#include "actors/controller/volume_ops.hpp"
#include "actors/runtime/testing.hpp"
#include "crd/sqlite_store.hpp"
#include "fake_agent.hpp"

namespace pillar::controller::testing {

inline const std::string k_nqn_a = "nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-0000-4000-8000-000000000001";
inline const std::string k_nqn_b = "nqn.2014-08.org.nvmexpress:uuid:bbbbbbbb-0000-4000-8000-000000000002";
inline const std::string k_node_a = "worker-a/" + k_nqn_a;
inline const std::string k_node_b = "worker-b/" + k_nqn_b;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name =
        (std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp") + std::string("/pillar-XXXXXX");
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Forwards to a store; `fate` decides about each write ("create", "update", "status", "remove").
class FlakyStore final : public crd::Store {
 public:
  enum class Write { normal, conflict, lost_before, lost_after };
  explicit FlakyStore(std::shared_ptr<crd::Store> inner) : inner_(std::move(inner)) {}

  std::function<Write(const std::string& what)> fate;
  std::function<void()> before_get;

  void get(crd::Kind kind, std::string name, Callback<crd::Object> done) override {
    if (before_get) before_get();
    inner_->get(kind, std::move(name), std::move(done));
  }
  void list(crd::Kind kind, crd::ListOptions options, Callback<crd::Page> done) override {
    inner_->list(kind, std::move(options), std::move(done));
  }
  void create(crd::Object object, Callback<crd::Object> done) override {
    write<crd::Object>("create", std::move(done),
                       [&](auto next) { inner_->create(std::move(object), std::move(next)); });
  }
  void update(crd::Object object, Callback<crd::Object> done) override {
    write<crd::Object>("update", std::move(done),
                       [&](auto next) { inner_->update(std::move(object), std::move(next)); });
  }
  void update_status(crd::Object object, Callback<crd::Object> done) override {
    write<crd::Object>("status", std::move(done),
                       [&](auto next) { inner_->update_status(std::move(object), std::move(next)); });
  }
  void remove(crd::Kind kind, std::string name, crd::Preconditions preconditions,
              Callback<crd::Removed> done) override {
    write<crd::Removed>("remove", std::move(done), [&](auto next) {
      inner_->remove(kind, std::move(name), std::move(preconditions), std::move(next));
    });
  }
  std::unique_ptr<crd::Watch> watch(crd::Kind kind, std::string from, crd::WatchHandler handler) override {
    return inner_->watch(kind, std::move(from), std::move(handler));
  }

 private:
  template <class T, class Start>
  void write(const std::string& what, Callback<T> done, Start start) {
    const Write now = fate ? fate(what) : Write::normal;
    // A caller that is never answered, not one whose call was dropped.
    if (now == Write::lost_before || now == Write::lost_after) unanswered_.emplace_back([done] {});
    switch (now) {
      case Write::normal:
        return start(std::move(done));
      case Write::conflict:
        return done(fail(Reason::conflict, "injected conflict"));
      case Write::lost_before:
        return;
      case Write::lost_after:
        return start([](const Result<T>&) {});
    }
  }
  std::shared_ptr<crd::Store> inner_;
  std::vector<std::function<void()>> unanswered_;
};

/// Always the same agent, always up, unless told otherwise.
class OneAgent final : public AgentDirectory {
 public:
  explicit OneAgent(std::shared_ptr<FakeAgent> agent) : agent_(std::move(agent)) {}
  Result<AgentLease> lease(const std::string& name) override {
    if (!down.empty()) return fail(Reason::agent_unavailable, "agent " + name + ": " + down);
    return AgentLease(agent_, bind_address, {});
  }
  std::shared_ptr<void> lease_when_synchronised(const std::string& name, LeaseAnswer answer) override {
    answer(lease(name));
    return nullptr;
  }
  std::string problem(const std::string&) const override { return down; }
  std::optional<std::uint64_t> size_bound(const std::string&, const std::string&) const override {
    return bound;
  }
  void check_soon(const std::string&) override { ++checks; }

  std::string down;
  std::string bind_address = "10.0.0.5";
  std::optional<std::uint64_t> bound;
  int checks = 0;

 private:
  std::shared_ptr<FakeAgent> agent_;
};

/// Conditions with Ready=True, as a reconciler would have set them.
inline crd::Conditions ready_conditions() {
  crd::Conditions conditions;
  crd::Condition ready;
  ready.type = "Ready";
  ready.status = crd::ConditionStatus::yes;
  ready.reason = "Ready";
  crd::set_condition(conditions, ready);
  return conditions;
}

inline crd::PillarAgent agent_object(const std::string& name = "store-1",
                                     const std::string& address = "10.0.0.5") {
  crd::PillarAgent agent;
  agent.metadata.name = name;
  agent.spec.external = crd::ExternalAddress{address, 9500};
  return agent;
}
inline crd::PillarStore store_object(const std::string& name = "fast") {
  crd::PillarStore store;
  store.metadata.name = name;
  store.spec.agent_ref = "store-1";
  store.spec.backend.lvm = crd::LvmBackend{};
  store.spec.backend.lvm->volume_group = "vg0";
  store.status.conditions = ready_conditions();
  return store;
}
inline crd::PillarProtocol protocol_object(const std::string& name = "nvme") {
  crd::PillarProtocol protocol;
  protocol.metadata.name = name;
  protocol.spec.protocol.nvmeof_tcp = crd::NvmeofTcp{};
  return protocol;
}
inline crd::PillarStorageClass class_object(const std::string& name = "gold") {
  crd::PillarStorageClass object;
  object.metadata.name = name;
  object.spec.store_ref = "fast";
  object.spec.protocol_ref = "nvme";
  return object;
}

class World {
 public:
  World() {
    crd::SqliteOptions options;
    options.path = directory.file("store.db");
    options.check = false;
    auto opened = crd::SqliteStore::open(options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().message));
    sqlite = std::move(*opened);
    store = std::make_shared<FlakyStore>(sqlite);
  }

  /// Agent, store, protocol and class of the tests.
  void configure() {
    put(crd::to_object(agent_object()));
    put(crd::to_object(store_object()));
    put(crd::to_object(protocol_object()));
    put(crd::to_object(class_object()));
  }
  void put(const crd::Object& object) {
    auto created = executor->run(create_object(ports(), object));
    REQUIRE_MESSAGE(created.has_value(), (created ? "" : created.error().message));
  }

  /// Ports of one controller process: `index` is its memory.
  Ports ports() const {
    Ports made;
    made.store = store;
    made.agents = agents;
    made.nodes = std::make_shared<EncodedNodeIds>();
    made.index = index;
    made.executor = executor;
    made.cluster_id = "cluster-1";
    made.limits = limits;
    return made;
  }
  /// What a restarted controller knows.
  void restart() { index = std::make_shared<VolumeIndex>(); }

  template <class T>
  T run(Task<T> task) {
    return executor->run(std::move(task));
  }
  Result<crd::VolumeState> record(const std::string& name) {
    return run(get_typed<crd::VolumeState>(ports(), record_name(name)));
  }

  TemporaryDirectory directory;
  std::shared_ptr<runtime::QueueExecutor> executor = std::make_shared<runtime::QueueExecutor>();
  std::shared_ptr<crd::Store> sqlite;
  std::shared_ptr<FlakyStore> store;
  std::shared_ptr<FakeAgent> agent = std::make_shared<FakeAgent>();
  std::shared_ptr<OneAgent> agents = std::make_shared<OneAgent>(agent);
  std::shared_ptr<VolumeIndex> index = std::make_shared<VolumeIndex>();
  Limits limits;
};

// ---- requests -------------------------------------------------------------------------------------------

inline csi::VolumeCapability capability(
    csi::VolumeCapability::AccessMode::Mode mode = csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER,
    const std::string& fs_type = {}) {
  csi::VolumeCapability made;
  made.mutable_mount()->set_fs_type(fs_type);
  made.mutable_access_mode()->set_mode(mode);
  return made;
}
inline csi::VolumeCapability block_capability(
    csi::VolumeCapability::AccessMode::Mode mode = csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER) {
  csi::VolumeCapability made;
  made.mutable_block();
  made.mutable_access_mode()->set_mode(mode);
  return made;
}
inline csi::CreateVolumeRequest create_request(const std::string& name, std::int64_t required = 0,
                                               std::int64_t limit = 0) {
  csi::CreateVolumeRequest request;
  request.set_name(name);
  *request.add_volume_capabilities() = capability();
  request.mutable_capacity_range()->set_required_bytes(required);
  request.mutable_capacity_range()->set_limit_bytes(limit);
  (*request.mutable_parameters())["pillar-csi.bhyoo.com/storage-class"] = "gold";
  return request;
}
inline csi::ControllerPublishVolumeRequest publish_request(
    const std::string& id, const std::string& node,
    csi::VolumeCapability::AccessMode::Mode mode = csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER,
    bool readonly = false) {
  csi::ControllerPublishVolumeRequest request;
  request.set_volume_id(id);
  request.set_node_id(node);
  request.set_readonly(readonly);
  *request.mutable_volume_capability() = capability(mode);
  return request;
}

template <class Request, class Response>
Task<Result<Response>> operation(World& world, const Request& request,
                                 Task<Result<Response>> (*fn)(OperationContext, Ports,
                                                              std::shared_ptr<const Request>)) {
  return fn(OperationContext::detached(), world.ports(), std::make_shared<const Request>(request));
}

inline Result<csi::CreateVolumeResponse> create(World& world, const csi::CreateVolumeRequest& request) {
  return world.run(operation(world, request, create_volume));
}
inline std::string created_id(World& world, const std::string& name, std::int64_t required = 0) {
  const auto made = create(world, create_request(name, required));
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  return made->volume().volume_id();
}
inline Result<csi::DeleteVolumeResponse> remove(World& world, const std::string& id) {
  csi::DeleteVolumeRequest request;
  request.set_volume_id(id);
  return world.run(operation(world, request, delete_volume));
}
inline Result<csi::ControllerPublishVolumeResponse> publish(
    World& world, const std::string& id, const std::string& node,
    csi::VolumeCapability::AccessMode::Mode mode = csi::VolumeCapability::AccessMode::SINGLE_NODE_WRITER,
    bool readonly = false) {
  return world.run(operation(world, publish_request(id, node, mode, readonly), publish_volume));
}
inline Result<csi::ControllerUnpublishVolumeResponse> unpublish(World& world, const std::string& id,
                                                                const std::string& node) {
  csi::ControllerUnpublishVolumeRequest request;
  request.set_volume_id(id);
  request.set_node_id(node);
  return world.run(operation(world, request, unpublish_volume));
}
inline csi::ControllerExpandVolumeRequest expand_request(const std::string& id, std::int64_t required,
                                                         std::int64_t limit = 0) {
  csi::ControllerExpandVolumeRequest request;
  request.set_volume_id(id);
  request.mutable_capacity_range()->set_required_bytes(required);
  request.mutable_capacity_range()->set_limit_bytes(limit);
  return request;
}
inline Result<csi::ControllerExpandVolumeResponse> expand(World& world, const std::string& id,
                                                          std::int64_t required, std::int64_t limit = 0) {
  return world.run(operation(world, expand_request(id, required, limit), expand_volume));
}

}  // namespace pillar::controller::testing
