"""Programs on a machine that is not as it should be: wrong settings stop them at the start, everything else is answered per
call and heals without a restart."""

import contextlib

import grpc
import yaml

from pillarvm import protos
from pillarvm.csi import MIB, ControllerClient, assert_code, assert_equal, channel, error_info
from pillarvm.driver import CONTROLLER_SOCKET, NODE_SOCKET, STATE
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
CONFIG = "/run/bad.yaml"
GOOD = yaml.safe_dump({"backends": [{"lvm": {"volumeGroup": "vg0"}}]})


def agent_argv(fx, state="/run/bad-agent", config=CONFIG, port=9599):
    return [fx.program("pillar-agent"), "--config", config, "--state-dir", state, "--listen", f"tcp://127.0.0.1:{port}",
            "--metrics-listen", ""]


def node_argv(fx, state="/run/bad-node", socket="/run/bad-node.sock"):
    return [fx.program("pillar-node"), "--node-name", "vm", "--state-dir", state, "--listen", f"unix://{socket}",
            "--metrics-listen", "", "--health-listen", ""]


def controller_argv(fx, store="sqlite:///run/bad.db", socket="/run/bad-controller.sock"):
    return [fx.program("pillar-controller"), "--store", store, "--listen", f"unix://{socket}", "--cluster-id", "bad",
            "--metrics-listen", "", "--health-listen", ""]


def refused(fx, argv, *words):
    """The program ends by itself, with a failure whose message has all the words."""
    done = fx.vm.run(argv, timeout=15, check=False)
    assert done.rc not in (None, 0), f"{argv} went on with it (status {done.rc}): {done.out}{done.err}"
    missing = [word for word in words if word not in done.out + done.err]
    assert not missing, f"{missing} not in the message of {argv}: {done.out}{done.err}"


@case("bad/settings", fixture="driver", timeout=90)
def settings(fx):
    """Unknown, repeated and wrong keys and flags stop a program at the start, with file, line and key."""
    for text, line, key in (
            (GOOD + "typo: 1\n", 4, "typo"),
            (GOOD + GOOD, 4, "backends"),
            ("backends:\n- lvm: {volumeGroup: vg0}\n- lvm: {volumeGroup: vg0}\n", 3, "vg0"),
            ("backends:\n- lvm:\n    volumeGroup: ../etc\n", 3, "volumeGroup"),
            ("backends:\n- lvm:\n    volumeGroup: vg0\n    volumegroup: vg1\n", 4, "volumegroup"),
            ("backends: nothing\n", 1, "backends"),
            ("backends: [\n", 2, CONFIG),
            ("", 1, "backends")):
        fx.vm.write_file(CONFIG, text)
        refused(fx, agent_argv(fx), f"{CONFIG}:{line}", key)
    refused(fx, agent_argv(fx, config="/run/none.yaml"), "/run/none.yaml")
    for argv in (agent_argv(fx), node_argv(fx), controller_argv(fx)):
        refused(fx, [*argv, "--no-such-flag"], "--no-such-flag")
        refused(fx, [*argv, "--listen", "nonsense"], "--listen")
        listen = argv.index("--listen") + 1
        refused(fx, [*argv[:listen], "nonsense", *argv[listen + 1:]], "nonsense")
        refused(fx, [*argv, "--chaos", "step=x:y,action=exit"], "chaos")
    refused(fx, controller_argv(fx, store="oracle://x"), "oracle")


@case("bad/sockets", fixture="driver", timeout=90)
def sockets(fx):
    """N01: a socket of a live process is respected, one of a dead process replaced, a file that is no socket left alone."""
    vm = fx.vm
    vm.write_file(CONFIG, GOOD)
    refused(fx, node_argv(fx, socket=NODE_SOCKET), NODE_SOCKET, "in use")
    refused(fx, controller_argv(fx, socket=CONTROLLER_SOCKET), CONTROLLER_SOCKET, "in use")
    refused(fx, agent_argv(fx, port=9500), "9500")
    assert_equal(fx.node_csi["vm"].info().node_id, fx.node_ids["vm"], "the process that was there first")
    for program, socket in ((fx.nodes["vm"], NODE_SOCKET), (fx.controller, CONTROLLER_SOCKET)):
        program.kill()
        assert vm.exists(socket), "a killed process took its socket along"
        fx.bring_back(program)
    vm.write_file("/run/precious", "x")
    refused(fx, node_argv(fx, socket="/run/precious"), "/run/precious", "not a socket")
    assert_equal(vm.read_text("/run/precious"), "x")


@case("bad/state-folders", fixture="driver", timeout=90)
def state_folders(fx):
    """A state folder that is in use, read-only or no folder stops the program with its path."""
    vm = fx.vm
    vm.write_file(CONFIG, GOOD)
    refused(fx, agent_argv(fx, state=f"{STATE}/agent"), f"{STATE}/agent", "in use by process")
    refused(fx, node_argv(fx, state=f"{STATE}/node"), f"{STATE}/node", "in use by process")
    vm.sh("mkdir -p /run/ro; mount -t tmpfs -o size=64k tmpfs /run/ro; mount -o remount,ro /run/ro; touch /run/a-file")
    for argv in (agent_argv(fx, state="/run/ro"), node_argv(fx, state="/run/ro")):
        refused(fx, argv, "/run/ro")
    refused(fx, controller_argv(fx, store="sqlite:///run/ro/controller.db"), "/run/ro")
    for argv in (agent_argv(fx, state="/run/a-file"), node_argv(fx, state="/run/a-file")):
        refused(fx, argv, "/run/a-file")
    vm.sh("umount /run/ro")


@contextlib.contextmanager
def full_folder(vm, path):
    """The folder's content on a tiny file system with no room left; free() makes room. The content is kept at the end."""
    vm.sh(f"cp -a {path} /run/kept; mount -t tmpfs -o size=512k,mode=700 tmpfs {path}; cp -a /run/kept/. {path}/; "
          f"head -c 1m /dev/zero > {path}/filler 2>/dev/null || :")
    try:
        yield lambda: vm.sh(f"rm {path}/filler")
    finally:
        vm.sh(f"rm -rf /run/kept; cp -a {path} /run/kept; umount {path}; rm -rf {path}/*; cp -a /run/kept/. {path}/; "
              "rm -rf /run/kept")


@case("bad/full-disk-node", fixture="driver", timeout=150)
def full_disk_node(fx):
    """pillar-node starts on a full state folder: volumes can be taken down, one that needs a record is refused untouched,
    and with room again the same call goes through."""
    vm, node = fx.vm, fx.nodes["vm"]
    volume = fx.create("full", 16 * MIB)
    context = fx.attach(volume, "vm")
    node.kill()
    with full_folder(vm, f"{STATE}/node") as free:
        fx.bring_back(node)
        fx.node_csi["vm"].unstage(volume.volume_id, fx.staging(volume))
        assert_equal((fx.sessions("vm"), fx.mounts("vm")), ([], []), "left by the unstage")
        assert_code(Code.UNAVAILABLE, fx.stage, volume, "vm", context, reason="STATE_UNWRITABLE", match=f"{STATE}/node")
        assert_equal((fx.sessions("vm"), fx.mounts("vm")), ([], []), "done without a record")
        free()
        fx.stage(volume, "vm", context)
        fx.node_csi["vm"].unstage(volume.volume_id, fx.staging(volume))
        node.kill()
    fx.bring_back(node)
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    fx.csi.delete(volume.volume_id)


@case("bad/full-disk-agent", fixture="driver", timeout=150)
def full_disk_agent(fx):
    """pillar-agent starts on a full state folder: what needs a fencing mark is refused, with room again it goes through."""
    fx.agent.kill()
    with full_folder(fx.vm, f"{STATE}/agent") as free:
        fx.bring_back(fx.agent)
        until(lambda: refusal(fx, "full-2") == "STATE_UNWRITABLE", scaled(40), "the create is refused for the full disk")
        assert_equal(fx.lvs(), [], "LVs made without a fencing mark")
        free()
        volume = fx.retried(fx.create, "full-2", 16 * MIB)
        fx.csi.delete(volume.volume_id)
        fx.agent.kill()
    fx.bring_back(fx.agent)
    fx.wait_class_ready()


@case("bad/full-disk-controller", fixture="driver", timeout=120)
def full_disk_controller(fx):
    """pillar-controller starts on a full disk and reads; what has to be written is refused with the remedy until there is
    room."""
    vm = fx.vm
    vm.sh("mkdir -p /run/full; mount -t tmpfs -o size=2m tmpfs /run/full")
    store, socket = "sqlite:///run/full/controller.db", "/run/full-controller.sock"
    manifest = yaml.safe_dump({"apiVersion": "pillar-csi.bhyoo.com/v1alpha1", "kind": "PillarProtocol",
                               "metadata": {"name": "nvme"}, "spec": {"protocol": {"nvmeofTcp": {"port": 4420}}}})

    def apply():
        return vm.run([fx.program("pillarctl"), "--store", store, "apply", "-f", "-"], check=False, input=manifest)

    for fill in (False, True):
        if fill:
            vm.sh("head -c 4m /dev/zero > /run/full/filler 2>/dev/null || :")
        process = vm.spawn(controller_argv(fx, store=store, socket=socket), log="full-controller")
        client = ControllerClient(vm.forward(socket))
        client.wait_ready()
        if fill:
            assert_equal(client.list().entries[:], [], "volumes of an empty store")
            answer = apply()
            assert answer.rc != 0 and "full" in answer.err + answer.out, answer
            vm.sh("rm /run/full/filler")
            assert_equal(apply().rc, 0, "the same with room")
        process.kill()
    vm.sh(f"umount /run/full; rm -f {socket}")


def refusal(fx, name):
    """Reason of the refusal of a create."""
    try:
        fx.create(name, 16 * MIB)
        raise AssertionError("the create succeeded")
    except grpc.RpcError as error:
        return error_info(error)[0]


def agent_health(fx, address):
    """{name: (ok, message)} of an agent's subsystems."""
    messages, services = protos.load("agent")
    answer = services.AgentStub(channel(address)).HealthCheck(messages.HealthCheckRequest(), timeout=scaled(20), wait_for_ready=True)
    return {one.name: (one.ok, one.message) for one in answer.subsystems}


@case("bad/missing-pool", fixture="driver", timeout=90)
def missing_pool(fx):
    """A volume group that is not there is reported and refused by name, and served as soon as it appears."""
    vm = fx.vm
    messages, services = protos.load("agent")
    vm.write_file(CONFIG, yaml.safe_dump({"backends": [{"lvm": {"volumeGroup": "vg0"}}, {"lvm": {"volumeGroup": "ghost"}}]}))
    argv = agent_argv(fx)
    argv[argv.index("--listen") + 1] = f"tcp://{vm.ip}:9599"
    second = vm.spawn(argv, log="second-agent")
    agent = services.AgentStub(channel(f"{vm.ip}:9599"))

    def pool():
        request = messages.GetCapacityRequest(backend_type="lvm-lv", pool="ghost")
        try:
            return agent.GetCapacity(request, timeout=scaled(20), wait_for_ready=True).pool
        except grpc.RpcError as error:
            return messages.Pool(error=error.details())
    assert "ghost" in pool().error, f"no error names the pool: {pool()}"
    ok, message = agent_health(fx, f"{vm.ip}:9599")["lvm"]
    assert not ok and "ghost" in message, message
    vm.sh("vgcreate -qy ghost /dev/vdb")
    until(lambda: not pool().error and pool().total_bytes > 0, scaled(30), "the pool is served once it is there")
    assert_equal(second.kill(15), 0, "status of the stopped agent")
    vm.sh("vgremove -qfy ghost; pvremove -qy /dev/vdb")


def wait_agent(fx, ready):
    """Waits until the controller has seen the agent in that state."""
    fx.pillarctl("wait", "pa", "storage-1", f"--for=condition=Ready={ready}", f"--timeout={int(scaled(60))}s", timeout=70)


@case("bad/missing-tools", fixture="driver", timeout=120)
def missing_tools(fx):
    """C09: LVM tools, configfs and the initiator's module missing: a clear refusal each, no crash, no restart needed after."""
    vm, address = fx.vm, f"{fx.vm.ip}:9500"
    agent_pid, node_pid = fx.agent.process.pid, fx.nodes["vm"].process.pid
    vm.sh("mv /usr/sbin/lvm /usr/sbin/lvm.away")
    try:
        assert_code(Code.FAILED_PRECONDITION, fx.create, "no-lvm", 4 * MIB, match="lv", reason="TOOL_MISSING")
        until(lambda: not agent_health(fx, address)["lvm"][0], scaled(30), "the agent's health names lvm")
        wait_agent(fx, "False")
    finally:
        vm.sh("mv /usr/sbin/lvm.away /usr/sbin/lvm")
    fx.wait_class_ready()
    volume = fx.retried(fx.create, "tools", 16 * MIB)

    vm.sh("umount /sys/kernel/config")
    try:
        until(lambda: not agent_health(fx, address)["configfs"][0], scaled(30), "the agent's health names configfs")
        assert "mount" in agent_health(fx, address)["configfs"][1], "the remedy is to mount it"
        assert_code(Code.FAILED_PRECONDITION, fx.csi.publish, volume, fx.node_ids["vm"], match="configfs")
        wait_agent(fx, "False")
    finally:
        vm.sh("mount -t configfs none /sys/kernel/config")
    wait_agent(fx, "True")
    context = fx.retried(fx.csi.publish, volume, fx.node_ids["vm"])

    vm.sh("mkdir -p /etc/modprobe.d; echo 'install nvme_tcp /bin/false' > /etc/modprobe.d/none.conf; rmmod nvme_tcp")
    try:
        assert_code(Code.FAILED_PRECONDITION, fx.stage, volume, "vm", context, reason="MODULE_MISSING", match="nvme.tcp")
    finally:
        vm.sh("rm /etc/modprobe.d/none.conf")
    fx.retried(fx.stage, volume, "vm", context)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)
    assert_equal((fx.agent.process.pid, fx.nodes["vm"].process.pid, fx.agent.alive(), fx.nodes["vm"].alive()),
                 (agent_pid, node_pid, True, True), "the processes")


@case("bad/no-storage-node", fixture="driver", timeout=90)
def no_storage_node(fx):
    """Without the agent every call that needs it is UNAVAILABLE and names it, what does not goes on, and it heals."""
    volume = fx.create("orphan", 16 * MIB)
    fx.agent.kill()
    for call in (lambda: fx.create("new", 4 * MIB), lambda: fx.csi.expand(volume.volume_id, 32 * MIB),
                 lambda: fx.csi.publish(volume, fx.node_ids["vm"])):
        assert_code(Code.UNAVAILABLE, call, match="storage-1")
    assert_equal(fx.create("orphan", 16 * MIB), volume, "repeat of a finished create")
    assert_equal(fx.csi.get(volume.volume_id).volume.volume_id, volume.volume_id)
    fx.bring_back(fx.agent)
    # The publication may have been recorded before the agent was found dead; then it counts until it is taken back.
    fx.retried(fx.csi.unpublish, volume.volume_id, fx.node_ids["vm"])
    fx.retried(fx.csi.delete, volume.volume_id)
    fx.csi.delete(fx.retried(fx.create, "new", 4 * MIB).volume_id)
