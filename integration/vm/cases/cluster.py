"""A storage node and two workers: who may write, what ends access, what survives reboots and kills."""

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_code, assert_equal, block_cap, mount_cap
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/p1/mount"
LOSS = 20  # seconds after which the initiator of a lost session gives up, where a case has to wait for that
# Writes an ever larger number to the first block, past every cache, and says how it ended.
WRITER = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
block, number = mmap.mmap(-1, 4096), 0
try:
    while True:
        number += 1
        block[0:8] = number.to_bytes(8, "little")
        os.pwrite(fd, block, 0)
        if number == 1: print("writing", flush=True)
        time.sleep(0.01)  # the machine is to have time for other things
except OSError as error:
    print("ended", error.errno, flush=True)
"""
COUNTER = """
import mmap, os
fd = os.open(args["path"], os.O_RDONLY | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
os.preadv(fd, [block], 0)
os.close(fd)
result = int.from_bytes(block[0:8], "little")
"""


def start_writer(vm, path, log):
    process = vm.spawn(["/usr/bin/python3", "-c", WRITER, path], log=log)
    until(lambda: "writing" in process.text(), scaled(20), "the writer's first write")
    return process


def allowed_hosts(fx):
    """Hosts allowed at our only subsystem."""
    (nqn,) = fx.subsystems()
    return fx.storage.listdir(f"{kernel.NVMET}/subsystems/{nqn}/allowed_hosts")


@case("cluster/exclusive", fixture="cluster", timeout=120)
def exclusive(fx):
    """A01, B07: while worker-a holds the volume worker-b is refused by name, and the target lets only worker-a in."""
    with fx.published("excl", "worker-a", TARGET) as (volume, _):
        host_a = fx.worker_a.read_text("/etc/nvme/hostnqn")
        assert_code(Code.FAILED_PRECONDITION, fx.csi.publish, volume, fx.node_ids["worker-b"], match="worker-a",
                    reason="PUBLISHED_ELSEWHERE")
        assert_equal(allowed_hosts(fx), [host_a])
        (nqn,) = fx.subsystems()
        host_b = fx.worker_b.read_text("/etc/nvme/hostnqn")
        try:
            kernel.connect(fx.worker_b, nqn, fx.storage.ip, host_nqn=host_b, host_id=host_b.rsplit(":", 1)[1])
            raise AssertionError("worker-b connected without being published")
        except OSError:
            pass


@case("cluster/forced-move", fixture="cluster", timeout=240)
def forced_move(fx):
    """I1, A09, B09: unpublishing ends the access of a node that goes on writing; nothing of it lands afterwards."""
    cap = block_cap()
    volume = fx.create("forced", 64 * MIB, fx.add_class("soon-lost", LOSS), caps=[cap])
    context = fx.attach(volume, "worker-a", cap)
    fx.mount(volume, "worker-a", context, TARGET, cap)
    writer = start_writer(fx.worker_a, TARGET, "forced-writer")
    fx.csi.unpublish(volume.volume_id, fx.node_ids["worker-a"])

    context = fx.attach(volume, "worker-b", cap)
    fx.mount(volume, "worker-b", context, TARGET, cap)
    first = fx.worker_b.py(COUNTER, path=TARGET)
    assert first > 0, "worker-b does not see what worker-a wrote"
    fx.worker_b.run(["dd", "if=/dev/zero", f"of={TARGET}", "bs=4096", "count=1", "oflag=direct"])
    for _ in range(20):
        assert_equal(fx.worker_b.py(COUNTER, path=TARGET), 0, "a write of worker-a landed after worker-b's")

    # The bound of 6.1: its initiator tries again until ctrlLossTmo; later kernels give up at the first refusal.
    assert writer.wait(120) is not None, "the cut writer is still running"
    assert "ended" in writer.text(), "the cut writer saw no error"
    fx.unmount(volume, "worker-a", TARGET)
    fx.retried(fx.node_csi["worker-a"].unstage, volume.volume_id, fx.staging(volume))
    assert_equal(fx.worker_b.py(COUNTER, path=TARGET), 0, "a write of worker-a landed during its clean-up")
    fx.unmount(volume, "worker-b", TARGET)
    fx.detach(volume, "worker-b")
    fx.csi.delete(volume.volume_id)


@case("cluster/partitioned-node", fixture="cluster", timeout=300)
def partitioned(fx):
    """I1, A09: a node cut off the network loses its access as well, and gets none back when it returns."""
    cap = block_cap()
    volume = fx.create("partition", 64 * MIB, fx.add_class("soon-lost", LOSS), caps=[cap])
    context = fx.attach(volume, "worker-a", cap)
    fx.mount(volume, "worker-a", context, TARGET, cap)
    writer = start_writer(fx.worker_a, TARGET, "partition-writer")
    fx.worker_a.cut_network()
    fx.csi.unpublish(volume.volume_id, fx.node_ids["worker-a"])
    context = fx.attach(volume, "worker-b", cap)
    fx.mount(volume, "worker-b", context, TARGET, cap)
    fx.worker_b.run(["dd", "if=/dev/zero", f"of={TARGET}", "bs=4096", "count=1", "oflag=direct"])
    fx.worker_a.heal_network()
    assert writer.wait(150) is not None, "the cut writer is still running"
    assert_equal(fx.worker_b.py(COUNTER, path=TARGET), 0, "a write of the returned node landed")
    fx.unmount(volume, "worker-a", TARGET)
    fx.retried(fx.node_csi["worker-a"].unstage, volume.volume_id, fx.staging(volume))
    fx.unmount(volume, "worker-b", TARGET)
    fx.detach(volume, "worker-b")
    fx.csi.delete(volume.volume_id)


@case("cluster/neighbours", fixture="cluster", timeout=180)
def neighbours(fx):
    """A11, B01, D16: detaching one volume leaves the other session of the same node untouched; one identity for all."""
    cap = block_cap()
    with fx.published("stays", "worker-a", TARGET, cap):
        writer = start_writer(fx.worker_a, TARGET, "neighbour-writer")
        (nqn,) = fx.sessions("worker-a")
        controllers = fx.worker_a.sh("ls -d /sys/class/nvme/nvme*")
        dmesg = len(fx.worker_a.sh("dmesg").splitlines())
        for round_number in range(3):
            other = fx.create("comes-and-goes", 64 * MIB, caps=[cap])
            fx.attach(other, "worker-a", cap)
            assert_equal(len(fx.worker_a.sh("cat /sys/class/nvme/nvme*/hostnqn | sort -u").splitlines()), 1, "host NQNs")
            fx.detach(other, "worker-a")
            fx.csi.delete(other.volume_id)
        assert writer.alive(), "the other volume saw an error: " + writer.text()
        assert_equal(fx.sessions("worker-a"), [nqn])
        assert_equal(fx.worker_a.sh("ls -d /sys/class/nvme/nvme*"), controllers, "controllers of the other volume")
        new = fx.worker_a.sh("dmesg").splitlines()[dmesg:]
        assert not [line for line in new if "reconnect" in line.lower()], f"a reconnect was seen: {new}"
        writer.kill()


@case("cluster/readers", fixture="cluster", timeout=240)
def readers(fx):
    """B08, H03: a read-only volume on both workers; one leaves, the other keeps reading, the one that left is refused."""
    volume = fx.create("rox", 64 * MIB)
    context = fx.attach(volume, "worker-a")
    fx.mount(volume, "worker-a", context, TARGET)
    fx.worker_a.sh(f"echo shared > {TARGET}/f; sync -f {TARGET}")
    fx.unmount(volume, "worker-a", TARGET)
    fx.detach(volume, "worker-a")

    cap = mount_cap(mode="MULTI_NODE_READER_ONLY")
    for worker in ("worker-a", "worker-b"):
        context = fx.attach(volume, worker, cap)
        fx.mount(volume, worker, context, TARGET, cap)
        assert_equal(fx.workers[worker].sh(f"cat {TARGET}/f"), "shared")
        assert "Read-only file system" in fx.workers[worker].run(["touch", f"{TARGET}/x"], check=False).err
    fx.unmount(volume, "worker-a", TARGET)
    fx.detach(volume, "worker-a")
    assert_equal(allowed_hosts(fx), [fx.worker_b.read_text("/etc/nvme/hostnqn")])
    read = f"echo 3 > /proc/sys/vm/drop_caches; timeout 30 cat {TARGET}/f"
    until(lambda: fx.worker_b.sh(read, check=False) == "shared", scaled(40), "the other reader is back")
    fx.unmount(volume, "worker-b", TARGET)
    fx.detach(volume, "worker-b")
    fx.csi.delete(volume.volume_id)


def identity(vm):
    """What the kernel knows the namespace by."""
    return vm.sh("cat /sys/block/nvme*n*/uuid /sys/block/nvme*n*/wwid /sys/class/nvme-subsystem/*/serial")


@case("cluster/storage-reboot", fixture="cluster", timeout=300)
def storage_reboot(fx):
    """F01, C10, E02: the storage node loses power under load; exports come back as they were and I/O goes on."""
    with fx.published("reboot", "worker-a", TARGET):
        fx.worker_a.sh(f"echo before > {TARGET}/f; sync -f {TARGET}")
        before = identity(fx.worker_a)
        fx.storage.reboot()
        fx.storage.sh("mkdir -p /run/pillar")
        fx.write_agent_config({"backends": [{"lvm": {"volumeGroup": "vg0"}}]})
        fx.agent.start()
        fx.controller.start()
        fx.connect_clients()
        fx.wait_class_ready()
        state = "cat /sys/class/nvme/nvme*/state"
        until(lambda: fx.worker_a.sh(state, check=False) == "live", scaled(60), "the session is live again")
        fx.worker_a.sh(f"echo after > {TARGET}/g; timeout 30 sync -f {TARGET}; cat {TARGET}/f {TARGET}/g")
        assert_equal(identity(fx.worker_a), before, "uuid, wwid and serial")


@case("cluster/worker-reboot", fixture="cluster", timeout=300)
def worker_reboot(fx):
    """D06, B01: a worker loses power with a volume mounted; it comes back clean, as the same host, and the volume moves on."""
    volume = fx.create("wreboot", 64 * MIB)
    context = fx.attach(volume, "worker-a")
    fx.mount(volume, "worker-a", context, TARGET)
    fx.worker_a.sh(f"echo kept > {TARGET}/f; sync -f {TARGET}")
    identity_before = fx.worker_a.read_text("/etc/nvme/hostnqn")
    fx.worker_a.reboot()
    fx.worker_a.sh("mkdir -p /run/pillar")
    fx.nodes["worker-a"].start()
    fx.connect_clients()
    until(lambda: fx.records("worker-a") == [], scaled(30), "stage records of the former boot are dropped")
    assert_equal(fx.worker_a.read_text("/etc/nvme/hostnqn"), identity_before, "host NQN")
    assert_equal(fx.sessions("worker-a"), [], "sessions after the reboot")
    fx.unmount(volume, "worker-a", TARGET)
    fx.detach(volume, "worker-a")
    context = fx.attach(volume, "worker-b")
    fx.mount(volume, "worker-b", context, TARGET)
    assert_equal(fx.worker_b.sh(f"cat {TARGET}/f"), "kept")
    fx.unmount(volume, "worker-b", TARGET)
    fx.detach(volume, "worker-b")
    fx.csi.delete(volume.volume_id)


@case("cluster/export-lost", fixture="cluster", timeout=240)
def export_lost(fx):
    """D10: a volume whose export vanished under the mount is still unpublished, unstaged and deleted."""
    volume = fx.create("lost", 64 * MIB, fx.add_class("soon-lost", LOSS))
    context = fx.attach(volume, "worker-a")
    fx.mount(volume, "worker-a", context, TARGET)
    (nqn,) = fx.subsystems()
    kernel.unexport(fx.storage, nqn)
    fx.unmount(volume, "worker-a", TARGET)
    # Refused while the session may still come back with unwritten data; done once ctrlLossTmo has passed.
    fx.retried(fx.node_csi["worker-a"].unstage, volume.volume_id, fx.staging(volume), timeout=150)
    assert_equal(fx.mounts("worker-a"), [])
    fx.csi.unpublish(volume.volume_id, fx.node_ids["worker-a"])
    fx.csi.delete(volume.volume_id)
