#pragma once
// One description per struct serves reading and writing: `template <class V> void describe(V& v, T& x)` names
// every field once; Reader fills the struct strictly and collects field errors, Writer puts it out.
// Internal to crd/.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "crd/object.hpp"

namespace pillar::crd::codec {

using nlohmann::json;

/// `value` as short JSON text for an error.
std::string shown(const json& value);
/// "a", "a, b" ...
std::string joined(const std::vector<std::string>& words);
/// `path`.`key`, or just `key` below the root; keys that are no plain identifiers go into brackets.
std::string child_path(std::string_view path, std::string_view key);

/// Names of an enum: overload `enum_names(E*)` returning an array of pairs.
template <class E>
concept Named = std::is_enum_v<E> && requires {
  enum_names(static_cast<E*>(nullptr));
};

/// Text of a named enum value, empty when it has none.
template <Named E>
std::string_view enum_text(E value) {
  for (const auto& [known, text] : enum_names(static_cast<E*>(nullptr)))
    if (known == value) return text;
  return {};
}

class Reader;
class Writer;

/// Structs are described; see the head of this file.
template <class T>
concept Described = std::is_class_v<T> && requires(Reader& r, T& x) {
  describe(r, x);
};

/// Reads one JSON object.
class Reader {
 public:
  Reader(const json& value, std::string path, FieldErrors& errors)
      : value_(value), path_(std::move(path)), errors_(errors) {
    if (!value_.is_object()) error(path_, value_, "must be an object");
  }

  /// Absent or null is an error.
  template <class T>
  void required(const char* key, T& out) {
    if (const json* member = find(key)) {
      read(child_path(path_, key), *member, out);
      if constexpr (std::same_as<T, std::string>)
        if (member->is_string() && out.empty()) error(child_path(path_, key), *member, "must not be empty");
    } else if (value_.is_object()) {
      errors_.push_back({child_path(path_, key), "", "is required"});
    }
  }
  /// Absent or null keeps what `out` holds.
  template <class T>
  void optional(const char* key, T& out) {
    if (const json* member = find(key)) read(child_path(path_, key), *member, out);
  }
  template <class T>
  void value(const char* key, T& out) {
    optional(key, out);
  }
  template <class T>
  void nonzero(const char* key, T& out) {
    optional(key, out);
  }
  /// An integer, or optional integer, within [low, high].
  template <class T>
  void ranged(const char* key, T& out, std::int64_t low,
              std::int64_t high = std::numeric_limits<std::int32_t>::max()) {
    const json* member = find(key);
    if (!member) return;
    std::int64_t number = 0;
    const auto before = errors_.size();
    read(child_path(path_, key), *member, number);
    if (errors_.size() != before) return;
    if (number < low || number > high) {
      error(child_path(path_, key), *member,
            "must be between " + std::to_string(low) + " and " + std::to_string(high));
      return;
    }
    assign(out, number);
  }
  /// A quantity: "10Gi" or a number of bytes.
  void quantity(const char* key, std::int64_t& out);
  /// A rule over fields already read; `key` empty: the object itself. `cel` says the same to the API server
  /// (crd/schema.hpp), over the object as `self`; null: the field `key` is required.
  void check(bool holds, const char* key, std::string_view problem, const char* /*cel*/ = nullptr) {
    if (holds || !value_.is_object()) return;
    const json* member = *key ? find(key) : &value_;
    errors_.push_back(
        {*key ? child_path(path_, key) : path_, member ? shown(*member) : "", std::string(problem)});
  }
  /// Names that exist in a lower layer but may not be set here.
  void structural(std::initializer_list<const char*> keys, std::string_view where) {
    for (const char* key : keys)
      if (const json* member = find(key)) {
        known_.pop_back();
        error(child_path(path_, key), *member,
              "is structural and can only be set in the " + std::string(where) + "; remove it here");
        refused_.emplace_back(key);
      } else
        known_.pop_back();
  }
  /// Names that may be present and are ignored.
  void ignored(std::initializer_list<const char*> keys) {
    for (const char* key : keys) refused_.emplace_back(key);
  }
  /// Reports members that nobody asked for.
  void finish() {
    if (!value_.is_object()) return;
    for (const auto& [key, member] : value_.items()) {
      if (contains(known_, key) || contains(refused_, key)) continue;
      error(child_path(path_, key), member, "unknown field; known here: " + joined(known_));
    }
  }

 private:
  static bool contains(const std::vector<std::string>& list, const std::string& key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  }
  const json* find(const char* key) {
    known_.emplace_back(key);
    if (!value_.is_object()) return nullptr;
    const auto it = value_.find(key);
    return it == value_.end() || it->is_null() ? nullptr : &*it;
  }
  void error(const std::string& path, const json& seen, std::string problem) {
    errors_.push_back({path, shown(seen), std::move(problem)});
  }
  template <class T>
  static void assign(T& out, std::int64_t number) {
    out = static_cast<T>(number);
  }
  template <class T>
  static void assign(std::optional<T>& out, std::int64_t number) {
    out = static_cast<T>(number);
  }

  void read(const std::string& path, const json& in, std::string& out) {
    if (in.is_string())
      out = in.get<std::string>();
    else
      error(path, in, "must be a string");
  }
  void read(const std::string& path, const json& in, bool& out) {
    if (in.is_boolean())
      out = in.get<bool>();
    else
      error(path, in, "must be true or false");
  }
  void read(const std::string& path, const json& in, std::int64_t& out) {
    const bool too_big = in.is_number_unsigned() && in.get<std::uint64_t>() > 0x7fffffffffffffffULL;
    if (in.is_number_integer() && !too_big)
      out = in.get<std::int64_t>();
    else
      error(path, in, too_big ? "is too large" : "must be an integer");
  }
  void read(const std::string& path, const json& in, std::int32_t& out) {
    std::int64_t wide = 0;
    const auto before = errors_.size();
    read(path, in, wide);
    if (errors_.size() != before) return;
    if (wide < std::numeric_limits<std::int32_t>::min() || wide > std::numeric_limits<std::int32_t>::max())
      error(path, in, "is out of range for a 32-bit number");
    else
      out = static_cast<std::int32_t>(wide);
  }
  template <Named E>
  void read(const std::string& path, const json& in, E& out) {
    std::vector<std::string> accepted;
    for (const auto& [value, text] : enum_names(static_cast<E*>(nullptr))) {
      if (in.is_string() && in.get_ref<const std::string&>() == text) {
        out = value;
        return;
      }
      accepted.emplace_back(text);
    }
    error(path, in, "must be one of " + joined(accepted));
  }
  template <class T>
  void read(const std::string& path, const json& in, std::optional<T>& out) {
    out.emplace();
    read(path, in, *out);
  }
  template <class T>
  void read(const std::string& path, const json& in, std::vector<T>& out) {
    out.clear();
    if (!in.is_array()) {
      error(path, in, "must be a list");
      return;
    }
    out.resize(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) read(path + "[" + std::to_string(i) + "]", in[i], out[i]);
  }
  void read(const std::string& path, const json& in, std::map<std::string, std::string>& out) {
    out.clear();
    if (!in.is_object()) {
      error(path, in, "must be a map of strings");
      return;
    }
    for (const auto& [key, member] : in.items()) read(child_path(path, key), member, out[key]);
  }
  template <Described T>
  void read(const std::string& path, const json& in, T& out) {
    Reader inner(in, path, errors_);
    describe(inner, out);
    inner.finish();
  }

  template <class T>
  friend tl::expected<T, FieldErrors> read_all(const json& value, std::string_view path);

  const json& value_;
  std::string path_;
  FieldErrors& errors_;
  std::vector<std::string> known_;
  std::vector<std::string> refused_;
};

/// Writes one JSON object.
class Writer {
 public:
  template <class T>
  void required(const char* key, T& in) {
    out_[key] = write(in);
  }
  template <class T>
  void value(const char* key, T& in) {
    out_[key] = write(in);
  }
  template <class T>
  void optional(const char* key, std::optional<T>& in) {
    if (in) out_[key] = write(*in);
  }
  template <class T>
  requires requires(T& x) { x.empty(); }
  void optional(const char* key, T& in) {
    if (!in.empty()) out_[key] = write(in);
  }
  template <class T>
  void nonzero(const char* key, T& in) {
    if (in != T{}) out_[key] = write(in);
  }
  template <class T>
  void ranged(const char* key, T& in, std::int64_t, std::int64_t = 0) {
    out_[key] = write(in);
  }
  template <class T>
  void ranged(const char* key, std::optional<T>& in, std::int64_t, std::int64_t = 0) {
    optional(key, in);
  }
  void quantity(const char* key, std::int64_t& in);
  void check(bool, const char*, std::string_view, const char* = nullptr) {}
  void structural(std::initializer_list<const char*>, std::string_view) {}
  void ignored(std::initializer_list<const char*>) {}

  json take() { return std::move(out_); }

  static json write(const std::string& in) { return in; }
  static json write(bool in) { return in; }
  template <std::integral T>
  static json write(T in) {
    return in;
  }
  template <Named E>
  static json write(E in) {
    return std::string(enum_text(in));
  }
  template <class T>
  static json write(std::vector<T>& in) {
    json list = json::array();
    for (auto& item : in) list.push_back(write(item));
    return list;
  }
  static json write(std::map<std::string, std::string>& in) { return in; }
  template <Described T>
  static json write(T& in) {
    Writer inner;
    describe(inner, in);
    return inner.take();
  }

 private:
  json out_ = json::object();
};

/// Strict read of a whole struct.
template <class T>
tl::expected<T, FieldErrors> read_all(const json& value, std::string_view path) {
  FieldErrors errors;
  T out{};
  Reader reader(value, std::string(path), errors);
  describe(reader, out);
  reader.finish();
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return out;
}

/// JSON of a whole struct.
template <class T>
json write_all(const T& value) {
  T copy = value;  // describe() takes what it visits by mutable reference, for the Reader
  return Writer::write(copy);
}

}  // namespace pillar::crd::codec
