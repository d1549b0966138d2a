#include "tools/pillarctl/output.hpp"

#include <algorithm>
#include <cctype>

#include <nlohmann/json.hpp>

#include "crd/types.hpp"
#include "messages/ids.hpp"

namespace pillar::pillarctl {
namespace {

using nlohmann::json;

/// True when `text` reads back as the same string without quotes.
bool plain_in_yaml(const std::string& text) {
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text[0]))) return false;
  const bool simple = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("._/-").find(c) != std::string_view::npos;
  });
  static const char* const k_words[] = {"true", "false", "null", "yes", "no", "on",
                                        "off",  "y",     "n",    "nan", "inf"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  return simple && std::find(std::begin(k_words), std::end(k_words), lower) == std::end(k_words);
}

std::string scalar(const json& value) {
  if (value.is_object()) return "{}";
  if (value.is_array()) return "[]";
  if (value.is_string() && plain_in_yaml(value.get<std::string>())) return value.get<std::string>();
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string key_text(const std::string& key) {
  return plain_in_yaml(key) ? key : json(key).dump(-1, ' ', false, json::error_handler_t::replace);
}

void emit(const json& value, const std::string& indent, bool after_dash, std::string& out) {
  bool first = after_dash;  // the first line of a list item stands behind its dash
  const auto begin_line = [&] {
    if (!first) out += indent;
    first = false;
  };
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) {
      begin_line();
      out += key_text(key) + ":";
      if (member.is_structured() && !member.empty()) {
        out += "\n";
        emit(member, member.is_array() ? indent : indent + "  ", false, out);
      } else {
        out += " " + scalar(member) + "\n";
      }
    }
  } else if (value.is_array() && !value.empty()) {
    for (const auto& member : value) {
      begin_line();
      out += "- ";
      emit(member, indent + "  ", true, out);
    }
  } else {
    begin_line();
    out += scalar(value) + "\n";
  }
}

std::string indented(const std::string& text) {
  std::string out;
  std::size_t from = 0;
  while (from < text.size()) {
    const auto end = std::min(text.find('\n', from), text.size() - 1);
    out += "  " + text.substr(from, end - from + 1);
    from = end + 1;
  }
  return out;
}

/// Member at a path of keys; null when there is none.
json member(const json& value, std::initializer_list<const char*> path) {
  const json* at = &value;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return *at;
}

std::string shown(const json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string condition(const crd::Object& object, const char* type, const char* field = "status") {
  const auto conditions = member(object.status.json(), {"conditions"});
  if (conditions.is_array())
    for (const auto& one : conditions)
      if (member(one, {"type"}) == type) return shown(member(one, {field}));
  return std::string_view(field) == "status" ? "Unknown" : "";
}

std::string age(const std::string& timestamp, std::int64_t now) {
  const auto since = crd::timestamp_seconds(timestamp);
  return since ? human_duration(std::max<std::int64_t>(0, now - *since)) : "<unknown>";
}

/// The only member of a union.
std::string union_member(const json& value) {
  return value.is_object() && !value.empty() ? value.begin().key() : "";
}

std::vector<std::string> agent_cells(const crd::Object& object, bool wide) {
  const auto& spec = object.spec.json();
  const auto& status = object.status.json();
  std::vector<std::string> out{shown(member(status, {"resolvedAddress"})),
                               shown(member(status, {"agentVersion"})), condition(object, "Ready")};
  if (wide) {
    const auto node = shown(member(spec, {"nodeRef", "name"}));
    out.push_back(node.empty() ? shown(member(spec, {"external", "address"})) : node);
    out.push_back(condition(object, "Ready", "reason"));
  }
  return out;
}

std::vector<std::string> store_cells(const crd::Object& object, bool wide) {
  const auto& spec = object.spec.json();
  const auto& status = object.status.json();
  const auto zfs = shown(member(spec, {"backend", "zfs", "pool"}));
  std::vector<std::string> out{shown(member(spec, {"agentRef"})),
                               union_member(member(spec, {"backend"})),
                               zfs.empty() ? shown(member(spec, {"backend", "lvm", "volumeGroup"})) : zfs,
                               shown(member(status, {"capacity", "total"})),
                               shown(member(status, {"capacity", "available"})),
                               condition(object, "Ready")};
  if (wide) {
    out.push_back(shown(member(status, {"capacity", "used"})));
    out.push_back(condition(object, "Ready", "reason"));
  }
  return out;
}

std::vector<std::string> protocol_cells(const crd::Object& object, bool wide) {
  const auto protocol = member(object.spec.json(), {"protocol"});
  const auto type = union_member(protocol);
  const auto classes = shown(member(object.status.json(), {"storageClassCount"}));
  std::vector<std::string> out{type, classes.empty() ? "0" : classes, condition(object, "Ready")};
  if (wide) {
    out.push_back(shown(member(protocol, {type.c_str(), "port"})));
    out.push_back(shown(member(protocol, {type.c_str(), "acl"})));
  }
  return out;
}

std::vector<std::string> class_cells(const crd::Object& object, bool wide) {
  const auto& spec = object.spec.json();
  const auto made = shown(member(object.status.json(), {"storageClassName"}));
  std::vector<std::string> out{shown(member(spec, {"storeRef"})), shown(member(spec, {"protocolRef"})),
                               made.empty() ? shown(member(spec, {"storageClass", "name"})) : made,
                               condition(object, "Ready")};
  if (wide) {
    out.push_back(shown(member(spec, {"filesystem", "fsType"})));
    out.push_back(condition(object, "Ready", "reason"));
  }
  return out;
}

std::vector<std::string> volume_cells(const crd::Object& object, bool wide) {
  const auto& spec = object.spec.json();
  const auto& status = object.status.json();
  std::string nodes;
  const auto published = member(status, {"publishedNodes"});
  if (published.is_array())
    for (const auto& one : published) {
      // A node id of the standalone mode carries the host NQN behind a slash; the name is enough here.
      const auto id = shown(member(one, {"nodeID"}));
      nodes += (nodes.empty() ? "" : ",") + id.substr(0, id.find('/'));
    }
  std::vector<std::string> out{shown(member(status, {"phase"})), shown(member(spec, {"agentRef"})),
                               shown(member(spec, {"backendType"})), shown(member(spec, {"protocolType"})),
                               nodes};
  if (wide) {
    const auto real = member(status, {"capacityBytes"});
    const auto bytes = real.is_number_integer() ? real : member(spec, {"capacityBytes"});
    out.push_back(bytes.is_number_integer() ? crd::format_quantity(bytes.get<std::int64_t>()) : "");
    out.push_back(shown(member(status, {"publicationGeneration"})));
    out.push_back(shown(member(status, {"exportInfo", "targetID"})));
  }
  return out;
}

std::string map_lines(const char* title, const std::map<std::string, std::string>& map) {
  std::string out;
  for (const auto& [key, value] : map) {
    const std::string label = out.empty() ? title : "";
    out += label + std::string(14 - label.size(), ' ') + key + "=" + value.substr(0, value.find('\n')) + "\n";
  }
  return out.empty() ? title + std::string(14 - std::string_view(title).size(), ' ') + "<none>\n" : out;
}

}  // namespace

std::string to_yaml(const nlohmann::json& value) {
  std::string out;
  emit(value, "", false, out);
  return out;
}

std::string human_duration(std::int64_t seconds) {
  const auto two = [](std::int64_t big, const char* big_unit, std::int64_t small, const char* small_unit) {
    return std::to_string(big) + big_unit + (small ? std::to_string(small) + small_unit : "");
  };
  const auto minutes = seconds / 60;
  const auto hours = minutes / 60;
  const auto days = hours / 24;
  if (seconds < 120) return std::to_string(seconds) + "s";
  if (minutes < 10) return two(minutes, "m", seconds % 60, "s");
  if (hours < 3) return std::to_string(minutes) + "m";
  if (hours < 8) return two(hours, "h", minutes % 60, "m");
  if (hours < 48) return std::to_string(hours) + "h";
  if (days < 8) return two(days, "d", hours % 24, "h");
  if (days < 730) return std::to_string(days) + "d";
  return two(days / 365, "y", days % 365, "d");
}

std::vector<std::string> headers(crd::Kind kind, bool wide) {
  std::vector<std::string> out{"NAME"};
  std::vector<std::string> extra;
  switch (kind) {
    case crd::Kind::agent:
      out.insert(out.end(), {"ADDRESS", "VERSION", "READY"});
      extra = {"NODE", "REASON"};
      break;
    case crd::Kind::store:
      out.insert(out.end(), {"AGENT", "BACKEND", "POOL", "TOTAL", "AVAILABLE", "READY"});
      extra = {"USED", "REASON"};
      break;
    case crd::Kind::protocol:
      out.insert(out.end(), {"TYPE", "CLASSES", "READY"});
      extra = {"PORT", "ACL"};
      break;
    case crd::Kind::storage_class:
      out.insert(out.end(), {"STORE", "PROTOCOL", "STORAGECLASS", "READY"});
      extra = {"FSTYPE", "REASON"};
      break;
    case crd::Kind::volume:
      out.insert(out.end(), {"PHASE", "AGENT", "BACKEND", "PROTOCOL", "NODES"});
      extra = {"SIZE", "GENERATION", "TARGET"};
      break;
  }
  if (wide) out.insert(out.end(), extra.begin(), extra.end());
  out.emplace_back("AGE");
  return out;
}

std::vector<std::string> cells(const crd::Object& object, bool wide, std::int64_t now) {
  std::vector<std::string> out;
  switch (object.kind) {
    case crd::Kind::agent:
      out = agent_cells(object, wide);
      break;
    case crd::Kind::store:
      out = store_cells(object, wide);
      break;
    case crd::Kind::protocol:
      out = protocol_cells(object, wide);
      break;
    case crd::Kind::storage_class:
      out = class_cells(object, wide);
      break;
    case crd::Kind::volume:
      out = volume_cells(object, wide);
      break;
  }
  out.insert(out.begin(), object.metadata.name);
  out.push_back(age(object.metadata.creation_timestamp, now));
  return out;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  const auto cell = [](const std::string& text) { return text.empty() ? std::string("<none>") : text; };
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], cell(row[i]).size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto text = cell(row[i]);
      out += text;
      if (i + 1 < row.size()) out += std::string(widths[i] - text.size() + 3, ' ');
    }
    out += "\n";
  }
  return out;
}

std::string describe(const crd::Object& object, std::int64_t now) {
  const auto& metadata = object.metadata;
  std::string out = "Name:         " + metadata.name + "\n";
  out += map_lines("Labels:", metadata.labels) + map_lines("Annotations:", metadata.annotations);
  out += "API Version:  " + std::string(crd::k_api_version) + "\n";
  out += "Kind:         " + std::string(crd::to_string(object.kind)) + "\n";
  out += "UID:          " + metadata.uid + "\n";
  out += "Version:      " + metadata.resource_version + " (generation " +
         std::to_string(metadata.generation) + ")\n";
  out += "Created:      " + metadata.creation_timestamp + " (" + age(metadata.creation_timestamp, now) +
         " ago)\n";
  if (metadata.deleting())
    out += "Deleting:     since " + metadata.deletion_timestamp + " (" +
           age(metadata.deletion_timestamp, now) + ")\n";
  for (const auto& finalizer : metadata.finalizers) out += "Finalizer:    " + finalizer + "\n";
  out += "Spec:\n" + indented(to_yaml(object.spec.json()));
  json status = object.status.json();
  status.erase("conditions");
  if (!status.empty()) out += "Status:\n" + indented(to_yaml(status));
  const auto conditions = member(object.status.json(), {"conditions"});
  if (conditions.is_array() && !conditions.empty()) {
    std::vector<std::vector<std::string>> rows{{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}};
    for (const auto& one : conditions)
      rows.push_back({shown(member(one, {"type"})), shown(member(one, {"status"})),
                      shown(member(one, {"reason"})), age(shown(member(one, {"lastTransitionTime"})), now),
                      shown(member(one, {"message"}))});
    out += "Conditions:\n" + indented(table(rows));
  }
  return out;
}

std::string resource_name(crd::Kind kind, const std::string& name) {
  return std::string(crd::info(kind).singular) + "." + std::string(k_driver_name) + "/" + name;
}
std::string resource_name(const crd::Object& object) {
  return resource_name(object.kind, object.metadata.name);
}

}  // namespace pillar::pillarctl
