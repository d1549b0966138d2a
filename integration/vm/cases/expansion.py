"""Growing a volume: with lost notices, killed halfway, staged or not."""

import grpc

from pillarvm.csi import MIB, assert_code, assert_equal, block_cap, mount_cap
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/grow/mount"


def filesystem_mib(fx, path=TARGET):
    return int(fx.vm.sh(f"df -m --output=size {path} | tail -1"))


@case("expansion/lost-notice", fixture="driver", timeout=90)
def lost_notice(fx):
    """L01: the worker was never told about the new size; NodeExpand looks for itself and grows the filesystem."""
    with fx.published("l01", "vm", TARGET, size=32 * MIB) as (volume, _):
        fx.storage_vm.sh(f"lvextend -qy -L 64M {fx.lv(volume)}")
        assert_equal(fx.vm.sh(f"blockdev --getsize64 {fx.device(volume, 'vm')}"), str(32 * MIB), "size before NodeExpand")
        assert_equal(fx.node_csi["vm"].expand(volume.volume_id, TARGET, 64 * MIB, fx.staging(volume)), 64 * MIB)
        assert filesystem_mib(fx) > 45, f"the filesystem has {filesystem_mib(fx)} MiB"
        answer = fx.csi.expand(volume.volume_id, 64 * MIB, cap=mount_cap())
        assert_equal((answer.capacity_bytes, answer.node_expansion_required), (64 * MIB, True))


@case("expansion/killed-halfway", fixture="driver", timeout=120)
def killed_halfway(fx):
    """L09, L02: the controller dies when the backend has grown; the next publish finishes it before anyone uses the volume."""
    volume = fx.create("l09", 32 * MIB)
    context = fx.attach(volume, "vm")
    fx.mount(volume, "vm", context, TARGET)
    fx.vm.sh(f"echo kept > {TARGET}/f")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.controller.inject("controller/*:backend_expanded", "exit")
    assert_code(Code.UNAVAILABLE, fx.csi.expand, volume.volume_id, 64 * MIB, cap=mount_cap())
    until(lambda: not fx.controller.alive(), scaled(10), "the controller has ended")
    assert_equal(fx.storage_vm.sh(f"blockdev --getsize64 {fx.lv(volume)}"), str(64 * MIB), "the LV")
    fx.bring_back(fx.controller)
    assert_equal(fx.get("pvst", "l09")["status"].get("resizeRequired"), True, "record of the pending expansion")
    context = fx.retried(fx.csi.publish, volume, fx.node_ids["vm"])
    assert_equal(context["pillar-csi.bhyoo.com/capacity-bytes"], str(64 * MIB), "size told to the node")
    assert not fx.get("pvst", "l09")["status"].get("resizeRequired"), "the expansion is still pending"
    for _ in range(2):
        answer = fx.csi.expand(volume.volume_id, 64 * MIB, cap=mount_cap())
        assert_equal((answer.capacity_bytes, answer.node_expansion_required), (64 * MIB, True))
    fx.stage(volume, "vm", context)
    fx.mount(volume, "vm", context, TARGET)
    fx.node_csi["vm"].expand(volume.volume_id, TARGET, 64 * MIB, fx.staging(volume))
    assert filesystem_mib(fx) > 45, f"the filesystem has {filesystem_mib(fx)} MiB"
    assert_equal(fx.vm.sh(f"cat {TARGET}/f"), "kept")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("expansion/block-paths", fixture="driver", timeout=90)
def block_paths(fx):
    """L04: NodeExpand of a block volume by target path, by staging path and without one; by a strange path it is NOT_FOUND."""
    cap, node = block_cap(), fx.node_csi["vm"]
    with fx.published("l04", "vm", TARGET, cap, 4 * MIB) as (volume, _):
        fx.csi.expand(volume.volume_id, 8 * MIB, cap=cap)
        staging = fx.staging(volume)
        for path, staged in ((TARGET, staging), (TARGET, ""), (staging, staging)):
            assert_equal(node.expand(volume.volume_id, path, 8 * MIB, staged, cap), 8 * MIB, f"size by {path}")
        assert_code(Code.NOT_FOUND, node.expand, volume.volume_id, TARGET + "-none", 8 * MIB, staging, cap)
        assert_equal(fx.vm.sh(f"blockdev --getsize64 {TARGET}"), str(8 * MIB))


@case("expansion/no-space", fixture="driver", timeout=90)
def no_space(fx):
    """J11, J13, L06: what the pool cannot hold is refused for the right reason, and a smaller wish goes through."""
    free = fx.csi.capacity({"pillar-csi.bhyoo.com/storage-class": "fast"}).available_capacity
    other = fx.create("hog", free - 64 * MIB)
    volume = fx.create("l06", 32 * MIB)
    assert_code(Code.RESOURCE_EXHAUSTED, fx.create, "too-much", 64 * MIB)
    assert_code(Code.RESOURCE_EXHAUSTED, fx.csi.expand, volume.volume_id, 256 * MIB)
    assert_code(Code.OUT_OF_RANGE, fx.csi.expand, volume.volume_id, 10 << 50)
    assert_equal(fx.csi.expand(volume.volume_id, 48 * MIB, cap=mount_cap()).capacity_bytes, 48 * MIB)
    assert_equal(sorted(fx.lvs()), ["hog", "l06"], "a refused create left something")
    for one in (volume, other):
        fx.csi.delete(one.volume_id)
    assert_equal(fx.csi.capacity({"pillar-csi.bhyoo.com/storage-class": "fast"}).available_capacity, free, "free space")
