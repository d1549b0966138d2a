"""The private network of a test run.

The whole runner moves into an anonymous network namespace, so no address of the machine is touched, two runs cannot meet,
and the kernel removes everything when the last process of the run is gone, however it ended. Two bridges: `data`
(10.77.0.0/24) is the network under test and may be cut; `mgmt` (10.78.0.0/24) carries the guest agent and is not.
The runner itself is 10.77.0.1 and 10.78.0.1.
"""

import ctypes
import os
import subprocess

from .prepare import PrepareError

CLONE_NEWNET = 0x40000000


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def check():
    """Raises PrepareError when enter() cannot work here."""
    if os.geteuid() != 0:
        raise PrepareError("VM tests need root: they create a network namespace with tap devices")
    if not os.path.exists("/dev/net/tun"):
        raise PrepareError("/dev/net/tun is missing: VM tests need tap devices (modprobe tun)")


def enter():
    """Moves this process (call it before any thread is started) into a new network namespace with the bridges."""
    check()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise PrepareError(f"no new network namespace: {os.strerror(ctypes.get_errno())}")
    ip("link", "set", "lo", "up")
    for bridge, address in (("data", "10.77.0.1/24"), ("mgmt", "10.78.0.1/24")):
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", address, "dev", bridge)
        ip("link", "set", bridge, "up")


class Port:
    """The two taps of one VM; `number` is the last byte of its addresses."""

    def __init__(self, number):
        self.number = number
        self.data_ip, self.mgmt_ip = f"10.77.0.{number}", f"10.78.0.{number}"
        for bridge in ("data", "mgmt"):
            ip("tuntap", "add", "dev", self.tap(bridge), "mode", "tap")
            ip("link", "set", self.tap(bridge), "master", bridge, "up")

    def tap(self, bridge):
        return f"{bridge}{self.number}"

    def mac(self, bridge):
        return f"52:54:00:{'77' if bridge == 'data' else '78'}:00:{self.number:02x}"

    def qemu_args(self):
        for bridge in ("data", "mgmt"):
            yield from ("-netdev", f"tap,id={bridge},ifname={self.tap(bridge)},script=no,downscript=no",
                        "-device", f"virtio-net-pci,netdev={bridge},mac={self.mac(bridge)},romfile=")

    def set_data_link(self, up):
        ip("link", "set", self.tap("data"), "up" if up else "down")

    def close(self):
        for bridge in ("data", "mgmt"):
            ip("link", "del", self.tap(bridge))
