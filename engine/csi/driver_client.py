"""Calls one driver (csi.v1), each call with a deadline."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from engine.api.errors import Refused
from engine.api.grpc_codes import (
    ABORTED,
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    NAMES,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    rpc_error,
)
from engine.api.objects.storage import READ_ONLY_MANY, READ_WRITE_MANY, READ_WRITE_ONCE, READ_WRITE_ONCE_POD
from engine.csi.driver_calls import (
    Amounts,
    CsiDriverFailed,
    DriverCapabilities,
    DriverNodeInfo,
    VolumeCondition,
    VolumeUsage,
)
from engine.csi.volume import CsiVolume
from engine.host.selinux import mount_option
from engine.metrics import Registry
from engine.plugins.channel import Answer, PluginChannel
from engine.transport.grpc_channel import CallFailed
from engine.wire import csi_v1_pb2 as wire

CALL_SECONDS: Final = 120.0
MAX_ENTRIES: Final = 64
"""The number of list entries that are read: few are useful, but a message of 4 MiB may have two million."""
BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
_UNSETTLED = frozenset({CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, RESOURCE_EXHAUSTED, ABORTED})
_NODE = "/csi.v1.Node/"
_MODES = {
    READ_WRITE_ONCE: wire.VolumeCapability.AccessMode.SINGLE_NODE_WRITER,
    READ_WRITE_ONCE_POD: wire.VolumeCapability.AccessMode.SINGLE_NODE_WRITER,
    READ_ONLY_MANY: wire.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY,
    READ_WRITE_MANY: wire.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER,
}
_MODES_OF_MULTI_WRITERS = _MODES | {
    READ_WRITE_ONCE: wire.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER,
    READ_WRITE_ONCE_POD: wire.VolumeCapability.AccessMode.SINGLE_NODE_SINGLE_WRITER,
}
_RPC = wire.NodeServiceCapability.RPC


class CsiDriverClient:
    """Call the driver at `socket`; `seconds` is each call's deadline. Every call raises `CsiDriverFailed`."""

    def __init__(self, name: str, socket: Path, registry: Registry, seconds: float = CALL_SECONDS) -> None:
        self._name = name
        self._seconds = seconds
        self._channel = PluginChannel(socket)
        self._lasted = registry.histogram(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code total.",
            ("driver_name", "method_name", "grpc_status_code", "migrated"),
            buckets=BUCKETS,
        )

    def close(self) -> None:
        """Close the connection; calls in progress fail."""
        self._channel.close()

    async def info(self) -> DriverNodeInfo:
        answer = await self._call("NodeGetInfo", wire.NodeGetInfoRequest(), wire.NodeGetInfoResponse)
        topology = answer.accessible_topology.segments
        if len(topology) > MAX_ENTRIES:
            # Every segment becomes a label of the Node, so none may be left out.
            text = f"reports {len(topology)} topology segments, more than {MAX_ENTRIES}"
            raise CsiDriverFailed(text, code=INTERNAL, final=True)
        return DriverNodeInfo(answer.node_id, answer.max_volumes_per_node, dict(topology))

    async def capabilities(self) -> DriverCapabilities:
        request, answer = wire.NodeGetCapabilitiesRequest(), wire.NodeGetCapabilitiesResponse
        reported = (await self._call("NodeGetCapabilities", request, answer)).capabilities
        found = {each.rpc.type for each in islice(reported, MAX_ENTRIES)}
        return DriverCapabilities(
            stages=_RPC.STAGE_UNSTAGE_VOLUME in found,
            reports_usage=_RPC.GET_VOLUME_STATS in found,
            reports_condition=_RPC.VOLUME_CONDITION in found,
            expands=_RPC.EXPAND_VOLUME in found,
            multi_writer=_RPC.SINGLE_NODE_MULTI_WRITER in found,
            gives_to_group=_RPC.VOLUME_MOUNT_GROUP in found,
        )

    async def stage(self, volume: CsiVolume, capabilities: DriverCapabilities, staging: Path) -> None:
        request = wire.NodeStageVolumeRequest(
            volume_id=volume.handle,
            publish_context=volume.attachment,
            staging_target_path=str(staging),
            volume_capability=_volume_capability(volume, capabilities),
            secrets=volume.secrets,
            volume_context=volume.attributes,
        )
        await self._call("NodeStageVolume", request, wire.NodeStageVolumeResponse)

    async def unstage(self, handle: str, staging: Path) -> None:
        request = wire.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=str(staging))
        await self._call("NodeUnstageVolume", request, wire.NodeUnstageVolumeResponse)

    async def publish(
        self, volume: CsiVolume, capabilities: DriverCapabilities, target: Path, staging: Path | None
    ) -> None:
        request = wire.NodePublishVolumeRequest(
            volume_id=volume.handle,
            publish_context=volume.attachment,
            staging_target_path=_text(staging),
            target_path=str(target),
            volume_capability=_volume_capability(volume, capabilities),
            readonly=volume.read_only,
            secrets=volume.secrets,
            volume_context=volume.attributes,
        )
        await self._call("NodePublishVolume", request, wire.NodePublishVolumeResponse)

    async def unpublish(self, handle: str, target: Path) -> None:
        request = wire.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(target))
        await self._call("NodeUnpublishVolume", request, wire.NodeUnpublishVolumeResponse)

    async def expand(
        self, volume: CsiVolume, capabilities: DriverCapabilities, target: Path, staging: Path, size: int
    ) -> None:
        """Expand the volume to a number of bytes."""
        request = wire.NodeExpandVolumeRequest(
            volume_id=volume.handle,
            volume_path=str(target),
            capacity_range=wire.CapacityRange(required_bytes=size),
            staging_target_path=str(staging),
            volume_capability=_volume_capability(volume, capabilities),
            secrets=volume.secrets,
        )
        await self._call("NodeExpandVolume", request, wire.NodeExpandVolumeResponse)

    async def usage(self, handle: str, capabilities: DriverCapabilities, target: Path) -> VolumeUsage:
        request = wire.NodeGetVolumeStatsRequest(volume_id=handle, volume_path=str(target))
        answer = await self._call("NodeGetVolumeStats", request, wire.NodeGetVolumeStatsResponse)
        reported = islice(answer.usage, MAX_ENTRIES)
        amounts = {each.unit: Amounts(each.available, each.total, each.used) for each in reported}
        condition = answer.volume_condition
        return VolumeUsage(
            amounts.get(wire.VolumeUsage.BYTES, Amounts()),
            amounts.get(wire.VolumeUsage.INODES, Amounts()),
            VolumeCondition(condition.abnormal, condition.message)
            if capabilities.reports_condition
            else None,
        )

    async def _call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        begun, code = time.perf_counter(), 0
        try:
            return await self._channel.call(f"{_NODE}{method}", request, answer, self._seconds)
        except CallFailed as error:
            code = error.status
            text = rpc_error(code, error.details)
            # After the codes of _UNSETTLED the operation may still run in the driver (kubelet:
            # `isFinalError`).
            raise CsiDriverFailed(text, code=code, final=code not in _UNSETTLED) from None
        finally:
            name = NAMES[code] if 0 <= code < len(NAMES) else str(code)
            lasted = time.perf_counter() - begun
            self._lasted.observe(lasted, self._name, f"{_NODE}{method}", name, "false")


def _volume_capability(volume: CsiVolume, capabilities: DriverCapabilities) -> wire.VolumeCapability:
    # A driver with this capability distinguishes one pod from several on the node.
    modes = _MODES_OF_MULTI_WRITERS if capabilities.multi_writer else _MODES
    mode = modes.get(volume.access_mode)
    if mode is None:
        raise Refused(f"unknown access mode {volume.access_mode}")
    access = wire.VolumeCapability.AccessMode(mode=mode)
    if volume.block:
        return wire.VolumeCapability(access_mode=access, block=wire.VolumeCapability.BlockVolume())
    return wire.VolumeCapability(
        access_mode=access,
        mount=wire.VolumeCapability.MountVolume(
            fs_type=volume.fs_type,
            mount_flags=[*volume.mount_options, *mount_option(volume.label)],
            volume_mount_group=_group(volume, capabilities),
        ),
    )


def _group(volume: CsiVolume, capabilities: DriverCapabilities) -> str:
    return str(volume.group) if capabilities.gives_to_group and volume.group is not None else ""


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
