#include "rule_cases.hpp"

namespace pillar::crd::test {
namespace {

/// The rest of a PillarStorageClass's spec, and what is refused of it.
struct ClassRow {
  const char* rest;
  const char* refused;
};
constexpr ClassRow k_class_rows[] = {
    {R"("storageClass":{"name":"fast","reclaimPolicy":"Retain","volumeBindingMode":"WaitForFirstConsumer","allowVolumeExpansion":false}})",
     ""},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-i","maxpct=5","-K"],"mountOptions":["noatime","logbsize=256k"]}})",
     ""},
    {R"("filesystem":{"mkfsOptions":[],"mountOptions":null}})", ""},
    {R"("overrides":{"backend":{"lvm":{"provisioningMode":"thin"}},"protocol":{"nvmeofTcp":{"maxQueueSize":32}}}})",
     ""},
    {R"("overrides":{"backend":{"zfs":{"properties":{"volblocksize":"16K"}}}}})", ""},
    {R"("storageClass":{"name":"F"}})", "spec.storageClass.name"},
    {R"("storageClass":{"reclaimPolicy":"Recycle"}})", "spec.storageClass.reclaimPolicy"},
    {R"("storageClass":{"volumeBindingMode":"Later"}})", "spec.storageClass.volumeBindingMode"},
    {R"("filesystem":{"fsType":"btrfs"}})", "spec.filesystem.fsType"},
    {R"("filesystem":{"mkfsOptions":["-F"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mountOptions":["noatime,nobarrier"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("overrides":{"backend":{}}})", "spec.overrides.backend"},
    {R"("overrides":{"backend":{"lvm":{"volumeGroup":"x"}}}})", "spec.overrides.backend.lvm.volumeGroup"},
    {R"("overrides":{"protocol":{"nvmeofTcp":{"port":1}}}})", "spec.overrides.protocol.nvmeofTcp.port"},
    {R"("overrides":{"protocol":{"nvmeofTcp":{"acl":false}}}})", "spec.overrides.protocol.nvmeofTcp.acl"},
    {R"("overrides":{"backend":{"zfs":{"properties":{"exec":"on"}}}}})",
     "spec.overrides.backend.zfs.properties.exec"},
    {R"("typo":1})", "spec.typo"},
    // mkfs: one argument each, flag and value together or apart
    {R"("filesystem":{"mkfsOptions":["-m","0","-E","lazy_itable_init=0,nodiscard","-b4096"]}})", ""},
    {R"("filesystem":{"mkfsOptions":["-m","50.0","-i","67108864","-N","4294967295","-O","^64bit,quota"]}})",
     ""},
    {R"("filesystem":{"mkfsOptions":["-m","51"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-i","1023"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-i","67108865"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-N","4294967296"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-b"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-E","root_owner=0:0"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"mkfsOptions":["-b 4096"," -m  1 "]}})", ""},
    {R"("filesystem":{"mkfsOptions":["-L","a;b"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-d","su=64k,sw=4","-l","size=2086912k","-s","size=4k"]}})",
     ""},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-d","su=511"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-l","size=2039m"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-m","0"]}})", "spec.filesystem.mkfsOptions[0]"},
    {R"("filesystem":{"fsType":"xfs","mkfsOptions":["-d","file=1"]}})", "spec.filesystem.mkfsOptions[0]"},
    // mount
    {R"("filesystem":{"mountOptions":["commit=1","errors=remount-ro","nodev"]}})", ""},
    {R"("filesystem":{"mountOptions":["commit=300"]}})", ""},
    {R"("filesystem":{"mountOptions":["commit=301"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"mountOptions":["commit=0"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"mountOptions":["nobarrier"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"mountOptions":["noatime=1"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"mountOptions":["allocsize=1m"]}})", "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"fsType":"xfs","mountOptions":["allocsize=1m","logbufs=8"]}})", ""},
    {R"("filesystem":{"fsType":"xfs","mountOptions":["allocsize=1025m"]}})",
     "spec.filesystem.mountOptions[0]"},
    {R"("filesystem":{"mountOptions":["context=\"system_u:object_r:tmp_t:s0:c1,c2\""]}})", ""},
    {R"("filesystem":{"mountOptions":["context=system_u:object_r:tmp_t:s0:c1,c2"]}})",
     "spec.filesystem.mountOptions[0]"},
};

}  // namespace

std::string volume_spec(const std::string& more) {
  return R"({"volumeID":"a/nvmeof-tcp/lvm-lv/vg0/v","agentVolumeID":"vg0/v","agentRef":"a","backendType":"lvm-lv",)"
         R"("protocolType":"nvmeof-tcp","capacityBytes":1)" +
         more + "}";
}

std::string valid_spec(Kind kind) {
  switch (kind) {
    case Kind::agent:
      return R"({"nodeRef":{"name":"n"}})";
    case Kind::store:
      return R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg0"}}})";
    case Kind::protocol:
      return R"({"protocol":{"nvmeofTcp":{}}})";
    case Kind::storage_class:
      return R"({"storeRef":"s","protocolRef":"p"})";
    case Kind::volume:
      break;
  }
  return volume_spec("");
}

std::vector<RuleCase> new_object_cases() {
  std::vector<RuleCase> out = {
      // PillarAgent
      {Kind::agent, "", R"({"nodeRef":{"name":"n"}})", ""},
      {Kind::agent, "",
       R"({"nodeRef":{"name":"n","addressType":"ExternalIP","addressSelector":"10.0.0.0/8","port":1}})", ""},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","addressSelector":"fd00::/8"}})", ""},
      {Kind::agent, "", R"({"external":{"address":"10.0.0.1","port":9500}})", ""},
      {Kind::agent, "", R"({"external":{"address":"storage.example.com","port":9500}})", ""},
      {Kind::agent, "", R"({})", "spec"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n"},"external":{"address":"a","port":1}})", "spec"},
      {Kind::agent, "", R"({"nodeRef":{"name":"N_1"}})", "spec.nodeRef.name"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","addressType":"Hostname"}})", "spec.nodeRef.addressType"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","addressSelector":"10.0.0.0/33"}})",
       "spec.nodeRef.addressSelector"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","addressSelector":"10.0.0.0"}})",
       "spec.nodeRef.addressSelector"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","port":0}})", "spec.nodeRef.port"},
      {Kind::agent, "", R"({"nodeRef":{"name":"n","port":65536}})", "spec.nodeRef.port"},
      {Kind::agent, "", R"({"external":{"address":"10.0.0.1"}})", "spec.external.port"},
      {Kind::agent, "", R"({"external":{"address":"10.0.0.1:9500","port":9500}})", "spec.external.address"},
      {Kind::agent, "", R"({"external":{"address":"a/b","port":9500}})", "spec.external.address"},
      // PillarStore
      {Kind::store, "", R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg0"}}})", ""},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg0","thinPool":"tp","provisioningMode":"thin"}}})",
       ""},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","parentDataset":"k8s/vols","properties":{"compression":"lz4"}}}})",
       ""},
      {Kind::store, "", R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","volumeType":"dataset"}}})", ""},
      {Kind::store, "", R"({"agentRef":"a","backend":{}})", "spec.backend"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v"},"zfs":{"pool":"p"}}})",
       "spec.backend"},
      {Kind::store, "", R"({"agentRef":"A B","backend":{"lvm":{"volumeGroup":"vg0"}}})", "spec.agentRef"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"../etc"}}})",
       "spec.backend.lvm.volumeGroup"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg/x"}}})",
       "spec.backend.lvm.volumeGroup"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"-vg"}}})",
       "spec.backend.lvm.volumeGroup"},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg0","provisioningMode":"thin"}}})",
       "spec.backend.lvm.provisioningMode"},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"vg0","provisioningMode":"thick"}}})",
       "spec.backend.lvm.provisioningMode"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","parentDataset":"../x"}}})",
       "spec.backend.zfs.parentDataset"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","volumeType":"file"}}})",
       "spec.backend.zfs.volumeType"},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","properties":{"mountpoint":"/etc"}}}})",
       "spec.backend.zfs.properties.mountpoint"},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","properties":{"sync":"disabled"}}}})",
       "spec.backend.zfs.properties.sync"},
      {Kind::store, "", R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","properties":{"copies":2}}}})",
       "spec.backend.zfs.properties.copies"},
      // PillarProtocol
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{}}})", ""},
      {Kind::protocol, "",
       R"({"protocol":{"nvmeofTcp":{"maxQueueSize":16,"nrIoQueues":128,"inCapsuleDataSize":1024,"ctrlLossTmo":0,"reconnectDelay":0}}})",
       ""},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"ctrlLossTmo":-1}}})", ""},
      {Kind::protocol, "",
       R"({"protocol":{"nvmeofTcp":{"auth":{"type":"DHCHAP","secretRef":{"name":"s","namespace":"n"}}}}})",
       ""},
      {Kind::protocol, "", R"({"protocol":{"iscsi":{"acl":true,"loginTimeout":15}}})", ""},
      {Kind::protocol, "", R"({"protocol":{"nfs":{"version":"4.2"}}})", ""},
      {Kind::protocol, "", R"({"protocol":{}})", "spec.protocol"},
      {Kind::protocol, "", R"({})", "spec.protocol"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{},"iscsi":{}}})", "spec.protocol"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"port":0}}})", "spec.protocol.nvmeofTcp.port"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"maxQueueSize":15}}})",
       "spec.protocol.nvmeofTcp.maxQueueSize"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"maxQueueSize":1025}}})",
       "spec.protocol.nvmeofTcp.maxQueueSize"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"nrIoQueues":0}}})",
       "spec.protocol.nvmeofTcp.nrIoQueues"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"nrIoQueues":129}}})",
       "spec.protocol.nvmeofTcp.nrIoQueues"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"inCapsuleDataSize":1023}}})",
       "spec.protocol.nvmeofTcp.inCapsuleDataSize"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"ctrlLossTmo":-2}}})",
       "spec.protocol.nvmeofTcp.ctrlLossTmo"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"reconnectDelay":-1}}})",
       "spec.protocol.nvmeofTcp.reconnectDelay"},
      {Kind::protocol, "", R"({"protocol":{"nvmeofTcp":{"auth":{"type":"DHCHAP"}}}})",
       "spec.protocol.nvmeofTcp.auth.secretRef"},
      {Kind::protocol, "", R"({"protocol":{"iscsi":{"loginTimeout":0}}})",
       "spec.protocol.iscsi.loginTimeout"},
      {Kind::protocol, "", R"({"protocol":{"nfs":{"version":"5"}}})", "spec.protocol.nfs.version"},
      {Kind::protocol, "", R"({"protocol":{"nfs":{"squash":"x"}}})", "spec.protocol.nfs.squash"},
      // PillarVolumeState
      {Kind::volume, "",
       R"({"volumeID":"a/b","agentVolumeID":"vg0/v","agentRef":"a","backendType":"lvm-lv","protocolType":"nvmeof-tcp"})",
       "spec.volumeID"},
      {Kind::volume, "",
       R"({"volumeID":"a/nvmeof-tcp/lvm-lv/vg0/v","agentVolumeID":"vg0/w","agentRef":"b","backendType":"zfs-zvol","protocolType":"iscsi","capacityBytes":-1})",
       "spec.capacityBytes"},
      {Kind::volume, "",
       R"({"volumeID":"a/nvmeof-tcp/lvm-lv/vg0/v","agentVolumeID":"vg0/w","agentRef":"b","backendType":"zfs-zvol","protocolType":"iscsi"})",
       "spec.agentRef,spec.protocolType,spec.backendType,spec.agentVolumeID"},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","properties":{"special_small_blocks":"1048576"}}}})",
       ""},
      {Kind::store, "",
       R"({"agentRef":"a","backend":{"zfs":{"pool":"tank","properties":{"special_small_blocks":"1048577"}}}})",
       "spec.backend.zfs.properties.special_small_blocks"},
      {Kind::storage_class, "", R"({"storeRef":"s"})", "spec.protocolRef"},
      {Kind::volume, "", volume_spec(""), ""},
      {Kind::volume, "", volume_spec(R"(,"claimRef":{"uid":"u","namespace":"default","name":"c"})"), ""},
      {Kind::volume, "", volume_spec(R"(,"claimRef":{})"), "spec.claimRef.uid"},
  };
  for (const auto& row : k_class_rows)
    out.push_back({Kind::storage_class, "", R"({"storeRef":"s","protocolRef":"p",)" + std::string(row.rest),
                   row.refused});
  return out;
}

std::vector<RuleCase> change_cases() {
  const std::string lvm = R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v","thinPool":"t"}}})";
  const std::string zfs = R"({"agentRef":"a","backend":{"zfs":{"pool":"p","parentDataset":"d"}}})";
  const std::string cls = R"({"storeRef":"s","protocolRef":"p"})";
  const std::string lvm_resolved =
      R"(,"resolved":{"backend":{"lvm":{"volumeGroup":"vg0"}},"protocol":{"nvmeofTcp":{}}})";
  return {
      {Kind::agent, R"({"nodeRef":{"name":"n"}})",
       R"({"nodeRef":{"name":"n","port":9600,"addressSelector":"10.0.0.0/8"}})", ""},
      {Kind::agent, R"({"nodeRef":{"name":"n"}})", R"({"nodeRef":{"name":"m"}})", "spec.nodeRef.name"},
      {Kind::agent, R"({"nodeRef":{"name":"n"}})", R"({"external":{"address":"a","port":1}})", "spec"},
      {Kind::agent, R"({"external":{"address":"a","port":1}})", R"({"external":{"address":"a","port":2}})",
       "spec.external"},
      {Kind::store, lvm,
       R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v","thinPool":"t","provisioningMode":"thin"}}})",
       ""},
      {Kind::store, lvm, R"({"agentRef":"b","backend":{"lvm":{"volumeGroup":"v","thinPool":"t"}}})",
       "spec.agentRef"},
      {Kind::store, lvm, R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"w","thinPool":"t"}}})",
       "spec.backend.lvm.volumeGroup"},
      {Kind::store, lvm, R"({"agentRef":"a","backend":{"lvm":{"volumeGroup":"v"}}})",
       "spec.backend.lvm.thinPool"},
      {Kind::store, lvm, zfs, "spec.backend"},
      {Kind::store, zfs,
       R"({"agentRef":"a","backend":{"zfs":{"pool":"p","parentDataset":"d","properties":{"copies":"2"}}}})",
       ""},
      {Kind::store, zfs, R"({"agentRef":"a","backend":{"zfs":{"pool":"q","parentDataset":"d"}}})",
       "spec.backend.zfs.pool"},
      {Kind::store, zfs, R"({"agentRef":"a","backend":{"zfs":{"pool":"p","parentDataset":"e"}}})",
       "spec.backend.zfs.parentDataset"},
      {Kind::store, zfs,
       R"({"agentRef":"a","backend":{"zfs":{"pool":"p","parentDataset":"d","volumeType":"dataset"}}})",
       "spec.backend.zfs.volumeType"},
      {Kind::storage_class, cls,
       R"({"storeRef":"s","protocolRef":"p","storageClass":{"name":"x","reclaimPolicy":"Retain"}})", ""},
      {Kind::storage_class, cls, R"({"storeRef":"t","protocolRef":"p"})", "spec.storeRef"},
      {Kind::storage_class, cls, R"({"storeRef":"s","protocolRef":"q"})", "spec.protocolRef"},
      {Kind::storage_class, cls, R"({"storeRef":"s","protocolRef":"p","storageClass":{"name":"other"}})",
       "spec.storageClass.name"},
      {Kind::volume, volume_spec(""), volume_spec(lvm_resolved + R"(,"claimRef":{"uid":"u"})"), ""},
      {Kind::volume, volume_spec(lvm_resolved), volume_spec(""), "spec.resolved"},
      {Kind::volume, volume_spec(lvm_resolved),
       volume_spec(R"(,"resolved":{"backend":{"lvm":{"volumeGroup":"vg1"}},"protocol":{"nvmeofTcp":{}}})"),
       "spec.resolved"},
  };
}

std::vector<RuleCase> status_cases() {
  return {
      {Kind::agent, R"({})",
       R"({"fencing":{"epoch":"ab","sequence":3},"discoveredPools":[{"name":"vg0","type":"lvm","total":"10Gi","available":1024}]})",
       ""},
      {Kind::agent, R"({})", R"({"discoveredPools":[{"name":"v","type":"lvm","total":"ten"}]})",
       "status.discoveredPools[0].total"},
      {Kind::protocol, R"({})",
       R"({"storageClassCount":1,"conditions":[{"type":"Ready","status":"True","reason":"Ok","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]})",
       ""},
      {Kind::protocol, R"({})",
       R"({"conditions":[{"type":"Ready","status":"yes","reason":"Ok","lastTransitionTime":"2026-01-01T00:00:00Z"}]})",
       "status.conditions[0].status"},
      {Kind::protocol, R"({})",
       R"({"conditions":[{"type":"Ready","status":"True","reason":"not ok","lastTransitionTime":"2026-01-01T00:00:00Z"}]})",
       "status.conditions[0].reason"},
      {Kind::volume, R"({"publicationGeneration":4})",
       R"({"phase":"Ready","publicationGeneration":4,"publishedNodes":[{"nodeID":"n","accessMode":"SINGLE_NODE_WRITER"}]})",
       ""},
      {Kind::volume, R"({"publicationGeneration":4})", R"({"publicationGeneration":3})",
       "status.publicationGeneration"},
      {Kind::volume, R"({})", R"({"phase":"Gone"})", "status.phase"},
      {Kind::volume, R"({})", R"({"publishedNodes":[{"nodeID":"n","accessMode":"RWX"}]})",
       "status.publishedNodes[0].accessMode"},
      {Kind::volume, R"({})",
       R"({"publishedNodes":[{"nodeID":"n","accessMode":"SINGLE_NODE_WRITER"},{"nodeID":"n","accessMode":"SINGLE_NODE_WRITER"}]})",
       "status.publishedNodes[1].nodeID"},
      {Kind::volume, R"({})", R"({"exportSpec":{"bindAddress":"host","port":1}})",
       "status.exportSpec.bindAddress"},
      {Kind::volume, R"({})", R"({"exportSpec":{"bindAddress":"::1"}})", "status.exportSpec.port"},
  };
}

}  // namespace pillar::crd::test
