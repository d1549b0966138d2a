#include "actors/agent/config.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>

namespace pillar::agent {
namespace {

/// Why and where a file is refused; carried out of nested readers.
struct Refusal {
  int line = 0;
  std::string message;
};

[[noreturn]] void refuse(const YAML::Node& node, const std::string& message) {
  throw Refusal{node.Mark().line + 1, message};
}

using Reader = std::function<void(const YAML::Node&)>;

// Runs the reader of each key; a key without one, or given twice, is refused with its own line.
void read_map(const YAML::Node& node, const std::string& where,
              const std::map<std::string, Reader>& readers) {
  if (!node.IsMap()) refuse(node, where + " must be a mapping");
  std::map<std::string, bool> seen;
  for (const auto& pair : node) {
    if (!pair.first.IsScalar()) refuse(pair.first, where + " has a key that is not a word");
    const auto key = pair.first.as<std::string>();
    if (std::exchange(seen[key], true)) refuse(pair.first, "key '" + key + "' appears twice in " + where);
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      std::string known;
      for (const auto& [name, unused] : readers) known += (known.empty() ? "" : ", ") + name;
      refuse(pair.first, "unknown key '" + key + "' in " + where + "; known keys: " + known);
    }
    reader->second(pair.second);
  }
}

std::string read_text(const YAML::Node& node, const std::string& key) {
  if (!node.IsScalar()) refuse(node, "key '" + key + "' must be a single value");
  return node.as<std::string>();
}

bool read_bool(const YAML::Node& node, const std::string& key) {
  const std::string text = read_text(node, key);
  if (text == "true") return true;
  if (text == "false") return false;
  refuse(node, "key '" + key + "' must be true or false, not '" + text + "'");
}

LvmBackendConfig read_lvm(const YAML::Node& node) {
  LvmBackendConfig lvm;
  read_map(node, "backends[].lvm",
           {{"volumeGroup",
             [&](const YAML::Node& value) {
               lvm.volume_group = read_text(value, "volumeGroup");
               if (!AgentVolumeId::parse(lvm.volume_group + "/x"))
                 refuse(value, "key 'volumeGroup': '" + lvm.volume_group + "' is not a volume group name");
             }},
            {"thinPool",
             [](const YAML::Node& value) {
               if (!read_text(value, "thinPool").empty())
                 refuse(value, "key 'thinPool': thin provisioning is not supported yet; leave the key out");
             }},
            {"provisioningMode", [](const YAML::Node& value) {
               const std::string mode = read_text(value, "provisioningMode");
               if (mode == "thin")
                 refuse(value, "key 'provisioningMode': thin is not supported yet; use linear");
               if (mode != "linear")
                 refuse(value, "key 'provisioningMode' must be linear, not '" + mode + "'");
             }}});
  if (lvm.volume_group.empty()) refuse(node, "backends[].lvm needs the key 'volumeGroup'");
  return lvm;
}

void read_backends(const YAML::Node& node, AgentConfig& config) {
  if (!node.IsSequence()) refuse(node, "key 'backends' must be a list");
  for (const YAML::Node& entry : node) {
    std::optional<LvmBackendConfig> lvm;
    read_map(entry, "backends[]",
             {{"lvm", [&](const YAML::Node& value) { lvm = read_lvm(value); }},
              {"zfs", [](const YAML::Node& value) {
                 refuse(value, "key 'zfs': ZFS is not supported yet; use lvm");
               }}});
    if (!lvm) refuse(entry, "backends[] needs exactly one of: lvm");
    if (std::find(config.backends.begin(), config.backends.end(), *lvm) != config.backends.end())
      refuse(entry, "volume group '" + lvm->volume_group + "' is configured twice");
    config.backends.push_back(*lvm);
  }
}

void read_addresses(const YAML::Node& node, AgentConfig& config) {
  if (!node.IsSequence()) refuse(node, "key 'bindAddresses' must be a list");
  for (const YAML::Node& entry : node) {
    auto address = IpAddress::parse(read_text(entry, "bindAddresses"));
    if (!address) refuse(entry, "key 'bindAddresses': " + address.error().message);
    config.bind_addresses.push_back(std::move(*address));
  }
}

}  // namespace

Result<AgentConfig> parse_config(std::string_view file, std::string_view text, AgentConfig config) {
  const auto bad = [&](int line, const std::string& message) {
    return fail(Reason::invalid_argument, std::string(file) + ":" + std::to_string(line) + ": " + message);
  };
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (root.IsNull()) return bad(1, "the file is empty; it needs the key 'backends'");
    read_map(root, "the file",
             {{"backends", [&](const YAML::Node& node) { read_backends(node, config); }},
              {"bindAddresses", [&](const YAML::Node& node) { read_addresses(node, config); }},
              {"selfRestore",
               [&](const YAML::Node& node) { config.self_restore = read_bool(node, "selfRestore"); }}});
  } catch (const Refusal& refusal) {
    return bad(refusal.line, refusal.message);
  } catch (const YAML::Exception& e) {
    return bad(e.mark.line + 1, e.msg);
  }
  if (config.backends.empty()) return bad(1, "key 'backends' lists no backend; nothing could be served");
  return config;
}

Result<AgentConfig> load_config(const std::string& path, AgentConfig config) {
  std::ifstream in(path);
  std::ostringstream text;
  // An empty file is for the parser to refuse; inserting nothing would count as a failure here.
  const bool empty = in && in.peek() == std::ifstream::traits_type::eof() && !in.bad();
  if (!empty && (!in || !(text << in.rdbuf())))
    return fail(Reason::invalid_argument, "configuration file " + path + " cannot be read");
  return parse_config(path, text.str(), std::move(config));
}

}  // namespace pillar::agent
