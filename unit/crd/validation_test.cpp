#include "crd/validation.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "crd/filesystem_options.hpp"
#include "crd/settings.hpp"
#include "rule_cases.hpp"

using namespace pillar;
using namespace pillar::crd;
using namespace pillar::crd::test;
using nlohmann::json;

namespace {

Object object(Kind kind, const std::string& spec, const std::string& name = "x") {
  Object out;
  out.kind = kind;
  out.metadata.name = name;
  out.spec = Doc::of(json::parse(spec));
  return out;
}

/// Paths of the fields refused, "" when accepted.
std::string refused(const Object& fresh, const Object* stored = nullptr) {
  const auto admitted = admit(fresh, stored);
  if (admitted) return "";
  std::string out;
  for (const auto& error : admitted.error()) {
    CHECK_FALSE(error.problem.empty());
    out += (out.empty() ? "" : ",") + error.path;
  }
  return out;
}

std::string status_refused(Kind kind, const std::string& status, const std::string& stored = "{}") {
  Object before = object(kind, "{}");
  before.status = Doc::of(json::parse(stored));
  Object fresh = before;
  fresh.status = Doc::of(json::parse(status));
  const auto admitted = admit_status(fresh, before);
  return admitted ? "" : admitted.error().front().path;
}

}  // namespace

TEST_SUITE_BEGIN("crd validation");

TEST_CASE("every rule of a new object") {
  for (const auto& one : new_object_cases())
    CHECK_MESSAGE(refused(object(one.kind, one.after)) == one.refused, one.after);
}

TEST_CASE("defaults are written") {
  const auto made =
      admit(object(Kind::storage_class, R"({"storeRef":"s","protocolRef":"p"})", "gold"), nullptr);
  REQUIRE(made);
  CHECK(made->spec.json() == json::parse(R"({"storeRef":"s","protocolRef":"p","filesystem":{"fsType":"ext4"},
    "storageClass":{"name":"gold","reclaimPolicy":"Delete","volumeBindingMode":"Immediate"}})"));
  const auto again = admit(*made, &*made);
  REQUIRE(again);
  CHECK(again->spec == made->spec);
  const auto store =
      admit(object(Kind::store, R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v"}}})"), nullptr);
  CHECK(store->spec.json()["backend"]["lvm"]["provisioningMode"] == "linear");
}

TEST_CASE("immutable fields") {
  for (const auto& change : change_cases()) {
    const auto stored = admit(object(change.kind, change.before), nullptr);
    REQUIRE_MESSAGE(stored, change.before);
    CHECK_MESSAGE(refused(object(change.kind, change.after), &*stored) == change.refused, change.after);
  }
}

TEST_CASE("metadata rules") {
  const auto with = [](auto change) {
    Object out = object(Kind::agent, R"({"nodeRef":{"name":"n"}})");
    change(out.metadata);
    return refused(out);
  };
  CHECK(with([](Metadata& m) { m.labels["example.com/a"] = "b"; }) == "");
  CHECK(with([](Metadata& m) { m.name = "../x"; }) == "metadata.name");
  CHECK(with([](Metadata& m) { m.labels["a b"] = ""; }) == "metadata.labels[a b]");
  CHECK(with([](Metadata& m) { m.labels["a"] = "b c"; }) == "metadata.labels.a");
  CHECK(with([](Metadata& m) { m.annotations["big"] = std::string(1 << 20, 'x'); }) ==
        "metadata.annotations");
  CHECK(with([](Metadata& m) { m.finalizers = {"noprefix"}; }) == "metadata.finalizers[0]");
  CHECK(with([](Metadata& m) { m.finalizers = {"a.b/c", "a.b/c"}; }) == "metadata.finalizers[1]");
}

TEST_CASE("status rules") {
  for (const auto& one : status_cases())
    CHECK_MESSAGE(status_refused(one.kind, one.after, one.before) == one.refused, one.after);
}

TEST_CASE("mkfs and mount options: allowlist by flag and value form") {
  using List = std::vector<std::string>;
  const auto mkfs = [](FsType type, const List& list) { return check_mkfs_options(type, list, "o").size(); };
  const auto mount = [](FsType type, const List& list) {
    return check_mount_options(type, list, "o").size();
  };
  for (const auto& good :
       {List{}, List{"-m", "0"}, List{"-m1.5"}, List{"-E", "lazy_itable_init=0,nodiscard"},
        List{"-b", "4096", "-O", "^64bit,quota", "-L", "data"}, List{"-i", "16384", "-J", "size=64"}})
    CHECK(mkfs(FsType::ext4, good) == 0);
  for (const auto& bad :
       {List{"-F"}, List{"-m"}, List{"-m", "60"}, List{"-m", "0 /dev/sda"}, List{"/dev/sda"},
        List{"-E", "discard"}, List{"-E", "lazy_itable_init=2"}, List{"-d", "/etc"}, List{"-U", "x"},
        List{"-O", "encrypt,"}, List{""}, List{"-L", "a b"}, List{"-b", "4096|2048"}, List{"--help"}})
    CHECK_MESSAGE(mkfs(FsType::ext4, bad) != 0, bad.front());
  for (const auto& good : {List{"-K"}, List{"-d", "agcount=4,su=64k,sw=2"}, List{"-m", "reflink=1,rmapbt=0"},
                           List{"-l", "size=64m"}})
    CHECK(mkfs(FsType::xfs, good) == 0);
  for (const auto& bad : {List{"-f"}, List{"-d", "file"}, List{"-d", "name=/dev/sda"}, List{"-m", "crc=0"},
                          List{"-l", "logdev=/dev/sda"}, List{"-r", "rtdev=/dev/sda"}})
    CHECK_MESSAGE(mkfs(FsType::xfs, bad) != 0, bad.front());
  for (const auto& good : {List{"noatime", "commit=30"},
                           List{"context=\"system_u:object_r:svirt_t:s0:c1,c2\""}, List{"errors=remount-ro"}})
    CHECK(mount(FsType::ext4, good) == 0);
  for (const auto& bad : {List{"nobarrier"}, List{"barrier=0"}, List{"noatime,bind"}, List{"errors=panic"},
                          List{"data=writeback"}, List{"bind"}, List{"context=a:b,c"}, List{"commit=x"},
                          List{"commit"}, List{"noatime=1"}, List{"logbsize=32k"}})
    CHECK_MESSAGE(mount(FsType::ext4, bad) == 1, bad.front());
  CHECK(mount(FsType::xfs, {"logbsize=32k", "nouuid", "allocsize=1m"}) == 0);
  CHECK(mount(FsType::xfs, {"norecovery"}) == 1);
  // What no node would mount is not taken either, and what contradicts itself.
  for (const auto& bad : {List{"seclabel"}, List{"nombcache"}, List{"noatime", "relatime"}})
    CHECK_MESSAGE(mount(FsType::ext4, bad) == 1, bad.front());
  CHECK(mkfs(FsType::ext4, {"-O", "bigalloc"}) == 1);
  CHECK(check_mount_options(FsType::xfs, {"norecovery"}, "o").front().problem.find("stale") !=
        std::string::npos);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("crd settings");

namespace {

Backend lvm_backend() {
  Backend out;
  out.lvm = LvmBackend{"vg0", "tp", ProvisioningMode::linear};
  return out;
}
Protocol nvme_protocol() {
  Protocol out;
  out.nvmeof_tcp.emplace();
  out.nvmeof_tcp->max_queue_size = 128;
  out.nvmeof_tcp->ctrl_loss_tmo = 600;
  return out;
}
SettingsLayer annotations(const std::map<std::string, std::string>& map) {
  return layer_of_annotations(map, "PersistentVolumeClaim default/data").value();
}
std::string annotation_problem(const std::map<std::string, std::string>& map) {
  const auto layer = layer_of_annotations(map, "PersistentVolumeClaim default/data");
  if (layer) return "";
  CHECK(layer.error().code == Code::invalid_argument);
  CHECK(layer.error().message.find("default/data") != std::string::npos);
  return layer.error().message;
}

}  // namespace

TEST_CASE("layers: scalars replace, maps merge, unset inherits, an empty list clears") {
  PillarStorageClass cls;
  cls.metadata.name = "gold";
  cls.spec.overrides.protocol.emplace().nvmeof_tcp.emplace().max_queue_size = 64;
  cls.spec.filesystem = {FsType::xfs, std::vector<std::string>{"-K"}, std::vector<std::string>{"noatime"}};
  const auto pvc =
      annotations({{"pillar-csi.bhyoo.com/backend", "lvm: {provisioningMode: thin}"},
                   {"pillar-csi.bhyoo.com/protocol", "nvmeofTcp:\n  ctrlLossTmo: 60\n  reconnectDelay: 0\n"},
                   {"pillar-csi.bhyoo.com/filesystem", "mountOptions: []"},
                   {"volume.kubernetes.io/selected-node", "n"}});
  const auto resolved = resolve(lvm_backend(), nvme_protocol(), {layer_of(cls), pvc});
  REQUIRE_MESSAGE(resolved, (resolved ? "" : resolved.error().message));
  CHECK(resolved->backend.lvm->provisioning_mode == ProvisioningMode::thin);
  CHECK(resolved->protocol.nvmeof_tcp->max_queue_size == 64);
  CHECK(resolved->protocol.nvmeof_tcp->ctrl_loss_tmo == 60);
  CHECK_FALSE(resolved->protocol.nvmeof_tcp->reconnect_delay);
  CHECK(resolved->protocol.nvmeof_tcp->port == 4420);
  CHECK(resolved->filesystem == ResolvedFilesystem{FsType::xfs, {"-K"}, {}});
  Backend zfs;
  zfs.zfs.emplace();
  zfs.zfs->pool = "tank";
  zfs.zfs->properties = {{"compression", "lz4"}, {"copies", "1"}};
  const auto merged = resolve(
      zfs, nvme_protocol(),
      {annotations({{"pillar-csi.bhyoo.com/backend", "zfs: {properties: {copies: \"2\", sync: always}}"}})});
  CHECK(merged->backend.zfs->properties ==
        std::map<std::string, std::string>{{"compression", "lz4"}, {"copies", "2"}, {"sync", "always"}});
}

TEST_CASE("annotations: structural, unknown and duplicate keys are refused by name") {
  CHECK(
      annotation_problem({{"pillar-csi.bhyoo.com/backend", "lvm: {volumeGroup: vg1}"}}).find("structural") !=
      std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/backend", "zfs: {pool: x}"}}).find("zfs.pool") !=
        std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/protocol", "nvmeofTcp: {acl: false}"}})
            .find("nvmeofTcp.acl") != std::string::npos);
  CHECK(
      annotation_problem({{"pillar-csi.bhyoo.com/protocol", "nvmeofTcp: {maxQueueSize: 1, maxQueueSize: 2}"}})
          .find("duplicate") != std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/protocol", "nvmeofTcp: {maxQueueSize: 5}"}})
            .find("between 16 and 1024") != std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/filesystem", "fstype: xfs"}}).find("unknown field") !=
        std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/filesystem", "- a"}}).find("must be an object") !=
        std::string::npos);
  CHECK(annotation_problem({{"pillar-csi.bhyoo.com/protocl", "x"}}).find("protocl") != std::string::npos);
  CHECK(
      annotation_problem({{"pillar-csi.bhyoo.com/backend", "{lvm: "}}).find("pillar-csi.bhyoo.com/backend") !=
      std::string::npos);
  CHECK(annotation_problem({{"other.io/x", "{"}}) == "");
}

TEST_CASE("the merged whole must hold: members, thin pool, options of the file system, compatibility") {
  const auto problem = [](Backend backend, Protocol protocol, std::map<std::string, std::string> map) {
    const auto resolved = resolve(backend, protocol, {annotations(map)});
    return resolved ? std::string() : resolved.error().message;
  };
  CHECK(problem(lvm_backend(), nvme_protocol(), {{"pillar-csi.bhyoo.com/backend", "zfs: {}"}})
            .find("store's backend is lvm") != std::string::npos);
  CHECK(problem(lvm_backend(), nvme_protocol(), {{"pillar-csi.bhyoo.com/protocol", "iscsi: {}"}})
            .find("nvmeof-tcp") != std::string::npos);
  auto no_pool = lvm_backend();
  no_pool.lvm->thin_pool.clear();
  CHECK(problem(no_pool, nvme_protocol(), {{"pillar-csi.bhyoo.com/backend", "lvm: {provisioningMode: thin}"}})
            .find("thinPool") != std::string::npos);
  CHECK(problem(lvm_backend(), nvme_protocol(),
                {{"pillar-csi.bhyoo.com/filesystem", "{fsType: xfs, mkfsOptions: [\"-m0\"]}"}})
            .find("mkfsOptions") != std::string::npos);
  Protocol nfs;
  nfs.nfs.emplace();
  const auto incompatible = resolve(lvm_backend(), nfs, {});
  CHECK(incompatible.error().code == Code::failed_precondition);
  Backend dataset;
  dataset.zfs = ZfsBackend{"tank", "", ZfsVolumeType::dataset, {}};
  CHECK_FALSE(incompatibility(dataset, nfs));
  CHECK(incompatibility(dataset, nvme_protocol()));
  CHECK_FALSE(incompatibility(lvm_backend(), nvme_protocol()));
}

TEST_CASE("K11: StorageClass parameters with unknown keys or values are refused by name") {
  const auto problem = [](std::map<std::string, std::string> map) {
    const auto parsed = parse_class_parameters(map);
    if (!parsed) CHECK(parsed.error().code == Code::invalid_argument);
    return parsed ? std::string() : parsed.error().message;
  };
  const std::string cls(k_key_storage_class);
  CHECK(
      problem({{cls, "gold"}, {"csi.storage.k8s.io/fstype", "xfs"}, {"csi.storage.k8s.io/pvc/name", "x"}}) ==
      "");
  CHECK(problem({{std::string(k_key_store_ref), "s"},
                 {std::string(k_key_protocol_ref), "p"},
                 {std::string(k_key_protocol), "nvmeofTcp: {nrIoQueues: 2}"}}) == "");
  CHECK(problem({{cls, "gold"}, {"csi.storage.k8s.io/fstype", "ext5"}}).find("ext5") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {"fsType", "ext5"}}).find("\"fsType\"") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {"FSTYPE", "xfs"}}).find("\"FSTYPE\"") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {"typo", "x"}}).find("\"typo\"") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {"pillar-csi.bhyoo.com/typo", "x"}}).find("typo") != std::string::npos);
  CHECK(problem({{cls, "with spaces"}}).find("with spaces") != std::string::npos);
  CHECK(problem({}).find("set either") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {std::string(k_key_store_ref), "s"}}).find("set either") !=
        std::string::npos);
  CHECK(problem({{std::string(k_key_store_ref), "s"}}).find("set either") != std::string::npos);
  CHECK(problem({{cls, "gold"}, {std::string(k_key_filesystem), "{fsType: ext5}"}})
            .find("must be one of ext4, xfs") != std::string::npos);
  CHECK(parse_class_parameters({{cls, "gold"}, {"csi.storage.k8s.io/fstype", "xfs"}}).value().fs_type ==
        FsType::xfs);
}

TEST_SUITE_END();
