// agent/marks: collects what arrives while a commit runs and writes it with one directory sync.

#include <utility>
#include <vector>

#include "actors/agent/context.hpp"

namespace pillar::agent {
namespace {

/// What one commit carries. Answered from the thread that wrote it, so an answer does not depend on the
/// actor.
struct Batch {
  std::vector<WriteMark> marks;
  std::vector<WriteRecord> records;
  bool empty() const { return marks.empty() && records.empty(); }
};

void commit(StateStore& store, const Batch& batch) {
  if (!batch.marks.empty()) {
    std::vector<Mark> marks;
    marks.reserve(batch.marks.size());
    for (const WriteMark& call : batch.marks) marks.push_back(*call.request);
    auto results = store.write_marks(std::move(marks));
    for (std::size_t i = 0; i < results.size(); ++i) batch.marks[i].reply(std::move(results[i]));
  }
  if (batch.records.empty()) return;
  std::vector<StateStore::RecordChange> changes;
  changes.reserve(batch.records.size());
  for (const WriteRecord& call : batch.records) changes.push_back(*call.request);
  const auto results = store.write_records(changes);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i])
      batch.records[i].reply(Done{});
    else
      batch.records[i].reply(tl::unexpected(results[i].error()));
  }
}

void refuse(const Batch& batch, const Error& error) {
  for (const WriteMark& call : batch.marks) call.reply(tl::unexpected(error));
  for (const WriteRecord& call : batch.records) call.reply(tl::unexpected(error));
}

struct MarksState {
  explicit MarksState(runtime::ActorBase* self) : cell(self->cell()) {
    cell->add_idle_check([this] { return !committing && waiting.empty(); });
  }

  void pump(const ContextPtr& context) {
    if (committing || waiting.empty()) return;
    committing = true;
    auto batch = std::make_shared<Batch>(std::exchange(waiting, {}));
    auto executor = cell->executor();
    context->durable->submit<Done>(
        Deadline::never(),
        [context, batch]() -> Result<Done> {
          commit(*context->store, *batch);
          return Done{};
        },
        {"write fencing marks", {}},
        // Posted work is destroyed unrun when the actor is gone, so `this` is valid when it runs.
        [this, context, batch, executor](const Result<Done>& result) {
          if (!result) refuse(*batch, result.error());
          executor->post([this, context] {
            committing = false;
            pump(context);
          });
        });
  }

  std::shared_ptr<runtime::ActorCell> cell;
  Batch waiting;
  bool committing = false;
};

using MarksActor = Child<MarksRegistry>;

MarksActor::behavior_type marks_actor(runtime::Stateful<MarksState, MarksActor>* self, ContextPtr context) {
  return {[self, context](const WriteMark& call) {
            self->state.waiting.marks.push_back(call);
            self->state.pump(context);
          },
          [self, context](const WriteRecord& call) {
            self->state.waiting.records.push_back(call);
            self->state.pump(context);
          }};
}

}  // namespace

MarksRegistry spawn_marks(runtime::System& system, ContextPtr context) {
  runtime::RegistryOptions options;
  options.kind = "agent/marks";
  return runtime::spawn_registry<WriteMark, WriteRecord>(
      system, options, [&system, context](runtime::ActorOptions child, const std::string&) {
        return system.spawn(std::move(child), marks_actor, context);
      });
}

}  // namespace pillar::agent
