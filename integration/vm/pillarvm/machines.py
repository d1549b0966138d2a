"""Fixtures: groups of machines that cases share. A fixture with running programs is a subclass with its own set_up."""

import contextlib
import re
from pathlib import Path

from . import timing
from .net import Port
from .registry import fixture
from .vm import Spec, Vm, boot_all, start_bound

FIRST_NUMBER = 11
KERNEL_TROUBLE = re.compile(r"BUG:|WARNING: CPU|Oops|Kernel panic|general protection|"
                            r"blocked for more than|Unable to handle kernel|refcount_t:")


class Machines:
    """Boots `specs`; each machine is also an attribute (worker-a: fx.worker_a). `fx.build` is the build folder."""

    specs = ()

    def __init__(self, image, folder, build):
        self.image, self.folder, self.build = image, Path(folder), Path(build)
        self.vms, self.host_processes, self._seen = {}, [], {}

    def boot(self):
        disks = self.folder / "disks"
        disks.mkdir(parents=True, exist_ok=True)
        for number, spec in enumerate(self.specs, start=FIRST_NUMBER):
            vm = Vm(spec, self.image, Port(number), self.folder / spec.name, disks)
            self.vms[spec.name] = vm
            setattr(self, spec.name.replace("-", "_"), vm)
        timing.learn_boot(boot_all(self.vms.values()), len(self.vms))
        self.set_up()

    def set_up(self):
        """Runs once after the boot; subclasses start their programs here."""

    def before_case(self):
        """Runs before every case; subclasses bring back what an earlier case took away."""

    def after_case(self):
        """Runs after every case that passed; an exception fails it. Subclasses look for leftovers here."""

    def host_spawn(self, argv, log, env=None):
        """A program on the host side of the test network, ended with the fixture; its output: <run folder>/<log>.log."""
        with open(self.folder / f"{log}.log", "ab") as out:
            process = start_bound(argv, stdout=out, stderr=out, env=env)
        self.host_processes.append(process)
        return process

    def program(self, name):
        """Path of one of our programs in the build folder."""
        for path in (self.build / "tools" / name, self.build / name):
            if path.exists():
                return path
        raise FileNotFoundError(f"{name} is not built in {self.build}: run tools/run-tests, or ninja -C {self.build}")

    def kernel_trouble(self, allowed):
        """Lines new in the kernel logs since the last call that mean a kernel fault."""
        found = []
        for vm in self.vms.values():
            if vm.running():
                with contextlib.suppress(Exception):  # of a dying machine the log is read as far as it got
                    vm.request({"op": "flush_kernel_log"})
            for log in (vm.folder / "kernel.log", vm.folder / "console.log"):
                text = log.read_bytes() if log.exists() else b""
                new = text[self._seen.get(log, 0):].decode(errors="replace")
                self._seen[log] = len(text)
                found += [f"{vm.name} kernel: {line.strip()}" for line in new.splitlines()
                          if KERNEL_TROUBLE.search(line) and not any(re.search(one, line) for one in allowed)]
        return list(dict.fromkeys(found))

    def close(self):
        for process in self.host_processes:
            process.kill()
            process.wait()
        for vm in self.vms.values():
            vm.close()
        for disk in (self.folder / "disks").glob("*.img"):
            disk.unlink()


@fixture("one")
class One(Machines):
    """One machine, fx.vm, storage and worker at once; blank disks /dev/vda (4 GiB) and /dev/vdb (1 GiB, scratch)."""
    specs = (Spec("vm", disks=(4096, 1024), memory=1024),)


@fixture("three")
class Three(Machines):
    """fx.storage with blank disks /dev/vda (8 GiB) and /dev/vdb (1 GiB, scratch), fx.worker_a and fx.worker_b."""
    specs = (Spec("storage", disks=(8192, 1024)), Spec("worker-a"), Spec("worker-b"))
