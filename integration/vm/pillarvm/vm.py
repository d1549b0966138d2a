"""One virtual machine and what a test can do with it."""

import json
import os
import signal
import socket
import struct
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import clock, prepare
from .net import Port
from .timing import scaled, until

AGENT_PORT = 7700
DEFAULT_MODULES = ("nvmet", "nvmet_tcp", "nvme_tcp", "dm_mod")

# A child with a parent-death signal dies with the *thread* that started it, so one thread that lives as long as the
# process starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="starter")


def start_bound(argv, **kwargs):
    """Popen whose process cannot outlive this one, even after SIGKILL."""
    argv = ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]
    return _starter.submit(subprocess.Popen, argv, stdin=subprocess.DEVNULL, **kwargs).result()


class VmDied(Exception):
    """The machine is not running although the test did not stop it."""


class CommandFailed(Exception):
    """A command in the guest ended with another status than 0, or not in time."""


class GuestError(Exception):
    """The code or the request itself failed in the guest; the text is the guest's traceback."""


@dataclass(frozen=True)
class Completed:
    """Result of Vm.run: rc (None when it was killed at its timeout), out and err as text."""
    argv: list
    rc: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self):
        return self.stdout.decode(errors="replace")

    @property
    def err(self):
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True)
class Spec:
    """What a VM has. disks are sizes in MiB, seen as /dev/vda, /dev/vdb, ...; memory in MiB. An
    emulated machine with one processor needs a third less of the host's time for the same work than one with two."""
    name: str
    disks: tuple = ()
    memory: int = 768
    cpus: int = 1
    modules: tuple = DEFAULT_MODULES
    kernel_args: str = ""


@dataclass
class Proc:
    """A program left running in the guest by Vm.spawn."""
    vm: "Vm"
    pid: int
    log: Path

    def alive(self):
        return self.wait(0) is None

    def wait(self, timeout=30):
        """Exit status (negative: signal), or None when it still runs after `timeout` seconds."""
        return self.vm.request({"op": "wait", "pid": self.pid, "timeout": timeout}, timeout)[0]["rc"]

    def kill(self, sig=signal.SIGKILL, wait=30):
        """Sends the signal; waits up to `wait` seconds for the end and returns the status, or None."""
        self.vm.request({"op": "kill", "pid": self.pid, "sig": int(sig)})
        return self.wait(wait) if wait else None

    def text(self):
        """Everything that all programs with this log name wrote so far."""
        return self.log.read_text(errors="replace")


@dataclass
class Vm:
    spec: Spec
    image: prepare.Image
    port: Port
    folder: Path  # console.log, kernel.log and the logs of programs; the guest's /run/vm/out
    disks_folder: Path
    process: subprocess.Popen = None
    forwards: dict = field(default_factory=dict)

    def __post_init__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, str(self.folder)))
        for index, size in enumerate(self.spec.disks):
            with open(self._disk(f"data{index}"), "wb") as disk:
                disk.truncate(size << 20)
        with open(self._disk("state"), "wb") as disk:
            disk.truncate(512 << 20)
        subprocess.run(["mkfs.ext4", "-qF", self._disk("state")], check=True)

    # Identity.

    @property
    def name(self):
        return self.spec.name

    @property
    def ip(self):
        """Address on the network under test."""
        return self.port.data_ip

    @property
    def mgmt_ip(self):
        """Address on the network that cut_network() leaves alone."""
        return self.port.mgmt_ip

    # Power.

    def start(self):
        """Starts qemu and returns at once; wait_ready() follows."""
        args = [prepare.qemu(), "-name", self.name, *prepare.machine_args(self.image.kvm),
                "-smp", self.spec.cpus, "-m", f"{self.spec.memory}M", "-uuid", self.uuid,
                "-kernel", self.image.vmlinux, "-initrd", self.image.initramfs, "-append", self._kernel_args(),
                "-chardev", f"file,id=console,path={self.folder}/console.log,append=on", "-serial", "chardev:console",
                *self._share("/", "hostroot", ",readonly=on"), *self._share(self.folder, "out", ""),
                *self.port.qemu_args()]
        for serial in [f"data{index}" for index in range(len(self.spec.disks))] + ["state"]:
            args += ["-drive", f"file={self._disk(serial)},if=none,id={serial},format=raw,cache=unsafe,discard=unmap",
                     "-device", f"virtio-blk-pci,drive={serial},serial={serial}"]
        with open(self.folder / "qemu.log", "ab") as log:
            self.process = start_bound(args, stdout=log, stderr=log)

    def wait_ready(self, timeout=90):
        """Waits for the guest agent, loads the kernel modules and restores the forwards."""
        until(self._answers, scaled(timeout), f"{self.name}: no answer from the guest agent", step=0.1)
        if self.spec.modules:
            self.run(["modprobe", "-a", *self.spec.modules])
        for path, port in self.forwards.items():
            self.request({"op": "forward", "unix": path, "port": port})

    def boot(self):
        self.start()
        self.wait_ready()

    def power_cut(self):
        """Ends the machine as a power failure does: what its kernel had not written to a disk is lost."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def reboot(self, activate_lvm=True):
        """Power cut and boot with the same disks; activate_lvm does what a real boot does for volume groups."""
        self.power_cut()
        self.boot()
        if activate_lvm and self.spec.disks:
            self.run(["vgchange", "-qay"])

    def running(self):
        return self.process is not None and self.process.poll() is None

    def close(self):
        self.power_cut()
        self.port.close()

    def cut_network(self):
        """Takes the machine off the network under test; the runner still reaches it."""
        self.port.set_data_link(False)

    def heal_network(self):
        """Puts the machine back on the network under test."""
        self.port.set_data_link(True)

    # Programs.

    def run(self, argv, timeout=60, check=True, input=None, env=None, cwd=None):
        """Runs a command to its end. timeout in seconds, scaled by the machine's speed; env adds to the guest's
        (None removes). Raises CommandFailed when check is set and the status is not 0 or the timeout passed."""
        argv = [str(word) for word in argv]
        limit = scaled(timeout)
        head, parts = self.request({"op": "run", "argv": argv, "timeout": limit, "env": env, "cwd": cwd}, limit,
                                   [] if input is None else [input.encode() if isinstance(input, str) else input])
        done = Completed(argv, head["rc"], *parts)
        if check and done.rc != 0:
            how = f"status {done.rc}" if done.rc is not None else f"killed after {limit:.0f} s"
            raise CommandFailed(f"{self.name}: `{' '.join(argv)}`: {how}\n{done.out}{done.err}".rstrip())
        return done

    def sh(self, script, timeout=60, check=True):
        """Runs a shell script and returns its standard output, stripped."""
        return self.run(["sh", "-euc", script], timeout, check).out.strip()

    def spawn(self, argv, log=None, env=None, cwd=None):
        """Starts a program in the background; its output goes to <run folder>/<vm>/<log>.log, appended."""
        argv = [str(word) for word in argv]
        log = (log or os.path.basename(argv[0])) + ".log"
        head, _ = self.request({"op": "spawn", "argv": argv, "log": log, "env": env, "cwd": cwd})
        return Proc(self, head["pid"], self.folder / log)

    def kill(self, pid, sig=signal.SIGKILL):
        """Signals any process of the guest. Raises ProcessLookupError when it is gone."""
        self.request({"op": "kill", "pid": pid, "sig": int(sig)})

    def py(self, code, timeout=60, **args):
        """Executes Python statements in the guest: the arguments are in the dict `args`, what it assigns to
        `result` (JSON values) is returned. An OSError in the guest is raised here with its errno."""
        limit = scaled(timeout)
        return self.request({"op": "py", "code": code, "args": args}, limit)[0]["result"]

    # Files.

    def read_file(self, path):
        """Content as bytes. Raises the guest's OSError."""
        return self.request({"op": "read", "path": str(path)})[1][0]

    def read_text(self, path):
        """Content as text without the trailing newline."""
        return self.read_file(path).decode().rstrip("\n")

    def write_file(self, path, data, mode=0o644, append=False):
        """Writes (creates, truncates) a file in one write call. Raises the guest's OSError."""
        data = data.encode() if isinstance(data, str) else data
        self.request({"op": "write", "path": str(path), "mode": mode, "append": append}, parts=[data])

    def exists(self, path):
        return self.py("import os; result = os.path.lexists(args['path'])", path=str(path))

    def listdir(self, path):
        return self.py("import os; result = sorted(os.listdir(args['path']))", path=str(path))

    # Connections.

    def forward(self, unix_path):
        """A "host:port" that reaches the unix socket in the guest; stays valid over restarts and reboots."""
        if unix_path not in self.forwards:
            head, _ = self.request({"op": "forward", "unix": unix_path, "port": 20000 + len(self.forwards)})
            self.forwards[unix_path] = head["port"]
        return f"{self.mgmt_ip}:{self.forwards[unix_path]}"

    def request(self, header, timeout=30, parts=()):
        """One request to the guest agent: (reply, byte strings)."""
        try:
            with socket.create_connection((self.mgmt_ip, AGENT_PORT), timeout=scaled(10)) as sock:
                deadline = time.monotonic() + timeout + scaled(30)
                header = dict(header, parts=[len(part) for part in parts])
                text = json.dumps(header).encode()
                sock.sendall(struct.pack(">I", len(text)) + text + b"".join(parts))
                sock.settimeout(1)
                size, = struct.unpack(">I", self._read_exact(sock, 4, deadline))
                reply = json.loads(self._read_exact(sock, size, deadline))
                bodies = [self._read_exact(sock, size, deadline) for size in reply["parts"]]
        except OSError as error:
            if not self.running():
                raise VmDied(f"{self.name} is not running (see {self.folder}/console.log)") from error
            raise GuestError(f"{self.name}: request {header['op']!r} got no answer: {error}") from error
        if reply.get("errno") is not None:
            raise OSError(reply["errno"], f"{self.name}: {reply['error']}")
        if reply.get("error"):
            raise GuestError(f"{self.name}: {reply['error']}")
        return reply, bodies

    # Internals.

    def _answers(self):
        if self.process.poll() is not None:
            raise VmDied(f"{self.name}: qemu ended with status {self.process.returncode} "
                         f"(see {self.folder}/console.log and qemu.log)")
        try:
            with socket.create_connection((self.mgmt_ip, AGENT_PORT), timeout=0.5):
                return True
        except OSError:
            return False

    def _read_exact(self, sock, size, deadline):
        data = bytearray()
        while len(data) < size:
            try:
                chunk = sock.recv(min(size - len(data), 1 << 20))
            except TimeoutError:  # a dead machine does not close its connections
                if self.running() and time.monotonic() < deadline:
                    continue
                raise
            if not chunk:
                raise ConnectionError("the guest agent closed the connection")
            data += chunk
        return bytes(data)

    def _kernel_args(self):
        agent = prepare.GUEST / "agent.py"
        return (f"{prepare.KERNEL_ARGS} pillar.name={self.name} pillar.data={self.ip} pillar.mgmt={self.mgmt_ip} "
                f"pillar.moddir={self.image.modules} pillar.agent={agent}{clock.kernel_args(self.image.kvm)} "
                f"{self.spec.kernel_args}").strip()

    def _disk(self, serial):
        return self.disks_folder / f"{self.name}-{serial}.img"

    @staticmethod
    def _share(path, tag, options):
        return ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{options}"]


def boot_all(vms):
    """Boots several machines at once; returns the seconds it took."""
    started = time.monotonic()
    for vm in vms:
        vm.start()
    for vm in vms:
        vm.wait_ready()
    return time.monotonic() - started
