#pragma once
// What the operations of the controller stand on: store, agents, nodes and the index, as values that a unit
// test can replace one by one.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "actors/controller/agent_client.hpp"
#include "actors/controller/volume_index.hpp"
#include "actors/runtime/executor.hpp"
#include "actors/runtime/operation_queue.hpp"
#include "actors/runtime/task.hpp"
#include "crd/store.hpp"
#include "crd/types.hpp"

namespace pillar::controller {

using runtime::Task;

/// Who a CSI node id stands for. Without Kubernetes the node id itself carries the host NQN.
class NodeDirectory {
 public:
  NodeDirectory() = default;
  NodeDirectory(const NodeDirectory&) = delete;
  NodeDirectory& operator=(const NodeDirectory&) = delete;
  virtual ~NodeDirectory() = default;

  /// The host NQN of a node. NOT_FOUND for a node that does not exist, HOST_NQN_MISSING when it has published
  /// none.
  virtual Result<std::string> initiator(const std::string& node_id) const = 0;
};

/// Node ids of the form `<node name>/<host nqn>`, at most 256 bytes.
class EncodedNodeIds final : public NodeDirectory {
 public:
  Result<std::string> initiator(const std::string& node_id) const override;
};

/// Settings of the controller that operations read.
struct Limits {
  std::uint32_t max_volumes_per_node = 0;  ///< publications per node, 0: no limit (reported-faults row R03)
};

/// How long an operation waits for the end of a synchronisation of its agent.
inline constexpr auto k_sync_patience = std::chrono::seconds(5);

/// Everything an operation may use. Cheap to copy; the executor is the one of the actor that runs it.
struct Ports {
  std::shared_ptr<crd::Store> store;
  std::shared_ptr<AgentDirectory> agents;
  std::shared_ptr<NodeDirectory> nodes;
  std::shared_ptr<VolumeIndex> index;
  std::shared_ptr<runtime::TimedExecutor> executor;
  Clock::duration sync_patience = k_sync_patience;
  std::string cluster_id;
  Limits limits;
  bool legacy_volume_condition = true;
};

/// Key in the details of a refusal: the agent that has to be synchronised.
inline constexpr const char* k_detail_agent = "agent";

// Store calls as tasks. Errors are the store's own.
Task<Result<crd::Object>> get_object(Ports ports, crd::Kind kind, std::string name);
Task<Result<crd::Object>> create_object(Ports ports, crd::Object object);
Task<Result<crd::Object>> update_object(Ports ports, crd::Object object);
Task<Result<crd::Object>> update_object_status(Ports ports, crd::Object object);
Task<Result<crd::Removed>> remove_object(Ports ports, crd::Kind kind, std::string name,
                                         crd::Preconditions preconditions);
/// Every object of a kind, uncached, in pages.
Task<Result<std::vector<crd::Object>>> list_objects(Ports ports, crd::Kind kind);

/// A typed read. An object that does not parse is an error naming it, never "not found".
template <class T>
Task<Result<T>> get_typed(Ports ports, std::string name) {
  auto reading = get_object(ports, T::k_kind, std::move(name));
  auto object = co_await std::move(reading);
  if (!object) co_return tl::unexpected(object.error());
  co_return crd::from_object<T>(*object);
}

/// The lease of one operation. An agent that is being synchronised is waited for, as long as `sync_patience`
/// says and never beyond the caller's deadline; who waits holds no lease, so the synchronisation does not
/// wait for it.
Task<Result<AgentLease>> lease_agent(runtime::OperationContext context, Ports ports, std::string agent);

/// True when the agent refused a call because it has to be synchronised first. It has done nothing then.
bool needs_synchronisation(const Error& refusal);

/// Runs `operation`; when the agent refuses it because it was restarted or has lost state since the
/// controller last looked, waits for the synchronisation and repeats it once, as its caller would. Such a
/// refusal names the agent in its details.
template <class Request, class Response>
Task<Result<Response>> repeated_once_synchronised(
    runtime::OperationContext context, Ports ports, std::shared_ptr<const Request> request,
    Task<Result<Response>> (*operation)(runtime::OperationContext, Ports, std::shared_ptr<const Request>)) {
  auto running = operation(context, ports, request);
  auto first = co_await std::move(running);
  if (first || !needs_synchronisation(first.error())) co_return first;
  const auto agent = first.error().details.find(k_detail_agent);
  if (agent == first.error().details.end() || context.deadline().passed()) co_return first;
  auto waiting = lease_agent(context, ports, agent->second);
  auto lease = co_await std::move(waiting);
  if (!lease) co_return first;
  *lease = AgentLease();  // the repeat takes its own
  auto repeating = operation(std::move(context), std::move(ports), std::move(request));
  co_return co_await std::move(repeating);
}

/// One agent call as a task.
template <class Response, class Request>
Task<Result<Response>> ask(std::shared_ptr<AgentClient> client, std::shared_ptr<runtime::Executor> executor,
                           Request request, Deadline deadline) {
  using Waiting = runtime::Async<Result<Response>>;
  auto shared = std::make_shared<Request>(std::move(request));
  typename Waiting::Start start = [client, shared, deadline](typename Waiting::Complete complete) {
    client->call(std::move(*shared), deadline, std::move(complete));
  };
  Waiting waiting(std::move(executor), std::move(start));
  co_return co_await waiting;
}

}  // namespace pillar::controller
