#pragma once
// What a CO may ask for as a size, and when an existing size satisfies it. Bytes throughout.

#include <cstdint>
#include <string_view>

#include "messages/error.hpp"

namespace pillar::controller {

/// Size of a volume whose request names none.
inline constexpr std::uint64_t k_default_volume_bytes = std::uint64_t{1} << 30U;
/// Nothing larger is sent to an agent: rounding up to any allocation unit stays inside 63 bits.
inline constexpr std::uint64_t k_max_volume_bytes = std::uint64_t{1} << 62U;

/// A checked csi.v1.CapacityRange.
struct SizeRange {
  std::uint64_t required = k_default_volume_bytes;  ///< at least this, never 0
  std::uint64_t limit = 0;                          ///< at most this; 0: no limit

  /// True when a volume of `bytes` is what was asked for (reported-faults row J06).
  bool admits(std::uint64_t bytes) const { return bytes >= required && (limit == 0 || bytes <= limit); }
  friend bool operator==(const SizeRange&, const SizeRange&) = default;
};

/// Checks the two wire fields (row J04): a negative one is INVALID_ARGUMENT, a limit below required or a size
/// beyond k_max_volume_bytes is OUT_OF_RANGE. 0 means "not given": required then becomes 1 GiB, or the limit
/// if that is smaller.
Result<SizeRange> parse_size_range(std::int64_t required_bytes, std::int64_t limit_bytes);

/// `parse_size_range` for an expansion, where asking for nothing is an error: INVALID_ARGUMENT when both are
/// 0; with only a limit nothing has to grow and required is 1.
Result<SizeRange> parse_expand_range(std::int64_t required_bytes, std::int64_t limit_bytes);

}  // namespace pillar::controller
