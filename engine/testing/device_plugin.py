"""Run a sample device plugin that implements the public protocol, and fails on demand in each way.

It runs in a test's loop, or as a process: `kubengine device-plugin --resource example.com/gpu --count 8`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc
import msgspec

from engine.api.errors import Refused, Unavailable
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from engine.wire import pluginregistration_v1_pb2 as registration
from engine.wire.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from engine.wire.pluginregistration_v1_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

AGENT_SOCKET = "kubelet.sock"
FOLLOW_SECONDS = 0.2

log = logging.getLogger("kubengine.testing")

Context = grpc.aio.ServicerContext[Any, Any]


class DevicePluginFault(StrEnum):
    """List ways to fail, by call. A plugin can have several."""

    OPTIONS_FAIL = "options-fail"
    OPTIONS_HANG = "options-hang"
    LIST_FAILS = "list-fails"
    LIST_HANGS = "list-hangs"
    PREFERRED_FAILS = "preferred-fails"
    PREFERRED_HANGS = "preferred-hangs"
    PREFERRED_LIES = "preferred-lies"
    ALLOCATE_FAILS = "allocate-fails"
    ALLOCATE_HANGS = "allocate-hangs"
    ALLOCATE_EMPTY = "allocate-empty"
    PRE_START_FAILS = "pre-start-fails"
    PRE_START_HANGS = "pre-start-hangs"


class SampleAllocation(msgspec.Struct, frozen=True):
    """Configure how a sample plugin prefers, prepares and allocates devices.

    `prefer` lists its preferred devices in order; without it the agent does not ask. With `pre_start` it
    wants PreStartContainer. An allocated container gets a device node `/dev/<id>` per device (`host_device`
    on the host), a read-only mount of `mount` at `/<resource's last part>` if given, and CDI names
    `<resource>=<id>` if `cdi`.
    """

    prefer: Sequence[str] | None = None
    pre_start: bool = False
    cdi: bool = False
    host_device: str = "/dev/null"
    mount: Path | None = None


class SampleDevicePlugin(DevicePluginServicer, RegistrationServicer):
    """Offer `count` devices `<name>-0…`, spread over `numa` NUMA nodes (0: no topology).

    `socket` is where it listens; `registry_socket` a second socket, in the agent's `plugins_registry`. An
    allocated container gets the variable `<RESOURCE>=<ids>`, an annotation, and what `allocation` says.
    """

    def __init__(
        self,
        resource: str,
        socket: Path,
        *,
        count: int = 0,
        numa: int = 0,
        registry_socket: Path | None = None,
        allocation: SampleAllocation | None = None,
        faults: Sequence[DevicePluginFault] = (),
    ) -> None:
        self.resource = resource
        self.socket = socket
        self.registry_socket = registry_socket
        self.allocation = allocation or SampleAllocation()
        self.faults = set(faults)
        self.short_name = resource.rpartition("/")[2]
        self.allocations: list[list[list[str]]] = []
        self.pre_started: list[list[str]] = []
        self.status: list[registration.RegistrationStatus] = []
        self.streams = 0
        self._devices = _devices(self.short_name, count, numa)
        self._changed = asyncio.Condition()
        self._version = 0
        self._servers: list[grpc.aio.Server] = []
        self._following: asyncio.Task[None] | None = None
        self._replacing = asyncio.Lock()
        """A server cannot be stopped again if a call that was stopping it was cancelled."""

    # Life.

    async def start(self) -> None:
        """Serve on the sockets."""
        for path in (self.socket, self.registry_socket):
            if path is None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
            add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
            if path == self.registry_socket:
                add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def register(self, directory: Path, *, version: str = "v1beta1", timeout: float = 30) -> None:
        """Register the plugin at the agent's socket in `directory`. Raise `Refused` with the
        agent's message.
        """
        target = f"unix:{directory / AGENT_SOCKET}"
        async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            request = wire.RegisterRequest(
                version=version, endpoint=self.socket.name, resource_name=self.resource
            )
            stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.Register(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                kind = Unavailable if error.code() == grpc.StatusCode.UNAVAILABLE else Refused
                raise kind(error.details() or "", subject=self.resource) from error

    def follow(self, directory: Path) -> None:
        """Register now and whenever the agent creates its socket again, and serve again if the plugin's was
        removed.
        """
        self._following = asyncio.create_task(self._follow(directory), name=f"sample plugin {self.resource}")

    async def stop(self) -> None:
        """End all streams and calls immediately, as a crash would, and remove the sockets."""
        if self._following is not None:
            async with self._replacing:
                self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(None) for server in servers))
        for path in (self.socket, self.registry_socket):
            if path is not None:
                path.unlink(missing_ok=True)

    async def _follow(self, directory: Path) -> None:
        seen = None
        while True:
            with contextlib.suppress(OSError, Refused):
                status = (directory / AGENT_SOCKET).stat()
                here = (status.st_ino, status.st_ctime_ns)
                # A new inode is the socket of an agent that has started again, which forgets its plugins.
                if here != seen:
                    if not self.socket.exists():
                        async with self._replacing:
                            for server in self._servers:
                                await server.stop(None)
                            self._servers.clear()
                            await self.start()
                    await self.register(directory)
                    log.info("%s registered at %s", self.resource, directory)
                    seen = here
            await asyncio.sleep(FOLLOW_SECONDS)

    # Devices.

    @property
    def ids(self) -> list[str]:
        return [device.ID for device in self._devices]

    async def set_devices(self, devices: Sequence[wire.Device]) -> None:
        """Replace the list without validation: ids may repeat, be empty or have unknown health."""
        self._devices = list(devices)
        await self._notify()

    async def set_health(self, id: str, health: str) -> None:
        for device in self._devices:
            if id == device.ID:
                device.health = health
        await self._notify()

    async def remove(self, id: str) -> None:
        await self.set_devices([device for device in self._devices if id != device.ID])

    async def add(self, id: str) -> None:
        await self.set_devices([*self._devices, wire.Device(ID=id, health="Healthy")])

    async def _notify(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    # The protocol.

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Context) -> wire.DevicePluginOptions:  # noqa: N802
        await self._misbehave(context, DevicePluginFault.OPTIONS_FAIL, DevicePluginFault.OPTIONS_HANG)
        return wire.DevicePluginOptions(
            pre_start_required=self.allocation.pre_start,
            get_preferred_allocation_available=self.allocation.prefer is not None,
        )

    async def ListAndWatch(self, request: wire.Empty, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        self.streams += 1
        await self._misbehave(context, DevicePluginFault.LIST_FAILS, DevicePluginFault.LIST_HANGS)
        sent = -1
        while True:
            async with self._changed:
                while self._version == sent and not self._faulty:
                    await self._changed.wait()
                sent = self._version
            await self._misbehave(context, DevicePluginFault.LIST_FAILS, DevicePluginFault.LIST_HANGS)
            yield wire.ListAndWatchResponse(devices=self._devices)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: wire.PreferredAllocationRequest, context: Context
    ) -> wire.PreferredAllocationResponse:
        await self._misbehave(context, DevicePluginFault.PREFERRED_FAILS, DevicePluginFault.PREFERRED_HANGS)
        answer = wire.PreferredAllocationResponse()
        for container in request.container_requests:
            available, must = set(container.available_deviceIDs), list(container.must_include_deviceIDs)
            liked = [id for id in self.allocation.prefer or () if id in available and id not in must]
            ids = [*must, *liked][: container.allocation_size]
            if DevicePluginFault.PREFERRED_LIES in self.faults:
                ids = ["no-such-device", *ids, *ids]
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def Allocate(self, request: wire.AllocateRequest, context: Context) -> wire.AllocateResponse:  # noqa: N802
        await self._misbehave(context, DevicePluginFault.ALLOCATE_FAILS, DevicePluginFault.ALLOCATE_HANGS)
        self.allocations.append([list(container.devices_ids) for container in request.container_requests])
        if DevicePluginFault.ALLOCATE_EMPTY in self.faults:
            return wire.AllocateResponse()
        return wire.AllocateResponse(
            container_responses=[
                self._answer(container.devices_ids) for container in request.container_requests
            ]
        )

    async def PreStartContainer(  # noqa: N802
        self, request: wire.PreStartContainerRequest, context: Context
    ) -> wire.PreStartContainerResponse:
        await self._misbehave(context, DevicePluginFault.PRE_START_FAILS, DevicePluginFault.PRE_START_HANGS)
        self.pre_started.append(list(request.devices_ids))
        return wire.PreStartContainerResponse()

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:  # noqa: N802
        return registration.PluginInfo(
            type="DevicePlugin", name=self.resource, endpoint="", supported_versions=["v1beta1"]
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.status.append(request)
        return registration.RegistrationStatusResponse()

    def _answer(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        listed, given = ",".join(sorted(ids)), self.allocation
        mounts = []
        if given.mount is not None:
            target = f"/{self.short_name}"
            mounts.append(wire.Mount(container_path=target, host_path=str(given.mount), read_only=True))
        return wire.ContainerAllocateResponse(
            envs={environment_name(self.resource): listed},
            mounts=mounts,
            devices=[
                wire.DeviceSpec(container_path=f"/dev/{id}", host_path=given.host_device, permissions="rw")
                for id in sorted(ids)
            ],
            annotations={f"devices.{self.resource}".replace("/", "."): listed},
            cdi_devices=[wire.CDIDevice(name=f"{self.resource}={id}") for id in sorted(ids)]
            if given.cdi
            else [],
        )

    @property
    def _faulty(self) -> bool:
        return bool(self.faults & {DevicePluginFault.LIST_FAILS, DevicePluginFault.LIST_HANGS})

    async def fail_with(self, *faults: DevicePluginFault) -> None:
        """Fail in these ways from now on, open streams included; no faults: behave normally."""
        self.faults = set(faults)
        await self._notify()

    async def _misbehave(self, context: Context, fails: DevicePluginFault, hangs: DevicePluginFault) -> None:
        if fails in self.faults:
            await context.abort(grpc.StatusCode.UNKNOWN, f"told to fail: {fails}")
        if hangs in self.faults:
            await asyncio.sleep(3600)


def _devices(name: str, count: int, numa: int) -> list[wire.Device]:
    """Return healthy devices `<name>-0…`; equally many, in order, are on each of the NUMA nodes."""
    return [
        wire.Device(
            ID=f"{name}-{i}",
            health="Healthy",
            topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=i * numa // count)]) if numa else None,
        )
        for i in range(count)
    ]


def environment_name(resource: str) -> str:
    """Return the variable that lists a container's devices: `example.com/gpu` → `EXAMPLE_COM_GPU`."""
    return "".join(letter if letter.isalnum() else "_" for letter in resource).upper()
