#include "crd/schema.hpp"

#include <array>
#include <vector>

#include <nlohmann/json.hpp>

#include "crd/option_patterns.hpp"
#include "crd/schema_codec.hpp"
#include "crd/types.hpp"

namespace pillar::crd {
namespace {

using nlohmann::json;

// Patterns are RE2 and are searched for, hence the anchors. An empty optional string counts as absent.
constexpr const char* k_dns = R"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)";
constexpr const char* k_pool = R"([A-Za-z0-9][A-Za-z0-9_.+-]{0,62})";
constexpr const char* k_dataset =
    R"([A-Za-z0-9]([A-Za-z0-9_:-]|\.[A-Za-z0-9_:-])*\.?(/[A-Za-z0-9]([A-Za-z0-9_:-]|\.[A-Za-z0-9_:-])*\.?)*)";
constexpr const char* k_octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
constexpr const char* k_group = "[0-9a-fA-F]{1,4}";

std::string exactly(const std::string& pattern) { return "^(" + pattern + ")$"; }
std::string or_empty(const std::string& pattern) { return "^(" + pattern + ")?$"; }

std::string ipv4() {
  const std::string octet = k_octet;
  return octet + R"((\.)" + octet + "){3}";
}

std::string ipv6() {
  const std::string group = k_group;
  std::string out = "(" + group + ":){7}" + group + "|(" + group + ":){1,7}:|:(:" + group + "){1,7}|::";
  for (int before = 1; before <= 6; ++before)
    out += "|(" + group + ":){" + std::to_string(before) + "}(:" + group + "){1," +
           std::to_string(7 - before) + "}";
  return out + "|::([fF]{4}:)?" + ipv4();
}

std::string cidr() {
  return "(" + ipv4() + ")/(3[0-2]|[12]?[0-9])|(" + ipv6() + ")/(12[0-8]|1[01][0-9]|[1-9]?[0-9])";
}

std::string address() {
  const std::string scope = "(%[A-Za-z0-9.@_-]{1,15})?";
  return "(" + ipv4() + ")|(" + ipv6() + ")" + scope + R"(|\[()" + ipv6() + ")" + scope + R"(\])";
}

json rule(const std::string& cel, const std::string& message) {
  return {{"x-kubernetes-validations", {{{"rule", cel}, {"message", message}}}}};
}
json immutable() {
  return rule("self == oldSelf", "is immutable; delete the object and create it again to change it");
}
/// A member that may be absent and stays as it was.
json fixed(const std::string& key) {
  const auto text = [&](const std::string& from) {
    return "(has(" + from + "." + key + ") ? " + from + "." + key + " : '')";
  };
  return rule(text("self") + " == " + text("oldSelf"),
              key + " is immutable; delete the object and create it again to change it");
}
json member_fixed(const std::string& key) {
  return rule("has(self." + key + ") == has(oldSelf." + key + ")",
              "the member is immutable; delete the object and create it again to change it");
}
json pattern(const std::string& text, int longest) { return {{"pattern", text}, {"maxLength", longest}}; }
json object_name() { return pattern(exactly(k_dns), 253); }
json optional_object_name() { return pattern(or_empty(k_dns), 253); }
json no_dots() { return rule("!self.contains('..')", "must not contain \"..\""); }

/// Adds to the schema at `path` ("backend.lvm", "conditions[].reason") a description and more members; CEL
/// rules are appended.
void set(json& root, const std::string& path, const std::string& description,
         const std::vector<json>& more = {}) {
  json* at = &root;
  for (std::size_t begin = 0; begin < path.size();) {
    const auto dot = std::min(path.find('.', begin), path.size());
    auto key = path.substr(begin, dot - begin);
    const bool items = key.ends_with("[]");
    if (items) key.resize(key.size() - 2);
    at = &at->at("properties").at(key);
    if (items) at = &at->at("items");
    begin = dot + 1;
  }
  if (!description.empty()) (*at)["description"] = description;
  for (const auto& part : more)
    for (const auto& [key, value] : part.items()) {
      if (key == "x-kubernetes-validations")
        for (const auto& one : value) (*at)[key].push_back(one);
      else
        (*at)[key] = value;
    }
}

// ---- parts that several kinds have -------------------------------------------------------------------

void describe_conditions(json& status) {
  set(status, "conditions", "Conditions of this object; the newest of each type.",
      {{{"x-kubernetes-list-type", "map"}, {"x-kubernetes-list-map-keys", {"type"}}}});
  set(status, "conditions[]", "One aspect of the state of this object.");
  set(status, "conditions[].type", "Type of the condition, CamelCase.",
      {pattern("^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", 63)});
  set(status, "conditions[].status", "True, False or Unknown.");
  set(status, "conditions[].reason", "Stable CamelCase word for machines.",
      {pattern("^[A-Za-z][A-Za-z0-9_,:]*$", 1024)});
  set(status, "conditions[].message", "What was seen and what to do, for people.");
  set(status, "conditions[].lastTransitionTime", "When status last changed.", {{{"format", "date-time"}}});
  set(status, "conditions[].observedGeneration", "metadata.generation that this was true for.");
}

void describe_zfs_properties(json& at, const std::string& path) {
  std::vector<json> more{{{"maxProperties", 32}}};
  for (const auto& [cel, message] : zfs_property_rules()) more.push_back(rule(cel, message));
  set(at, path, "ZFS properties of new volumes, from the accepted list.", more);
}

void describe_backend(json& at, const std::string& path, bool whole) {
  set(at, path, "Storage backend: exactly one member.");
  set(at, path + ".lvm", "An LVM volume group.");
  set(at, path + ".zfs", "A ZFS pool.");
  describe_zfs_properties(at, path + ".zfs.properties");
  set(at, path + ".lvm.provisioningMode",
      "linear: every volume has its space from the start; thin: space is taken from thinPool when written.");
  if (!whole) return;
  set(at, path + ".lvm.volumeGroup", "Name of the volume group.", {pattern(exactly(k_pool), 63), no_dots()});
  set(at, path + ".lvm.thinPool", "Name of the thin pool LV; must equal what the agent is configured with.",
      {pattern(or_empty(k_pool), 63), no_dots()});
  set(at, path + ".lvm", "",
      {rule("self.provisioningMode != 'thin' || (has(self.thinPool) && self.thinPool != '')",
            "provisioningMode thin needs thinPool, the name of the thin pool LV")});
  set(at, path + ".zfs.pool", "Name of the pool.", {pattern(exactly(k_pool), 63), no_dots()});
  set(at, path + ".zfs.parentDataset",
      "Dataset below which volumes are made; must equal what the agent is configured with.",
      {pattern(or_empty(k_dataset), 200)});
  set(at, path + ".zfs.volumeType", "zvol: block devices; dataset: file trees for nfs.");
}

void describe_auth(json& at, const std::string& path, const std::string& types) {
  set(at, path + ".auth", "How initiator and target prove who they are.");
  set(at, path + ".auth.type", types);
  set(at, path + ".auth.secretRef", "Secret with the keys.");
  set(at, path + ".auth.secretRef.name", "Name of the Secret.", {object_name()});
  set(at, path + ".auth.secretRef.namespace", "Namespace of the Secret.", {optional_object_name()});
}

void describe_nvmeof_tunables(json& at, const std::string& path) {
  set(at, path + ".maxQueueSize", "Requests in flight per queue (queue_size); unset: the kernel's 128.");
  set(at, path + ".nrIoQueues", "I/O queues per connection (nr_io_queues); unset: the kernel's default.");
  set(at, path + ".inCapsuleDataSize",
      "Bytes of a write sent with its command (param_inline_data_size of the port); unset: the kernel's "
      "default.");
  set(at, path + ".ctrlLossTmo",
      "Seconds without a connection until a node gives a volume up; -1: never; unset: the kernel's 600.");
  set(at, path + ".reconnectDelay", "Seconds between attempts to reconnect; unset: the kernel's 10.");
}

void describe_iscsi_tunables(json& at, const std::string& path) {
  set(at, path + ".loginTimeout", "Seconds until a login fails.");
  set(at, path + ".replacementTimeout", "Seconds without a session until requests fail.");
  set(at, path + ".noopOutInterval", "Seconds between pings.");
  set(at, path + ".noopOutTimeout", "Seconds until a ping has failed.");
}

void describe_protocol(json& at, const std::string& path) {
  set(at, path, "How volumes travel: exactly one member.");
  const auto nvme = path + ".nvmeofTcp";
  set(at, nvme, "NVMe over TCP.");
  set(at, nvme + ".port", "TCP port of the target.");
  set(at, nvme + ".acl",
      "true: only hosts that a volume is published to may connect; false: any host that reaches the port.");
  describe_nvmeof_tunables(at, nvme);
  describe_auth(at, nvme, "None, DHCHAP (the host proves itself) or MutualDHCHAP (both do).");
  const auto iscsi = path + ".iscsi";
  set(at, iscsi, "iSCSI.");
  set(at, iscsi + ".port", "TCP port of the target.");
  set(at, iscsi + ".acl", "true: only hosts that a volume is published to may log in.");
  describe_iscsi_tunables(at, iscsi);
  describe_auth(at, iscsi, "None, CHAP (the initiator proves itself) or MutualCHAP (both do).");
  set(at, path + ".nfs", "NFS, for backends of file trees.");
  set(at, path + ".nfs.version", "NFS version, as text.", {{{"enum", {"3", "4", "4.0", "4.1", "4.2"}}}});
  set(at, path + ".nfs.squash", "Whose files root's are.",
      {{{"enum", {"", "root_squash", "no_root_squash", "all_squash"}}}});
}

void describe_filesystem(json& at, const std::string& path) {
  set(at, path, "File system of volumes in mount mode.");
  set(at, path + ".fsType", "ext4 or xfs.");
  set(at, path + ".mkfsOptions", "Options of mkfs, from the accepted list; empty: none.");
  set(at, path + ".mountOptions", "Mount options, one per element, from the accepted list; empty: none.");
}

// ---- kinds -------------------------------------------------------------------------------------------

void describe_agent(json& spec, json& status) {
  set(spec, "", "Where one storage agent is: exactly one of nodeRef and external.",
      {member_fixed("nodeRef")});
  set(spec, "nodeRef", "A node of this cluster that runs the agent.");
  set(spec, "nodeRef.name", "Name of the Node.", {object_name(), immutable()});
  set(spec, "nodeRef.addressType", "Which of the node's addresses is dialled.");
  set(spec, "nodeRef.addressSelector", "CIDR that picks among several addresses of that type.",
      {pattern(or_empty(cidr()), 64)});
  set(spec, "nodeRef.port", "Port of the agent.");
  set(spec, "external", "An agent outside the cluster.", {immutable()});
  set(spec, "external.address", "IP address or DNS name, without port.",
      {pattern(exactly(address() + "|" + k_dns), 253)});
  set(spec, "external.port", "Port of the agent.");
  set(status, "", "What the controller last saw.");
  set(status, "resolvedAddress", "host:port that the controller dials.");
  set(status, "agentVersion", "Version of the agent.");
  set(status, "capabilities", "What the agent can serve.");
  set(status, "capabilities.backends", "Backend types.");
  set(status, "capabilities.protocols", "Protocol types.");
  set(status, "discoveredPools", "Pools that the agent is configured with and has found.");
  set(status, "discoveredPools[]", "A pool.");
  set(status, "discoveredPools[].name", "Name of the volume group or pool.");
  set(status, "discoveredPools[].type", "lvm or zfs.");
  set(status, "discoveredPools[].total", "Size.");
  set(status, "discoveredPools[].available", "Free space.");
  set(status, "discoveredPools[].parentDataset", "Dataset below which volumes are made.");
  set(status, "discoveredPools[].thinPool", "Thin pool LV.");
  set(status, "fencing", "State of the agent's durable fencing marks.");
  set(status, "fencing.epoch", "Life of the marks; another one after they were lost.");
  set(status, "fencing.sequence", "Number of the newest mark.");
}

void describe_store(json& spec, json& status) {
  set(spec, "", "One pool on one agent.");
  set(spec, "agentRef", "Name of the PillarAgent.", {object_name(), immutable()});
  describe_backend(spec, "backend", true);
  set(spec, "backend", "", {member_fixed("lvm")});
  set(spec, "backend.lvm", "", {fixed("thinPool")});
  set(spec, "backend.lvm.volumeGroup", "", {immutable()});
  set(spec, "backend.zfs", "", {fixed("parentDataset")});
  set(spec, "backend.zfs.pool", "", {immutable()});
  set(spec, "backend.zfs.volumeType", "", {immutable()});
  set(status, "", "What the controller last saw.");
  set(status, "capacity", "Space of the pool.");
  set(status, "capacity.total", "Size of the pool.");
  set(status, "capacity.available", "Space that new volumes can have.");
  set(status, "capacity.used", "Space that is taken.");
}

void describe_protocol_kind(json& spec, json& status) {
  set(spec, "", "Settings of one network protocol.");
  describe_protocol(spec, "protocol");
  set(status, "", "What the controller last saw.");
  set(status, "protocolType", "Protocol type: nvmeof-tcp, iscsi, nfs.");
  set(status, "storageClassCount", "PillarStorageClasses that use this protocol.");
  set(status, "activeAgents", "Agents that export volumes by it.");
}

void describe_class(json& spec, json& status) {
  set(spec, "", "A store and a protocol together: what volumes are asked from.");
  set(spec, "storeRef", "Name of the PillarStore.", {object_name(), immutable()});
  set(spec, "protocolRef", "Name of the PillarProtocol.", {object_name(), immutable()});
  set(spec, "storageClass", "The StorageClass that is generated.");
  set(spec, "storageClass.name", "Its name; the name of this object unless set.", {optional_object_name()});
  set(spec, "storageClass.reclaimPolicy", "What becomes of a volume whose claim is deleted.");
  set(spec, "storageClass.volumeBindingMode", "When a claim gets its volume.");
  set(spec, "storageClass.allowVolumeExpansion", "Whether claims may grow; unset: yes for block backends.");
  describe_filesystem(spec, "filesystem");
  set(spec, "filesystem.fsType", "", {{{"default", "ext4"}}});
  std::vector<json> option_rules;
  for (const auto& [cel, message] : filesystem_option_rules()) option_rules.push_back(rule(cel, message));
  set(spec, "filesystem", "", option_rules);
  for (const char* list : {"filesystem.mkfsOptions", "filesystem.mountOptions"}) {
    set(spec, list, "", {{{"maxItems", 32}, {"nullable", true}}});
    set(spec, std::string(list) + "[]", "", {{{"maxLength", 256}}});
  }
  set(spec, "overrides", "Settings that differ from those of store and protocol.");
  describe_backend(spec, "overrides.backend", false);
  set(spec, "overrides.protocol", "Protocol settings: exactly one member, the protocol's.");
  set(spec, "overrides.protocol.nvmeofTcp", "NVMe over TCP.");
  describe_nvmeof_tunables(spec, "overrides.protocol.nvmeofTcp");
  set(spec, "overrides.protocol.iscsi", "iSCSI.");
  describe_iscsi_tunables(spec, "overrides.protocol.iscsi");
  set(status, "", "What the controller last saw.");
  set(status, "storageClassName", "Name of the generated StorageClass.");
}

void describe_volume_spec(json& spec) {
  std::vector<json> rules{
      rule("self.volumeID == self.agentRef + '/' + self.protocolType + '/' + self.backendType + '/' + "
           "self.agentVolumeID",
           "volumeID must be <agentRef>/<protocolType>/<backendType>/<agentVolumeID>"),
      rule("!has(oldSelf.resolved) || has(self.resolved)", "resolved cannot be removed"),
      rule("!has(oldSelf.claimRef) || has(self.claimRef)", "claimRef cannot be removed")};
  set(spec, "", "Identity of one volume; written once by the controller.", rules);
  set(spec, "volumeID", "CSI volume id.", {{{"maxLength", 128}}, immutable()});
  set(spec, "agentVolumeID", "Id of the volume on its agent: <pool>/<name>.",
      {pattern(exactly(std::string(k_pool) + "/[A-Za-z0-9][A-Za-z0-9._-]{0,62}"), 127), no_dots(),
       immutable()});
  set(spec, "agentRef", "Name of the PillarAgent.", {object_name(), immutable()});
  set(spec, "backendType", "Backend type.", {{{"enum", {"lvm-lv", "zfs-zvol", "zfs-dataset"}}}, immutable()});
  set(spec, "protocolType", "Protocol type.", {{{"enum", {"nvmeof-tcp", "iscsi", "nfs"}}}, immutable()});
  set(spec, "capacityBytes", "Size asked for at creation.", {immutable()});
  set(spec, "claimRef", "The claim that the volume was made for.", {immutable()});
  set(spec, "claimRef.uid", "Its uid.");
  set(spec, "claimRef.namespace", "Its namespace.");
  set(spec, "claimRef.name", "Its name.");
  set(spec, "resolved", "Settings after all layers; never read again from their sources.", {immutable()});
  describe_backend(spec, "resolved.backend", true);
  describe_protocol(spec, "resolved.protocol");
  describe_filesystem(spec, "resolved.filesystem");
}

void describe_volume(json& spec, json& status) {
  describe_volume_spec(spec);
  set(status, "", "State of the volume.");
  set(status, "phase", "Where the volume is in its life.");
  set(status, "partialFailure", "Why creation has stopped half-way.");
  set(status, "partialFailure.failedOperation", "What failed.");
  set(status, "partialFailure.failedAt", "When.");
  set(status, "partialFailure.reason", "Stable reason.");
  set(status, "partialFailure.message", "What was seen and what to do.");
  set(status, "partialFailure.backendCreated", "The backend object exists.");
  set(status, "partialFailure.exportCreated", "The export exists.");
  set(status, "backendDevicePath", "Device on the agent's host, only in CreatePartial.");
  set(status, "capacityBytes", "Size as made; 0: not made yet.");
  set(status, "exportInfo", "Where the volume is reached.");
  set(status, "exportInfo.targetID", "NQN of the subsystem.");
  set(status, "exportInfo.address", "Address of the target.");
  set(status, "exportInfo.port", "Port of the target.");
  set(status, "exportInfo.volumeRef", "The volume within the target.");
  set(status, "exportSpec", "The export as it must be.");
  set(status, "exportSpec.bindAddress", "Address that the target listens on.",
      {pattern(exactly(address()), 64)});
  set(status, "exportSpec.port", "Port that the target listens on.");
  set(status, "exportSpec.aclEnabled", "Only published nodes may connect.");
  set(status, "exportSpec.inCapsuleDataSize", "param_inline_data_size of the port.");
  set(status, "publishedNodes", "Nodes that have access or may still have it.",
      {{{"x-kubernetes-list-type", "map"}, {"x-kubernetes-list-map-keys", {"nodeID"}}}});
  set(status, "publishedNodes[]", "Access of a node.");
  set(status, "publishedNodes[].nodeID", "CSI node id.");
  set(status, "publishedNodes[].initiatorID", "Host NQN of the node.");
  set(status, "publishedNodes[].accessMode", "CSI name of the access mode.",
      {{{"enum",
         {"SINGLE_NODE_WRITER", "SINGLE_NODE_READER_ONLY", "SINGLE_NODE_SINGLE_WRITER",
          "SINGLE_NODE_MULTI_WRITER", "MULTI_NODE_READER_ONLY"}}}});
  set(status, "publishedNodes[]", "", {{{"required", {"nodeID", "accessMode"}}}});
  set(status, "publishedNodes[].readonly", "Published read-only.");
  set(status, "publishedNodes[].revoking", "Access is being taken away.");
  set(status, "publicationGeneration", "Fencing token; never falls.", {{{"minimum", 0}}});
  set(status, "deleting", "Deletion has begun.");
  set(status, "formatted", "The first format, as a node reported it.");
  set(status, "formatted.fsType", "File system.");
  set(status, "formatted.formattedAt", "When.");
  set(status, "resizeRequired", "An offline expansion waits for detach.");
}

/// CEL needs bounds to know what a rule costs at most.
void bound(json& schema) {
  const auto type = schema.value("type", "");
  if (type == "string" && !schema.contains("enum") && !schema.contains("maxLength"))
    schema["maxLength"] = 1024;
  if (type == "array" && !schema.contains("maxItems")) schema["maxItems"] = 64;
  if (schema.contains("additionalProperties") && !schema.contains("maxProperties"))
    schema["maxProperties"] = 64;
  for (const char* inner : {"items", "additionalProperties"})
    if (schema.contains(inner) && schema[inner].is_object()) bound(schema[inner]);
  if (schema.contains("properties"))
    for (auto& property : schema["properties"]) bound(property);
}

json column(const char* name, const char* path, const char* description, int priority = 0) {
  json out{{"name", name}, {"type", "string"}, {"jsonPath", path}, {"description", description}};
  if (priority != 0) out["priority"] = priority;
  return out;
}

json ready_column() {
  return column("Ready", R"(.status.conditions[?(@.type=="Ready")].status)", "Whether it can be used.");
}
json reason_column() {
  return column("Reason", R"(.status.conditions[?(@.type=="Ready")].reason)", "Why it is ready or not.", 1);
}

json columns_of(Kind kind) {
  json out = json::array();
  switch (kind) {
    case Kind::agent:
      out = {column("Address", ".status.resolvedAddress", "Where the controller dials it."),
             column("Version", ".status.agentVersion", "Version of the agent."), ready_column(),
             column("Node", ".spec.nodeRef.name", "Its Node.", 1), reason_column()};
      break;
    case Kind::store:
      out = {column("Agent", ".spec.agentRef", "Its PillarAgent."),
             column("Pool", ".spec.backend['lvm','zfs']['volumeGroup','pool']", "Volume group or ZFS pool."),
             column("Total", ".status.capacity.total", "Size of the pool."),
             column("Available", ".status.capacity.available", "Free space."),
             ready_column(),
             reason_column()};
      break;
    case Kind::protocol:
      out = {column("Type", ".status.protocolType", "Protocol."),
             column("Classes", ".status.storageClassCount", "PillarStorageClasses that use it."),
             ready_column(), reason_column()};
      break;
    case Kind::storage_class:
      out = {column("Store", ".spec.storeRef", "Its PillarStore."),
             column("Protocol", ".spec.protocolRef", "Its PillarProtocol."),
             column("StorageClass", ".status.storageClassName", "The generated StorageClass."),
             ready_column(),
             column("FsType", ".spec.filesystem.fsType", "File system.", 1),
             reason_column()};
      break;
    case Kind::volume:
      out = {column("Phase", ".status.phase", "Where it is in its life."),
             column("Agent", ".spec.agentRef", "Its PillarAgent."),
             column("Backend", ".spec.backendType", "Backend type."),
             column("Protocol", ".spec.protocolType", "Protocol type."),
             column("Nodes", ".status.publishedNodes[*].nodeID", "Nodes it is published to."),
             column("Size", ".status.capacityBytes", "Size in bytes.", 1),
             column("Generation", ".status.publicationGeneration", "Fencing token.", 1),
             column("Target", ".status.exportInfo.targetID", "NQN of the target.", 1)};
      break;
  }
  json age{{"name", "Age"}, {"type", "date"}, {"jsonPath", ".metadata.creationTimestamp"}};
  out.push_back(std::move(age));
  return out;
}

struct Parts {
  json spec;
  json status;
};

Parts parts_of(Kind kind) {
  using schema::fields_of;
  switch (kind) {
    case Kind::agent: {
      Parts out{fields_of<AgentSpec>(), fields_of<AgentStatus>()};
      describe_agent(out.spec, out.status);
      return out;
    }
    case Kind::store: {
      Parts out{fields_of<StoreSpec>(), fields_of<StoreStatus>()};
      describe_store(out.spec, out.status);
      return out;
    }
    case Kind::protocol: {
      Parts out{fields_of<ProtocolSpec>(), fields_of<ProtocolStatus>()};
      describe_protocol_kind(out.spec, out.status);
      return out;
    }
    case Kind::storage_class: {
      Parts out{fields_of<StorageClassSpec>(), fields_of<StorageClassStatus>()};
      describe_class(out.spec, out.status);
      return out;
    }
    case Kind::volume:
      break;
  }
  Parts out{fields_of<VolumeSpec>(), fields_of<VolumeStatus>()};
  describe_volume(out.spec, out.status);
  return out;
}

/// Rules that need the whole object.
std::vector<json> root_rules(Kind kind) {
  if (kind == Kind::storage_class) {
    const auto name = [](const std::string& object) {
      const auto field = object + ".spec.storageClass.name";
      return "(has(" + field + ") && " + field + " != '' ? " + field + " : " + object + ".metadata.name)";
    };
    return {rule(name("self") + " == " + name("oldSelf"),
                 "spec.storageClass.name is immutable; delete the object and create it again to change it")};
  }
  if (kind == Kind::volume) {
    const auto generation = [](const std::string& object) {
      const auto field = object + ".status.publicationGeneration";
      return "(has(" + object + ".status) && has(" + field + ") ? " + field + " : 0)";
    };
    return {rule(generation("self") + " >= " + generation("oldSelf"),
                 "status.publicationGeneration must never fall: it fences delayed requests")};
  }
  return {};
}

constexpr const char* describe_kind(Kind kind) {
  switch (kind) {
    case Kind::agent:
      return "PillarAgent says where one storage agent is.";
    case Kind::store:
      return "PillarStore is one pool on one agent.";
    case Kind::protocol:
      return "PillarProtocol holds the settings of one network protocol.";
    case Kind::storage_class:
      return "PillarStorageClass puts a store and a protocol together and generates a StorageClass.";
    case Kind::volume:
      break;
  }
  return "PillarVolumeState is the record of one volume, kept by the controller. Never edit it by hand.";
}

}  // namespace

json definition_of(Kind kind) {
  auto parts = parts_of(kind);
  describe_conditions(parts.status);
  bound(parts.spec);
  json root{{"type", "object"},
            {"required", {"spec"}},
            {"properties",
             {{"apiVersion", {{"type", "string"}}},
              {"kind", {{"type", "string"}}},
              {"metadata", {{"type", "object"}}},
              {"spec", std::move(parts.spec)},
              {"status", std::move(parts.status)}}}};
  set(root, "", describe_kind(kind), root_rules(kind));
  const auto& names = info(kind);
  const auto slash = k_api_version.find('/');
  const std::string group(k_api_version.substr(0, slash));
  const std::string version(k_api_version.substr(slash + 1));
  json served{{"name", version},
              {"served", true},
              {"storage", true},
              {"additionalPrinterColumns", columns_of(kind)},
              {"subresources", {{"status", json::object()}}},
              {"schema", {{"openAPIV3Schema", std::move(root)}}}};
  return {{"apiVersion", "apiextensions.k8s.io/v1"},
          {"kind", "CustomResourceDefinition"},
          {"metadata", {{"name", std::string(names.plural) + "." + group}}},
          {"spec",
           {{"group", group},
            {"scope", "Cluster"},
            {"names",
             {{"kind", names.kind},
              {"listKind", std::string(names.kind) + "List"},
              {"plural", names.plural},
              {"singular", names.singular},
              {"shortNames", {names.short_name}},
              {"categories", {"pillar"}}}},
            {"versions", json::array({std::move(served)})}}}};
}

}  // namespace pillar::crd
