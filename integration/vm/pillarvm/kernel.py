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

_UNLINK = """
import glob, os
result = glob.glob(f"{args['root']}/ports/*/subsystems/{args['nqn']}")
for link in result:
    os.unlink(link)
"""

_LINK = """
import os
for link in args["links"]:
    if not os.path.lexists(link):
        os.symlink(f"{args['root']}/subsystems/{args['nqn']}", link)
"""

_EXPORTS = """
import os
root, result = args["root"] + "/subsystems", {}
linked = {nqn for port in os.listdir(args["root"] + "/ports") for nqn in os.listdir(f"{args['root']}/ports/{port}/subsystems")}
for nqn in os.listdir(root):
    namespaces = f"{root}/{nqn}/namespaces"
    enabled = [open(f"{namespaces}/{one}/enable").read().strip() == "1" for one in os.listdir(namespaces)]
    result[nqn] = {"linked": nqn in linked, "enabled": enabled, "hosts": sorted(os.listdir(f"{root}/{nqn}/allowed_hosts")),
                   "any_host": open(f"{root}/{nqn}/attr_allow_any_host").read().strip() == "1"}
"""

_STATES = """
import glob
result = [open(c + "/state").read().strip() for c in glob.glob("/sys/class/nvme/nvme*")
          if open(c + "/subsysnqn").read().strip() == args["nqn"]]
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


def unlink(vm, nqn):
    """Takes the subsystem off every port: its sessions end, and no new ones come. For link()."""
    return vm.py(_UNLINK, root=NVMET, nqn=nqn)


def link(vm, nqn, links):
    """Undoes unlink()."""
    vm.py(_LINK, root=NVMET, nqn=nqn, links=links)


def exports(vm):
    """What the target shows: {nqn: {"linked", "enabled" (per namespace), "hosts", "any_host"}}."""
    return vm.py(_EXPORTS, root=NVMET)


def states(vm, nqn):
    """States of the worker's controllers of the subsystem: "live", "connecting", ..."""
    return vm.py(_STATES, nqn=nqn)


def wait_listening(vm, port):
    """Waits until something accepts connections at the port."""
    probe = "import socket; socket.create_connection(('127.0.0.1', args['port']), timeout=2).close(); result = True"

    def accepted():
        try:
            return vm.py(probe, port=port)
        except OSError:
            return False
    until(accepted, scaled(30), f"{vm.name}: something listens at port {port}")


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
