#include "actors/controller/reconcile_ops.hpp"

#include "actors/controller/config_status.hpp"

namespace pillar::controller {
namespace {

/// True when the object has gone or will look different in a moment: nothing more to write now.
Task<Result<bool>> protect(Ports ports, crd::Object object, bool has_dependents) {
  const auto finalizer = protection_finalizer(object.kind);
  const auto wanted = wanted_protection(object.metadata, finalizer, has_dependents);
  if (wanted == Protection::keep) co_return false;
  if (wanted == Protection::add)
    object.metadata.add_finalizer(finalizer);
  else
    object.metadata.remove_finalizer(finalizer);
  auto writing = update_object(ports, object);
  auto stored = co_await std::move(writing);
  if (!stored) co_return tl::unexpected(stored.error());
  co_return true;
}

/// Protection and status of one store, protocol or class.
template <class T>
Task<Result<void>> settle_object(Ports ports, T object, std::shared_ptr<const CatalogView> view) {
  const auto dependents = dependents_of(object, *view, *ports.index);
  auto protecting = protect(ports, crd::to_object(object), dependents.count > 0);
  auto written = co_await std::move(protecting);
  if (!written) co_return tl::unexpected(written.error());
  // The write comes back through the watch with its new resource version; the status follows then.
  if (*written) co_return Result<void>();
  auto status = wanted_status(object, *view, *ports.index);
  if (status == object.status) co_return Result<void>();
  object.status = std::move(status);
  auto writing = update_object_status(ports, crd::to_object(object));
  auto stored = co_await std::move(writing);
  if (!stored) co_return tl::unexpected(stored.error());
  co_return Result<void>();
}

/// The status of an agent belongs to its link; here only its finalizer.
Task<Result<void>> settle_agent(Ports ports, crd::PillarAgent agent,
                                std::shared_ptr<const CatalogView> view) {
  const auto dependents = dependents_of(agent, *view, *ports.index);
  auto protecting = protect(ports, crd::to_object(agent), dependents.count > 0);
  auto written = co_await std::move(protecting);
  if (!written) co_return tl::unexpected(written.error());
  co_return Result<void>();
}

void keep_first(Result<void>& outcome, const Result<void>& next) {
  // An object that went away in between needs nothing.
  if (outcome && !next && next.error().reason != Reason::not_found) outcome = next;
}

}  // namespace

Task<Result<void>> reconcile_configuration(runtime::OperationContext context, Ports ports,
                                           std::shared_ptr<Catalog> catalog) {
  const auto view = std::make_shared<const CatalogView>(catalog->view());
  Result<void> outcome;
  for (const auto& each : view->agents) {
    auto settling = settle_agent(ports, each.second, view);
    const auto settled = co_await std::move(settling);
    keep_first(outcome, settled);
  }
  for (const auto& each : view->stores) {
    auto settling = settle_object(ports, each.second, view);
    const auto settled = co_await std::move(settling);
    keep_first(outcome, settled);
  }
  for (const auto& each : view->protocols) {
    auto settling = settle_object(ports, each.second, view);
    const auto settled = co_await std::move(settling);
    keep_first(outcome, settled);
  }
  if (auto step = co_await context.step("references_settled"); !step) co_return step;
  for (const auto& each : view->classes) {
    auto settling = settle_object(ports, each.second, view);
    const auto settled = co_await std::move(settling);
    keep_first(outcome, settled);
  }
  co_return outcome;
}

}  // namespace pillar::controller
