#pragma once
// Fencing admission (docs/fencing.md section 1) as plain values and functions: what is recorded for a volume,
// what a request presents, and therefore what must become durable before it may act. No clock, no I/O.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace pillar::agent {

/// Where one life of a volume stands.
enum class LifeState : std::uint8_t { open, destroying, ended };

/// What a request does to access: grants or keeps it, takes it, or ends the volume's life.
enum class OpClass : std::uint8_t { grant, revoke, destroy };

/// Version of the mark file format.
inline constexpr int k_mark_schema = 1;
/// A generation further than this from the mark cannot be the next step of an honest controller.
inline constexpr std::uint64_t k_max_generation_jump = std::uint64_t{1} << 32U;

/// Longest volume uid; what is longer or has other characters than letters, digits, '-', '_', '.' is no uid
/// and must not come into a durable file.
inline constexpr std::size_t k_max_uid = 128;

/// FencingToken of a request: one life of one volume id, and the controller's position in it.
struct Token {
  std::string volume_uid;
  std::uint64_t generation = 0;
};

/// The durable fencing mark of one volume.
struct Mark {
  AgentVolumeId volume;
  std::string uid;               ///< current life
  std::uint64_t generation = 0;  ///< highest admitted generation of this life, >= 1
  LifeState state = LifeState::open;
  std::vector<std::string> retired;  ///< uids of earlier lives; none of them is ever admitted again
  std::uint64_t sequence = 0;        ///< agent-wide write counter, set by the mark store
  friend bool operator==(const Mark&, const Mark&) = default;

  /// True when this mark may follow `older`: same life and not backwards in it, or a life begun after it.
  bool advances(const Mark& older) const;
};

/// Outcome of admission.
enum class Verdict : std::uint8_t {
  run,           ///< make `next` durable (when there is one), then act
  already_done,  ///< make `next` durable (when there is one), then answer OK without acting
  refused,       ///< answer `refusal`, touch nothing
};

struct Admission {
  Verdict verdict = Verdict::refused;
  std::optional<Mark> next;  ///< mark to write before anything else; none: the stored one already covers it
  Error refusal;             ///< set when refused
};

/// Decides one request. `mark` is the stored mark of `volume` (none: never written), `seeded` whether the
/// agent's marks are known to be complete (docs/fencing.md section 2). Refusals carry uid, generation and
/// state of the mark in their details.
Admission admit(const AgentVolumeId& volume, const std::optional<Mark>& mark, bool seeded, const Token& token,
                OpClass op);

/// `mark` after its destroy action has finished.
Mark ended(Mark mark);

/// One entry of SeedMarks: what the controller has recorded for a volume.
struct Seed {
  AgentVolumeId volume;
  Token token;
  bool deleting = false;
};
/// The mark to write for `seed`, none when the stored one stays. Never lowers a generation, never goes back
/// in a life, never takes over another open life (docs/fencing.md section 2).
Result<std::optional<Mark>> seed(const std::optional<Mark>& mark, const Seed& seed);

/// The mark that continues `mark` under the life `token` after an operator's explicit decision; none when
/// that was done before. Refused unless `mark` is exactly (old_uid, old_generation).
Result<std::optional<Mark>> adopt(const AgentVolumeId& volume, const std::optional<Mark>& mark,
                                  const Token& token, std::string_view old_uid, std::uint64_t old_generation);

/// True when the tombstone `mark` may be forgotten: ended, its object acknowledged gone, and older than the
/// agent's sequence of `window` ticks of running time ago. `ticks` are the sequences at the latest ticks,
/// oldest first; wall clock plays no part.
bool tombstone_expired(const Mark& mark, bool acknowledged_gone, const std::vector<std::uint64_t>& ticks,
                       std::size_t window);

/// "open", "destroying", "ended".
std::string_view to_string(LifeState state);
/// "grant", "revoke", "destroy".
std::string_view to_string(OpClass op);
/// Label of the decision metric: "run", "already_done" or the refusal's reason in lower case.
std::string decision_label(const Admission& admission);

/// File name of a volume's mark inside the marks directory.
std::string mark_file_name(const AgentVolumeId& volume);
/// JSON text of a mark with its crc32c.
std::string encode_mark(const Mark& mark);
/// Reads the mark stored under `file_name`; MARK_CORRUPT unless crc, schema, every field and the file name
/// agree.
Result<Mark> decode_mark(std::string_view file_name, std::string_view text);

}  // namespace pillar::agent
