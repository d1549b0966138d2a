"""A volume's whole life on one machine, through the CSI sockets of the real programs."""

import grpc

from pillarvm.csi import GIB, MIB, assert_code, assert_equal, block_cap, mount_cap
from pillarvm.driver import CLASS, CLASS_KEY
from pillarvm.registry import case

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/p1/mount"


def whole_life(fx, fs):
    """Created, written, expanded online, detached with unsynced data (row D18), attached again with the same content, deleted."""
    cap = mount_cap(fs)
    volume = fx.create(f"life-{fs}", 512 * MIB, caps=[cap])
    assert_equal(volume.capacity_bytes, 512 * MIB, "capacity")
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert fs in fx.vm.sh(f"findmnt -no FSTYPE {TARGET}"), "file system type"
    fx.vm.sh(f"head -c 8388608 /dev/urandom > {TARGET}/data")
    checksum = fx.vm.sh(f"sha256sum < {TARGET}/data")

    answer = fx.csi.expand(volume.volume_id, GIB, cap=cap)
    assert_equal((answer.capacity_bytes, answer.node_expansion_required), (GIB, True), "expansion")
    assert_equal(fx.node_csi["vm"].expand(volume.volume_id, TARGET, GIB, fx.staging(volume), cap), GIB, "size on the node")
    assert int(fx.vm.sh(f"df -m --output=size {TARGET} | tail -1")) > 900, "file system did not grow"

    fx.unmount(volume, "vm", TARGET)
    assert not fx.vm.exists(TARGET), "target path is left"
    fx.detach(volume, "vm")
    assert_equal(fx.sessions("vm"), [], "sessions after detaching")
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(fx.vm.sh(f"sha256sum < {TARGET}/data"), checksum, "checksum after attaching again")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("volume/ext4-life", fixture="driver", timeout=120)
def ext4_life(fx):
    whole_life(fx, "ext4")


@case("volume/xfs-life", fixture="driver", timeout=120)
def xfs_life(fx):
    whole_life(fx, "xfs")


@case("volume/block-life", fixture="driver", timeout=120)
def block_life(fx):
    """L04, I06: a raw block volume is bound onto a file, grows by itself and reports its size only."""
    cap = block_cap()
    volume = fx.create("life-block", 256 * MIB, caps=[cap])
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(fx.vm.sh(f"stat -c %F {TARGET}"), "block special file")
    fx.vm.sh(f"dd if=/dev/urandom of={TARGET} bs=1M count=4 oflag=direct 2>/dev/null")
    checksum = fx.vm.sh(f"dd if={TARGET} bs=1M count=4 iflag=direct 2>/dev/null | sha256sum")
    usage = fx.node_csi["vm"].stats(volume.volume_id, TARGET, fx.staging(volume)).usage
    assert_equal([(one.unit, one.total) for one in usage], [(1, 256 * MIB)], "usage of a block volume")
    assert_equal(fx.csi.expand(volume.volume_id, 512 * MIB, cap=cap).capacity_bytes, 512 * MIB)
    assert_equal(fx.node_csi["vm"].expand(volume.volume_id, TARGET, 512 * MIB, fx.staging(volume), cap), 512 * MIB)
    assert_equal(fx.vm.sh(f"blockdev --getsize64 {TARGET}"), str(512 * MIB), "size of the device")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(fx.vm.sh(f"dd if={TARGET} bs=1M count=4 iflag=direct 2>/dev/null | sha256sum"), checksum, "content")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("volume/repeats", fixture="driver", timeout=120)
def repeats(fx):
    """D14, H06, K07, K09: every call can be repeated; what is gone stays gone without an error."""
    cap, node = mount_cap(), fx.node_csi["vm"]
    volume = fx.create("repeat", 64 * MIB)
    assert_equal(fx.create("repeat", 64 * MIB), volume, "second answer to CreateVolume")
    context = fx.attach(volume, "vm")
    again = fx.csi.publish(volume, fx.node_ids["vm"])
    assert set(again) == set(context), "keys of the publish context"
    staging = fx.staging(volume)
    for _ in range(3):
        node.stage(volume, context, staging, cap)
    assert_code(Code.ALREADY_EXISTS, node.stage, volume, context, staging, mount_cap("xfs"))
    for _ in range(5):
        fx.mount(volume, "vm", context, TARGET)
    assert_equal(fx.mounts("vm").count(TARGET), 1, "layers at the target")
    fx.unmount(volume, "vm", TARGET)
    fx.unmount(volume, "vm", TARGET)
    assert_equal(fx.mounts("vm"), [staging], "mounts after unpublishing")
    for _ in range(2):
        fx.detach(volume, "vm")
    for _ in range(2):
        fx.csi.delete(volume.volume_id)
    assert_code(Code.NOT_FOUND, fx.csi.publish, volume, fx.node_ids["vm"])


@case("volume/access-modes", fixture="driver", timeout=120)
def access_modes(fx):
    """A03: a second target on one node is allowed for SINGLE_NODE_WRITER and MULTI_WRITER, refused for SINGLE_WRITER."""
    for mode, second_allowed in (("SINGLE_NODE_WRITER", True), ("SINGLE_NODE_MULTI_WRITER", True),
                                 ("SINGLE_NODE_SINGLE_WRITER", False)):
        cap = mount_cap(mode=mode)
        volume = fx.create("mode-" + mode.lower().replace("_", "-"), 64 * MIB, caps=[cap])
        context = fx.attach(volume, "vm", cap)
        fx.mount(volume, "vm", context, TARGET, cap)
        if second_allowed:
            fx.mount(volume, "vm", context, TARGET + "2", cap)
            fx.unmount(volume, "vm", TARGET + "2")
        else:
            assert_code(Code.FAILED_PRECONDITION, fx.mount, volume, "vm", context, TARGET + "2", cap)
        fx.unmount(volume, "vm", TARGET)
        fx.detach(volume, "vm")
        fx.csi.delete(volume.volume_id)


@case("volume/unsupported-modes", fixture="driver", timeout=60)
def unsupported_modes(fx):
    """A06: what is not advertised is refused alike by every call, mounted and as a block device."""
    volume = fx.create("a06", 4 * MIB)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    for mode in ("MULTI_NODE_SINGLE_WRITER", "MULTI_NODE_MULTI_WRITER", "UNKNOWN"):
        for cap in (mount_cap(mode=mode), block_cap(mode)):
            assert_code(Code.INVALID_ARGUMENT, fx.create, "a06-new", 4 * MIB, caps=[cap])
            assert not fx.csi.validate(volume, [cap]).HasField("confirmed"), f"{mode} was confirmed"
            assert_code(Code.INVALID_ARGUMENT, fx.csi.publish, volume, fx.node_ids["vm"], cap)
            assert_code(Code.INVALID_ARGUMENT, fx.stage, volume, "vm", context, cap)
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    fx.csi.delete(volume.volume_id)


@case("volume/read-only", fixture="driver", timeout=120)
def read_only(fx):
    """H03, H05: a read-only target beside a writable one; a read-only access mode is read-only whatever the flag says."""
    volume = fx.create("ro", 64 * MIB)
    context = fx.attach(volume, "vm")
    fx.mount(volume, "vm", context, TARGET)
    fx.mount(volume, "vm", context, TARGET + "-ro", readonly=True)
    fx.vm.sh(f"echo x > {TARGET}/f")
    assert "Read-only file system" in fx.vm.run(["touch", f"{TARGET}-ro/g"], check=False).err
    fx.unmount(volume, "vm", TARGET)
    fx.unmount(volume, "vm", TARGET + "-ro")
    fx.detach(volume, "vm")

    reader = mount_cap(mode="SINGLE_NODE_READER_ONLY")
    context = fx.attach(volume, "vm", reader)
    fx.mount(volume, "vm", context, TARGET, reader)
    assert_equal(fx.vm.sh(f"cat {TARGET}/f"), "x")
    assert "Read-only file system" in fx.vm.run(["touch", f"{TARGET}/g"], check=False).err
    device = fx.vm.sh(f"findmnt -no SOURCE {TARGET}")
    assert_equal(fx.vm.sh(f"blockdev --getro {device}"), "1", "read-only flag of the device")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("volume/sizes", fixture="driver", timeout=120)
def sizes(fx):
    """J01, J02, J04, J06, J08, L02, L03, L06: sizes are rounded, limited and never shrunk."""
    create, delete = fx.create, fx.csi.delete
    assert_code(Code.OUT_OF_RANGE, create, "j01", 10 * MIB + 1, limit=10 * MIB + 1)
    volume = create("j01", 10 * MIB + 1, limit=12 * MIB)
    assert_equal(volume.capacity_bytes, 12 * MIB, "rounded to the extent")
    delete(volume.volume_id)
    for size, limit in ((-1, 0), (0, -1), (2 * GIB, GIB)):
        try:
            create("j04", size, limit=limit)
            raise AssertionError(f"size {size}, limit {limit} was accepted")
        except grpc.RpcError as error:
            assert error.code() in (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE), error
    assert_code(Code.RESOURCE_EXHAUSTED, create, "j-huge", 1 << 40)
    tiny = create("j08", 1)
    assert_equal(tiny.capacity_bytes, 4 * MIB, "smallest volume")
    delete(tiny.volume_id)

    volume = create("j06", 64 * MIB + 1)
    assert_equal(volume.capacity_bytes, 68 * MIB)
    create("j06", 64 * MIB + 1)
    create("j06", 64 * MIB)
    assert_code(Code.ALREADY_EXISTS, create, "j06", 256 * MIB)
    for _ in range(2):
        answer = fx.csi.expand(volume.volume_id, 128 * MIB, cap=mount_cap())
        assert_equal((answer.capacity_bytes, answer.node_expansion_required), (128 * MIB, True))
    assert_equal(fx.csi.expand(volume.volume_id, MIB, cap=mount_cap()).capacity_bytes, 128 * MIB, "never shrinks")
    assert_code(Code.OUT_OF_RANGE, fx.csi.expand, volume.volume_id, 10 << 50)
    assert_equal(fx.csi.expand(volume.volume_id, 192 * MIB, cap=mount_cap()).capacity_bytes, 192 * MIB)
    delete(volume.volume_id)


@case("volume/bad-input", fixture="driver", timeout=120)
def bad_input(fx):
    """J09, K07, K11: names, ids and parameters that are wrong are refused by name; odd names work."""
    made = []
    for name in ("p" * 128, "q" * 120 + "1", "q" * 120 + "2", "a/b", "a..b", "-lead", "snapshot1", "x_tmeta", "vé 💾"):
        made.append(fx.create(name, 4 * MIB).volume_id)
    assert_equal(len(set(made)), len(made), "different names share a volume")
    for volume_id in made:
        fx.csi.delete(volume_id)
    assert_code(Code.INVALID_ARGUMENT, fx.create, "", 4 * MIB)
    assert_code(Code.INVALID_ARGUMENT, fx.create, "a\nb", 4 * MIB)
    for params, match in (({"typo": "x"}, "typo"), ({"FSTYPE": "xfs"}, "FSTYPE")):
        assert_code(Code.INVALID_ARGUMENT, fx.csi.create, "k11", 4 * MIB, {CLASS_KEY: CLASS, **params}, match=match)
    assert_code(Code.INVALID_ARGUMENT, fx.create, "k11", 4 * MIB, caps=[mount_cap("ext5")], match="ext5")
    for bad in ("no-such", "a/b/c/d/e", "x" * 300, "storage-1/nvmeof-tcp/lvm-lv/vg0/../x"):
        fx.csi.delete(bad)
        assert_code(Code.NOT_FOUND, fx.csi.expand, bad, GIB)
