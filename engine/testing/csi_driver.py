"""Run a small storage driver that implements the public protocol, mounts directories, and fails on demand.

A volume is a directory under `volumes`, named by its handle, or a device node for a block volume. Staging
and publishing bind-mount it, so the driver needs root. It records every call.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from engine.csi.paths import DATA
from engine.host.mountinfo import mounted
from engine.host.mounts import bind, unmount_below
from engine.host.safe_open import HANDLE
from engine.wire import csi_v1_pb2 as wire
from engine.wire import pluginregistration_v1_pb2 as registration
from engine.wire.csi_v1_pb2_grpc import (
    IdentityServicer,
    NodeServicer,
    add_IdentityServicer_to_server,
    add_NodeServicer_to_server,
)
from engine.wire.pluginregistration_v1_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

Context = grpc.aio.ServicerContext[Any, Any]
RPC = wire.NodeServiceCapability.RPC
ALL = (RPC.STAGE_UNSTAGE_VOLUME, RPC.GET_VOLUME_STATS, RPC.EXPAND_VOLUME)
HANGS = -1
_STAGED_DEVICE = "device"
_NO_DEVICE = os.makedev(0xFF0, 0)


@dataclass(frozen=True, slots=True)
class CsiCall:
    """Record one call: its method's name and its request."""

    method: str
    request: Any


class SampleCsiDriver(IdentityServicer, NodeServicer, RegistrationServicer):
    """Run the driver `name` with its sockets `driver.sock` in `directory` and `<name>-reg.sock` in
    `registry`.

    `capabilities` are those of the node service. `faults` maps a method to the gRPC status with which it
    fails without doing anything (`HANGS`: it never answers); `half_done` methods do their work and then
    fail. `unwell` maps a volume's handle to its problem; `usage` is reported of every volume.
    """

    def __init__(
        self,
        directory: Path,
        registry: Path,
        name: str = "sample.csi.example.com",
        *,
        node_id: str = "node-1",
        most_volumes: int = 0,
        topology: Mapping[str, str] | None = None,
        capabilities: Sequence[RPC.Type] = ALL,
        versions: Sequence[str] = ("1.0.0",),
    ) -> None:
        self.name = name
        self.volumes = directory / "volumes"
        self.socket = directory / "driver.sock"
        self.registration = registry / f"{name}-reg.sock"
        self.node_id = node_id
        self.most_volumes = most_volumes
        self.topology = dict(topology or {})
        self.capabilities = capabilities
        self.versions = versions
        self.faults: dict[str, int] = {}
        self.half_done: dict[str, int] = {}
        self.unwell: dict[str, str] = {}
        self.usage = [
            wire.VolumeUsage(available=70, total=100, used=30, unit=wire.VolumeUsage.BYTES),
            wire.VolumeUsage(available=7, total=10, used=3, unit=wire.VolumeUsage.INODES),
        ]
        self.calls: list[CsiCall] = []
        self.status: list[registration.RegistrationStatus] = []
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Serve, and wait for registration."""
        self.volumes.mkdir(parents=True, exist_ok=True)
        self.registration.parent.mkdir(parents=True, exist_ok=True)
        for path, add in (
            (self.socket, (add_IdentityServicer_to_server, add_NodeServicer_to_server)),
            (self.registration, (add_RegistrationServicer_to_server,)),
        ):
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            for each in add:
                each(self, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop as after a crash; what is mounted stays."""
        servers, self._servers = self._servers, []
        self.registration.unlink(missing_ok=True)
        await asyncio.gather(*(server.stop(None) for server in servers))
        self.socket.unlink(missing_ok=True)

    def called(self, method: str) -> list[Any]:
        """Return the requests of one method, in order."""
        return [call.request for call in self.calls if call.method == method]

    def volume(self, handle: str) -> Path:
        """Return where the driver keeps a volume's data."""
        path = self.volumes / handle
        path.mkdir(exist_ok=True)
        return path

    def device(self, handle: str) -> Path:
        """Return the path of a block volume; without a test's own node there, its device does not exist."""
        path = self.volumes / handle
        if not path.exists():
            os.mknod(path, stat.S_IFBLK | 0o600, _NO_DEVICE)
        return path

    # The protocol

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:  # noqa: N802
        return registration.PluginInfo(
            type="CSIPlugin", name=self.name, endpoint=str(self.socket), supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.status.append(request)
        return registration.RegistrationStatusResponse()

    async def GetPluginInfo(  # noqa: N802
        self, request: wire.GetPluginInfoRequest, context: Context
    ) -> wire.GetPluginInfoResponse:
        return wire.GetPluginInfoResponse(name=self.name, vendor_version="1")

    async def NodeGetInfo(self, request: Any, context: Context) -> wire.NodeGetInfoResponse:  # noqa: N802
        await self._begin("NodeGetInfo", request, context)
        return wire.NodeGetInfoResponse(
            node_id=self.node_id,
            max_volumes_per_node=self.most_volumes,
            accessible_topology=wire.Topology(segments=self.topology),
        )

    async def NodeGetCapabilities(  # noqa: N802
        self, request: Any, context: Context
    ) -> wire.NodeGetCapabilitiesResponse:
        await self._begin("NodeGetCapabilities", request, context)
        able = [wire.NodeServiceCapability(rpc=RPC(type=each)) for each in self.capabilities]
        return wire.NodeGetCapabilitiesResponse(capabilities=able)

    async def NodeStageVolume(self, request: Any, context: Context) -> wire.NodeStageVolumeResponse:  # noqa: N802
        await self._begin("NodeStageVolume", request, context)
        staging = Path(request.staging_target_path)
        if not staging.is_dir():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{staging} does not exist")
        if _is_block(request):
            (staging / _STAGED_DEVICE).touch()
            _show(self.device(request.volume_id), staging / _STAGED_DEVICE)
        else:
            _show(self.volume(request.volume_id), staging)
        await self._end("NodeStageVolume", context)
        return wire.NodeStageVolumeResponse()

    async def NodeUnstageVolume(self, request: Any, context: Context) -> wire.NodeUnstageVolumeResponse:  # noqa: N802
        await self._begin("NodeUnstageVolume", request, context)
        staging = Path(request.staging_target_path)
        _hide(staging / _STAGED_DEVICE)
        _hide(staging)
        await self._end("NodeUnstageVolume", context)
        return wire.NodeUnstageVolumeResponse()

    async def NodePublishVolume(self, request: Any, context: Context) -> wire.NodePublishVolumeResponse:  # noqa: N802
        await self._begin("NodePublishVolume", request, context)
        target, block = Path(request.target_path), _is_block(request)
        # The agent records the owner first, so that an agent that dies during the call finds the volume
        # again.
        if not (_data_of_device(target) if block else target.parent / DATA).exists():
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "no record names the owner of this volume"
            )
        source = self.device(request.volume_id) if block else self.volume(request.volume_id)
        if RPC.STAGE_UNSTAGE_VOLUME in self.capabilities and request.staging_target_path:
            source = Path(request.staging_target_path) / (_STAGED_DEVICE if block else "")
            if not _is_shown(source):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{source} is not staged")
        if block:
            target.touch()
        else:
            target.mkdir(exist_ok=True)
        _show(source, target)
        await self._end("NodePublishVolume", context)
        return wire.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802
        self, request: Any, context: Context
    ) -> wire.NodeUnpublishVolumeResponse:
        await self._begin("NodeUnpublishVolume", request, context)
        target = Path(request.target_path)
        _hide(target)
        try:
            if target.is_dir() and not target.is_symlink():
                target.rmdir()
            elif target.exists():
                target.unlink()
        except OSError as error:  # gRPC logs other exceptions with all that their frames hold
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        await self._end("NodeUnpublishVolume", context)
        return wire.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(  # noqa: N802
        self, request: Any, context: Context
    ) -> wire.NodeGetVolumeStatsResponse:
        await self._begin("NodeGetVolumeStats", request, context)
        abnormal = self.unwell.get(request.volume_id)
        return wire.NodeGetVolumeStatsResponse(
            usage=self.usage,
            volume_condition=wire.VolumeCondition(abnormal=abnormal is not None, message=abnormal or ""),
        )

    async def NodeExpandVolume(self, request: Any, context: Context) -> wire.NodeExpandVolumeResponse:  # noqa: N802
        await self._begin("NodeExpandVolume", request, context)
        return wire.NodeExpandVolumeResponse(capacity_bytes=request.capacity_range.required_bytes)

    async def _begin(self, method: str, request: Any, context: Context) -> None:
        self.calls.append(CsiCall(method, request))
        await _fail(self.faults.get(method), method, context)

    async def _end(self, method: str, context: Context) -> None:
        await _fail(self.half_done.get(method), method, context)


async def _fail(status: int | None, method: str, context: Context) -> None:
    if status == HANGS:
        await asyncio.sleep(3600)
    elif status is not None:
        code = next(code for code in grpc.StatusCode if code.value[0] == status)
        await context.abort(code, f"told to fail: {method}")


def _is_block(request: Any) -> bool:
    return bool(request.volume_capability.WhichOneof("access_type") == "block")


def _data_of_device(target: Path) -> Path:
    """Return the volume's data for a device published at `<devices>/publish/<volume>/<pod>`."""
    return target.parents[2] / target.parent.name / "data" / DATA


def _is_shown(target: Path) -> bool:
    return any(mount.point == str(target) for mount in mounted())


def _show(source: Path, target: Path) -> None:
    if _is_shown(target):
        return
    handle = os.open(source, HANDLE)
    try:
        bind(handle, target)
    finally:
        os.close(handle)


def _hide(target: Path) -> None:
    if target.exists() and not target.is_symlink():
        unmount_below(target)
