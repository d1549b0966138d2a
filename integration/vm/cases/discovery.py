"""Who a node is, who is let in, and which device is the volume's."""

import contextlib
import threading

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_code, assert_equal, block_cap, mount_cap
from pillarvm.driver import PROTOCOL
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/found/mount"
MOVED = "10.99.0.1"
OTHER_NQN = "nqn.2014-08.org.example:decoy"


def controllers(vm, attribute):
    """The values of an attribute of all NVMe-oF controllers, one per controller."""
    return vm.sh(f"cat /sys/class/nvme/nvme*/{attribute}").split()


@case("discovery/identity", fixture="driver", timeout=150)
def identity(fx):
    """B01, B04, E01: one identity for all sessions, over restarts and lost files; a damaged one stops the program."""
    vm, node, cap = fx.vm, fx.nodes["vm"], block_cap()
    nqn, host_id = vm.read_text("/etc/nvme/hostnqn"), vm.read_text("/etc/nvme/hostid")
    volumes = [fx.create(f"identity-{number}", 4 * MIB, caps=[cap]) for number in range(3)]
    fx.attach(volumes[0], "vm", cap)
    vm.sh("mv /etc/nvme/hostnqn /etc/nvme/hostid /run/")
    fx.attach(volumes[1], "vm", cap)
    vm.sh("cp /run/hostnqn /run/hostid /etc/nvme/")
    fx.crash(node)
    fx.attach(volumes[2], "vm", cap)
    assert_equal(controllers(vm, "hostnqn"), [nqn] * 3, "host NQNs")
    assert_equal(controllers(vm, "hostid"), [host_id] * 3, "host ids")
    settings = PROTOCOL["nvmeofTcp"]
    assert_equal(controllers(vm, "ctrl_loss_tmo"), [str(settings["ctrlLossTmo"])] * 3, "controller-loss times")
    assert_equal(controllers(vm, "reconnect_delay"), [str(settings["reconnectDelay"])] * 3, "reconnect delays")
    for volume in volumes:
        fx.detach(volume, "vm")
        fx.csi.delete(volume.volume_id)

    node.kill()
    vm.write_file("/etc/nvme/hostnqn", "")
    node.start()
    status = node.process.wait(scaled(20))
    assert status not in (None, 0), f"the node started with an empty identity file (status {status})"
    assert "/etc/nvme/hostnqn" in node.text(), "its message does not name the file"
    assert_equal(vm.read_text("/etc/nvme/hostnqn"), "", "the damaged file")
    vm.sh("cp /run/hostnqn /etc/nvme/")
    fx.bring_back(node)
    assert_equal(fx.node_csi["vm"].info().node_id, fx.node_ids["vm"], "node id")


@contextlib.contextmanager
def also_listening(vm, nqn, address):
    """The target also serves the subsystem at `address`, as a storage node that has moved there does."""
    port = "/sys/kernel/config/nvmet/ports/7777"
    vm.sh(f"ip addr add {address}/32 dev lo; mkdir {port}; cd {port}; echo tcp > addr_trtype; echo ipv4 > addr_adrfam; "
          f"echo {address} > addr_traddr; echo 4420 > addr_trsvcid; ln -s ../../subsystems/{nqn} subsystems/{nqn}")
    try:
        yield
    finally:
        vm.sh(f"rm {port}/subsystems/{nqn}; rmdir {port}; ip addr del {address}/32 dev lo")


@case("discovery/moved-agent", fixture="driver", timeout=180)
def moved_agent(fx):
    """C12: the node goes where publish_context says, and a session that waits for the former address is given up for the new
    one."""
    vm, target = fx.vm, "/var/lib/kubelet/pods/moved/mount"
    volume = fx.create("moved", 16 * MIB)
    context = dict(fx.attach(volume, "vm"))
    assert_equal(context["pillar-csi.bhyoo.com/address"], vm.ip)
    assert_equal(addresses(vm), [vm.ip], "address of the session")
    vm.sh(f"echo kept > {fx.staging(volume)}/file")
    fx.node_csi["vm"].unstage(volume.volume_id, fx.staging(volume))

    with also_listening(vm, fx.nqn(volume), MOVED):
        fx.stage(volume, "vm", dict(context, **{"pillar-csi.bhyoo.com/address": MOVED}))
        assert_equal(addresses(vm), [MOVED], "address of the session after the move")
        assert_equal(vm.read_text(f"{fx.staging(volume)}/file").strip(), "kept")

    # Back at the first address, while the node still has the session to the other one.
    until(lambda: "live" not in kernel.states(vm, fx.nqn(volume)), scaled(20), "the session is down")
    fx.retried(fx.stage, volume, "vm", context)
    assert_equal(addresses(vm), [vm.ip], "address of the session after the way back")
    fx.mount(volume, "vm", context, target)
    assert_equal(vm.read_text(f"{target}/file").strip(), "kept")
    fx.unmount(volume, "vm", target)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


def addresses(vm):
    """Where the sessions of all NVMe-oF controllers go."""
    text = vm.sh("cat /sys/class/nvme/nvme*/address 2>/dev/null || :")
    return [word.split("=")[1] for line in text.split() for word in line.split(",") if word.startswith("traddr=")]


@case("discovery/shared-identity", fixture="driver", timeout=60)
def shared_identity(fx):
    """B02: two nodes that present one host NQN are refused by name, even for a read-only volume."""
    nqn, cap = fx.vm.read_text("/etc/nvme/hostnqn"), mount_cap(mode="MULTI_NODE_READER_ONLY")
    volume = fx.create("b02", 4 * MIB)
    fx.csi.publish(volume, f"first/{nqn}", cap)
    message = assert_code(Code.FAILED_PRECONDITION, fx.csi.publish, volume, f"second/{nqn}", cap, reason="HOST_NQN_DUPLICATE")
    assert "first" in message and "second" in message, message
    fx.csi.unpublish(volume.volume_id)
    fx.csi.delete(volume.volume_id)


def assert_stranger_refused(fx, volume, when):
    try:
        kernel.connect(fx.vm, fx.nqn(volume), fx.storage_vm.ip)
    except OSError:
        return
    raise AssertionError(f"a strange host connected {when}")


@case("discovery/access-list", fixture="driver", timeout=90)
def access_list(fx):
    """B06, B07: nobody but the published node gets in, at any time, even if the target was left open to all."""
    host = fx.vm.read_text("/etc/nvme/hostnqn")
    volume = fx.create("acl", 4 * MIB)
    nqn = fx.nqn(volume)
    assert_stranger_refused(fx, volume, "before the volume was published")
    fx.vm.write_file(f"{kernel.NVMET}/subsystems/{nqn}/attr_allow_any_host", "1")
    fx.csi.publish(volume, fx.node_ids["vm"])
    assert_equal(kernel.exports(fx.vm)[nqn], {"linked": True, "enabled": [True], "hosts": [host], "any_host": False})
    assert_stranger_refused(fx, volume, "while it is published to another host")
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    assert_equal(kernel.exports(fx.vm)[nqn], {"linked": False, "enabled": [False], "hosts": [], "any_host": False})
    assert_stranger_refused(fx, volume, "after it was unpublished")
    fx.csi.delete(volume.volume_id)
    assert nqn not in kernel.exports(fx.vm)


def stamp(fx, volume, text):
    """Writes a marker into the first block, on the storage side."""
    fx.storage_vm.py("import os\nfd = os.open(args['path'], os.O_WRONLY | os.O_DSYNC)\n"
                     "os.pwrite(fd, args['text'].encode().ljust(512, b' '), 0)\nos.close(fd)", path=fx.lv(volume), text=text)


def stamped(fx, path):
    return fx.vm.sh(f"dd if={path} bs=4096 count=1 iflag=direct 2>/dev/null | head -c 512 | tr -d '\\0'").strip()


@case("discovery/shifted-numbers", fixture="driver", timeout=150)
def shifted_numbers(fx):
    """C01, C03, D01: the volume is found by NQN and uuid while foreign devices and a held old one shift all numbers."""
    vm, cap = fx.vm, block_cap()
    volume = fx.create("shifted", 4 * MIB, caps=[cap])
    stamp(fx, volume, "mine")
    vm.sh("vgcreate -qy decoy /dev/vdb; lvcreate -qy -Wy -n lv -L 8M decoy")
    kernel.export(vm, OTHER_NQN, "/dev/decoy/lv", vm.ip, port="4499", port_id=99)
    kernel.connect(vm, OTHER_NQN, vm.ip, port="4499")
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(stamped(fx, TARGET), "mine", "marker beside a foreign device")
    holder = vm.spawn(["sh", "-c", f"exec sleep 1000 < {fx.device(volume, 'vm')}"], log="holder")
    fx.unmount(volume, "vm", TARGET)
    try:
        fx.node_csi["vm"].unstage(volume.volume_id, fx.staging(volume))
    except grpc.RpcError as error:
        assert error.code() in (Code.FAILED_PRECONDITION, Code.UNAVAILABLE), error
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    assert_equal(stamped(fx, TARGET), "mine", "marker while the old device is held open")
    holder.kill()
    fx.unmount(volume, "vm", TARGET)
    fx.retried(fx.detach, volume, "vm")
    assert_equal(kernel.states(vm, OTHER_NQN), ["live"], "the foreign session")
    kernel.disconnect(vm, OTHER_NQN)
    kernel.unexport(vm, OTHER_NQN)
    vm.sh("vgremove -qfy decoy; pvremove -qy /dev/vdb")
    fx.csi.delete(volume.volume_id)


@case("discovery/late-namespace", fixture="driver", timeout=90)
def late_namespace(fx):
    """C05: a namespace that appears only after the connect is waited for within the call."""
    volume = fx.create("late", 16 * MIB)
    context = fx.csi.publish(volume, fx.node_ids["vm"])
    enable = f"{kernel.NVMET}/subsystems/{fx.nqn(volume)}/namespaces/1/enable"
    fx.vm.write_file(enable, "0")
    failures = []

    def stage():
        try:
            fx.stage(volume, "vm", context)
        except Exception as error:
            failures.append(error)
    staging = threading.Thread(target=stage)
    staging.start()
    until(lambda: fx.sessions("vm"), scaled(20), "the session")
    fx.vm.write_file(enable, "1")
    staging.join()
    assert not failures, failures[0]
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("discovery/name-reuse", fixture="driver", timeout=180)
def name_reuse(fx):
    """C06: volumes that come and go at the same time never show each other's content, whoever gets the device name."""
    cap, rounds = block_cap(), 5
    volumes = [fx.create(f"reuse-{number}", 4 * MIB, caps=[cap]) for number in range(2)]
    for number, volume in enumerate(volumes):
        stamp(fx, volume, f"marker {number}")
    contexts = [fx.csi.publish(volume, fx.node_ids["vm"], cap) for volume in volumes]
    failures, names = [], set()

    def churn(number):
        volume, target = volumes[number], f"{TARGET}-{number}"
        try:
            for _ in range(rounds):
                fx.stage(volume, "vm", contexts[number], cap)
                fx.mount(volume, "vm", contexts[number], target, cap)
                names.add((number, fx.device(volume, "vm")))
                assert_equal(stamped(fx, target), f"marker {number}")
                fx.unmount(volume, "vm", target)
                fx.node_csi["vm"].unstage(volume.volume_id, fx.staging(volume))
        except Exception as error:
            failures.append(error)
    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for volume in volumes:
        fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
        fx.csi.delete(volume.volume_id)
