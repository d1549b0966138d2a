#include "actors/controller/ports.hpp"

#include "messages/ids.hpp"

namespace pillar::controller {
namespace {

constexpr std::size_t k_page = 500;
constexpr std::size_t k_max_node_id = 256;  // CSI specification, size limits

// Store calls never run the coroutine on the store's thread: Async brings the answer into the executor.
template <class T>
Task<Result<T>> await_store(std::shared_ptr<runtime::Executor> executor,
                            std::function<void(crd::Store::Callback<T>)> start) {
  runtime::Async<Result<T>> waiting(std::move(executor), std::move(start));
  co_return co_await waiting;
}

}  // namespace

Result<std::string> EncodedNodeIds::initiator(const std::string& node_id) const {
  const auto slash = node_id.find('/');
  const std::string nqn = slash == std::string::npos ? std::string() : node_id.substr(slash + 1);
  if (slash == 0 || node_id.size() > k_max_node_id || !is_valid_nqn(nqn))
    return fail(Reason::not_found, "node '" + node_id.substr(0, k_max_node_id) +
                                       "' does not exist: a node id has the form <node name>/<host NQN>, as "
                                       "reported by NodeGetInfo of that node");
  return nqn;
}

namespace {

/// What waits for the end of a synchronisation. Emptied when the wait is over, so that the timer of its
/// bound, which lasts longer, holds nothing of it.
struct Place {
  std::function<void(Result<AgentLease>)> answer;
  std::shared_ptr<void> queued;
};

}  // namespace

Task<Result<AgentLease>> lease_agent(runtime::OperationContext context, Ports ports, std::string agent) {
  auto at_once = ports.agents->lease(agent);
  if (at_once) co_return at_once;
  if (auto step = co_await context.step("waiting_for_agent"); !step) co_return tl::unexpected(step.error());
  using Waiting = runtime::Async<Result<AgentLease>>;
  const auto limit = Deadline::after(ports.sync_patience).earlier(context.deadline());
  auto place = std::make_shared<Place>();
  Waiting::Start start = [ports, agent, limit, place](Waiting::Complete complete) {
    place->answer = complete;
    place->queued = ports.agents->lease_when_synchronised(agent, std::move(complete));
    if (!place->queued) return;
    ports.executor->post_after(limit.left(), [agent, weak = std::weak_ptr<Place>(place)] {
      const auto waiting = weak.lock();
      if (waiting && waiting->answer)
        waiting->answer(
            fail(Reason::agent_unavailable, "agent " + agent + " is still being synchronised; repeat"));
    });
  };
  Waiting waiting(ports.executor, std::move(start));
  auto answer = co_await waiting;
  place->queued.reset();
  place->answer = nullptr;
  co_return answer;
}

bool needs_synchronisation(const Error& refusal) {
  return refusal.reason == Reason::epoch_unknown || refusal.reason == Reason::restore_pending;
}

Task<Result<crd::Object>> get_object(Ports ports, crd::Kind kind, std::string name) {
  return await_store<crd::Object>(ports.executor, [store = ports.store, kind, name](auto done) {
    store->get(kind, name, std::move(done));
  });
}

Task<Result<crd::Object>> create_object(Ports ports, crd::Object object) {
  return await_store<crd::Object>(
      ports.executor, [store = ports.store, object](auto done) { store->create(object, std::move(done)); });
}

Task<Result<crd::Object>> update_object(Ports ports, crd::Object object) {
  return await_store<crd::Object>(
      ports.executor, [store = ports.store, object](auto done) { store->update(object, std::move(done)); });
}

Task<Result<crd::Object>> update_object_status(Ports ports, crd::Object object) {
  return await_store<crd::Object>(ports.executor, [store = ports.store, object](auto done) {
    store->update_status(object, std::move(done));
  });
}

Task<Result<crd::Removed>> remove_object(Ports ports, crd::Kind kind, std::string name,
                                         crd::Preconditions preconditions) {
  return await_store<crd::Removed>(ports.executor,
                                   [store = ports.store, kind, name, preconditions](auto done) {
                                     store->remove(kind, name, preconditions, std::move(done));
                                   });
}

Task<Result<std::vector<crd::Object>>> list_objects(Ports ports, crd::Kind kind) {
  std::vector<crd::Object> all;
  crd::ListOptions options;
  options.limit = k_page;
  do {
    auto reading = await_store<crd::Page>(ports.executor, [store = ports.store, kind, options](auto done) {
      store->list(kind, options, std::move(done));
    });
    auto page = co_await std::move(reading);
    if (!page) co_return tl::unexpected(page.error());
    std::move(page->items.begin(), page->items.end(), std::back_inserter(all));
    options.continue_token = page->continue_token;
  } while (!options.continue_token.empty());
  co_return all;
}

}  // namespace pillar::controller
