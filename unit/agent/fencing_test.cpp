#include <doctest/doctest.h>

#include <map>
#include <ostream>
#include <random>
#include <set>

#include "actors/agent/fencing.hpp"

using namespace pillar;
using namespace pillar::agent;

TEST_SUITE_BEGIN("agent/fencing");

namespace {

const AgentVolumeId k_volume{"vg0", "pvc-1"};

Mark mark_of(std::string uid, std::uint64_t generation, LifeState state,
             std::vector<std::string> retired = {}) {
  return Mark{k_volume, std::move(uid), generation, state, std::move(retired), 7};
}

/// What one cell of the table promises. `state` is the state of the next mark, "-" when none is written.
struct Expected {
  std::string answer;  // run | done | REASON
  std::string state = "-";
};

struct Row {
  const char* name;
  std::optional<Mark> mark;
  Token token;
  Expected grant, revoke, destroy;
};

std::string answer_of(const Admission& a) {
  if (a.verdict == Verdict::run) return "run";
  if (a.verdict == Verdict::already_done) return "done";
  return std::string(to_string(a.refusal.reason));
}

void check_cell(const Row& row, OpClass op, const Expected& expected) {
  CAPTURE(std::string(row.name));
  CAPTURE(std::string(to_string(op)));
  const Admission a = admit(k_volume, row.mark, true, row.token, op);
  CHECK(answer_of(a) == expected.answer);
  CHECK(std::string(a.next ? to_string(a.next->state) : "-") == expected.state);
  if (a.next) {
    CHECK(a.next->uid == row.token.volume_uid);
    CHECK(a.next->generation == row.token.generation);
  }
  if (a.verdict == Verdict::refused && row.mark) {
    CHECK(a.refusal.details.at("uid") == row.mark->uid);
    CHECK(a.refusal.details.at("generation") == std::to_string(row.mark->generation));
    CHECK(a.refusal.details.at("state") == to_string(row.mark->state));
  }
}

}  // namespace

TEST_CASE("admission: every row of docs/fencing.md section 1") {
  const auto open = [](const char* uid, std::uint64_t g) {
    return mark_of(uid, g, LifeState::open, {"old"});
  };
  const auto destroying = [](std::uint64_t g) { return mark_of("u1", g, LifeState::destroying, {"old"}); };
  const auto tomb = [](std::uint64_t g) { return mark_of("u1", g, LifeState::ended, {"old"}); };
  const Expected missing{"TOKEN_MISSING"};
  const Expected stale{"STALE_GENERATION"};
  const Expected foreign{"FOREIGN_LIFECYCLE"};
  const Expected ending{"LIFECYCLE_ENDING"};
  const Expected over{"LIFECYCLE_ENDED"};
  const Expected retired{"LIFECYCLE_RETIRED"};
  const Row rows[] = {
      {"none, empty uid", std::nullopt, {"", 3}, missing, missing, missing},
      {"none, generation 0", std::nullopt, {"u1", 0}, missing, missing, missing},
      {"open, empty uid", open("u1", 5), {"", 5}, missing, missing, missing},
      {"ended, generation 0", tomb(5), {"u1", 0}, missing, missing, missing},
      {"none, new uid", std::nullopt, {"u1", 3}, {"run", "open"}, {"done", "open"}, {"done", "ended"}},
      {"open same uid, lower", open("u1", 5), {"u1", 4}, stale, stale, stale},
      {"open same uid, equal", open("u1", 5), {"u1", 5}, {"run"}, {"run"}, {"run", "destroying"}},
      {"open same uid, higher",
       open("u1", 5),
       {"u1", 9},
       {"run", "open"},
       {"run", "open"},
       {"run", "destroying"}},
      {"open, other uid", open("u1", 5), {"u2", 9}, foreign, foreign, foreign},
      {"destroying same uid, equal", destroying(5), {"u1", 5}, ending, {"run"}, {"run"}},
      {"destroying same uid, higher", destroying(5), {"u1", 6}, ending, ending, ending},
      {"destroying same uid, lower", destroying(5), {"u1", 4}, ending, ending, ending},
      {"destroying, other uid", destroying(5), {"u2", 1}, foreign, foreign, foreign},
      {"ended same uid, equal", tomb(5), {"u1", 5}, over, {"done"}, {"done"}},
      {"ended same uid, higher", tomb(5), {"u1", 6}, over, over, over},
      {"ended same uid, lower", tomb(5), {"u1", 4}, over, over, over},
      {"ended, new uid", tomb(5), {"u2", 2}, {"run", "open"}, {"done", "open"}, {"done", "ended"}},
      {"open, retired uid", open("u1", 5), {"old", 99}, retired, retired, retired},
      {"destroying, retired uid", destroying(5), {"old", 99}, retired, retired, retired},
      {"ended, retired uid", tomb(5), {"old", 99}, retired, retired, retired},
  };
  for (const Row& row : rows) {
    check_cell(row, OpClass::grant, row.grant);
    check_cell(row, OpClass::revoke, row.revoke);
    check_cell(row, OpClass::destroy, row.destroy);
  }
}

TEST_CASE("admission: a new life retires the one before it") {
  const auto tomb = mark_of("u1", 5, LifeState::ended, {"u0"});
  const Admission a = admit(k_volume, tomb, true, {"u2", 1}, OpClass::grant);
  REQUIRE(a.next.has_value());
  CHECK(a.next->retired == std::vector<std::string>{"u0", "u1"});
  CHECK(answer_of(admit(k_volume, a.next, true, {"u1", 6}, OpClass::grant)) == "LIFECYCLE_RETIRED");
}

TEST_CASE(
    "admission: refusals are FAILED_PRECONDITION, an unseeded agent is UNAVAILABLE, wild jumps are invalid") {
  const auto open = mark_of("u1", 5, LifeState::open);
  for (const OpClass op : {OpClass::grant, OpClass::revoke, OpClass::destroy}) {
    CHECK(admit(k_volume, open, true, {"u1", 4}, op).refusal.code == Code::failed_precondition);
    CHECK(admit(k_volume, open, true, {"", 4}, op).refusal.code == Code::failed_precondition);
    const Admission unseeded = admit(k_volume, open, false, {"u1", 5}, op);
    CHECK(answer_of(unseeded) == "EPOCH_UNKNOWN");
    CHECK(unseeded.refusal.code == Code::unavailable);
    CHECK(admit(k_volume, open, true, {"u1", 5 + k_max_generation_jump + 1}, op).refusal.code ==
          Code::invalid_argument);
    CHECK(answer_of(admit(k_volume, open, true, {"u1", 5 + k_max_generation_jump}, op)) == "run");
  }
}

TEST_CASE("seed: writes open marks, never lowers, never revives, never takes over") {
  const Seed s{k_volume, {"u1", 5}, false};
  CHECK(seed(std::nullopt, s)->value().generation == 5);
  CHECK(seed(std::nullopt, s)->value().state == LifeState::open);
  CHECK_FALSE(seed(mark_of("u1", 9, LifeState::open), s)->has_value());
  CHECK(seed(mark_of("u1", 2, LifeState::open), s)->value().generation == 5);
  CHECK_FALSE(seed(mark_of("u2", 2, LifeState::open), s)->has_value());
  CHECK_FALSE(seed(mark_of("u1", 2, LifeState::ended), s)->has_value());
  CHECK_FALSE(seed(mark_of("u2", 2, LifeState::ended, {"u1"}), s)->has_value());
  const Mark renewed = seed(mark_of("u2", 2, LifeState::ended), s)->value();
  CHECK(renewed.uid == "u1");
  CHECK(renewed.retired == std::vector<std::string>{"u2"});
  const Seed deleting{k_volume, {"u1", 5}, true};
  CHECK(seed(mark_of("u1", 2, LifeState::destroying), deleting)->value().generation == 5);
  CHECK(seed(mark_of("u1", 2, LifeState::destroying), deleting)->value().state == LifeState::destroying);
  CHECK(seed(std::nullopt, Seed{k_volume, {"", 1}, false}).error().reason == Reason::token_missing);
}

TEST_CASE("adopt: only the exactly named life is continued, and repeating it changes nothing") {
  const auto open = mark_of("u1", 5, LifeState::open);
  const auto next = adopt(k_volume, open, {"u2", 1}, "u1", 5);
  REQUIRE(next.has_value());
  CHECK(next->value().uid == "u2");
  CHECK(next->value().retired == std::vector<std::string>{"u1"});
  CHECK_FALSE(adopt(k_volume, *next, {"u2", 1}, "u1", 5)->has_value());
  CHECK(adopt(k_volume, open, {"u2", 1}, "u1", 4).error().reason == Reason::foreign_lifecycle);
  CHECK(adopt(k_volume, open, {"u2", 1}, "u9", 5).error().reason == Reason::foreign_lifecycle);
  CHECK(adopt(k_volume, std::nullopt, {"u2", 1}, "u1", 5).error().reason == Reason::foreign_lifecycle);
  CHECK(adopt(k_volume, mark_of("u1", 5, LifeState::ended), {"u2", 1}, "u1", 5).error().reason ==
        Reason::lifecycle_ended);
  CHECK(adopt(k_volume, mark_of("u1", 5, LifeState::open, {"u2"}), {"u2", 1}, "u1", 5).error().reason ==
        Reason::lifecycle_retired);
}

TEST_CASE("tombstones stay until acknowledged and a whole window of running time has passed") {
  Mark tomb = mark_of("u1", 5, LifeState::ended);
  tomb.sequence = 10;
  CHECK_FALSE(tombstone_expired(tomb, true, {}, 3));
  CHECK_FALSE(tombstone_expired(tomb, true, {10, 11}, 3));
  CHECK_FALSE(tombstone_expired(tomb, true, {9, 11, 12}, 3));
  CHECK(tombstone_expired(tomb, true, {10, 11, 12}, 3));
  CHECK_FALSE(tombstone_expired(tomb, false, {10, 11, 12}, 3));
  tomb.state = LifeState::open;
  CHECK_FALSE(tombstone_expired(tomb, true, {10, 11, 12}, 3));
}

TEST_CASE("mark files: round trip, and any damage is MARK_CORRUPT") {
  const Mark mark = mark_of("u1", 1ULL << 60U, LifeState::destroying, {"a", "b"});
  const std::string name = mark_file_name(k_volume);
  CHECK(name == "vg0%2Fpvc-1.mark");
  const std::string text = encode_mark(mark);
  REQUIRE(decode_mark(name, text).has_value());
  CHECK(*decode_mark(name, text) == mark);
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {  // the last byte is the newline
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    const auto read = decode_mark(name, damaged);
    CHECK_MESSAGE(!read.has_value(), "byte " << i);
    if (!read) CHECK(read.error().reason == Reason::mark_corrupt);
  }
  for (std::size_t n = 0; n + 2 < text.size(); n += 7)
    CHECK_FALSE(decode_mark(name, text.substr(0, n)).has_value());
  CHECK(decode_mark("vg0%2Fpvc-2.mark", text).error().reason == Reason::mark_corrupt);
  CHECK(decode_mark(name, R"({"schema":2,"crc32c":"00000000"})").error().reason == Reason::mark_corrupt);
  CHECK(decode_mark(name, "[]").error().reason == Reason::mark_corrupt);
}

TEST_CASE("mark files: over-long ids hash, and the hash still maps back") {
  const AgentVolumeId a{std::string(63, 'p'), std::string(63, 'n')};
  CHECK(mark_file_name(a) != mark_file_name(AgentVolumeId{std::string(63, 'p'), std::string(62, 'n')}));
  Mark mark = mark_of("u", 1, LifeState::open);
  mark.volume = a;
  CHECK(decode_mark(mark_file_name(a), encode_mark(mark)).has_value());
}

// An independent statement of the same protocol: not a table over the mark, but facts that were seen to
// become durable, from which the answer follows.
namespace {

struct Model {
  struct Life {
    std::uint64_t highest = 0;
    bool end_began = false;
    bool gone = false;
  };
  std::map<std::string, Life> lives;  // every life that ever had a durable mark
  std::string current;                // the latest of them

  std::string answer(const Token& t, OpClass op) const {
    if (t.volume_uid.empty() || t.generation == 0) return "TOKEN_MISSING";
    const auto it = lives.find(t.volume_uid);
    if (it == lives.end()) {  // never seen: may begin only when nothing is alive
      if (!current.empty() && !lives.at(current).gone) return "FOREIGN_LIFECYCLE";
      return op == OpClass::grant ? "run" : "done";
    }
    if (t.volume_uid != current) return "LIFECYCLE_RETIRED";
    const Life& life = it->second;
    if (life.end_began || life.gone) {
      const bool same_deletion = t.generation == life.highest && op != OpClass::grant;
      if (!same_deletion) return life.gone ? "LIFECYCLE_ENDED" : "LIFECYCLE_ENDING";
      return life.gone ? "done" : "run";
    }
    return t.generation < life.highest ? "STALE_GENERATION" : "run";
  }

  void became_durable(const Token& t, OpClass op) {
    const bool first = lives.find(t.volume_uid) == lives.end();
    Life& life = lives[t.volume_uid];
    current = t.volume_uid;
    life.highest = std::max(life.highest, t.generation);
    if (op == OpClass::destroy && !life.gone) (first ? life.gone : life.end_began) = true;
  }
};

/// The rule I2 as seen from outside: what ran, in order.
struct Witness {
  std::map<std::string, std::uint64_t> highest_run;
  std::set<std::string> destroyed;
  void ran(const Token& t, OpClass op) {
    CHECK_MESSAGE(t.generation >= highest_run[t.volume_uid], "an older generation acted");
    highest_run[t.volume_uid] = t.generation;
    if (op == OpClass::grant)
      CHECK_MESSAGE(destroyed.count(t.volume_uid) == 0, "a destroyed life was granted");
    if (op == OpClass::destroy) destroyed.insert(t.volume_uid);
  }
};

void run_seed(unsigned seed_value) {
  INFO("seed " << seed_value);
  std::mt19937 random(seed_value);
  const auto pick = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  std::optional<std::string> disk;  // the mark file
  const std::string name = mark_file_name(k_volume);
  Model model;
  Witness witness;
  std::vector<std::pair<Token, OpClass>> sent;
  for (int step = 0; step < 120; ++step) {
    std::pair<Token, OpClass> request{{"u" + std::to_string(pick(4)), pick(8)},
                                      static_cast<OpClass>(pick(3))};
    if (pick(20) == 0) request.first.volume_uid.clear();
    if (!sent.empty() && pick(3) == 0)
      request = sent[pick(static_cast<unsigned>(sent.size()))];  // delayed duplicate
    sent.push_back(request);
    const auto& [token, op] = request;
    std::optional<Mark> stored;
    if (disk) stored = decode_mark(name, *disk).value();
    const Admission a = admit(k_volume, stored, true, token, op);
    REQUIRE(answer_of(a) == model.answer(token, op));
    if (a.verdict == Verdict::refused || pick(6) == 0) continue;  // crash before the mark
    if (a.next) disk = encode_mark(*a.next);
    model.became_durable(token, op);
    if (a.verdict == Verdict::already_done || pick(6) == 0) continue;  // crash before acting
    witness.ran(token, op);
    if (op != OpClass::destroy || pick(6) == 0) continue;  // crash before `ended`
    disk = encode_mark(ended(decode_mark(name, *disk).value()));
    model.lives[token.volume_uid].gone = true;
  }
}

}  // namespace

TEST_CASE("model: random tokens, duplicates, reorderings and crashes agree with an independent reference") {
  for (unsigned seed_value = 1; seed_value <= 400; ++seed_value) run_seed(seed_value);
  const unsigned fresh = std::random_device{}();
  MESSAGE("fresh seeds from " << fresh);
  for (unsigned i = 0; i < 100; ++i) run_seed(fresh + i);
}
TEST_CASE("a token whose uid is no uid is refused before it can come into a mark") {
  const AgentVolumeId volume{"vg0", "pvc-1"};
  for (const std::string& uid :
       {std::string(129, 'a'), std::string("a b"), std::string("../x"), std::string("u\xff")}) {
    CAPTURE(uid.size());
    for (const OpClass op : {OpClass::grant, OpClass::revoke, OpClass::destroy}) {
      const Admission refused = admit(volume, std::nullopt, true, {uid, 1}, op);
      CHECK(refused.verdict == Verdict::refused);
      CHECK(refused.refusal.reason == Reason::invalid_argument);
      CHECK_FALSE(refused.next);
    }
    CHECK_FALSE(seed(std::nullopt, {volume, {uid, 1}, false}).has_value());
  }
  CHECK(admit(volume, std::nullopt, true, {std::string(128, 'a'), 1}, OpClass::grant).verdict ==
        Verdict::run);
}
