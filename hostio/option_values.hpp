#pragma once
// Forms that values of mount and mkfs options may have.

#include <charconv>
#include <cstdint>
#include <string_view>

namespace pillar::hostio {

/// A decimal number in [low, high].
inline bool is_number_in(std::string_view text, std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end && value >= low && value <= high;
}

/// One of the words of `words`, which '|' separates.
inline bool is_one_of(std::string_view text, std::string_view words) {
  while (!words.empty()) {
    const auto bar = words.find('|');
    if (text == words.substr(0, bar)) return true;
    words = bar == std::string_view::npos ? std::string_view() : words.substr(bar + 1);
  }
  return false;
}

/// A number from 1 with an optional unit, one of the letters `units`.
inline bool is_size_text(std::string_view text, std::string_view units) {
  if (!text.empty() && units.find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  return is_number_in(text, 1, UINT32_MAX);
}

/// Letters, digits and `others` only, at least one.
inline bool is_made_of_letters_and(std::string_view text, std::string_view others) {
  if (text.empty()) return false;
  for (const char c : text) {
    const bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alnum && others.find(c) == std::string_view::npos) return false;
  }
  return true;
}

}  // namespace pillar::hostio
