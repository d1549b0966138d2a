"""The machines themselves, with none of our programs: what every other case builds on."""

import contextlib
import errno

from pillarvm import kernel
from pillarvm.csi import assert_equal
from pillarvm.registry import case
from pillarvm.timing import scaled, until

NQN = "nqn.2026-01.com.bhyoo.pillar-csi:smoke"
PORT = "4499"  # not one that our programs use


@case("smoke/boot")
def boot(fx):
    """The guest is another kernel with its own identity, sees the host's files and can be talked to in every way."""
    assert_equal(fx.vm.read_text("/proc/sys/kernel/osrelease"), fx.image.version, "kernel")
    assert_equal(fx.vm.sh("hostname"), "vm")
    fx.vm.run(["test", "-x", "/usr/bin/python3"])
    fx.vm.write_file("/root/large", b"x" * 3_000_000)
    assert_equal(len(fx.vm.run(["cat", "/root/large"]).stdout), 3_000_000, "bytes through a command's output")
    assert_equal(fx.vm.run(["sleep", "600"], timeout=0.5, check=False).rc, None, "status of a command over its time")
    proc = fx.vm.spawn(["sh", "-c", "echo started; exec sleep 600"], log="smoke")
    until(lambda: "started" in proc.text(), scaled(10), "output of the spawned program")
    assert proc.alive()
    assert_equal(proc.kill(), -9, "status of the killed program")
    try:
        fx.vm.read_file("/nonexistent")
        raise AssertionError("a missing file was read")
    except OSError as error:
        assert_equal(error.errno, errno.ENOENT)


@contextlib.contextmanager
def scratch_lv(vm):
    """An LV of 128 MiB on the scratch disk; its path."""
    vm.sh("vgcreate -qy smoke /dev/vdb; lvcreate -qy -Wy -n lv -L 128M smoke")
    yield "/dev/smoke/lv"
    vm.sh("vgremove -qfy smoke; pvremove -qy /dev/vdb")


def export(vm, device):
    kernel.export(vm, NQN, device, vm.ip, port=PORT, port_id=99, hosts=[kernel.HOST_NQN])


@case("smoke/lvm")
def lvm(fx):
    """LVM works without udev and makes the device nodes itself."""
    with scratch_lv(fx.vm) as device:
        assert_equal(fx.vm.sh(f"blockdev --getsize64 {device}"), str(128 << 20), "size of the LV")
    assert not fx.vm.exists("/dev/smoke/lv")


@case("smoke/nvmet-connect")
def nvmet_connect(fx):
    """An LV exported by hand is reached through the kernel's own target and initiator, and leaves no trace."""
    vm = fx.vm
    with scratch_lv(vm) as backing:
        export(vm, backing)
        device = kernel.connect(vm, NQN, vm.ip, port=PORT)
        vm.sh(f"mkfs.ext4 -qF {device}; mount {device} /mnt; echo hello > /mnt/f; umount /mnt")
        assert_equal(kernel.disconnect(vm, NQN), 1, "controllers of the subsystem")
        kernel.unexport(vm, NQN)
        assert not vm.exists(f"{kernel.NVMET}/subsystems/{NQN}")
        assert_equal(kernel.device(vm, NQN), None, "device left")
        assert_equal(vm.sh(f"mount {backing} /mnt; cat /mnt/f; umount /mnt"), "hello", "file seen on the LV itself")


@case("smoke/power-cut")
def power_cut(fx):
    """Disks and the state folder outlive a power cut; what was not written does not; the kernel is a new one."""
    vm = fx.vm
    with scratch_lv(vm) as device:
        vm.sh(f"mkfs.ext4 -qF {device}; mount {device} /mnt; echo durable > /mnt/d; sync -f /mnt")
        vm.sh("echo kept > /var/lib/pillar-csi/smoke; sync -f /var/lib/pillar-csi")
        vm.write_file("/mnt/lost", "x")
        vm.write_file("/root/volatile", "x")
        boot_id = vm.read_text("/proc/sys/kernel/random/boot_id")
        vm.reboot()
        assert vm.read_text("/proc/sys/kernel/random/boot_id") != boot_id
        assert not vm.exists("/root/volatile")
        assert_equal(vm.read_text("/var/lib/pillar-csi/smoke"), "kept")
        assert_equal(vm.sh(f"mount {device} /mnt; ls /mnt; cat /mnt/d; umount /mnt"), "d\nlost+found\ndurable")


@case("smoke/three-machines", fixture="three", timeout=120)
def three_machines(fx):
    """Both workers reach the storage machine; a worker cut off the network stays reachable for the runner and recovers."""
    storage = fx.storage
    identities = {vm.read_text("/sys/class/dmi/id/product_uuid") for vm in fx.vms.values()}
    assert_equal(len(identities), 3, "different machine uuids")
    with scratch_lv(storage) as backing:
        export(storage, backing)
        for worker in (fx.worker_a, fx.worker_b):
            device = kernel.connect(worker, NQN, storage.ip, port=PORT)
            worker.run(["dd", "if=" + device, "of=/dev/null", "bs=1M", "count=4", "iflag=direct"])
            kernel.disconnect(worker, NQN)
        reach = "import socket; socket.create_connection((args['ip'], int(args['port'])), timeout=2).close()"
        fx.worker_a.cut_network()
        try:
            fx.worker_a.py(reach, ip=storage.ip, port=PORT)
            raise AssertionError("the cut worker still reaches the storage machine")
        except OSError:
            fx.worker_a.heal_network()
        fx.worker_a.py(reach, ip=storage.ip, port=PORT)
        kernel.unexport(storage, NQN)
