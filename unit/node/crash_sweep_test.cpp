// The process is killed before and after every call to the host, during a whole life of a volume; then it (or
// the machine) starts again, the orchestrator repeats its call, and all ends as if nothing had happened.

#include <doctest/doctest.h>

#include "actors/node/volume_ops.hpp"
#include "requests_fixture.hpp"

using namespace pillar;
using namespace pillar::node;
using namespace pillar::node::testing;

TEST_SUITE_BEGIN("node/crash_sweep");

namespace {

const Volume vol;

/// One life: stage, publish twice (the second read-only), unpublish both, unstage.
class Life {
 public:
  Life(bool block, bool reboot) : block_(block), reboot_(reboot) { machine->exports[vol.nqn] = FakeExport(); }

  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  bool cut_happened = false;

  void up() {
    step([&](VolumeOps& ops) { return done(ops.stage(context(), make(vol.stage(block_)))); }, {});
    const auto stage = [&](VolumeOps& ops) { return done(ops.stage(context(), make(vol.stage(block_)))); };
    step([&](VolumeOps& ops) { return done(ops.publish(context(), make(vol.publish("a", block_)))); },
         {stage});
    const auto first = [&](VolumeOps& ops) {
      return done(ops.publish(context(), make(vol.publish("a", block_))));
    };
    const bool readonly = !block_;
    step(
        [&](VolumeOps& ops) {
          return done(ops.publish(context(), make(vol.publish("b", block_, readonly))));
        },
        {stage, first});
  }
  void down() {
    for (const char* pod : {"a", "b"})
      step([&](VolumeOps& ops) { return done(ops.unpublish(context(), make(vol.unpublish(pod)))); }, {});
    step([&](VolumeOps& ops) { return done(ops.unstage(context(), make(vol.unstage()))); }, {});
  }
  /// What must not depend on where the process was killed.
  std::string outcome() const {
    std::string text;
    std::vector<std::string> lines;
    for (const auto& each : machine->mounts)
      lines.push_back(each.target + (each.readonly ? " ro" : " rw") + " " + each.fs_type);
    std::sort(lines.begin(), lines.end());
    for (const auto& line : lines) text += line + "\n";
    text += "sessions " + std::to_string(machine->sessions.size()) + "\n";
    for (const auto& [name, record] : machine->records) {
      const auto decoded = decode(record, name);
      REQUIRE(decoded);
      text += "record " + std::string(to_string(decoded->phase)) + " " +
              std::to_string(decoded->stagings.size()) + " " + std::to_string(decoded->publications.size()) +
              " " + (decoded->marker.empty() ? "" : "marker") + "\n";
    }
    for (const auto& path : machine->paths) text += "path " + path + "\n";
    return text;
  }

 private:
  using Step = std::function<bool(VolumeOps&)>;

  static runtime::OperationContext context() { return runtime::OperationContext::detached(); }
  template <class R>
  static std::shared_ptr<const R> make(R request) {
    return std::make_shared<const R>(std::move(request));
  }
  /// Runs to its end or to the cut; a cut task is destroyed here, as a dying process destroys it.
  template <class T>
  static bool done(runtime::Task<Result<T>> task) {
    task.start();
    if (!task.done()) return false;
    const auto result = task.take();
    if (!result) FAIL("unexpected refusal: " << result.error().message);
    return true;
  }
  void step(const Step& call, const std::vector<Step>& repeated_after_reboot) {
    if (attempt(call)) return;
    cut_happened = true;
    machine->cut = {};
    if (reboot_) machine->reboot();
    auto task = reconcile_records(std::make_shared<FakeHost>(machine), machine->boot_id);
    task.start();
    REQUIRE(task.done());
    REQUIRE(task.take());
    if (reboot_)
      for (const auto& each : repeated_after_reboot) REQUIRE(attempt(each));
    REQUIRE(attempt(call));
  }
  bool attempt(const Step& call) {
    VolumeOps ops(std::make_shared<FakeHost>(machine), NodeSettings{rules(), machine->boot_id, true});
    return call(ops);
  }

  bool block_;
  bool reboot_;
};

void sweep(bool block, bool reboot) {
  Life reference(block, false);
  reference.up();
  const std::string up = reference.outcome();
  reference.down();
  const std::string down = reference.outcome();
  const int calls = reference.machine->calls;
  REQUIRE(calls > 20);
  int cuts = 0;
  for (int at = 1; at <= calls; ++at)
    for (const int variant : {0, 1, 2}) {
      CAPTURE(at);
      CAPTURE(variant);
      Life life(block, reboot);
      life.machine->cut = {at, variant == 0, variant == 2};
      life.up();
      CHECK(life.outcome() == up);
      life.down();
      CHECK(life.outcome() == down);
      CHECK(life.machine->exports.at(vol.nqn).mkfs_runs == (block ? 0 : 1));
      CHECK(life.machine->set_aside.empty());
      if (life.cut_happened) ++cuts;
    }
  // Before and after nearly every call, and in the middle of mkfs.
  CHECK(cuts > calls);
}

}  // namespace

TEST_CASE("a filesystem volume converges from a kill at any call") { sweep(false, false); }
TEST_CASE("a filesystem volume converges from a power cut at any call") { sweep(false, true); }
TEST_CASE("a block volume converges from a kill at any call") { sweep(true, false); }
TEST_CASE("a block volume converges from a power cut at any call") { sweep(true, true); }

TEST_SUITE_END();
