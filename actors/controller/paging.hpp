#pragma once
// Pages of a sorted list whose tokens stay good while entries come and go: a token names the last entry
// given, not an offset, so churn neither repeats nor skips entries that stay.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "messages/error.hpp"

namespace pillar::controller {

/// Longest page when the caller sets no bound; keeps one answer far below gRPC's message limit.
inline constexpr std::size_t k_max_page = 5000;

/// The token that continues after `last_key`.
std::string page_token(std::string_view last_key);

/// The key after which a page starts; nullopt for an empty token (the beginning). ABORTED for text that no
/// page_token made (CSI: "invalid starting_token" means start over).
Result<std::optional<std::string>> parse_page_token(std::string_view token);

/// Entries per page for a csi max_entries. INVALID_ARGUMENT when negative.
Result<std::size_t> page_size(std::int32_t max_entries);

}  // namespace pillar::controller
