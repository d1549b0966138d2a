#include "actors/runtime/metered.hpp"

#include "actors/runtime/logging.hpp"

namespace pillar::runtime {

namespace {

std::string describe(std::exception_ptr& what) {
  try {
    std::rethrow_exception(what);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

/// The exit reason of an actor whose handler threw.
caf::error crash_reason(const std::string& text) { return caf::make_error(caf::sec::runtime_error, text); }

thread_local std::shared_ptr<ActorCell> handed_over;

}  // namespace

void harden(caf::scheduled_actor* self, std::shared_ptr<ActorCell> cell) {
  self->set_error_handler([cell](caf::scheduled_actor* actor, caf::error& error) {
    cell->stats().failures.add();
    log(spdlog::level::warn, "error message ignored: " + actor->system().render(error),
        {{"actor", cell->path()}});
  });
  self->set_default_handler(
      [cell](caf::scheduled_actor*, caf::message_view& message) -> caf::result<caf::message> {
        cell->stats().failures.add();
        log(spdlog::level::err, "message of unknown type ignored: " + message.content().stringify(),
            {{"actor", cell->path()}});
        return caf::message{};
      });
  self->set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
  self->set_exception_handler([cell](caf::scheduled_actor*, std::exception_ptr& what) -> caf::error {
    cell->stats().failures.add();
    const auto text = describe(what);
    log(spdlog::level::err, "actor ends: " + text, {{"actor", cell->path()}});
    return crash_reason(text);
  });
}

void ActorExecutor::post(std::function<void()> work) {
  const auto actor = actor_.lock();
  if (!actor) return;
  actor->enqueue(nullptr, caf::make_message_id(), caf::make_message(Work{std::move(work)}), nullptr);
}

void ActorExecutor::post_after(Clock::duration delay, std::function<void()> work) {
  const auto actor = actor_.lock();
  if (!actor) return;
  caf::delayed_anon_send(caf::actor_cast<caf::actor>(actor), delay, Work{std::move(work)});
}

namespace detail {

CellHandover::CellHandover(std::shared_ptr<ActorCell> cell) { handed_over = std::move(cell); }

CellHandover::~CellHandover() { handed_over.reset(); }

std::shared_ptr<ActorCell> CellHandover::take() {
  if (handed_over) return std::move(handed_over);
  return std::make_shared<ActorCell>(ActorOptions{"unnamed", "unnamed"}, Services{});
}

bool consume_runtime_message(caf::mailbox_element& e, ActorCell& cell, std::uint64_t& seen) {
  const auto& content = e.content();
  if (content.match_elements<Work>()) {
    content.get_as<Work>(0).run();
    return true;
  }
  if (content.match_elements<RetireQuery>()) {
    const auto& query = content.get_as<RetireQuery>(0);
    if (cell.idle() && seen == query.forwarded) query.answer();
    return true;
  }
  if (cell.registry() && e.sender.get() == cell.registry()) ++seen;
  return false;
}

}  // namespace detail

}  // namespace pillar::runtime
