"""Staging and target paths on a real mount table: nothing is stacked, nothing foreign is taken, nothing is left."""

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_code, assert_equal
from pillarvm.registry import case

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
