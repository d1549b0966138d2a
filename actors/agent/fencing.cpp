#include "actors/agent/fencing.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "hostio/durable_file.hpp"

namespace pillar::agent {
namespace {

using nlohmann::json;

constexpr std::string_view k_mark_suffix = ".mark";

std::string crc_text(const json& body) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", hostio::crc32c(body.dump()));
  return text.data();
}

Error refusal_error(Reason reason, const AgentVolumeId& volume, const std::optional<Mark>& mark,
                    const std::string& why) {
  std::map<std::string, std::string> details{{"volume", volume.str()}};
  if (mark) {
    details["uid"] = mark->uid;
    details["generation"] = std::to_string(mark->generation);
    details["state"] = to_string(mark->state);
  }
  return Error{info(reason).code, reason, "volume " + volume.str() + ": " + why, std::move(details)};
}

Admission refused(Reason reason, const AgentVolumeId& volume, const std::optional<Mark>& mark,
                  const std::string& why) {
  Admission out;
  out.refusal = refusal_error(reason, volume, mark, why);
  return out;
}

bool is_retired(const Mark& mark, std::string_view uid) {
  return std::find(mark.retired.begin(), mark.retired.end(), uid) != mark.retired.end();
}

std::string position(const Token& token) {
  return "life " + token.volume_uid + " generation " + std::to_string(token.generation);
}

// The first mark of a life. A life that starts with its own end has nothing to run: what exists under this
// name without a mark is not ours to touch (the caller has checked that no object of ours is there).
Admission begin_life(const AgentVolumeId& volume, const std::optional<Mark>& old, const Token& token,
                     OpClass op) {
  Mark next{volume,
            token.volume_uid,
            token.generation,
            op == OpClass::destroy ? LifeState::ended : LifeState::open,
            {},
            0};
  if (old) {
    next.retired = old->retired;
    next.retired.push_back(old->uid);
  }
  return Admission{op == OpClass::grant ? Verdict::run : Verdict::already_done, std::move(next), {}};
}

Admission continue_open(const Mark& mark, const Token& token, OpClass op) {
  if (token.generation < mark.generation)
    return refused(Reason::stale_generation, mark.volume, mark,
                   position(token) + " is older than the recorded generation " +
                       std::to_string(mark.generation) + "; the record has moved on, read it again");
  Admission out;
  out.verdict = Verdict::run;
  if (token.generation == mark.generation && op != OpClass::destroy) return out;
  out.next = mark;
  out.next->generation = token.generation;
  if (op == OpClass::destroy) out.next->state = LifeState::destroying;
  return out;
}

Admission continue_closing(const Mark& mark, const Token& token, OpClass op) {
  const bool ending = mark.state == LifeState::destroying;
  if (op == OpClass::grant || token.generation != mark.generation)
    return refused(ending ? Reason::lifecycle_ending : Reason::lifecycle_ended, mark.volume, mark,
                   position(token) + (ending ? " is being deleted" : " was deleted") + " at generation " +
                       std::to_string(mark.generation) +
                       (ending ? "; only that deletion can go on" : "; it is not brought back"));
  Admission out;
  out.verdict = ending ? Verdict::run : Verdict::already_done;
  return out;
}

std::uint64_t jump(std::uint64_t from, std::uint64_t to) { return to > from ? to - from : 0; }

std::optional<Error> malformed(const AgentVolumeId& volume, const std::optional<Mark>& mark,
                               const Token& token) {
  if (token.volume_uid.empty() || token.generation == 0)
    return refusal_error(Reason::token_missing, volume, mark,
                         "the request carries no fencing token (volume uid '" + token.volume_uid +
                             "', generation " + std::to_string(token.generation) +
                             "); every change needs the record's uid and a generation of 1 or more");
  const bool plain = token.volume_uid.size() <= k_max_uid &&
                     std::all_of(token.volume_uid.begin(), token.volume_uid.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                     });
  if (!plain)
    return refusal_error(Reason::invalid_argument, volume, mark,
                         "the token's volume uid of " + std::to_string(token.volume_uid.size()) +
                             " bytes is none: at most " + std::to_string(k_max_uid) +
                             " letters, digits, '-', '_' and '.' are");
  const bool same_life = mark && mark->uid == token.volume_uid;
  const std::uint64_t base = same_life ? mark->generation : 0;
  if (jump(base, token.generation) > k_max_generation_jump)
    return refusal_error(Reason::invalid_argument, volume, mark,
                         "generation " + std::to_string(token.generation) + " is more than 2^32 beyond " +
                             std::to_string(base) + "; the token is not credible");
  return std::nullopt;
}

}  // namespace

Admission admit(const AgentVolumeId& volume, const std::optional<Mark>& mark, bool seeded, const Token& token,
                OpClass op) {
  if (auto error = malformed(volume, mark, token)) {
    Admission out;
    out.refusal = std::move(*error);
    return out;
  }
  if (!seeded)
    return refused(
        Reason::epoch_unknown, volume, mark,
        "this agent's fencing marks are not known to be complete; the controller has to seed them first");
  if (!mark) return begin_life(volume, mark, token, op);
  if (is_retired(*mark, token.volume_uid))
    return refused(Reason::lifecycle_retired, volume, mark,
                   position(token) + " ended before the present life " + mark->uid + " began");
  if (mark->uid == token.volume_uid)
    return mark->state == LifeState::open ? continue_open(*mark, token, op)
                                          : continue_closing(*mark, token, op);
  if (mark->state == LifeState::ended) return begin_life(volume, mark, token, op);
  return refused(Reason::foreign_lifecycle, volume, mark,
                 position(token) + " is not the recorded life " + mark->uid +
                     "; its record was removed and made again. The agent's AdoptLifecycle call continues the "
                     "volume under the "
                     "new record (docs/operating.md, FOREIGN_LIFECYCLE)");
}

bool Mark::advances(const Mark& older) const {
  if (uid == older.uid) return generation >= older.generation && state >= older.state;
  return is_retired(*this, older.uid) && !is_retired(older, uid);
}

Mark ended(Mark mark) {
  mark.state = LifeState::ended;
  return mark;
}

Result<std::optional<Mark>> seed(const std::optional<Mark>& mark, const Seed& seed) {
  if (auto error = malformed(seed.volume, mark, seed.token)) return tl::unexpected(std::move(*error));
  if (!mark || (mark->uid != seed.token.volume_uid && mark->state == LifeState::ended &&
                !is_retired(*mark, seed.token.volume_uid)))
    return begin_life(seed.volume, mark, seed.token, OpClass::grant).next;
  if (mark->uid != seed.token.volume_uid || seed.token.generation <= mark->generation) return std::nullopt;
  // A closing life only follows a record that is being deleted; otherwise grants must stay refused.
  if (mark->state != LifeState::open && !seed.deleting) return std::nullopt;
  Mark next = *mark;
  next.generation = seed.token.generation;
  return next;
}

Result<std::optional<Mark>> adopt(const AgentVolumeId& volume, const std::optional<Mark>& mark,
                                  const Token& token, std::string_view old_uid,
                                  std::uint64_t old_generation) {
  if (auto error = malformed(volume, mark, token)) return tl::unexpected(std::move(*error));
  if (mark && mark->uid == token.volume_uid && is_retired(*mark, old_uid)) return std::nullopt;
  if (mark && is_retired(*mark, token.volume_uid))
    return tl::unexpected(refusal_error(Reason::lifecycle_retired, volume, mark,
                                        position(token) + " ended before the present life began"));
  if (!mark || mark->uid != old_uid || mark->generation != old_generation)
    return tl::unexpected(refusal_error(
        Reason::foreign_lifecycle, volume, mark,
        "the life to adopt was given as " + std::string(old_uid) + " generation " +
            std::to_string(old_generation) + ", recorded is " +
            (mark ? mark->uid + " generation " + std::to_string(mark->generation) : std::string("nothing")) +
            "; repeat with the recorded values"));
  if (mark->state == LifeState::ended)
    return tl::unexpected(refusal_error(Reason::lifecycle_ended, volume, mark,
                                        "the old life has ended; a new one needs no adoption"));
  return begin_life(volume, mark, token, OpClass::grant).next;
}

bool tombstone_expired(const Mark& mark, bool acknowledged_gone, const std::vector<std::uint64_t>& ticks,
                       std::size_t window) {
  if (mark.state != LifeState::ended || !acknowledged_gone || window == 0 || ticks.size() < window)
    return false;
  return mark.sequence <= ticks[ticks.size() - window];
}

std::string_view to_string(LifeState state) {
  switch (state) {
    case LifeState::open:
      return "open";
    case LifeState::destroying:
      return "destroying";
    case LifeState::ended:
      return "ended";
  }
  return "";
}

std::string_view to_string(OpClass op) {
  switch (op) {
    case OpClass::grant:
      return "grant";
    case OpClass::revoke:
      return "revoke";
    case OpClass::destroy:
      return "destroy";
  }
  return "";
}

std::string decision_label(const Admission& admission) {
  if (admission.verdict == Verdict::run) return "run";
  if (admission.verdict == Verdict::already_done) return "already_done";
  std::string label(to_string(admission.refusal.reason));
  std::transform(label.begin(), label.end(), label.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return label;
}

std::string mark_file_name(const AgentVolumeId& volume) {
  return escape_file_name(volume.str()) + std::string(k_mark_suffix);
}

std::string encode_mark(const Mark& mark) {
  json body{{"schema", k_mark_schema},       {"volumeID", mark.volume.str()},  {"uid", mark.uid},
            {"generation", mark.generation}, {"state", to_string(mark.state)}, {"retired", mark.retired},
            {"sequence", mark.sequence}};
  body["crc32c"] = crc_text(body);
  return body.dump() + "\n";
}

namespace {

std::optional<LifeState> parse_state(std::string_view text) {
  for (const LifeState state : {LifeState::open, LifeState::destroying, LifeState::ended})
    if (text == to_string(state)) return state;
  return std::nullopt;
}

// Throws nlohmann's exceptions on missing or mistyped fields; the caller turns them into MARK_CORRUPT.
Result<Mark> mark_of_json(json body) {
  const auto bad = [](const std::string& why) { return fail(Reason::mark_corrupt, why); };
  const std::string crc = body.at("crc32c").get<std::string>();
  body.erase("crc32c");
  if (crc != crc_text(body)) return bad("its checksum does not match its content");
  const auto schema = body.at("schema").get<int>();
  if (schema != k_mark_schema)
    return bad("schema " + std::to_string(schema) + " is not known to this version");
  auto volume = AgentVolumeId::parse(body.at("volumeID").get<std::string>());
  if (!volume) return bad(volume.error().message);
  const auto state = parse_state(body.at("state").get<std::string>());
  if (!state) return bad("state '" + body.at("state").get<std::string>() + "' is unknown");
  if (!body.at("generation").is_number_unsigned() || !body.at("sequence").is_number_unsigned())
    return bad("generation or sequence is not an unsigned number");
  Mark mark{std::move(*volume),
            body.at("uid").get<std::string>(),
            body.at("generation").get<std::uint64_t>(),
            *state,
            body.at("retired").get<std::vector<std::string>>(),
            body.at("sequence").get<std::uint64_t>()};
  if (mark.uid.empty() || mark.generation == 0) return bad("uid or generation is empty");
  return mark;
}

}  // namespace

Result<Mark> decode_mark(std::string_view file_name, std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return fail(
        Reason::mark_corrupt,
        "fencing mark '" + std::string(file_name) + "' cannot be trusted: " + why +
            "; every change of its volume is refused. Stop the agent, move this file and meta.json out of "
            "the state directory and start it: the controller then restores the mark",
        {{"file", std::string(file_name)}});
  };
  try {
    auto mark = mark_of_json(json::parse(text));
    if (!mark) return bad(mark.error().message);
    if (mark_file_name(mark->volume) != file_name) return bad("it belongs to volume " + mark->volume.str());
    return mark;
  } catch (const json::exception& e) {
    return bad(e.what());
  }
}

}  // namespace pillar::agent
