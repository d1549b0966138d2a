"""Machines with the three programs running: start, kill and restart them, apply resources, reach their sockets, and prove
that nothing is left behind."""

import contextlib
import json
import re

import grpc
import yaml

from . import csi, kernel, protos
from .machines import Machines
from .registry import fixture
from .timing import scaled, until
from .vm import Spec

API = "pillar-csi.bhyoo.com/v1alpha1"
PREFIX = "pillar-csi.bhyoo.com/"
NQN_PREFIX = "nqn.2026-01.com.bhyoo.pillar-csi:"
CLASS_KEY = PREFIX + "storage-class"
STATE = "/var/lib/pillar-csi"
CONTROLLER_SOCKET = "/run/pillar/controller.sock"
NODE_SOCKET = "/run/pillar/node.sock"
STORE = f"sqlite://{STATE}/controller.db"
VG = "vg0"
CLASS = "fast"
METRICS_PORTS = {"pillar-agent": 9501, "pillar-controller": 8080, "pillar-node": 9502}
# What an orchestrator repeats without being asked.
RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
_POST = """
import urllib.request
result = urllib.request.urlopen(urllib.request.Request(args["url"], args["body"].encode()), timeout=20).read().decode()
"""
# A guest without hardware virtualisation can be busy for longer than the kernel's keep-alive of 5 s.
PROTOCOL = {"nvmeofTcp": {"port": 4420, "ctrlLossTmo": 60, "reconnectDelay": 2}}


def resource(kind, name, spec):
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def manifests(address, vg=VG):
    """The four resources of a cluster with one storage node at `address`."""
    return [
        resource("PillarAgent", "storage-1", {"external": {"address": address, "port": 9500}}),
        resource("PillarStore", "lvm", {"agentRef": "storage-1", "backend": {"lvm": {"volumeGroup": vg}}}),
        resource("PillarProtocol", "nvme", {"protocol": PROTOCOL}),
        resource("PillarStorageClass", CLASS, {"storeRef": "lvm", "protocolRef": "nvme"}),
    ]


class Program:
    """One of our programs on one machine."""

    def __init__(self, machines, vm, name, argv):
        self.machines, self.vm, self.name, self.argv = machines, vm, name, argv
        self.process = None

    def start(self, *extra, env=None):
        argv = [self.machines.program(self.name), *self.argv, *extra]
        self.process = self.vm.spawn(argv, log=self.name, env=env)
        return self

    def kill(self):
        """kill -9, as a crash."""
        self.process.kill()

    def stop(self, wait=20):
        """SIGTERM; the exit status."""
        return self.process.kill(15, wait)

    def restart(self, *extra):
        """kill -9 and start again with further flags."""
        self.kill()
        return self.start(*extra)

    def alive(self):
        return self.process is not None and self.process.alive()

    def text(self):
        return self.process.text()

    def threads(self):
        """Threads of the process now."""
        return int(self.vm.sh(f"sed -n 's/^Threads:[[:space:]]*//p' /proc/{self.process.pid}/status"))

    def children(self):
        """Child processes now, zombies included."""
        return len(self.vm.sh(f"ps -o pid= --ppid {self.process.pid}", check=False).split())

    # Fault injection (actors/runtime/chaos.hpp).

    def chaos(self, **request):
        """One request to the program's fault injection -> {"points": [...], "steps": {...}}."""
        url = f"http://127.0.0.1:{METRICS_PORTS[self.name]}/chaos"
        return json.loads(self.vm.py(_POST, url=url, body=json.dumps(request)))

    def inject(self, step, action, **more):
        """Adds a fault at `step` (<glob over actor paths>:<glob over steps>)."""
        words = [f"step={step}", f"action={action}", *(f"{key}={value}" for key, value in more.items())]
        self.chaos(add=",".join(words))


class Driver(Machines):
    """storage: the machine with agent and controller; workers: the machines with pillar-node, by name."""

    extra_agent_flags = ()
    extra_controller_flags = ()
    extra_node_flags = ()

    storage_name = None
    worker_names = ()

    def set_up(self):
        self.storage_vm = self.vms[self.storage_name]
        self.workers = {name: self.vms[name] for name in self.worker_names}
        self.storage_vm.sh(f"vgcreate -qy {VG} /dev/vda")
        for vm in self.vms.values():
            vm.sh("mkdir -p /run/pillar")
        self.write_agent_config({"backends": [{"lvm": {"volumeGroup": VG}}]})
        self.agent = Program(self, self.storage_vm, "pillar-agent", [
            "--config", "/run/pillar/agent.yaml", "--state-dir", f"{STATE}/agent", "--listen", "tcp://0.0.0.0:9500",
            "--enable-chaos", *self.extra_agent_flags])
        self.controller = Program(self, self.storage_vm, "pillar-controller", [
            "--store", STORE, "--listen", f"unix://{CONTROLLER_SOCKET}", "--cluster-id", "test", "--enable-chaos",
            *self.extra_controller_flags])
        self.nodes = {name: Program(self, vm, "pillar-node", [
            "--node-name", name, "--state-dir", f"{STATE}/node", "--listen", f"unix://{NODE_SOCKET}", "--enable-chaos",
            *self.extra_node_flags]) for name, vm in self.workers.items()}
        for program in self.programs():
            program.start()
        self.apply(manifests(self.storage_vm.ip))
        self.connect_clients()
        self.wait_class_ready()

    def programs(self):
        return [self.agent, self.controller, *self.nodes.values()]

    def write_agent_config(self, config):
        self.storage_vm.write_file("/run/pillar/agent.yaml", yaml.safe_dump(config))

    def connect_clients(self):
        """Fresh clients of all programs, waited for until ready."""
        self.csi = csi.ControllerClient(self.storage_vm.forward(CONTROLLER_SOCKET))
        self.node_csi = {name: csi.NodeClient(vm.forward(NODE_SOCKET)) for name, vm in self.workers.items()}
        for client in (self.csi, *self.node_csi.values()):
            client.wait_ready()
        self.node_ids = {name: client.info().node_id for name, client in self.node_csi.items()}

    def pillarctl(self, *words, check=True, input=None, timeout=60):
        """Runs pillarctl on the storage machine."""
        return self.storage_vm.run([self.program("pillarctl"), "--store", STORE, *words], check=check, input=input,
                                   timeout=timeout)

    def apply(self, objects):
        return self.pillarctl("apply", "-f", "-", input=yaml.safe_dump_all(objects)).out

    def get(self, kind, name):
        """The stored resource as a dict."""
        return json.loads(self.pillarctl("get", kind, name, "-o", "json").out)

    def wait_class_ready(self, name=CLASS, timeout=60):
        self.pillarctl("wait", "psc", name, "--for=condition=Ready", f"--timeout={int(scaled(timeout))}s",
                       timeout=timeout + 10)

    def add_class(self, name, loss):
        """A class like the usual one, but its sessions are given up `loss` seconds after the storage node went away."""
        protocol = {"nvmeofTcp": {"port": 4420, "ctrlLossTmo": loss, "reconnectDelay": 1}}
        self.apply([resource("PillarProtocol", name, {"protocol": protocol}),
                    resource("PillarStorageClass", name, {"storeRef": "lvm", "protocolRef": name})])
        self.wait_class_ready(name)
        return name

    def bring_back(self, program):
        """Starts the program if it is dead, and waits until it serves."""
        if not program.alive():
            program.start()
        self.wait_served(program)

    def wait_served(self, program):
        if program is self.agent:
            kernel.wait_listening(self.storage_vm, 9500)
            # The controller has found it again and restored its exports.
            messages, services = protos.load("agent")
            with csi.channel(f"{self.storage_vm.ip}:9500") as channel:
                agent = services.AgentStub(channel)
                until(lambda: not self.retried(agent.HealthCheck, messages.HealthCheckRequest()).gated, scaled(60),
                      "the controller has synchronised the agent", step=0.2)
            self.retried(self.csi.capacity, {CLASS_KEY: CLASS})
            return
        clients = {self.controller: self.csi, **{node: self.node_csi[name] for name, node in self.nodes.items()}}
        clients[program].wait_ready()

    def crash(self, program, *flags):
        """kill -9, start, and wait until it serves."""
        program.restart(*flags)
        self.wait_served(program)

    def retried(self, call, *args, timeout=60, **kwargs):
        """call(*args, **kwargs), repeated as an orchestrator does while the answer is a passing one."""
        last = []

        def attempt():
            try:
                return (call(*args, **kwargs),)
            except grpc.RpcError as error:
                if error.code() not in RETRIED:
                    raise
                last[:] = [f"{error.code().name}: {error.details()}"]
                return None
        try:
            return until(attempt, scaled(timeout), "a repeated call succeeds", step=0.2)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}; last answer {last}") from None

    # One volume.

    def create(self, name, size=csi.GIB, cls=CLASS, caps=None, **more):
        return self.csi.create(name, size, params={CLASS_KEY: cls}, caps=caps, **more)

    def attach(self, volume, worker, cap=None, readonly=False):
        """ControllerPublish and NodeStage; the publish context."""
        context = self.csi.publish(volume, self.node_ids[worker], cap, readonly)
        staging = self.staging(volume)
        self.workers[worker].sh(f"mkdir -p {staging}")
        self.node_csi[worker].stage(volume, context, staging, cap)
        return context

    def mount(self, volume, worker, context, target, cap=None, readonly=False):
        self.workers[worker].sh(f"mkdir -p $(dirname {target})")
        self.node_csi[worker].publish(volume, context, self.staging(volume), target, cap, readonly)

    def unmount(self, volume, worker, target):
        self.node_csi[worker].unpublish(volume.volume_id, target)

    def detach(self, volume, worker):
        """NodeUnstage and ControllerUnpublish."""
        self.node_csi[worker].unstage(volume.volume_id, self.staging(volume))
        self.csi.unpublish(volume.volume_id, self.node_ids[worker])

    @contextlib.contextmanager
    def published(self, name, worker, target, cap=None, size=64 * csi.MIB, cls=CLASS):
        """(volume, publish context) of a new volume bound at `target`; taken down and deleted afterwards."""
        volume = self.create(name, size, cls, caps=[cap or csi.mount_cap()])
        context = self.attach(volume, worker, cap)
        self.mount(volume, worker, context, target, cap)
        yield volume, context
        self.unmount(volume, worker, target)
        self.detach(volume, worker)
        self.csi.delete(volume.volume_id)

    def stage(self, volume, worker, context, cap=None, **more):
        """NodeStage alone, at the usual path."""
        staging = self.staging(volume)
        self.workers[worker].sh(f"mkdir -p {staging}")
        self.node_csi[worker].stage(volume, context, staging, cap, **more)

    def lv(self, volume):
        """Device of the volume on the storage machine."""
        return f"/dev/{VG}/{volume.volume_id.rsplit('/', 1)[1]}"

    def nqn(self, volume):
        return volume.volume_context["target_id"]

    def device(self, volume, worker):
        """The volume's block device on the worker, or None."""
        return kernel.device(self.workers[worker], self.nqn(volume))

    def staging(self, volume):
        return "/var/lib/kubelet/staging/" + re.sub(r"[^A-Za-z0-9.-]", "_", volume.volume_id)

    # What is left.

    def lvs(self):
        """Names of the LVs of the volume group."""
        return self.storage_vm.sh(f"lvs --noheadings -o lv_name {VG}").split()

    def subsystems(self):
        """NQNs of our subsystems in the target."""
        folder = "/sys/kernel/config/nvmet/subsystems"
        return [nqn for nqn in self.storage_vm.listdir(folder) if nqn.startswith(NQN_PREFIX)]

    def sessions(self, worker):
        """NQNs of our subsystems that the worker is connected to."""
        return self.workers[worker].py(
            "import glob\nresult = [n for n in (open(f).read().strip() for f in glob.glob('/sys/class/nvme/*/subsysnqn'))"
            " if n.startswith(args['prefix'])]", prefix=NQN_PREFIX)

    def mounts(self, worker):
        """Mount points of NVMe devices and of our staging folders."""
        text = self.workers[worker].read_text("/proc/self/mountinfo")
        return [line.split()[4] for line in text.splitlines()
                if re.search(r" - \S+ /dev/nvme|/staging/| /nvme\d+n\d+ ", line)]

    def records(self, worker):
        folder = f"{STATE}/node"
        with contextlib.suppress(OSError):
            return [name for name in self.workers[worker].listdir(folder) if name.endswith(".json")]
        return []

    def leftovers(self):
        """Everything that a deleted volume may not leave, as text; empty when clean."""
        found = [f"LV {name}" for name in self.lvs()] + [f"subsystem {nqn}" for nqn in self.subsystems()]
        for worker in self.workers:
            found += [f"{worker}: session {nqn}" for nqn in self.sessions(worker)]
            found += [f"{worker}: mount {path}" for path in self.mounts(worker)]
            found += [f"{worker}: record {name}" for name in self.records(worker)]
        return found

    def before_case(self):
        dead = [program for program in self.programs() if not program.alive()]
        for program in dead:
            program.start()
        for program in dead:
            self.wait_served(program)

    def after_case(self):
        left = self.leftovers()
        if left:
            raise AssertionError("left behind: " + "; ".join(left))


@fixture("driver")
class DriverOne(Driver):
    """All three programs on one machine, fx.vm; its one worker is "vm"."""
    specs = (Spec("vm", disks=(6144, 1024), memory=1280),)
    storage_name, worker_names = "vm", ("vm",)


@fixture("cluster")
class DriverThree(Driver):
    """Agent and controller on fx.storage, a node on each of fx.worker_a and fx.worker_b."""
    specs = (Spec("storage", disks=(8192, 1024)), Spec("worker-a"), Spec("worker-b"))
    storage_name, worker_names = "storage", ("worker-a", "worker-b")
