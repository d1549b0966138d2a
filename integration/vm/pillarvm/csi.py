"""CSI clients for tests: short calls with deadlines, and assertions on how a call is refused."""

import re

import grpc

from . import protos
from .timing import scaled, until

pb, rpc = protos.load("csi")
GIB, MIB = 1 << 30, 1 << 20
DEADLINE = 60  # seconds on an idle machine


def mount_cap(fs="ext4", mode="SINGLE_NODE_WRITER", flags=(), group=""):
    """Capability of a mounted volume; mode is the name in the CSI enum."""
    mount = pb.VolumeCapability.MountVolume(fs_type=fs, mount_flags=flags, volume_mount_group=group)
    return pb.VolumeCapability(mount=mount, access_mode=_mode(mode))


def block_cap(mode="SINGLE_NODE_WRITER"):
    """Capability of a raw block volume."""
    return pb.VolumeCapability(block=pb.VolumeCapability.BlockVolume(), access_mode=_mode(mode))


def _mode(name):
    return pb.VolumeCapability.AccessMode(mode=pb.VolumeCapability.AccessMode.Mode.Value(name))


def channel(target):
    """An insecure channel to "host:port" (Vm.forward gives one for a unix socket) without retries or proxies."""
    # min_reconnect_backoff_ms is what an attempt to connect may take: a loaded machine needs more than its time between two.
    return grpc.insecure_channel(target, options=[
        ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0), ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 10000), ("grpc.max_reconnect_backoff_ms", 500), ("grpc.use_local_subchannel_pool", 1)])


class Client:
    """Base of the clients: `call(method, request)` with a deadline that fits the machine."""

    def __init__(self, target, stub):
        self.channel = channel(target)
        self.stub = stub(self.channel)
        self.identity = rpc.IdentityStub(self.channel)

    def call(self, method, request, deadline=DEADLINE):
        """One RPC by method name; raises grpc.RpcError."""
        return getattr(self.stub, method)(request, timeout=scaled(deadline))

    def wait_ready(self, timeout=60):
        """Waits until the program serves and its Probe says ready."""
        def ready():
            try:
                probe = self.identity.Probe(pb.ProbeRequest(), timeout=scaled(timeout), wait_for_ready=True)
            except grpc.RpcError as error:
                # The forwarder in front of a unix socket accepts, and closes, while the program is not there yet.
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return probe.ready.value or not probe.HasField("ready")
        until(ready, scaled(timeout), "the program serves and its Probe says ready")
        return self

    def close(self):
        self.channel.close()


class ControllerClient(Client):
    """The CSI controller service at `target`. `deadline` of every method: seconds on an idle machine."""

    def __init__(self, target):
        super().__init__(target, rpc.ControllerStub)

    def create(self, name, size=GIB, params=None, caps=None, limit=0, topology=None, deadline=DEADLINE):
        """CreateVolume -> Volume (volume_id, capacity_bytes, volume_context, accessible_topology)."""
        request = pb.CreateVolumeRequest(name=name, volume_capabilities=caps or [mount_cap()], parameters=params or {},
                                         accessibility_requirements=topology)
        if size or limit:
            request.capacity_range.CopyFrom(pb.CapacityRange(required_bytes=size, limit_bytes=limit))
        return self.call("CreateVolume", request, deadline).volume

    def delete(self, volume_id, deadline=DEADLINE):
        self.call("DeleteVolume", pb.DeleteVolumeRequest(volume_id=volume_id), deadline)

    def publish(self, volume, node, cap=None, readonly=False, deadline=DEADLINE):
        """ControllerPublishVolume of a Volume -> publish_context as a dict."""
        request = pb.ControllerPublishVolumeRequest(
            volume_id=volume.volume_id, node_id=node, volume_capability=cap or mount_cap(), readonly=readonly,
            volume_context=volume.volume_context)
        return dict(self.call("ControllerPublishVolume", request, deadline).publish_context)

    def unpublish(self, volume_id, node="", deadline=DEADLINE):
        self.call("ControllerUnpublishVolume",
                  pb.ControllerUnpublishVolumeRequest(volume_id=volume_id, node_id=node), deadline)

    def expand(self, volume_id, size, limit=0, cap=None, deadline=DEADLINE):
        """ControllerExpandVolume -> response (capacity_bytes, node_expansion_required)."""
        return self.call("ControllerExpandVolume", pb.ControllerExpandVolumeRequest(
            volume_id=volume_id, capacity_range=pb.CapacityRange(required_bytes=size, limit_bytes=limit),
            volume_capability=cap), deadline)

    def validate(self, volume, caps, deadline=DEADLINE):
        """ValidateVolumeCapabilities -> response (confirmed, message)."""
        return self.call("ValidateVolumeCapabilities", pb.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id, volume_context=volume.volume_context, volume_capabilities=caps), deadline)

    def capacity(self, params=None, caps=(), topology=None, deadline=DEADLINE):
        """GetCapacity -> response (available_capacity, maximum_volume_size)."""
        return self.call("GetCapacity", pb.GetCapacityRequest(
            volume_capabilities=caps, parameters=params or {}, accessible_topology=topology), deadline)

    def list(self, max_entries=0, token="", deadline=DEADLINE):
        """ListVolumes -> response (entries, next_token)."""
        return self.call("ListVolumes", pb.ListVolumesRequest(max_entries=max_entries, starting_token=token), deadline)

    def get(self, volume_id, deadline=DEADLINE):
        """ControllerGetVolume -> response (volume, status)."""
        return self.call("ControllerGetVolume", pb.ControllerGetVolumeRequest(volume_id=volume_id), deadline)


class NodeClient(Client):
    """The CSI node service at `target`."""

    def __init__(self, target):
        super().__init__(target, rpc.NodeStub)

    def info(self, deadline=DEADLINE):
        """NodeGetInfo -> response (node_id, max_volumes_per_node, accessible_topology)."""
        return self.call("NodeGetInfo", pb.NodeGetInfoRequest(), deadline)

    def stage(self, volume, publish_context, staging, cap=None, deadline=DEADLINE):
        """NodeStageVolume; the caller makes the folder `staging` first."""
        self.call("NodeStageVolume", pb.NodeStageVolumeRequest(
            volume_id=volume.volume_id, publish_context=publish_context, staging_target_path=staging,
            volume_capability=cap or mount_cap(), volume_context=volume.volume_context), deadline)

    def unstage(self, volume_id, staging, deadline=DEADLINE):
        self.call("NodeUnstageVolume",
                  pb.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=staging), deadline)

    def publish(self, volume, publish_context, staging, target, cap=None, readonly=False, deadline=DEADLINE):
        """NodePublishVolume; the parent folder of `target` has to exist."""
        self.call("NodePublishVolume", pb.NodePublishVolumeRequest(
            volume_id=volume.volume_id, publish_context=publish_context, staging_target_path=staging,
            target_path=target, volume_capability=cap or mount_cap(), readonly=readonly,
            volume_context=volume.volume_context), deadline)

    def unpublish(self, volume_id, target, deadline=DEADLINE):
        self.call("NodeUnpublishVolume",
                  pb.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target), deadline)

    def stats(self, volume_id, path, staging="", deadline=DEADLINE):
        """NodeGetVolumeStats -> response (usage, volume_condition)."""
        return self.call("NodeGetVolumeStats", pb.NodeGetVolumeStatsRequest(
            volume_id=volume_id, volume_path=path, staging_target_path=staging), deadline)

    def expand(self, volume_id, path, size, staging="", cap=None, deadline=DEADLINE):
        """NodeExpandVolume -> capacity_bytes."""
        return self.call("NodeExpandVolume", pb.NodeExpandVolumeRequest(
            volume_id=volume_id, volume_path=path, capacity_range=pb.CapacityRange(required_bytes=size),
            staging_target_path=staging, volume_capability=cap), deadline).capacity_bytes


def error_info(error):
    """(reason, metadata) of a refusal's google.rpc.ErrorInfo; ("", {}) when it carries none."""
    messages, _ = protos.load("rpc_error")
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in messages.Status.FromString(value).details:
                info = messages.ErrorInfo()
                if detail.Unpack(info):
                    return info.reason, dict(info.metadata)
    return "", {}


def assert_code(code, call, *args, match=None, reason=None, **kwargs):
    """Calls call(*args, **kwargs), which has to be refused with this grpc.StatusCode; `match` is a regular expression
    its message has to contain, `reason` the ErrorInfo reason. Returns the message."""
    try:
        answer = call(*args, **kwargs)
    except grpc.RpcError as error:
        seen = f"{error.code().name}: {error.details()}"
        assert error.code() == code, f"wanted {code.name}, got {seen}"
        assert match is None or re.search(match, error.details()), f"no /{match}/ in {seen}"
        if reason is not None:
            assert error_info(error)[0] == reason, f"wanted reason {reason}, got {error_info(error)} with {seen}"
        return error.details()
    raise AssertionError(f"wanted {code.name}, but the call succeeded: {answer}")


def assert_equal(seen, wanted, what=""):
    """Fails with both values shown."""
    assert seen == wanted, f"{what or 'value'}: wanted {wanted!r}, got {seen!r}"
