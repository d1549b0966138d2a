"""A storage node that stops answering: calls stay bounded, other volumes notice nothing, and what comes back is usable."""

import contextlib
import time

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_equal, mount_cap, pb
from pillarvm.registry import case
from pillarvm.timing import scaled, until

Code = grpc.StatusCode
TARGET = "/var/lib/kubelet/pods/dead/mount"
STATS_BOUND, CHANGE_BOUND = 5, 60  # seconds within which inspections and changes are answered


def timed(call, *args, **kwargs):
    """(seconds, answer or RpcError)."""
    started = time.monotonic()
    try:
        answer = call(*args, **kwargs)
    except grpc.RpcError as error:
        answer = error
    return time.monotonic() - started, answer


@contextlib.contextmanager
def severed(fx, volume):
    """The target ends this volume's sessions and lets none in, while everything else goes on."""
    fx.agent.kill()
    links = kernel.unlink(fx.storage_vm, fx.nqn(volume))
    try:
        yield
    finally:
        kernel.link(fx.storage_vm, fx.nqn(volume), links)
        fx.bring_back(fx.agent)


def assert_bounded(what, bound, call, *args, **kwargs):
    seconds, answer = timed(call, *args, **kwargs)
    assert seconds < scaled(bound), f"{what} took {seconds:.1f} s: {answer}"
    return answer


def assert_refused_in_time(what, call, *args):
    """A change that cannot be finished now: an answer that is repeated, within its bound."""
    answer = assert_bounded(what, CHANGE_BOUND, call, *args, deadline=CHANGE_BOUND + 20)
    assert isinstance(answer, grpc.RpcError), f"{what} succeeded although the data cannot have been written"
    assert answer.code() in (Code.UNAVAILABLE, Code.ABORTED), f"{what}: {answer.code().name}: {answer.details()}"


def is_abnormal(fx, worker, volume, target):
    """The statistics of the volume, answered in time, say that something is wrong."""
    answer = assert_bounded("statistics of the dead volume", STATS_BOUND, fx.node_csi[worker].stats, volume.volume_id, target,
                            fx.staging(volume))
    return isinstance(answer, grpc.RpcError) or answer.volume_condition.abnormal


@case("dead/one-of-several", fixture="driver", timeout=300)
def one_of_several(fx):
    """I01, E07, I3, D10: one dead volume answers in bounds, its neighbour as fast as ever, and threads do not pile up."""
    node, client, other_target = fx.nodes["vm"], fx.node_csi["vm"], TARGET + "-other"
    volume, other = fx.create("dead", 32 * MIB), fx.create("alive", 32 * MIB)
    for one, target in ((volume, TARGET), (other, other_target)):
        context = fx.attach(one, "vm")
        fx.mount(one, "vm", context, target)
    fx.vm.sh(f"head -c 4194304 /dev/urandom > {TARGET}/unsynced")
    checksum = fx.vm.sh(f"sha256sum < {TARGET}/unsynced")

    def neighbour_is_fast():
        seconds, answer = timed(client.stats, other.volume_id, other_target, fx.staging(other))
        assert not isinstance(answer, grpc.RpcError) and not answer.volume_condition.abnormal, answer
        assert seconds < scaled(1.5), f"statistics of the living volume took {seconds:.1f} s"
        return seconds

    fast = min(neighbour_is_fast() for _ in range(3))
    threads, children = node.threads(), node.children()
    with severed(fx, volume):
        until(lambda: "live" not in kernel.states(fx.vm, fx.nqn(volume)), scaled(20), "the session is not live any more")
        until(lambda: is_abnormal(fx, "vm", volume, TARGET), scaled(10), "statistics call the dead volume abnormal")
        for _ in range(10):
            assert is_abnormal(fx, "vm", volume, TARGET), "statistics call the dead volume healthy"
            neighbour_is_fast()
        health = client.call("NodeGetVolumeHealth", pb.NodeGetVolumeHealthRequest(
            volume_id=volume.volume_id, volume_publish_path=TARGET), 10).volume_health
        assert health.health_statuses, "the health of the dead volume names no fault"
        assert_bounded("NodeUnpublish of the dead volume", CHANGE_BOUND, fx.unmount, volume, "vm", TARGET)
        assert TARGET not in fx.mounts("vm"), "the target is still mounted"
        for _ in range(3):
            assert_refused_in_time("NodeUnstage", client.unstage, volume.volume_id, fx.staging(volume))
            neighbour_is_fast()
        assert node.threads() <= threads + 4, f"threads grew from {threads} to {node.threads()}"
        assert node.children() <= children + 3, f"children grew from {children} to {node.children()}"
    fx.retried(client.unstage, volume.volume_id, fx.staging(volume), timeout=90)
    assert neighbour_is_fast() < max(1.0, 5 * fast)
    fx.csi.unpublish(volume.volume_id, fx.node_ids["vm"])
    context = fx.attach(volume, "vm")
    fx.mount(volume, "vm", context, TARGET)
    assert_equal(fx.vm.sh(f"sha256sum < {TARGET}/unsynced"), checksum, "data written before the outage")
    for one, target in ((volume, TARGET), (other, other_target)):
        fx.unmount(one, "vm", target)
        fx.detach(one, "vm")
        fx.csi.delete(one.volume_id)


@case("dead/blackhole", fixture="cluster", timeout=300)
def blackhole(fx):
    """E07, I01, D18: the network goes silent with unwritten data; calls stay bounded, and after it heals nothing is lost."""
    client, node = fx.node_csi["worker-a"], fx.nodes["worker-a"]
    volume = fx.create("silent", 32 * MIB)
    context = fx.attach(volume, "worker-a")
    fx.mount(volume, "worker-a", context, TARGET)
    fx.worker_a.sh(f"head -c 4194304 /dev/urandom > {TARGET}/unsynced")
    checksum = fx.worker_a.sh(f"sha256sum < {TARGET}/unsynced")
    threads = node.threads()
    fx.worker_a.cut_network()
    until(lambda: is_abnormal(fx, "worker-a", volume, TARGET), scaled(60), "statistics notice the silence")
    assert_bounded("NodeUnpublish", CHANGE_BOUND, fx.unmount, volume, "worker-a", TARGET)
    for _ in range(2):
        assert_refused_in_time("NodeUnstage", client.unstage, volume.volume_id, fx.staging(volume))
        assert_bounded("NodeGetInfo", 3, client.info)
    assert node.threads() <= threads + 4, f"threads grew from {threads} to {node.threads()}"
    fx.worker_a.heal_network()
    fx.retried(client.unstage, volume.volume_id, fx.staging(volume), timeout=120)
    assert_equal(fx.sessions("worker-a"), [], "sessions after unstaging")
    fx.csi.unpublish(volume.volume_id, fx.node_ids["worker-a"])
    context = fx.attach(volume, "worker-b")
    fx.mount(volume, "worker-b", context, TARGET)
    assert_equal(fx.worker_b.sh(f"sha256sum < {TARGET}/unsynced"), checksum, "data written before the outage")
    fx.unmount(volume, "worker-b", TARGET)
    fx.detach(volume, "worker-b")
    fx.csi.delete(volume.volume_id)


def lost_and_mounted_again(fx, fs, size):
    """The device goes away under the mount; staging and publishing the same again gives a working filesystem."""
    cap = mount_cap(fs)
    volume = fx.create(f"lost-{fs}", size, fx.add_class("frail", loss=4), caps=[cap])
    context = fx.attach(volume, "vm", cap)
    fx.mount(volume, "vm", context, TARGET, cap)
    fx.vm.sh(f"echo kept > {TARGET}/f; sync -f {TARGET}")
    with severed(fx, volume):
        writer = fx.vm.spawn(["sh", "-c", f"while echo more >> {TARGET}/g && sync {TARGET}/g; do :; done"], log="writer")
        until(lambda: fx.device(volume, "vm") is None, scaled(60), "the kernel has given the device up")
        assert writer.wait(60) is not None, "the writer saw no error"
    assert is_abnormal(fx, "vm", volume, TARGET), "statistics call a filesystem without a device healthy"
    # Not fx.stage(): its mkdir -p fails where a filesystem has shut down, and the folder is there.
    fx.retried(fx.node_csi["vm"].stage, volume, context, fx.staging(volume), cap)
    fx.retried(fx.mount, volume, "vm", context, TARGET, cap)
    assert_equal(fx.vm.sh(f"cat {TARGET}/f; echo new > {TARGET}/h; sync -f {TARGET}; cat {TARGET}/h"), "kept\nnew")
    assert_equal([fx.mounts("vm").count(path) for path in (TARGET, fx.staging(volume))], [1, 1], "layers")
    assert not is_abnormal(fx, "vm", volume, TARGET), "statistics call the new mount abnormal"
    fx.unmount(volume, "vm", TARGET)
    fx.detach(volume, "vm")
    fx.csi.delete(volume.volume_id)


@case("dead/lost-ext4", fixture="driver", timeout=180)
def lost_ext4(fx):
    """D12, D03, E03: an ext4 filesystem whose device was lost is noticed and mounted afresh."""
    lost_and_mounted_again(fx, "ext4", 32 * MIB)


@case("dead/lost-xfs", fixture="driver", timeout=180)
def lost_xfs(fx):
    """D12, D03, E03: the same with xfs."""
    lost_and_mounted_again(fx, "xfs", 300 * MIB)


@case("dead/short-outage", fixture="driver", timeout=120)
def short_outage(fx):
    """E02: an outage shorter than the controller-loss time costs a writer latency and nothing else."""
    with fx.published("short", "vm", TARGET, size=32 * MIB) as (volume, _):
        # What has been synced is noted beside the volume, where it can be read while the volume cannot.
        fx.vm.sh("rm -f /run/short-*")
        writer = fx.vm.spawn(["sh", "-c", f"for i in $(seq 10000); do echo $i > {TARGET}/n && sync {TARGET}/n || exit 9; "
                              "echo $i > /run/short-now; mv /run/short-now /run/short-synced; "
                              "[ -e /run/short-stop ] && exit 0; done"], log="short-writer")

        def synced():
            return int(fx.vm.read_text("/run/short-synced") if fx.vm.exists("/run/short-synced") else 0)
        until(synced, scaled(20), "the writer has begun")
        with severed(fx, volume):
            until(lambda: "live" not in kernel.states(fx.vm, fx.nqn(volume)), scaled(20), "the session is down")
            before = synced()
        until(lambda: kernel.states(fx.vm, fx.nqn(volume)) == ["live"], scaled(40), "the session is back")
        until(lambda: synced() > before + 1, scaled(20), "the writer goes on")
        fx.vm.sh("touch /run/short-stop")
        assert_equal(writer.wait(30), 0, "status of the writer")
