#include "crd/object.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "crd/codec.hpp"

namespace pillar::crd {
namespace {

constexpr KindInfo k_infos[] = {
    {"PillarAgent", "pillaragent", "pillaragents", "pa"},
    {"PillarStore", "pillarstore", "pillarstores", "pst"},
    {"PillarProtocol", "pillarprotocol", "pillarprotocols", "pstr"},
    {"PillarStorageClass", "pillarstorageclass", "pillarstorageclasses", "psc"},
    {"PillarVolumeState", "pillarvolumestate", "pillarvolumestates", "pvst"},
};

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

std::string known_kinds() {
  std::string out;
  for (const auto& one : k_infos) out += (out.empty() ? "" : ", ") + std::string(one.kind);
  return out;
}

}  // namespace

// Outside the unnamed namespace, where argument-dependent lookup finds them.
template <class V>
void describe(V& v, OwnerReference& x) {
  v.required("apiVersion", x.api_version);
  v.required("kind", x.kind);
  v.required("name", x.name);
  v.required("uid", x.uid);
  v.nonzero("controller", x.controller);
  v.nonzero("blockOwnerDeletion", x.block_owner_deletion);
}

template <class V>
void describe(V& v, Metadata& x) {
  v.required("name", x.name);
  v.optional("uid", x.uid);
  v.optional("resourceVersion", x.resource_version);
  v.nonzero("generation", x.generation);
  v.optional("creationTimestamp", x.creation_timestamp);
  v.optional("deletionTimestamp", x.deletion_timestamp);
  v.optional("finalizers", x.finalizers);
  v.optional("labels", x.labels);
  v.optional("annotations", x.annotations);
  v.optional("ownerReferences", x.owner_references);
  v.ignored({"managedFields", "selfLink", "deletionGracePeriodSeconds"});
}

namespace {

/// The parts of an Object as JSON holds them; Object itself keeps spec and status unread.
struct Envelope {
  std::string api_version;
  std::string kind;
  Metadata metadata;
};

template <class V>
void describe(V& v, Envelope& x) {
  v.required("apiVersion", x.api_version);
  v.required("kind", x.kind);
  v.required("metadata", x.metadata);
  v.ignored({"spec", "status"});
}

}  // namespace

const KindInfo& info(Kind kind) noexcept { return k_infos[static_cast<std::size_t>(kind)]; }

Result<Kind> kind_from_string(std::string_view name) {
  for (const Kind kind : k_kinds)
    if (info(kind).kind == name) return kind;
  return fail(Reason::invalid_argument,
              "unknown kind \"" + std::string(name) + "\"; known kinds: " + known_kinds());
}

Result<Kind> kind_from_word(std::string_view word) {
  const auto wanted = lowered(word);
  for (const Kind kind : k_kinds) {
    const auto& names = info(kind);
    if (wanted == names.singular || wanted == names.plural || wanted == names.short_name) return kind;
  }
  std::string known;
  for (const auto& one : k_infos)
    known += (known.empty() ? "" : ", ") + std::string(one.plural) + " (" + std::string(one.short_name) + ")";
  return fail(Reason::invalid_argument,
              "unknown resource type \"" + std::string(word) + "\"; known types: " + known);
}

Doc::Doc() {
  static const auto k_empty = std::make_shared<const nlohmann::json>(nlohmann::json::object());
  value_ = k_empty;
}

Doc Doc::of(nlohmann::json value) { return Doc(std::make_shared<const nlohmann::json>(std::move(value))); }

Result<Doc> Doc::parse(std::string_view text) {
  auto value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_discarded())
    return fail(Reason::state_corrupt, "stored text is not JSON: " + std::string(text.substr(0, 80)));
  return of(std::move(value));
}

std::string Doc::dump() const {
  return value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool Doc::empty() const { return value_->empty(); }

bool operator==(const Doc& a, const Doc& b) { return a.value_ == b.value_ || *a.value_ == *b.value_; }

bool Metadata::has_finalizer(std::string_view finalizer) const {
  return std::find(finalizers.begin(), finalizers.end(), finalizer) != finalizers.end();
}

bool Metadata::add_finalizer(std::string_view finalizer) {
  if (has_finalizer(finalizer)) return false;
  finalizers.emplace_back(finalizer);
  return true;
}

bool Metadata::remove_finalizer(std::string_view finalizer) { return std::erase(finalizers, finalizer) != 0; }

std::string to_string(const FieldError& error) {
  std::string out = error.path.empty() ? "document" : error.path;
  if (!error.value.empty()) out += " = " + error.value;
  return out + ": " + error.problem;
}

Error to_error(std::string_view subject, const FieldErrors& errors) {
  std::string message(subject);
  message += ": ";
  for (std::size_t i = 0; i < errors.size(); ++i) message += (i ? "; " : "") + to_string(errors[i]);
  return Error{Code::invalid_argument,
               Reason::invalid_argument,
               std::move(message),
               {{"field", errors.empty() ? std::string() : errors.front().path}}};
}

nlohmann::json to_json(const Object& object) {
  auto out = nlohmann::json::object();
  out["apiVersion"] = std::string(k_api_version);
  out["kind"] = std::string(to_string(object.kind));
  out["metadata"] = codec::write_all(object.metadata);
  if (!object.spec.empty()) out["spec"] = object.spec.json();
  if (!object.status.empty()) out["status"] = object.status.json();
  return out;
}

tl::expected<Object, FieldErrors> parse_object(const nlohmann::json& value) {
  auto envelope = codec::read_all<Envelope>(value, "");
  if (!envelope) return tl::unexpected(envelope.error());
  FieldErrors errors;
  if (envelope->api_version != k_api_version)
    errors.push_back(
        {"apiVersion", codec::shown(value["apiVersion"]), "must be " + std::string(k_api_version)});
  const auto kind = kind_from_string(envelope->kind);
  if (!kind) errors.push_back({"kind", codec::shown(value["kind"]), "must be one of " + known_kinds()});
  for (const char* part : {"spec", "status"})
    if (value.contains(part) && !value[part].is_object() && !value[part].is_null())
      errors.push_back({part, codec::shown(value[part]), "must be an object"});
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  Object out;
  out.kind = *kind;
  out.metadata = std::move(envelope->metadata);
  if (value.contains("spec") && value["spec"].is_object()) out.spec = Doc::of(value["spec"]);
  if (value.contains("status") && value["status"].is_object()) out.status = Doc::of(value["status"]);
  return out;
}

Result<Object> object_from_json(const nlohmann::json& value) {
  auto parsed = parse_object(value);
  if (parsed) return std::move(*parsed);
  std::string name = "resource";
  if (value.is_object() && value.contains("kind") && value["kind"].is_string()) name = value["kind"];
  return tl::unexpected(to_error(name, parsed.error()));
}

std::string subject(Kind kind, std::string_view name) {
  return std::string(to_string(kind)) + "/" + std::string(name);
}

std::string timestamp_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const auto length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, length);
}

std::optional<std::int64_t> timestamp_seconds(std::string_view text) {
  std::tm parts{};
  const std::string copy(text);
  const char* rest = strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return std::nullopt;
  if (*rest == '.')  // fractions of a second, as other writers may have them
    for (++rest; *rest >= '0' && *rest <= '9';) ++rest;
  if (std::string_view(rest) != "Z") return std::nullopt;
  return static_cast<std::int64_t>(timegm(&parts));
}

}  // namespace pillar::crd

namespace pillar::crd::codec {

std::string shown(const json& value) {
  auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) {
    std::size_t cut = 77;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string child_path(std::string_view path, std::string_view key) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!plain) return std::string(path) + "[" + std::string(key) + "]";
  return path.empty() ? std::string(key) : std::string(path) + "." + std::string(key);
}

}  // namespace pillar::crd::codec
