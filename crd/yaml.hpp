#pragma once
// Strict YAML (and JSON, which is read as YAML) into JSON values that remember where every field stands.
// Duplicate keys, complex keys, unknown tags, control characters and alias bombs are refused.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "crd/object.hpp"
#include "messages/error.hpp"

namespace pillar::crd {

/// A place in a file, counted from 1.
struct Position {
  int line = 1;
  int column = 1;
  friend bool operator==(const Position&, const Position&) = default;
};

/// One document of a file.
struct YamlDocument {
  Doc value;
  Position start;
  std::map<std::string, Position> positions;  ///< by field path, as FieldError::path writes it

  /// Where `path` stands; the nearest parent that exists when the field itself is missing.
  Position position_of(std::string_view path) const;
};

/// Largest text accepted, bytes.
inline constexpr std::size_t k_max_yaml = 4U << 20;

/// All documents of `text`; empty ones are left out. INVALID_ARGUMENT starting with "file:line:column".
Result<std::vector<YamlDocument>> parse_yaml(std::string_view text, std::string_view file);

/// Exactly one document (or none: an empty object) as a value, for annotations and parameters; `what` names
/// it in errors.
Result<Doc> parse_yaml_value(std::string_view text, std::string_view what);

}  // namespace pillar::crd
