#include "actors/controller/sizes.hpp"

#include <algorithm>
#include <string>

namespace pillar::controller {
namespace {

Result<SizeRange> check(std::int64_t required_bytes, std::int64_t limit_bytes) {
  if (required_bytes < 0 || limit_bytes < 0)
    return fail(Reason::invalid_argument, "capacity range has required_bytes " +
                                              std::to_string(required_bytes) + " and limit_bytes " +
                                              std::to_string(limit_bytes) + "; neither may be negative");
  const auto required = static_cast<std::uint64_t>(required_bytes);
  const auto limit = static_cast<std::uint64_t>(limit_bytes);
  if (limit != 0 && limit < required)
    return fail(Reason::out_of_range, "limit_bytes " + std::to_string(limit) + " is below required_bytes " +
                                          std::to_string(required) + "; raise the limit");
  if (required > k_max_volume_bytes)
    return fail(Reason::out_of_range, "required_bytes " + std::to_string(required) +
                                          " is beyond the largest possible volume of " +
                                          std::to_string(k_max_volume_bytes) + " bytes");
  return SizeRange{required, limit};
}

}  // namespace

Result<SizeRange> parse_size_range(std::int64_t required_bytes, std::int64_t limit_bytes) {
  auto range = check(required_bytes, limit_bytes);
  if (range && range->required == 0)
    range->required =
        range->limit == 0 ? k_default_volume_bytes : std::min(k_default_volume_bytes, range->limit);
  return range;
}

Result<SizeRange> parse_expand_range(std::int64_t required_bytes, std::int64_t limit_bytes) {
  auto range = check(required_bytes, limit_bytes);
  if (!range) return range;
  if (range->required == 0 && range->limit == 0)
    return fail(Reason::invalid_argument, "capacity range is empty; give required_bytes");
  range->required = std::max<std::uint64_t>(range->required, 1);
  return range;
}

}  // namespace pillar::controller
