"""mkfs and mount of a volume: what is on the device decides, and in doubt nothing is written."""

import contextlib
import re
import struct
import subprocess
import tempfile
import uuid
import zlib
from pathlib import Path

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_code, assert_equal, block_cap, mount_cap
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/format/mount"
SIZE = 32 * MIB
FORMATTED = {"pillar-csi.bhyoo.com/formatted": "true"}


def head_hash(fx, volume, mib=32):
    """Checksum of the start of the LV as it is on the medium."""
    return fx.storage_vm.sh(f"dd if={fx.lv(volume)} bs=1M count={mib} iflag=direct 2>/dev/null | sha256sum")


def filesystem_uuid(fx, volume):
    """UUID of the filesystem on the LV as it is on the medium; empty when there is none."""
    head = f"dd if={fx.lv(volume)} of=/run/head bs=1M count=2 iflag=direct 2>/dev/null; blkid -p -s UUID -o value /run/head"
    return fx.storage_vm.sh(head, check=False)


def damage(fx, volume, *requests):
    """debugfs requests on the LV, past what an earlier one left in the page cache."""
    for request in requests:
        fx.storage_vm.sh(f"blockdev --flushbufs {fx.lv(volume)}; debugfs -w -R '{request}' {fx.lv(volume)}; "
                         f"blockdev --flushbufs {fx.lv(volume)}")


@contextlib.contextmanager
def unreadable_start(fx, volume, sectors=4096):
    """The first sectors of the LV answer every read and write with an error."""
    vm, name = fx.storage_vm, fx.lv(volume)
    table = vm.sh(f"dmsetup table {name}")
    start, length, _, device, offset = table.split()
    broken = (f"0 {sectors} error\n"
              f"{sectors} {int(length) - sectors} linear {device} {int(offset) + sectors}\n")
    assert_equal(start, "0", "one linear piece")

    def load(text):
        vm.sh(f"dmsetup suspend {name}")
        vm.run(["dmsetup", "load", name], input=text)
        vm.sh(f"dmsetup resume {name}")
    load(broken)
    try:
        yield
    finally:
        load(table + "\n")


def assert_untouched(fx, worker="vm"):
    """A refused stage leaves neither session nor record nor mount."""
    assert_equal((fx.sessions(worker), fx.records(worker), fx.mounts(worker)), ([], [], []), "left by a refused stage")


def used_once(fx, name, size=SIZE, fs="ext4"):
    """A volume with a filesystem and a file, unstaged and unpublished."""
    cap = mount_cap(fs)
    volume = fx.create(name, size, caps=[cap])
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    fx.vm.sh(f"echo precious > {TARGET}/f")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    return volume


def check_and_delete(fx, volume, cap=None, content="precious"):
    """Attaches the volume again, compares the file and deletes everything."""
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(fx.vm.sh(f"cat {TARGET}/f"), content, "file on the volume")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("format/unreadable-is-not-blank", fixture="driver", timeout=120)
def unreadable(fx):
    """G01: a formatted volume whose start cannot be read is refused, untouched, and mounts with its data once healed."""
    volume = used_once(fx, "g01")
    before = head_hash(fx, volume)
    with unreadable_start(fx, volume):
        context = fx.csi.publish(volume, fx.node_ids["vm"])
        for _ in range(2):
            assert_code(Code.INTERNAL, fx.stage, volume, "vm", context, reason="DEVICE_UNREADABLE")
        assert_untouched(fx)
    assert_equal(head_hash(fx, volume), before, "content of the device")
    check_and_delete(fx, volume)


@case("format/blank-but-recorded", fixture="driver", timeout=90)
def blank_but_recorded(fx):
    """G01: a volume that is recorded as formatted and looks blank is DATA_LOSS, never formatted again."""
    volume = fx.create("loss", SIZE)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    before = head_hash(fx, volume)
    assert_code(Code.DATA_LOSS, fx.stage, volume, "vm", {**context, **FORMATTED}, reason="DATA_LOSS")
    assert_equal(head_hash(fx, volume), before, "content of the device")
    assert_untouched(fx)
    fx.stage(volume, "vm", context)
    fx.detach(volume, "vm")
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    fx.stage(volume, "vm", {**context, **FORMATTED})
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


def made_by(argv, size, offset, length):
    """Bytes of an image after a tool has formatted it."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        with open(image, "wb") as file:
            file.truncate(size)
        subprocess.run([*argv, str(image)], check=True, capture_output=True)
        with open(image, "rb") as file:
            file.seek(offset)
            return file.read(length)


def partition_table():
    """An MBR with one partition."""
    entry = struct.pack("<B3sB3sII", 0, b"\0\1\1", 0x83, b"\xfe\xff\xff", 2048, 4096)
    return b"\0" * 440 + struct.pack("<IH", 0x1234, 0) + entry + b"\0" * 48 + b"\x55\xaa"


def gpt(size):
    """Primary GPT with one partition, after a protective MBR."""
    last = size // 512 - 1
    protective = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xee, b"\xff\xff\xff", 1, last)
    mbr = b"\0" * 446 + protective + b"\0" * 48 + b"\x55\xaa"
    kind = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le
    entries = (kind + uuid.uuid4().bytes_le + struct.pack("<QQQ", 2048, 4095, 0) + b"\0" * 72).ljust(128 * 128, b"\0")

    def header(crc):
        return struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, crc, 0, 1, last, 34, last - 33,
                           uuid.uuid5(uuid.NAMESPACE_DNS, "disk").bytes_le, 2, 128, 128, zlib.crc32(entries))
    return mbr + header(zlib.crc32(header(0))).ljust(512, b"\0") + entries


def raid_member(size):
    """md superblock 1.0, which lies at the end of the device."""
    sector = (size // 512 - 16) & ~7
    block = bytearray(struct.pack("<IIII", 0xa92b4efc, 1, 0, 0) + uuid.uuid4().bytes + b"name".ljust(32, b"\0")).ljust(1024, b"\0")
    struct.pack_into("<QQ", block, 128, 0, sector)
    struct.pack_into("<Q", block, 144, sector)
    return sector * 512, bytes(block)


def signatures():
    """(what, [(offset, bytes)]) of devices that must never be formatted over."""
    xfs = made_by(["mkfs.xfs", "-q"], 320 * MIB, 0, 512)
    ext4 = made_by(["mkfs.ext4", "-qF"], SIZE, 1024, 1024)
    swap = made_by(["mkswap"], SIZE, 0, 4096)
    return [
        ("xfs and ext4 at once", [(0, xfs), (1024, ext4)]),
        ("RAID member, superblock at the end", [raid_member(SIZE)]),
        ("LUKS header", [(0, b"LUKS\xba\xbe\0\1" + b"aes".ljust(32, b"\0") + b"x" * 552)]),
        ("GPT", [(0, gpt(SIZE))]),
        ("MBR", [(0, partition_table())]),
        ("swap", [(0, swap)]),
        ("plain data without a signature", [(300000, b"somebody's database")]),
        ("xfs where ext4 is asked for", [(0, xfs)]),
    ]


PATCH = """
import os
fd = os.open(args["path"], os.O_WRONLY | os.O_DSYNC)
size = os.lseek(fd, 0, os.SEEK_END)
for at in (0, size - (1 << 20)):
    os.pwrite(fd, bytes(1 << 20), at)
for offset, text in args["patches"]:
    os.pwrite(fd, bytes.fromhex(text), offset)
os.close(fd)
"""


@case("format/foreign-content", fixture="driver", timeout=180)
def foreign(fx):
    """G04, bad input: whatever the device holds that is not our filesystem is refused in fs mode, allowed in block mode."""
    mount, block = mount_cap(), block_cap()
    volume = fx.create("g04", SIZE, caps=[mount, block])
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    for what, patches in signatures():
        fx.vm.py(PATCH, path=fx.lv(volume), patches=[(at, data.hex()) for at, data in patches])
        before = head_hash(fx, volume)
        try:
            assert_code(Code.FAILED_PRECONDITION, fx.stage, volume, "vm", context, mount, reason="FOREIGN_CONTENT")
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        assert_equal(head_hash(fx, volume), before, f"content of the device with {what}")
        assert_untouched(fx)
    scan = 'devices { filter = [ "a|^/dev/vg0/|", "r|.*|" ] global_filter = [ "a|.*|" ] scan_lvs = 1 }'
    fx.vm.py(PATCH, path=fx.lv(volume), patches=[])
    fx.vm.run(["pvcreate", "-qy", "--config", scan, fx.lv(volume)])
    before = head_hash(fx, volume)
    assert_code(Code.FAILED_PRECONDITION, fx.stage, volume, "vm", context, mount, reason="FOREIGN_CONTENT", match="LVM")
    assert_equal(head_hash(fx, volume), before, "content of the LVM member")
    fx.stage(volume, "vm", context, block)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


SHIM = """#!/bin/bash
echo started >> /run/mkfs.log
while [ -e /run/mkfs.hold ]; do sleep 0.1; done
exec -a mkfs.ext4 /run/real-mke2fs "$@"
"""


@contextlib.contextmanager
def slow_mkfs(vm):
    """mkfs.ext4 counts its starts in /run/mkfs.log and waits while /run/mkfs.hold exists."""
    vm.write_file("/run/shim", SHIM, mode=0o755)
    vm.sh("rm -f /run/mkfs.log; touch /run/mkfs.hold; real=$(readlink -f /usr/sbin/mkfs.ext4); cp $real /run/real-mke2fs; "
          "mount --bind /run/shim $real")
    try:
        yield
    finally:
        vm.sh("rm -f /run/mkfs.hold; umount $(readlink -f /usr/sbin/mkfs.ext4)")


@case("format/one-mkfs", fixture="driver", timeout=120)
def one_mkfs(fx):
    """G09, G08, I05: a mkfs slower than the caller runs once; repeats are told at once that it is under way."""
    volume = fx.create("g09", SIZE)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    with slow_mkfs(fx.vm):
        assert_code(Code.DEADLINE_EXCEEDED, fx.stage, volume, "vm", context, deadline=3)
        until(lambda: fx.vm.exists("/run/mkfs.log"), scaled(10), "mkfs has started")
        for _ in range(3):
            assert_code(Code.ABORTED, fx.stage, volume, "vm", context, deadline=5, reason="OPERATION_PENDING")
        fx.vm.sh("rm /run/mkfs.hold")
        fx.retried(fx.stage, volume, "vm", context)
        assert_equal(fx.vm.read_text("/run/mkfs.log"), "started", "runs of mkfs")
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("format/killed", fixture="driver", timeout=180)
def killed(fx):
    """G09: the node program dies before and after mkfs; the volume gets one filesystem and keeps what was written."""
    node = fx.nodes["vm"]
    for step in ("formatting_written", "formatted"):
        volume = fx.create(f"killed-{step.replace('_', '-')}", SIZE)
        context = fx.csi.publish(volume, fx.node_ids["vm"])
        node.inject(f"node/*:{step}", "exit")
        assert_code(Code.UNAVAILABLE, fx.stage, volume, "vm", context)
        until(lambda: not node.alive(), scaled(10), "the node program has ended")
        made = filesystem_uuid(fx, volume)
        assert_equal(bool(made), step == "formatted", f"a filesystem exists after {step}")
        fx.bring_back(node)
        fx.retried(fx.stage, volume, "vm", context)
        found = filesystem_uuid(fx, volume)
        assert made in ("", found), "mkfs ran a second time over a finished filesystem"
        fx.mount(volume, "vm", context, TARGET)
        fx.vm.sh(f"echo precious > {TARGET}/f")
        fx.unmount(volume, "vm", TARGET)
        fx.detach(volume, "vm")
        check_and_delete(fx, volume)


@case("format/check-before-mount", fixture="driver", timeout=150)
def fsck(fx):
    """G10, G11, M03: ext4 with its error flag set is repaired and mounted; one preen cannot repair stays refused, untouched."""
    volume = used_once(fx, "fsck")
    damage(fx, volume, "ssv state 2")
    context = fx.attach(volume, "vm")
    fx.mount(volume, "vm", context, TARGET)
    assert_equal(fx.vm.sh(f"cat {TARGET}/f"), "precious")
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")

    damage(fx, volume, "clri <2>", "ssv state 2")
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    assert_code(Code.INTERNAL, fx.stage, volume, "vm", context, reason="FILESYSTEM_CORRUPT")
    # e2fsck notes in the superblock that it was here.
    content = f"dd if={fx.lv(volume)} bs=4096 skip=1 iflag=direct 2>/dev/null | sha256sum"
    before, export = fx.vm.sh(content), kernel.exports(fx.storage_vm)[fx.nqn(volume)]
    for _ in range(2):
        assert_code(Code.INTERNAL, fx.stage, volume, "vm", context, reason="FILESYSTEM_CORRUPT")
    assert_equal(fx.vm.sh(content), before, "content after repeats")
    assert_equal(kernel.exports(fx.storage_vm)[fx.nqn(volume)], export, "the export after repeats")
    assert_untouched(fx)
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    fx.csi.delete(volume.volume_id)


@case("format/smaller-than-filesystem", fixture="driver", timeout=90)
def smaller(fx):
    """D18: a device smaller than the filesystem on it is refused; grown back, the data is there."""
    volume = used_once(fx, "d18")
    fx.storage_vm.sh(f"lvreduce -qfy -L 16M {fx.lv(volume)}")
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    context["pillar-csi.bhyoo.com/capacity-bytes"] = str(16 * MIB)
    assert_code(Code.INTERNAL, fx.stage, volume, "vm", context, reason="DEVICE_MISMATCH", match="grow")
    assert_untouched(fx)
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    fx.storage_vm.sh(f"lvextend -qfy -L 32M {fx.lv(volume)}")
    check_and_delete(fx, volume)


@case("format/xfs-twins", fixture="driver", timeout=180)
def xfs_twins(fx):
    """G06, G10: an xfs volume and its byte copy mount on one node; one with a broken log is refused, the log not zeroed."""
    cap, second = mount_cap("xfs"), TARGET + "-copy"
    volume = used_once(fx, "twin-1", 300 * MIB, "xfs")
    copy = fx.create("twin-2", 300 * MIB, caps=[cap])
    fx.vm.sh(f"dd if={fx.lv(volume)} of={fx.lv(copy)} bs=4M oflag=direct iflag=direct 2>/dev/null")
    for one, target in ((volume, TARGET), (copy, second)):
        context = fx.attach(one, "vm", cap)
        fx.mount(one, "vm", context, target, cap)
        assert_equal(fx.vm.sh(f"cat {target}/f"), "precious")
    for one, target in ((volume, TARGET), (copy, second)):
        fx.unmount(one, "vm", target)
        fx.detach(one, "vm")

    start = fx.vm.sh(f"xfs_db -r -c 'sb 0' -c 'p logstart' {fx.lv(copy)}").split("=")[1].strip()
    log = int(re.search(r"\((\d+)\)", fx.vm.sh(f"xfs_db -r -c 'convert fsblock {start} byte' {fx.lv(copy)}")).group(1))
    spoil = f"yes garbage | dd of={fx.lv(copy)} bs=4096 seek={log // 4096} count=256 iflag=fullblock oflag=direct 2>/dev/null"
    fx.vm.sh(spoil, check=False)
    read_log = f"dd if={fx.lv(copy)} bs=4096 skip={log // 4096} count=256 iflag=direct 2>/dev/null | sha256sum"
    before = fx.vm.sh(read_log)
    context = fx.csi.publish(copy, fx.node_ids["vm"], cap)
    try:
        fx.stage(copy, "vm", context, cap)
        raise AssertionError("xfs with a broken log was mounted")
    except grpc.RpcError as error:
        assert error.code() == Code.INTERNAL, error
    assert_equal(fx.vm.sh(read_log), before, "the log")
    assert_untouched(fx)
    fx.csi.unpublish(copy.volume_id, fx.node_ids["vm"])
    for one in (volume, copy):
        fx.csi.delete(one.volume_id)
