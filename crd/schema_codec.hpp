#pragma once
// The third visitor of the field descriptions (crd/codec.hpp): writes the OpenAPI v3 schema of a struct, so
// that the schema knows every field the code knows. Internal to crd/.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "crd/codec.hpp"

namespace pillar::crd::schema {

using nlohmann::json;

class Fields;

template <class T>
concept Struct = std::is_class_v<T> && requires(Fields& f, T& x) {
  describe(f, x);
};

/// Collects the fields of one struct. Defaults are what a new value of the struct holds.
class Fields {
 public:
  template <class T>
  static json of() {
    T fresh{};
    return schema(fresh);
  }

  template <class T>
  void required(const char* key, T& x) {
    auto field = schema(x);
    if constexpr (std::same_as<T, std::string>) field["minLength"] = 1;
    put(key, std::move(field));
    require(key);
  }
  template <class T>
  void value(const char* key, T& x) {
    auto field = schema(x);
    // A nested struct brings the defaults of its own fields.
    if constexpr (Struct<T>)
      field["default"] = json::object();
    else
      field["default"] = codec::Writer::write(x);
    put(key, std::move(field));
  }
  template <class T>
  void optional(const char* key, T& x) {
    put(key, schema(x));
  }
  template <class T>
  void nonzero(const char* key, T& x) {
    put(key, schema(x));
  }
  template <class T>
  void ranged(const char* key, T& x, std::int64_t low,
              std::int64_t high = std::numeric_limits<std::int32_t>::max()) {
    auto field = schema(x);
    field["minimum"] = low;
    if (high != std::numeric_limits<std::int64_t>::max()) field["maximum"] = high;
    if constexpr (std::integral<T>)
      if (x >= low) field["default"] = x;
    put(key, std::move(field));
  }
  void quantity(const char* key, std::int64_t&) {
    put(key, {{"anyOf", {{{"type", "integer"}}, {{"type", "string"}}}},
              {"x-kubernetes-int-or-string", true},
              {"pattern", R"(^\+?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[kMGTPE]|[eE][0-9]{1,2})?$)"}});
  }
  void check(bool, const char* key, std::string_view problem, const char* cel = nullptr) {
    if (!cel) return require(key);
    const auto where = *key ? std::string(key) + " " : std::string();
    out_["x-kubernetes-validations"].push_back({{"rule", cel}, {"message", where + std::string(problem)}});
  }
  void structural(std::initializer_list<const char*>, std::string_view) {}
  void ignored(std::initializer_list<const char*>) {}

 private:
  void put(const char* key, json field) { out_["properties"][key] = std::move(field); }
  void require(const char* key) { out_["required"].push_back(key); }

  static json schema(const std::string&) { return {{"type", "string"}}; }
  static json schema(bool) { return {{"type", "boolean"}}; }
  static json schema(std::int32_t) { return {{"type", "integer"}, {"format", "int32"}}; }
  static json schema(std::int64_t) { return {{"type", "integer"}, {"format", "int64"}}; }
  template <codec::Named E>
  static json schema(E) {
    json names = json::array();
    for (const auto& [value, text] : enum_names(static_cast<E*>(nullptr))) names.push_back(text);
    return {{"type", "string"}, {"enum", std::move(names)}};
  }
  template <class T>
  static json schema(const std::optional<T>&) {
    return of<T>();
  }
  template <class T>
  static json schema(const std::vector<T>&) {
    return {{"type", "array"}, {"items", of<T>()}};
  }
  static json schema(const std::map<std::string, std::string>&) {
    return {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
  }
  template <Struct T>
  static json schema(T& x) {
    Fields inner;
    inner.out_["type"] = "object";
    describe(inner, x);
    return std::move(inner.out_);
  }

  json out_;
};

/// The schema of one of the structs of crd/types.hpp, without what overlays add (crd/schema.cpp).
template <class T>
json fields_of();

}  // namespace pillar::crd::schema
