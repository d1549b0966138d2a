#include "actors/controller/paging.hpp"

#include <algorithm>

#include "messages/ids.hpp"

namespace pillar::controller {
namespace {

// The checksum tells a token of ours from anything else.
constexpr std::size_t k_checksum = 8;

std::string checksum(std::string_view key) {
  return sha256_hex("page:" + std::string(key)).substr(0, k_checksum);
}

}  // namespace

std::string page_token(std::string_view last_key) { return checksum(last_key) + ":" + std::string(last_key); }

Result<std::optional<std::string>> parse_page_token(std::string_view token) {
  if (token.empty()) return std::optional<std::string>();
  if (token.size() > k_checksum && token[k_checksum] == ':') {
    const auto key = token.substr(k_checksum + 1);
    if (checksum(key) == token.substr(0, k_checksum)) return std::optional<std::string>(std::string(key));
  }
  return fail(Reason::invalid_argument, Code::aborted,
              "starting_token was not made by this driver; start again with an empty token");
}

Result<std::size_t> page_size(std::int32_t max_entries) {
  if (max_entries < 0)
    return fail(Reason::invalid_argument,
                "max_entries is " + std::to_string(max_entries) + "; give 0 (no bound) or a positive number");
  if (max_entries == 0) return k_max_page;
  return std::min(k_max_page, static_cast<std::size_t>(max_entries));
}

}  // namespace pillar::controller
