#include <doctest/doctest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "actors/agent/reconcile_plan.hpp"
#include "actors/agent/state_store.hpp"
#include "unit/hostio/temp_dir.hpp"

using namespace pillar;
using namespace pillar::agent;
using pillar::hostio::testing::TempDir;

TEST_SUITE_BEGIN("agent/state_store");

namespace {

AgentVolumeId volume(int n) { return {"vg0", "pvc-" + std::to_string(n)}; }
Mark mark_of(int n, std::uint64_t generation, LifeState state = LifeState::open, std::string uid = "u1") {
  return Mark{volume(n), std::move(uid), generation, state, {}, 0};
}

std::unique_ptr<StateStore> open_store(const TempDir& dir, hostio::DurableHook hook = {}) {
  auto store = StateStore::open(dir / "state", std::move(hook));
  REQUIRE_MESSAGE(store.has_value(), (store ? std::string() : store.error().message));
  return std::move(*store);
}

void seed_empty(StateStore& store) { REQUIRE(store.seed_marks(store.epoch(), {}, 0).has_value()); }

ExportRecord record_of(int n, std::uint64_t generation) {
  ExportRecord record;
  record.volume = volume(n);
  record.token = {"u1", generation};
  record.bind_address = "10.0.0.5";
  record.port = 4420;
  record.nqn = std::string(k_nqn_prefix) + std::to_string(n);
  record.initiators = {{"nqn.2014-08.org.nvmexpress:uuid:1", true}};
  return record;
}

}  // namespace

TEST_CASE("a new state directory is private, has an epoch and is not seeded") {
  const TempDir dir;
  auto store = open_store(dir);
  CHECK(store->epoch().size() == 32);
  CHECK_FALSE(store->seeded());
  CHECK(store->sequence() == 0);
  struct stat info {};
  REQUIRE(::stat((dir / "state").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
}

TEST_CASE("two agents cannot run on one state directory") {
  const TempDir dir;
  auto store = open_store(dir);
  const auto second = StateStore::open(dir / "state");
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().reason == Reason::state_locked);
}

TEST_CASE("marks, seeding, drain and epoch survive a restart; the sequence never goes back") {
  const TempDir dir;
  std::string epoch;
  {
    auto store = open_store(dir);
    epoch = store->epoch();
    seed_empty(*store);
    REQUIRE(store->set_drained(true).has_value());
    const auto written = store->write_marks({mark_of(1, 3), mark_of(2, 7)});
    REQUIRE(written.size() == 2);
    CHECK(written[0]->sequence == 1);
    CHECK(written[1]->sequence == 2);
  }
  auto store = open_store(dir);
  CHECK(store->epoch() == epoch);
  CHECK(store->seeded());
  CHECK(store->drained());
  CHECK(store->sequence() == 2);
  CHECK(store->mark(volume(1))->mark->generation == 3);
  CHECK(store->mark(volume(2))->mark->generation == 7);
  CHECK_FALSE(store->mark(volume(3))->mark.has_value());
}

TEST_CASE("marks that arrive together share one directory sync") {
  const TempDir dir;
  std::map<std::string, int> steps;
  auto store = open_store(dir, [&](std::string_view step) -> Result<void> {
    ++steps[std::string(step)];
    return {};
  });
  steps.clear();
  std::vector<Mark> marks;
  for (int i = 0; i < 20; ++i) marks.push_back(mark_of(i, 1));
  for (const auto& result : store->write_marks(marks)) CHECK(result.has_value());
  CHECK(steps["sync"] == 20);
  CHECK(steps["sync-dir"] == 1);
}

TEST_CASE("a mark is never set back, by whoever wrote late") {
  const TempDir dir;
  auto store = open_store(dir);
  REQUIRE(store->write_marks({mark_of(1, 7)})[0].has_value());
  CHECK(store->write_marks({mark_of(1, 6)})[0].error().reason == Reason::conflict);
  CHECK(store->write_marks({mark_of(1, 9, LifeState::open, "u2")})[0].error().reason == Reason::conflict);
  REQUIRE(store->write_marks({mark_of(1, 7, LifeState::ended)})[0].has_value());
  CHECK(store->write_marks({mark_of(1, 8)})[0].error().reason == Reason::conflict);
  Mark reborn = mark_of(1, 1, LifeState::open, "u2");
  reborn.retired = {"u1"};
  CHECK(store->write_marks({reborn})[0].has_value());
}

TEST_CASE(
    "power cut at every durable step: the old or the new mark, never a third; STATE_UNWRITABLE meanwhile") {
  for (const char* step : {"create", "write", "sync", "rename", "sync-dir"}) {
    CAPTURE(std::string(step));
    const TempDir dir;
    bool cut = false;
    {
      auto store = open_store(dir, [&](std::string_view now) -> Result<void> {
        if (cut && now == step) return fail(Reason::state_unwritable, "cut");
        return {};
      });
      seed_empty(*store);
      REQUIRE(store->write_marks({mark_of(1, 3)})[0].has_value());
      cut = true;
      CHECK(store->write_marks({mark_of(1, 4)})[0].error().reason == Reason::state_unwritable);
      CHECK(store->mark(volume(1))->mark->generation == 3);
      CHECK(store->mark(volume(1))->uncertain);
      CHECK(store->sequence() == 1);
      cut = false;
      REQUIRE(store->write_marks({mark_of(1, 3)})[0].has_value());
      CHECK_FALSE(store->mark(volume(1))->uncertain);
      cut = true;
      CHECK_FALSE(store->write_marks({mark_of(1, 4)})[0].has_value());
    }
    auto store = open_store(dir);
    const auto generation = store->mark(volume(1))->mark->generation;
    CHECK((generation == 3 || generation == 4));
    CHECK_FALSE(store->mark(volume(1))->uncertain);
    for (const auto& entry : std::filesystem::directory_iterator(dir / "state/generations"))
      CHECK(entry.path().extension() == ".mark");
  }
}

TEST_CASE("MARK_CORRUPT: a damaged mark blocks its volume only, and nothing writes over it") {
  const TempDir dir;
  {
    auto store = open_store(dir);
    seed_empty(*store);
    (void)store->write_marks({mark_of(1, 3), mark_of(2, 3)});
  }
  std::ofstream(dir / ("state/generations/" + mark_file_name(volume(1))), std::ios::app) << "x";
  auto store = open_store(dir);
  CHECK(store->corrupt_marks() == 1);
  CHECK(store->mark(volume(1)).error().reason == Reason::mark_corrupt);
  CHECK(store->write_marks({mark_of(1, 9)})[0].error().reason == Reason::mark_corrupt);
  CHECK(store->seed_marks(store->epoch(), {{volume(1), {"u1", 9}, false}}, 0).has_value());
  CHECK(store->mark(volume(1)).error().reason == Reason::mark_corrupt);
  CHECK(store->mark(volume(2))->mark->generation == 3);
}

TEST_CASE("meta.json lost or damaged: a new epoch, unseeded, and the marks' sequence is kept") {
  for (const bool damaged : {false, true}) {
    const TempDir dir;
    std::string epoch;
    {
      auto store = open_store(dir);
      epoch = store->epoch();
      seed_empty(*store);
      (void)store->write_marks({mark_of(1, 3)});
    }
    const std::string meta = dir / "state/meta.json";
    if (damaged)
      std::ofstream(meta, std::ios::app) << "{";
    else
      std::filesystem::remove(meta);
    auto store = open_store(dir);
    CHECK(store->epoch() != epoch);
    CHECK_FALSE(store->seeded());
    CHECK(store->sequence() == 1);
    CHECK(store->mark(volume(1))->mark->generation == 3);
  }
}

TEST_CASE("seeding: wrong epoch is refused, a complete list raises marks and sequence, never lowers") {
  const TempDir dir;
  auto store = open_store(dir);
  CHECK(store->seed_marks("feed", {}, 0).error().reason == Reason::epoch_unknown);
  (void)store->write_marks({mark_of(1, 9)});
  const auto sequence =
      store->seed_marks(store->epoch(), {{volume(1), {"u1", 5}, false}, {volume(2), {"u2", 4}, false}}, 40);
  REQUIRE(sequence.has_value());
  CHECK(*sequence >= 40);
  CHECK(store->seeded());
  CHECK(store->mark(volume(1))->mark->generation == 9);
  CHECK(store->mark(volume(2))->mark->generation == 4);
}

TEST_CASE("a state directory restored from a backup is noticed by its sequence and unseeds itself for good") {
  const TempDir dir;
  {
    auto store = open_store(dir);
    seed_empty(*store);
    (void)store->write_marks({mark_of(1, 3)});
    CHECK_FALSE(store->note_known_sequence(store->epoch(), 1));
    CHECK_FALSE(store->note_known_sequence("another epoch", 100));
    CHECK(store->seeded());
    CHECK(store->note_known_sequence(store->epoch(), 2));
    CHECK_FALSE(store->seeded());
  }
  auto store = open_store(dir);
  CHECK_FALSE(store->seeded());
  CHECK(*store->seed_marks(store->epoch(), {}, 2) >= 2);
  CHECK_FALSE(store->note_known_sequence(store->epoch(), 2));
}

TEST_CASE("tombstones go only when the object is gone and 30 days of running time have passed") {
  const TempDir dir;
  auto store = open_store(dir);
  seed_empty(*store);
  (void)store->write_marks({mark_of(1, 3, LifeState::ended), mark_of(2, 3)});
  for (std::size_t i = 0; i + 1 < StateStore::k_tombstone_ticks; ++i) REQUIRE(store->tick().has_value());
  CHECK(*store->prune_tombstones({}) == 0);
  REQUIRE(store->tick().has_value());
  CHECK(*store->prune_tombstones({volume(1)}) == 0);
  CHECK(*store->prune_tombstones({}) == 1);
  CHECK_FALSE(store->mark(volume(1))->mark.has_value());
  CHECK(store->mark(volume(2))->mark.has_value());
  const auto sequence = store->sequence();
  store.reset();
  CHECK(open_store(dir)->sequence() == sequence);
}

TEST_CASE("export records: durable, found by name, ignored when damaged, usable only as new as their mark") {
  const TempDir dir;
  {
    auto store = open_store(dir);
    seed_empty(*store);
    const auto results = store->write_records({{volume(1), record_of(1, 3)}, {volume(2), record_of(2, 3)}});
    for (const auto& result : results) CHECK(result.has_value());
    CHECK(*store->volume_of_nqn(record_of(2, 3).nqn) == volume(2));
    CHECK(store->write_records({{volume(2), std::nullopt}})[0].has_value());
    (void)store->write_records({{volume(3), record_of(3, 3)}});
  }
  std::ofstream(dir / ("state/exports/" + record_file_name(volume(3))), std::ios::app) << "x";
  auto store = open_store(dir);
  REQUIRE(store->records().size() == 1);
  const ExportRecord record = *store->record(volume(1));
  CHECK(record.same_export(record_of(1, 9)));
  CHECK(record.initiators.at(0).readonly);
  CHECK(record.token.generation == 3);
  StoredMark stored{mark_of(1, 3), true, false};
  CHECK(record_usable(record, stored));
  stored.mark->generation = 4;
  CHECK_FALSE(record_usable(record, stored));
  stored.mark = mark_of(1, 3, LifeState::destroying);
  CHECK_FALSE(record_usable(record, stored));
  stored.mark = mark_of(1, 3);
  stored.seeded = false;
  CHECK_FALSE(record_usable(record, stored));
}
