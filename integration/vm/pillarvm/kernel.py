"""The kernel's NVMe-oF target and initiator by hand, for cases that act as a second administrator or a foreign host."""

from .timing import scaled, until

NVMET = "/sys/kernel/config/nvmet"
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a01"
HOST_ID = "0b5e7b1c-5a4e-4a53-9d8e-0d5f0e1f7a01"

_EXPORT = """
import os
root, nqn = args["root"], args["nqn"]
def put(path, value):
    with open(path, "w") as file:
        file.write(value)
port, subsystem = f"{root}/ports/{args['port_id']}", f"{root}/subsystems/{nqn}"
if not os.path.isdir(port):
    os.mkdir(port)
    for name, value in (("trtype", "tcp"), ("adrfam", "ipv4"), ("traddr", args["address"]), ("trsvcid", args["port"])):
        put(f"{port}/addr_{name}", value)
os.mkdir(subsystem)
put(subsystem + "/attr_allow_any_host", "0" if args["hosts"] else "1")
for host in args["hosts"]:
    os.makedirs(f"{root}/hosts/{host}", exist_ok=True)
    os.symlink(f"{root}/hosts/{host}", f"{subsystem}/allowed_hosts/{host}")
namespace = subsystem + "/namespaces/1"
os.mkdir(namespace)
put(namespace + "/device_path", args["device"])
put(namespace + "/enable", "1")
os.symlink(subsystem, f"{port}/subsystems/{nqn}")
"""

_UNEXPORT = """
import glob, os
root, subsystem = args["root"], f"{args['root']}/subsystems/{args['nqn']}"
for link in glob.glob(f"{root}/ports/*/subsystems/{args['nqn']}"):
    os.unlink(link)
for namespace in glob.glob(subsystem + "/namespaces/*"):
    os.rmdir(namespace)
for link in glob.glob(subsystem + "/allowed_hosts/*"):
    os.unlink(link)
os.rmdir(subsystem)
for port in glob.glob(root + "/ports/*"):
    if not os.listdir(port + "/subsystems"):
        os.rmdir(port)
"""

_CONNECT = """
import os
fd = os.open("/dev/nvme-fabrics", os.O_RDWR)
try:
    os.write(fd, args["line"].encode())
    answer = os.read(fd, 4096).decode()
finally:
    os.close(fd)
result = answer.split("instance=")[1].split(",")[0]
"""

_HEAD = """
import glob, os
result = None
for subsystem in glob.glob("/sys/class/nvme-subsystem/nvme-subsys*"):
    if open(subsystem + "/subsysnqn").read().strip() == args["nqn"]:
        for name in sorted(os.listdir(subsystem)):
            if name.startswith("nvme") and "n" in name[4:] and "c" not in name[4:] and os.path.exists("/dev/" + name):
                result = "/dev/" + name
"""

_DISCONNECT = """
import glob
result = 0
for controller in glob.glob("/sys/class/nvme/nvme*"):
    if open(controller + "/subsysnqn").read().strip() == args["nqn"]:
        with open(controller + "/delete_controller", "w") as file:
            file.write("1")
        result += 1
"""


def export(vm, nqn, device, address, port="4420", port_id=1, hosts=()):
    """Exports a device as subsystem `nqn`; without hosts anyone may connect. Raises the guest's OSError."""
    vm.py(_EXPORT, root=NVMET, nqn=nqn, device=device, address=address, port=port, port_id=port_id, hosts=list(hosts))


def unexport(vm, nqn):
    """Removes the subsystem, its links and ports that nothing uses any more."""
    vm.py(_UNEXPORT, root=NVMET, nqn=nqn)


def connect(vm, nqn, address, port="4420", host_nqn=HOST_NQN, host_id=HOST_ID, options="keep_alive_tmo=15"):
    """Connects and returns the path of the block device. Raises the guest's OSError."""
    line = f"transport=tcp,traddr={address},trsvcid={port},nqn={nqn},hostnqn={host_nqn},hostid={host_id},{options}"
    vm.py(_CONNECT, line=line)
    return until(lambda: device(vm, nqn), scaled(10), f"block device of {nqn} on {vm.name}")


def device(vm, nqn):
    """Path of the connected subsystem's block device, or None."""
    return vm.py(_HEAD, nqn=nqn)


def disconnect(vm, nqn):
    """Deletes every controller of the subsystem; returns how many there were."""
    return vm.py(_DISCONNECT, nqn=nqn)
