"""Repeated, cut-off, renamed and nonsensical calls: one volume per name, nothing leaks, nothing is made twice."""

import grpc

from pillarvm import protos
from pillarvm.csi import GIB, MIB, assert_code, assert_equal, block_cap, channel, mount_cap, pb
from pillarvm.driver import CLASS, CLASS_KEY, resource
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
UNKNOWN = "storage-1/nvmeof-tcp/lvm-lv/vg0/nobody"
MALFORMED = ("no-such", "a/b/c/d/e", "x" * 300, "storage-1/nvmeof-tcp/lvm-lv/vg0/../x", "with space", "é/ü/💾/vg0/x", "/",
             "storage-1/nvmeof-tcp/lvm-lv/vg0/")
PATH = "/var/lib/kubelet/none/mount"


def id_table(fx):
    """(service, RPC, fields beside the id, code for an unknown id); an unknown one of None is success."""
    cap, size = mount_cap(), pb.CapacityRange(required_bytes=GIB)
    node = fx.node_ids["vm"]
    controller, worker = fx.csi, fx.node_csi["vm"]
    return [
        (controller, "DeleteVolume", {}, None),
        (controller, "ControllerPublishVolume", {"node_id": node, "volume_capability": cap}, Code.NOT_FOUND),
        (controller, "ControllerUnpublishVolume", {"node_id": node}, None),
        (controller, "ValidateVolumeCapabilities", {"volume_capabilities": [cap]}, Code.NOT_FOUND),
        (controller, "ControllerExpandVolume", {"capacity_range": size}, Code.NOT_FOUND),
        (controller, "ControllerGetVolume", {}, Code.NOT_FOUND),
        (controller, "ControllerGetVolumeHealth", {}, Code.NOT_FOUND),
        (worker, "NodeUnstageVolume", {"staging_target_path": PATH}, None),
        (worker, "NodePublishVolume", {"staging_target_path": PATH, "target_path": PATH + "/t", "volume_capability": cap},
         Code.FAILED_PRECONDITION),
        (worker, "NodeUnpublishVolume", {"target_path": PATH}, None),
        (worker, "NodeGetVolumeStats", {"volume_path": PATH}, Code.NOT_FOUND),
        (worker, "NodeGetVolumeHealth", {"volume_publish_path": PATH}, Code.NOT_FOUND),
        (worker, "NodeExpandVolume", {"volume_path": PATH, "capacity_range": size}, Code.NOT_FOUND),
    ]


@case("idempotency/ids", fixture="driver", timeout=120)
def ids(fx):
    """K07: every RPC with an empty, an unknown and malformed ids: undoing what is not there succeeds, the rest says so."""
    wrong = []
    for client, method, fields, unknown in id_table(fx):
        request = getattr(pb, method + "Request")
        for volume_id, wanted in [("", Code.INVALID_ARGUMENT), (UNKNOWN, unknown), *((one, unknown) for one in MALFORMED)]:
            try:
                client.call(method, request(volume_id=volume_id, **fields))
                seen = None
            except grpc.RpcError as error:
                seen = error.code()
            if seen != wanted:
                wrong.append(f"{method}({volume_id[:40]!r}): wanted {wanted}, got {seen}")
    context = {"pillar-csi.bhyoo.com/publication-generation": "1",
               "pillar-csi.bhyoo.com/initiator-id": fx.vm.read_text("/etc/nvme/hostnqn")}
    stage = pb.NodeStageVolumeRequest(volume_id=UNKNOWN, staging_target_path=PATH, volume_capability=mount_cap())
    assert_code(Code.FAILED_PRECONDITION, fx.node_csi["vm"].call, "NodeStageVolume", stage)
    for volume_id, code in (("", Code.INVALID_ARGUMENT), ("a/b", Code.NOT_FOUND)):
        bad = pb.NodeStageVolumeRequest(volume_id=volume_id, staging_target_path=PATH, volume_capability=mount_cap(),
                                        publish_context=context)
        assert_code(code, fx.node_csi["vm"].call, "NodeStageVolume", bad)
    assert not wrong, "\n".join(wrong)
    assert not fx.vm.exists(PATH), "a refused call made a directory"


@case("idempotency/paths", fixture="driver", timeout=60)
def paths(fx):
    """Bad input: empty, relative and dotted paths, and those of the system, are refused by every node call."""
    worker, cap = fx.node_csi["vm"], mount_cap()
    calls = [("NodeStageVolume", "staging_target_path", {"volume_capability": cap}),
             ("NodeUnstageVolume", "staging_target_path", {}),
             ("NodePublishVolume", "target_path", {"staging_target_path": PATH, "volume_capability": cap}),
             ("NodeUnpublishVolume", "target_path", {}),
             ("NodeGetVolumeStats", "volume_path", {}),
             ("NodeExpandVolume", "volume_path", {"capacity_range": pb.CapacityRange(required_bytes=MIB)})]
    for method, field, fields in calls:
        for path in ("", "relative/path", "/var/lib/kubelet/../../etc", "/etc/passwd", "/", "/var/lib/a\nb", "/x" * 3000):
            request = getattr(pb, method + "Request")(volume_id=UNKNOWN, **{field: path}, **fields)
            # A volume is looked for at the path, and csi-sanity wants NOT_FOUND for a relative one.
            looked_up = field == "volume_path" and path == "relative/path"
            assert_code(Code.NOT_FOUND if looked_up else Code.INVALID_ARGUMENT, worker.call, method, request)


def listed(fx):
    return [entry.volume.volume_id for entry in fx.csi.list().entries]


@case("idempotency/cancelled-create", fixture="driver", timeout=90)
def cancelled_create(fx):
    """K01: a create that outlives its caller ends as a listed volume, and the repeat gets that very one."""
    fx.controller.inject("controller/*:backend_created", "delay", ms=3000)
    assert_code(Code.DEADLINE_EXCEEDED, fx.create, "k01", 4 * MIB, deadline=1.5)
    until(lambda: any(one.endswith("/k01") for one in listed(fx)), scaled(20), "the volume is listed")
    volume = fx.retried(fx.create, "k01", 4 * MIB)
    assert_equal(listed(fx), [volume.volume_id], "volumes")
    assert_equal(fx.lvs(), ["k01"], "LVs")
    fx.controller.chaos(clear=True)
    fx.csi.delete(volume.volume_id)
    assert_equal(listed(fx), [], "volumes after the delete")


@case("idempotency/killed-create", fixture="driver", timeout=90)
def killed_create(fx):
    """K06, I05: a repeat does not wait for a create under way; its controller dies, after the restart it goes through at once."""
    fx.controller.inject("controller/*:backend_created", "pause")
    assert_code(Code.DEADLINE_EXCEEDED, fx.create, "k06", 4 * MIB, deadline=2)
    assert_code(Code.ABORTED, fx.create, "k06", 4 * MIB, deadline=5, reason="OPERATION_PENDING")
    fx.crash(fx.controller)
    volume = fx.retried(fx.create, "k06", 4 * MIB, timeout=30)
    assert_equal((fx.lvs(), len(fx.subsystems())), (["k06"], 1), "LVs and exports")
    fx.csi.delete(volume.volume_id)


@case("idempotency/reborn", fixture="driver", timeout=90)
def reborn(fx):
    """K03: a name that is used again is a new life; a late delete of the old one cannot touch it."""
    messages, services = protos.load("agent")
    agent = services.AgentStub(channel(f"{fx.storage_vm.ip}:9500"))
    first = fx.create("k03", 4 * MIB)
    old = fx.get("pvst", "k03")
    fx.csi.delete(first.volume_id)
    second = fx.create("k03", 4 * MIB)
    new = fx.get("pvst", "k03")
    assert old["metadata"]["uid"] != new["metadata"]["uid"], "both lives have one uid"
    late = messages.DeleteVolumeRequest(
        token=messages.FencingToken(volume_uid=old["metadata"]["uid"], generation=99),
        volume=messages.VolumeRef(agent_volume_id="vg0/k03", backend_type="lvm-lv"), nqn=fx.nqn(first))
    assert_code(Code.FAILED_PRECONDITION, agent.DeleteVolume, late, timeout=20, reason="LIFECYCLE_RETIRED")
    assert_equal((fx.lvs(), len(fx.subsystems())), (["k03"], 1), "the second life")
    fx.csi.delete(second.volume_id)


@case("idempotency/other-parameters", fixture="driver", timeout=120)
def other_parameters(fx):
    """K10, K09, K11: the same name with anything else that matters is refused, bookkeeping differences are not."""
    fx.apply([resource("PillarStorageClass", "twin", {"storeRef": "lvm", "protocolRef": "nvme"})])
    fx.wait_class_ready("twin")
    params = {CLASS_KEY: CLASS, "csi.storage.k8s.io/pvc/name": "one"}
    volume = fx.csi.create("k10", 64 * MIB, params)
    assert_equal(fx.csi.create("k10", 64 * MIB, {**params, "csi.storage.k8s.io/pvc/name": "two"}), volume)
    others = {"size": {"size": 128 * MIB}, "limit": {"size": 4 * MIB, "limit": 8 * MIB},
              "filesystem": {"caps": [mount_cap("xfs")]}, "block": {"caps": [block_cap()]},
              "access mode": {"caps": [mount_cap(mode="SINGLE_NODE_SINGLE_WRITER")]},
              "class": {"params": {**params, CLASS_KEY: "twin"}}}
    for what, other in others.items():
        try:
            assert_code(Code.ALREADY_EXISTS, fx.csi.create, "k10", other.get("size", 64 * MIB), other.get("params", params),
                        other.get("caps"), other.get("limit", 0))
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
    request = pb.CreateVolumeRequest(name="k10", volume_capabilities=[mount_cap()], parameters=params)
    request.volume_content_source.snapshot.snapshot_id = "snap-1"
    try:
        fx.csi.call("CreateVolume", request)
        raise AssertionError("a content source was ignored")
    except grpc.RpcError as error:
        assert error.code() in (Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.INVALID_ARGUMENT), error
    assert_code(Code.INVALID_ARGUMENT, fx.csi.create, "k11", 4 * MIB, {**params, "pillar-csi.bhyoo.com/unknown": "x"})

    fx.crash(fx.controller)
    again = fx.retried(fx.csi.create, "k10", 64 * MIB, params)
    assert_equal(again.SerializeToString(deterministic=True), volume.SerializeToString(deterministic=True), "after a restart")
    fx.retried(fx.csi.expand, volume.volume_id, 96 * MIB, cap=mount_cap())
    grown = fx.csi.create("k10", 64 * MIB, params)
    assert_equal(grown.capacity_bytes, 96 * MIB, "size after the expansion")
    fx.csi.delete(volume.volume_id)


@case("idempotency/pages", fixture="driver", timeout=90)
def pages(fx):
    """ListVolumes in pages while volumes come and go gives each volume that stays once; a wrong token is ABORTED."""
    made = [fx.create(f"page-{number}", 4 * MIB).volume_id for number in range(5)]
    first = fx.csi.list(2)
    fx.csi.delete(first.entries[0].volume.volume_id)
    seen, token = [entry.volume.volume_id for entry in first.entries], first.next_token
    while token:
        page = fx.csi.list(2, token)
        seen += [entry.volume.volume_id for entry in page.entries]
        token = page.next_token
    assert_equal(sorted(seen), sorted(made), "volumes over all pages")
    assert_code(Code.ABORTED, fx.csi.list, 2, "nonsense")
    for volume_id in made:
        fx.csi.delete(volume_id)
