"""The main job as a story: a storage node and two workers, one volume's life, every process killed once on the way. Prints
one line per step with its time and ends with a verdict."""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from . import net, prepare
from .csi import GIB, assert_code, assert_equal
from .driver import CONTROLLER_SOCKET, NODE_SOCKET, STORE, DriverThree
from .timing import scaled, until

REPO = Path(__file__).resolve().parents[3]
TARGET = "/var/lib/kubelet/pods/demo/volume"


class Story:
    """Runs steps in order and keeps the verdict."""

    def __init__(self):
        self.begun, self.count, self.failed = time.monotonic(), 0, None

    @contextlib.contextmanager
    def step(self, text):
        started = time.monotonic()
        self.count += 1
        try:
            yield
        except BaseException as error:
            print(f"FAILED  {text}  {time.monotonic() - started:.1f} s: {error}", flush=True)
            raise
        print(f"ok      {text}  {time.monotonic() - started:.1f} s", flush=True)


def boot(story, machines):
    with story.step("boot a storage node and two workers, start the three programs, apply four manifests"):
        machines.boot()
    print("        " + machines.pillarctl("get", "psc").out.strip().replace("\n", "\n        "), flush=True)


def write_on_a(story, fx):
    with story.step("create a volume of 1 GiB"):
        volume = fx.create("demo", GIB)
        assert_equal(volume.capacity_bytes, GIB, "capacity")
    with story.step("publish and stage it on worker-a, mount it"):
        context = fx.attach(volume, "worker-a")
        fx.mount(volume, "worker-a", context, TARGET)
    with story.step("write 32 MiB there and take the checksum"):
        fx.worker_a.sh(f"head -c 33554432 /dev/urandom > {TARGET}/data; sync -f {TARGET}")
        checksum = fx.worker_a.sh(f"sha256sum < {TARGET}/data")
    return volume, checksum


def kill_everything(story, fx):
    with story.step("kill -9 the controller, the agent and both node plugins; start them again"):
        for program in fx.programs():
            program.restart()
        fx.connect_clients()
        fx.wait_class_ready()


def expand(story, fx, volume):
    with story.step("expand it to 2 GiB while it is mounted"):
        fx.retried(fx.csi.expand, volume.volume_id, 2 * GIB)
        fx.node_csi["worker-a"].expand(volume.volume_id, TARGET, 2 * GIB, fx.staging(volume))
        size = int(fx.worker_a.sh(f"df -m --output=size {TARGET} | tail -1"))
        assert size > 1900, f"the file system has {size} MiB"


def move_to_b(story, fx, volume, checksum):
    with story.step("worker-b is refused while worker-a holds it"):
        assert_code(grpc.StatusCode.FAILED_PRECONDITION, fx.csi.publish, volume, fx.node_ids["worker-b"], match="worker-a")
    with story.step("unmount, unstage and unpublish on worker-a"):
        fx.unmount(volume, "worker-a", TARGET)
        fx.detach(volume, "worker-a")
    with story.step("publish, stage and mount on worker-b; the checksum is the same"):
        context = fx.attach(volume, "worker-b")
        fx.mount(volume, "worker-b", context, TARGET)
        assert_equal(fx.worker_b.sh(f"sha256sum < {TARGET}/data"), checksum, "checksum")
    with story.step("worker-a is refused while worker-b holds it"):
        assert_code(grpc.StatusCode.FAILED_PRECONDITION, fx.csi.publish, volume, fx.node_ids["worker-a"], match="worker-b")


def delete(story, fx, volume):
    with story.step("unmount, unstage, unpublish and delete it"):
        fx.unmount(volume, "worker-b", TARGET)
        fx.detach(volume, "worker-b")
        fx.csi.delete(volume.volume_id)
    with story.step("no logical volume, no subsystem, no session, no mount, no record is left"):
        assert_equal(fx.leftovers(), [], "left behind")


def interactive(fx):
    """A shell on this machine with a `pillarctl` that runs in the storage node; ends with the shell."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder) / "pillarctl"
        wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -m pillarvm.guest_shell {fx.storage.mgmt_ip} "
                           f"{fx.program('pillarctl')} --store {STORE} \"$@\"\n")
        wrapper.chmod(0o755)
        for name, vm in fx.vms.items():
            shell = Path(folder) / f"on-{name}"
            shell.write_text(f"#!/bin/sh\nexec {sys.executable} -m pillarvm.guest_shell {vm.mgmt_ip} \"$@\"\n")
            shell.chmod(0o755)
        print("\nIt is left running. `pillarctl get pvst` and the like work here; `on-storage CMD`, `on-worker-a CMD` and "
              f"`on-worker-b CMD` run a command in a machine.\nCSI sockets: {CONTROLLER_SOCKET} on storage (with the "
              f"agent at tcp 9500), {NODE_SOCKET} on the workers. Leave the shell to end it.", flush=True)
        env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PYTHONPATH=str(REPO / "integration/vm"), PS1="demo# ")
        subprocess.run(["/bin/bash", "--norc", "-i"], env=env)


def tell(story, machines, stay):
    boot(story, machines)
    volume, checksum = write_on_a(story, machines)
    kill_everything(story, machines)
    expand(story, machines, volume)
    move_to_b(story, machines, volume, checksum)
    if not stay:
        delete(story, machines, volume)
        return
    interactive(machines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", type=Path, default=REPO / "build")
    parser.add_argument("--interactive", action="store_true", help="leave it running with a shell and pillarctl")
    options = parser.parse_args()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: sys.exit(f"stopped by signal {number}"))
    story, folder = Story(), Path(tempfile.mkdtemp(prefix="pillar-demo-"))
    machines, verdict = None, 1
    try:
        with story.step("prepare the kernel of the virtual machines"):
            image = prepare.image()
            net.enter()
        machines = DriverThree(image, folder, options.build_dir.resolve())
        tell(story, machines, options.interactive)
        verdict = 0
    except Exception as error:
        print(f"        {type(error).__name__}; logs are kept in {folder}", flush=True)
    finally:
        if machines is not None:
            machines.close()
    seconds = time.monotonic() - story.begun
    if verdict == 0:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"DEMO PASSED: all {story.count} steps held, {seconds:.0f} s")
    else:
        print(f"DEMO FAILED at step {story.count}, {seconds:.0f} s")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
