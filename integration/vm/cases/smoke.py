"""The machines themselves, with none of our programs: what every other case builds on."""

import errno

from pillarvm import kernel
from pillarvm.csi import assert_equal
from pillarvm.registry import case
from pillarvm.timing import scaled, until

NQN = "nqn.2026-01.com.bhyoo.pillar-csi:smoke"


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
    except OSError as error:
        assert_equal(error.errno, errno.ENOENT)


@case("smoke/lvm")
def lvm(fx):
    """LVM works without udev and makes the device nodes itself."""
    fx.vm.run(["vgcreate", "-qy", "vg0", "/dev/vda"])
    fx.vm.run(["lvcreate", "-qy", "-n", "smoke", "-L", "128M", "vg0"])
    size = fx.vm.sh("blockdev --getsize64 /dev/vg0/smoke")
    assert_equal(size, str(128 << 20), "size of the LV")


@case("smoke/nvmet-connect")
def nvmet_connect(fx):
    """An LV exported by hand is reached through the kernel's own target and initiator, and leaves no trace."""
    vm = fx.vm
    kernel.export(vm, NQN, "/dev/vg0/smoke", vm.ip, hosts=[kernel.HOST_NQN])
    device = kernel.connect(vm, NQN, vm.ip)
    vm.run(["mkfs.ext4", "-qF", device])
    vm.sh(f"mkdir -p /mnt/smoke; mount {device} /mnt/smoke; echo hello > /mnt/smoke/f; umount /mnt/smoke")
    assert_equal(kernel.disconnect(vm, NQN), 1, "controllers of the subsystem")
    kernel.unexport(vm, NQN)
    assert_equal(vm.listdir(kernel.NVMET + "/subsystems"), [], "subsystems left")
    assert_equal(vm.listdir("/sys/class/nvme"), [], "controllers left")


@case("smoke/power-cut")
def power_cut(fx):
    """Disks and the state folder outlive a power cut; what was not written does not; the kernel is a new one."""
    vm = fx.vm
    vm.sh("mkdir -p /mnt/smoke; mount /dev/vg0/smoke /mnt/smoke; cat /mnt/smoke/f")
    vm.sh("echo durable > /mnt/smoke/d; sync -f /mnt/smoke; echo kept > /var/lib/pillar-csi/k; sync")
    vm.write_file("/root/volatile", "x")
    boot_id = vm.read_text("/proc/sys/kernel/random/boot_id")
    vm.reboot()
    assert vm.read_text("/proc/sys/kernel/random/boot_id") != boot_id
    assert not vm.exists("/root/volatile")
    assert_equal(vm.read_text("/var/lib/pillar-csi/k"), "kept")
    assert_equal(vm.sh("mkdir -p /mnt/smoke; mount /dev/vg0/smoke /mnt/smoke; cat /mnt/smoke/d; umount /mnt/smoke"),
                 "durable")


@case("smoke/three-machines", fixture="three", timeout=120)
def three_machines(fx):
    """Both workers reach the storage machine; a worker cut off the network stays reachable for the runner and recovers."""
    storage = fx.storage
    storage.run(["vgcreate", "-qy", "vg0", "/dev/vda"])
    storage.run(["lvcreate", "-qy", "-n", "smoke", "-L", "128M", "vg0"])
    kernel.export(storage, NQN, "/dev/vg0/smoke", storage.ip, hosts=[kernel.HOST_NQN])
    identities = {vm.read_text("/sys/class/dmi/id/product_uuid") for vm in fx.vms.values()}
    assert_equal(len(identities), 3, "different machine uuids")
    for worker in (fx.worker_a, fx.worker_b):
        device = kernel.connect(worker, NQN, storage.ip, options="ctrl_loss_tmo=60,reconnect_delay=1,keep_alive_tmo=15")
        worker.run(["dd", "if=" + device, "of=/dev/null", "bs=1M", "count=4", "iflag=direct"])
        kernel.disconnect(worker, NQN)
    fx.worker_a.cut_network()
    reach = "import socket; socket.create_connection((args['ip'], 4420), timeout=2).close()"
    try:
        fx.worker_a.py(reach, ip=storage.ip)
        raise AssertionError("the cut worker still reaches the storage machine")
    except OSError:
        fx.worker_a.heal_network()
    fx.worker_a.py(reach, ip=storage.ip)
    kernel.unexport(storage, NQN)
