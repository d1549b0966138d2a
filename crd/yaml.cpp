#include "crd/yaml.hpp"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <exception>
#include <optional>
#include <set>

#include "crd/codec.hpp"

namespace pillar::crd {
namespace {

using nlohmann::json;

constexpr int k_max_nodes = 200000;
constexpr int k_max_depth = 64;

/// Thrown inside this file only.
struct Refused {
  Position at;
  std::string problem;
};

Position position(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

std::optional<json> resolve_integer(const std::string& text) {
  std::string_view digits = text;
  const bool signed_text = !digits.empty() && (digits[0] == '-' || digits[0] == '+');
  if (signed_text) digits.remove_prefix(1);
  int base = 10;
  if (digits.starts_with("0x") && !signed_text) base = 16;
  if (digits.starts_with("0o") && !signed_text) base = 8;
  if (base != 10) digits.remove_prefix(2);
  // A leading zero means octal to some readers and decimal to others: left as a string, so that a field that
  // wants a number refuses it.
  if (digits.empty() || (base == 10 && digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (status != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (text[0] == '-') {
    if (value > 9223372036854775808ULL) return std::nullopt;
    return json(static_cast<std::int64_t>(0 - value));
  }
  return json(value);
}

std::optional<json> resolve_float(const std::string& text) {
  if (text.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  if (text.find_first_of("0123456789") == std::string::npos) return std::nullopt;
  if (text.find_first_of(".eE") == std::string::npos) return std::nullopt;
  double value = 0;
  const char* first = text.data() + (text[0] == '+' ? 1 : 0);
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(first, last, value);
  if (status != std::errc() || end != last || !std::isfinite(value)) return std::nullopt;
  return json(value);
}

/// YAML 1.2 core schema; words such as yes, no, on and off are strings.
json resolve_plain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (auto number = resolve_integer(text)) return *number;
  if (auto number = resolve_float(text)) return *number;
  return text;
}

class Converter {
 public:
  explicit Converter(std::map<std::string, Position>& positions) : positions_(positions) {}

  json convert(const YAML::Node& node, const std::string& path, int depth) {
    const auto at = position(node.Mark());
    if (++nodes_ > k_max_nodes) throw Refused{at, "too many values (aliases expand to more than we accept)"};
    if (depth > k_max_depth) throw Refused{at, "nested too deeply"};
    positions_.try_emplace(path, at);
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return convert_map(node, path, depth);
      case YAML::NodeType::Sequence: {
        json list = json::array();
        for (std::size_t i = 0; i < node.size(); ++i)
          list.push_back(convert(node[i], path + "[" + std::to_string(i) + "]", depth + 1));
        return list;
      }
      case YAML::NodeType::Scalar:
        return convert_scalar(node, at);
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    return nullptr;
  }

 private:
  json convert_map(const YAML::Node& node, const std::string& path, int depth) {
    json out = json::object();
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const auto at = position(entry.first.Mark());
      if (!entry.first.IsScalar()) throw Refused{at, "a key must be a plain word"};
      const auto& key = entry.first.Scalar();
      const auto child = codec::child_path(path, key);
      if (!seen.insert(key).second) throw Refused{at, child + ": duplicate key; keep one of them"};
      positions_.try_emplace(child, at);
      out[key] = convert(entry.second, child, depth + 1);
    }
    return out;
  }

  static json convert_scalar(const YAML::Node& node, Position at) {
    const auto& text = node.Scalar();
    const auto& tag = node.Tag();
    if (text.find('\0') != std::string::npos) throw Refused{at, "contains a NUL character"};
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return text;
    if (tag.empty() || tag == "?") return resolve_plain(text);
    throw Refused{at, "tag " + tag + " is not supported; write a plain value"};
  }

  std::map<std::string, Position>& positions_;
  int nodes_ = 0;
};

std::string located(std::string_view file, Position at, const std::string& problem) {
  return std::string(file) + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + problem;
}

/// JSON allows tabs between tokens, where the YAML reader does not; inside JSON strings they are not allowed.
std::string without_json_tabs(std::string_view text) {
  std::string out(text);
  const auto first = out.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (out[first] == '{' || out[first] == '['))
    for (char& c : out)
      if (c == '\t') c = ' ';
  return out;
}

}  // namespace

Position YamlDocument::position_of(std::string_view path) const {
  std::string key(path);
  while (!key.empty()) {
    if (const auto it = positions.find(key); it != positions.end()) return it->second;
    const auto cut = key.find_last_of(".[");
    key.resize(cut == std::string::npos ? 0 : cut);
  }
  return start;
}

Result<std::vector<YamlDocument>> parse_yaml(std::string_view text, std::string_view file) {
  if (text.size() > k_max_yaml)
    return fail(Reason::invalid_argument, std::string(file) + ": larger than 4 MiB");
  try {
    std::vector<YamlDocument> out;
    for (const auto& node : YAML::LoadAll(without_json_tabs(text))) {
      if (!node.IsDefined() || node.IsNull()) continue;
      YamlDocument document;
      document.start = position(node.Mark());
      document.value = Doc::of(Converter(document.positions).convert(node, "", 0));
      out.push_back(std::move(document));
    }
    return out;
  } catch (const Refused& refused) {
    return fail(Reason::invalid_argument, located(file, refused.at, refused.problem));
  } catch (const YAML::Exception& error) {
    return fail(Reason::invalid_argument, located(file, position(error.mark), error.msg));
  } catch (const std::exception& error) {
    return fail(Reason::invalid_argument, std::string(file) + ": " + error.what());
  }
}

Result<Doc> parse_yaml_value(std::string_view text, std::string_view what) {
  auto documents = parse_yaml(text, what);
  if (!documents) return tl::unexpected(documents.error());
  if (documents->size() > 1)
    return fail(Reason::invalid_argument, std::string(what) + ": holds several documents; write one");
  return documents->empty() ? Doc() : documents->front().value;
}

}  // namespace pillar::crd
