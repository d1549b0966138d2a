"""Staging and target paths on a real mount table: nothing is stacked, nothing foreign is taken, nothing is left."""

import threading

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_code, assert_equal, block_cap, mount_cap, pb
from pillarvm.driver import METRICS_PORTS, NODE_SOCKET
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
PODS = "/var/lib/kubelet/pods/m"
TARGET, SECOND = PODS + "/1/mount", PODS + "/2/mount"
SIZE = 32 * MIB


def layers(fx, path):
    """(file system type, source) of every layer at the path."""
    lines = [line.split() for line in fx.vm.read_text("/proc/self/mountinfo").splitlines()]
    return [tuple(words[words.index("-") + 1:words.index("-") + 3]) for words in lines if words[4] == path]


@case("mounts/occupied-paths", fixture="driver", timeout=120)
def occupied(fx):
    """D04, D07, H01: foreign mounts at staging and target paths are refused and untouched; an empty stage is no stage."""
    vm, node = fx.vm, fx.node_csi["vm"]
    volume = fx.create("occupied", SIZE)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    staging = fx.staging(volume)
    vm.sh(f"mkdir -p {staging} {TARGET}; rmdir {TARGET}")
    assert_code(Code.FAILED_PRECONDITION, node.publish, volume, context, staging, TARGET, reason="NOT_STAGED")
    assert not vm.exists(TARGET), "a refused publish left the target"
    vm.sh(f"mount -t tmpfs foreign {staging}; touch {staging}/mine")
    assert_code(Code.FAILED_PRECONDITION, node.stage, volume, context, staging)
    assert_code(Code.FAILED_PRECONDITION, node.publish, volume, context, staging, TARGET)
    assert_equal(layers(fx, staging), [("tmpfs", "foreign")], "staging path with a foreign mount")
    vm.sh(f"test -e {staging}/mine; umount {staging}")

    node.stage(volume, context, staging)
    vm.sh(f"mkdir -p {TARGET}; mount -t tmpfs foreign {TARGET}; touch {TARGET}/mine")
    assert_code(Code.ALREADY_EXISTS, node.publish, volume, context, staging, TARGET, reason="TARGET_OCCUPIED")
    assert_code(Code.FAILED_PRECONDITION, node.unpublish, volume.volume_id, TARGET)
    assert_equal(layers(fx, TARGET), [("tmpfs", "foreign")], "target with a foreign mount")
    vm.sh(f"test -e {TARGET}/mine; umount {TARGET}; rmdir {TARGET}")
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("mounts/propagation", fixture="driver", timeout=120)
def propagation(fx):
    """H09: a kubelet directory whose mounts nobody else sees is said in Probe, storage health, metrics and NodeStage; what is
    staged can be taken down; a shared mount heals it."""
    vm, node = fx.vm, fx.node_csi["vm"]
    volume = fx.create("hidden", SIZE)
    context = fx.attach(volume, "vm")
    fx.mount(volume, "vm", context, TARGET)
    vm.sh("mkdir -p /run/kubelet; mount --bind /run/kubelet /var/lib/kubelet; mount --make-private /var/lib/kubelet")
    try:
        fx.nodes["vm"].kill()
        fx.nodes["vm"].start()
        until(lambda: vm.exists(NODE_SOCKET) and probed(node) == Code.FAILED_PRECONDITION, scaled(20), "Probe says so")
        assert_code(Code.FAILED_PRECONDITION, node.publish, volume, context, fx.staging(volume), SECOND,
                    match="mountPropagation: Bidirectional")
        metrics = vm.py("import urllib.request\nresult = urllib.request.urlopen(args['url'], timeout=20).read().decode()",
                        url=f"http://127.0.0.1:{METRICS_PORTS['pillar-node']}/metrics")
        assert "pillar_csi_node_mounts_seen_on_host 0" in metrics, "the metric does not say so"
        vm.sh("mount --make-shared /var/lib/kubelet")
        assert_equal(probed(node), Code.OK, "Probe of a shared kubelet directory")
    finally:
        vm.sh("umount /var/lib/kubelet")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


def probed(client):
    """Code of the answer to Probe."""
    try:
        client.identity.Probe(pb.ProbeRequest(), timeout=scaled(10))
        return Code.OK
    except grpc.RpcError as error:
        return error.code()


@case("mounts/stacked", fixture="driver", timeout=90)
def stacked(fx):
    """D04, H06: layers that somebody stacked on the staging and target paths are all taken down."""
    vm = fx.vm
    volume = fx.create("stacked", SIZE)
    context = fx.attach(volume, "vm")
    staging = fx.staging(volume)
    fx.mount(volume, "vm", context, TARGET)
    vm.sh(f"mount --bind {staging} {TARGET}; mount --bind {staging} {TARGET}")
    fx.unmount(volume, "vm", TARGET)
    assert_equal(layers(fx, TARGET), [], "layers at the target")
    assert not vm.exists(TARGET)
    vm.sh(f"mount --bind {staging} {staging}")
    assert_equal(len(layers(fx, staging)), 2, "layers made by hand")
    fx.node_csi["vm"].unstage(volume.volume_id, staging)
    assert_equal(layers(fx, staging), [], "layers at the staging path")
    assert_equal(fx.sessions("vm"), [])
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    fx.csi.delete(volume.volume_id)


@case("mounts/several-users", fixture="driver", timeout=120)
def several_users(fx):
    """D17, H05: the device stays until its last user; read-only and writable targets in either order stay what they are."""
    vm, node = fx.vm, fx.node_csi["vm"]
    volume = fx.create("users", SIZE)
    context = fx.attach(volume, "vm")
    staging = fx.staging(volume)
    fx.mount(volume, "vm", context, TARGET, readonly=True)
    fx.mount(volume, "vm", context, SECOND)
    assert "Read-only file system" in vm.run(["touch", f"{TARGET}/x"], check=False).err
    vm.sh(f"touch {SECOND}/x {staging}/y")
    assert_code(Code.ALREADY_EXISTS, fx.mount, volume, "vm", context, TARGET)
    assert_code(Code.FAILED_PRECONDITION, node.unstage, volume.volume_id, staging, match=TARGET)
    fx.unmount(volume, "vm", TARGET)
    assert_code(Code.FAILED_PRECONDITION, node.unstage, volume.volume_id, staging, match=SECOND)
    vm.sh(f"touch {SECOND}/still-works")
    assert_equal(kernel.states(vm, fx.nqn(volume)), ["live"])
    fx.unmount(volume, "vm", SECOND)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("mounts/two-staging-paths", fixture="driver", timeout=120)
def two_staging_paths(fx):
    """A07: two PVs of one volume on one node; the first to go takes nothing from the other."""
    vm, node = fx.vm, fx.node_csi["vm"]
    volume = fx.create("twopv", SIZE)
    context = fx.attach(volume, "vm")
    first, second = fx.staging(volume), fx.staging(volume) + "-second"
    vm.sh(f"mkdir -p {second} {PODS}/1 {PODS}/2")
    node.stage(volume, context, second)
    node.publish(volume, context, first, TARGET)
    node.publish(volume, context, second, SECOND)
    vm.sh(f"echo shared > {TARGET}/f")
    assert_equal(vm.sh(f"cat {SECOND}/f"), "shared")
    fx.unmount(volume, "vm", SECOND)
    node.unstage(volume.volume_id, second)
    vm.sh(f"echo more > {TARGET}/g; sync -f {TARGET}")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("mounts/statistics", fixture="driver", timeout=90)
def statistics(fx):
    """I06: bytes and inodes of a filesystem; NOT_FOUND for a missing path and for one that is not this volume's."""
    node = fx.node_csi["vm"]
    with fx.published("stats", "vm", TARGET, size=SIZE) as (volume, _):
        for path in (TARGET, fx.staging(volume)):
            usage = {one.unit: one for one in node.stats(volume.volume_id, path, fx.staging(volume)).usage}
            assert_equal(sorted(usage), [1, 2], "units")
            assert 20 * MIB < usage[1].total < SIZE and 0 < usage[1].available <= usage[1].total - usage[1].used, usage[1]
            assert usage[2].total > 0 and usage[2].used + usage[2].available == usage[2].total, usage[2]
        for path in (PODS + "/none", "/var/lib/kubelet"):
            assert_code(Code.NOT_FOUND, node.stats, volume.volume_id, path)


@case("mounts/lost-record", fixture="driver", timeout=120)
def lost_record(fx):
    """D03: unstage works without a record and with a damaged one; a filesystem that turned read-only is not called staged."""
    vm, node = fx.vm, fx.node_csi["vm"]
    volume = fx.create("d03", SIZE)
    staging = fx.staging(volume)
    for spoil in ("rm -f", "truncate -s 10"):
        fx.attach(volume, "vm")
        vm.sh(f"{spoil} /var/lib/pillar-csi/node/*.json")
        fx.crash(fx.nodes["vm"])
        node.unstage(volume.volume_id, staging)
        assert_equal((fx.sessions("vm"), fx.mounts("vm"), fx.records("vm")), ([], [], []), f"left after {spoil}")
        fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    vm.sh("find /var/lib/pillar-csi/node -name '*corrupt*' -delete")

    context = fx.attach(volume, "vm")
    vm.sh(f"mount -o remount,ro {staging}")
    fx.stage(volume, "vm", context)
    vm.sh(f"touch {staging}/writable")
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("mounts/parallel-stage", fixture="driver", timeout=90)
def parallel_stage(fx):
    """D14: the same stage in parallel: one does the work, the others are told to wait or find it done."""
    volume = fx.create("parallel", SIZE)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    fx.vm.sh(f"mkdir -p {fx.staging(volume)}")
    codes = []

    def stage():
        try:
            fx.node_csi["vm"].stage(volume, context, fx.staging(volume))
            codes.append(None)
        except grpc.RpcError as error:
            codes.append(error.code())
    threads = [threading.Thread(target=stage) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None in codes and set(codes) <= {None, Code.ABORTED}, codes
    assert_equal(len(layers(fx, fx.staging(volume))), 1, "layers")
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("mounts/guest-volume-group", fixture="driver", timeout=120)
def guest_volume_group(fx):
    """F05: a volume group inside a block volume is named while it holds the device, and never gets in the way of a delete."""
    vm, cap = fx.vm, block_cap()
    inner = 'devices { filter = [ "a|^/dev/nvme|", "r|.*|" ] global_filter = [ "a|.*|" ] }'
    volume = fx.create("f05", SIZE, caps=[cap])
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    device = fx.device(volume, "vm")
    vm.sh(f"vgcreate -qy --config '{inner}' inner {device}; lvcreate -qy -Wn -Zn --config '{inner}' -n data -L 8M inner")
    fx.unmount(volume, "vm", TARGET)
    assert_code(Code.FAILED_PRECONDITION, fx.node_csi["vm"].unstage, volume.volume_id, fx.staging(volume), match="dm-")
    vm.sh(f"vgchange -qan --config '{inner}' inner")
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)
