"""Fencing state that was lost or taken from the past: noticed, never trusted, and healed without harm."""

import re

import grpc

from pillarvm import kernel, protos
from pillarvm.csi import MIB, assert_code, assert_equal, channel
from pillarvm.driver import STATE, STORE
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
MARKS = f"{STATE}/agent/generations"
TARGET = "/var/lib/kubelet/pods/lost/mount"
STRANGER = "nqn.2014-08.org.nvmexpress:uuid:99999999-0000-4000-8000-000000000009"


def mark_of(fx, name):
    """Path of the volume's mark file."""
    files = [file for file in fx.storage_vm.listdir(MARKS) if file.endswith(f"{name}.mark")]
    assert len(files) == 1, f"marks of {name}: {files}"
    return f"{MARKS}/{files[0]}"


def allow(fx, volume, record, generation):
    """AllowInitiator of a stranger, as a delayed request of a former controller would ask for it."""
    messages, services = protos.load("agent")
    export = record["status"]["exportSpec"]
    request = messages.AllowInitiatorRequest(
        token=messages.FencingToken(volume_uid=record["metadata"]["uid"], generation=generation),
        volume=messages.VolumeRef(agent_volume_id=record["spec"]["agentVolumeID"], backend_type="lvm-lv"),
        spec=messages.ExportSpec(bind_address=export["bindAddress"], port=export["port"], acl_enabled=True, nqn=fx.nqn(volume)),
        initiator=messages.Initiator(host_nqn=STRANGER))
    services.AgentStub(channel(f"{fx.storage_vm.ip}:9500")).AllowInitiator(request, timeout=scaled(20))


@case("fencing/lost-mark", fixture="driver", timeout=180)
def lost_mark(fx):
    """One mark is deleted while the agent is away: its volume works again by itself, the others notice nothing, and what was
    refused before stays refused (I1)."""
    vm = fx.storage_vm
    with fx.published("marked", "vm", TARGET) as (volume, _):
        other = fx.create("unharmed", 16 * MIB)  # so that the lost mark is not the newest one
        mark = mark_of(fx, "marked")
        fx.vm.sh(f"echo before > {TARGET}/f; sync {TARGET}/f")
        fx.agent.kill()
        vm.sh(f"rm {mark}")
        fx.bring_back(fx.agent)
        fx.retried(fx.csi.expand, other.volume_id, 32 * MIB)
        fx.retried(fx.csi.publish, volume, fx.node_ids["vm"])
        assert vm.exists(mark), "the mark was not restored"
        assert "no fencing mark" in fx.agent.text(), "the agent does not say what was lost"
        record = fx.get("pvst", "marked")
        generation = int(record["status"]["publicationGeneration"])
        assert_code(Code.FAILED_PRECONDITION, allow, fx, volume, record, generation - 1, reason="STALE_GENERATION")
        assert STRANGER not in kernel.exports(vm)[fx.nqn(volume)]["hosts"], "a stale request was granted"
        fx.vm.sh(f"echo after > {TARGET}/f; sync {TARGET}/f")
        assert_equal(fx.vm.read_text(f"{TARGET}/f"), "after")
    fx.csi.delete(other.volume_id)


@case("fencing/accepted-rollback", fixture="driver", timeout=180)
def accepted_rollback(fx):
    """The store is put back to before a publication: nothing is granted, taken or deleted until an operator accepts the
    record; then the host that it does not know is out, and the volume goes on."""
    vm, store = fx.storage_vm, STORE.removeprefix("sqlite://")
    volume = fx.create("rolled", 16 * MIB)
    fx.controller.stop()
    vm.sh(f"cp {store} /run/backup.db")
    fx.bring_back(fx.controller)
    fx.retried(fx.csi.publish, volume, fx.node_ids["vm"])
    host = vm.read_text("/etc/nvme/hostnqn").strip()
    fx.controller.stop()
    vm.sh(f"rm -f {store}-wal {store}-shm; cp /run/backup.db {store}")
    fx.bring_back(fx.controller)

    def behind():
        conditions = {one["type"]: one for one in fx.get("pvst", "rolled")["status"]["conditions"]}
        return conditions["ExportReconciled"]["reason"] == "FenceAhead" and conditions["ExportReconciled"]
    condition = until(behind, scaled(60), "the record shows that it is behind")
    for call in (lambda: fx.retried(fx.csi.publish, volume, fx.node_ids["vm"]),
                 lambda: fx.retried(fx.csi.delete, volume.volume_id)):
        assert_code(Code.FAILED_PRECONDITION, call, match="accept-rollback", reason="FENCE_AHEAD")
    held = re.search(r"recorded generation (\d+)", condition["message"]).group(1)
    uid = fx.get("pvst", "rolled")["metadata"]["uid"]
    refused = fx.pillarctl("fence", "accept-rollback", "rolled", "--uid", "another", "--generation", held, check=False)
    assert_equal(refused.rc, 1, "status of an acceptance of another record")
    fx.pillarctl("fence", "accept-rollback", "rolled", "--uid", uid, "--generation", held)
    until(lambda: host not in kernel.exports(vm)[fx.nqn(volume)]["hosts"], scaled(60), "the unknown host is out")
    fx.retried(fx.csi.publish, volume, fx.node_ids["vm"])
    assert host in kernel.exports(vm)[fx.nqn(volume)]["hosts"], "the volume is published again"
    fx.retried(fx.csi.unpublish, volume.volume_id, fx.node_ids["vm"])
    fx.retried(fx.csi.delete, volume.volume_id)
