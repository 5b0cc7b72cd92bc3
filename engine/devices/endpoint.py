"""Connects to one device plugin: its device stream and the calls to it, each with a deadline."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from google.protobuf.message import Message

from engine.api.errors import Refused, Unavailable
from engine.api.grpc_codes import CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, rpc_error
from engine.plugins.channel import Answer, PluginChannel, check_socket_path
from engine.transport.grpc_channel import CallFailed
from engine.wire import deviceplugin_v1beta1_pb2 as wire

_SERVICE = "/v1beta1.DevicePlugin/"
_NUMBERS = itertools.count(1)

log = logging.getLogger("kubengine.devices")


class DevicePluginDeadlines(msgspec.Struct, frozen=True):
    """Hold the seconds that a plugin has for each call. The kubelet limits only `dial` and `pre_start`."""

    dial: float = 10
    options: float = 10
    preferred: float = 30
    allocate: float = 60
    pre_start: float = 30


class Endpoint:
    """Call a connected plugin. Every call raises `Refused` or `Unavailable` naming the resource.

    `number` grows from one registration to the next.
    """

    def __init__(self, resource: str, path: Path, deadlines: DevicePluginDeadlines) -> None:
        check_socket_path(path)
        self.resource = resource
        self.path = path
        self.number = next(_NUMBERS)
        self.options = wire.DevicePluginOptions()
        self.watching: asyncio.Task[None] | None = None
        self._deadlines = deadlines
        self._channel = PluginChannel(path)

    async def connect(self) -> None:
        """Connect to the plugin and read its options."""
        try:
            await self._channel.reach(self._deadlines.dial)
        except Unavailable as error:
            raise Unavailable(error.message, subject=self.resource) from None
        try:
            self.options = await self._call(
                "GetDevicePluginOptions", wire.Empty(), wire.DevicePluginOptions, self._deadlines.options
            )
        except Refused as error:
            raise type(error)(
                f"failed to get device plugin options: {error.message}", subject=self.resource
            ) from error

    async def devices(self) -> AsyncIterator[bytes]:
        """Yield serialized messages of ListAndWatch, until the plugin goes away for any reason."""
        try:
            async with aclosing(self._channel.messages(f"{_SERVICE}ListAndWatch", wire.Empty())) as messages:
                async for message in messages:
                    yield message
        except CallFailed as error:
            reason = rpc_error(error.status, error.details)
            log.info("plugin of %s: ListAndWatch ended: %s", self.resource, reason)

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return the plugin's preferred `size` of `available`; empty if it has no preference."""
        request = wire.PreferredAllocationRequest(
            container_requests=[
                wire.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            answer = await self._call(
                "GetPreferredAllocation", request, wire.PreferredAllocationResponse, self._deadlines.preferred
            )
        except Refused as error:
            raise type(error)(
                f"device plugin GetPreferredAllocation rpc failed with err: {error.message}",
                subject=self.resource,
            ) from error
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[wire.ContainerAllocateResponse]:
        """Allocate the devices of one or more containers; return one response for each."""
        request = wire.AllocateRequest(
            container_requests=[wire.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        answer = await self._call("Allocate", request, wire.AllocateResponse, self._deadlines.allocate)
        responses = list(answer.container_responses)
        if len(responses) < len(containers):
            what = "no containers" if not responses else f"{len(responses)} of {len(containers)} containers"
            raise Refused(f"{what} return in allocation response", subject=self.resource)
        return responses

    async def pre_start(self, devices: Sequence[str]) -> None:
        """Tell the plugin that a container with these devices is about to start."""
        request = wire.PreStartContainerRequest(devices_ids=devices)
        try:
            await self._call(
                "PreStartContainer", request, wire.PreStartContainerResponse, self._deadlines.pre_start
            )
        except Refused as error:
            raise type(error)(
                f"device plugin PreStartContainer rpc failed with err: {error.message}", subject=self.resource
            ) from error

    async def close(self) -> None:
        """End the stream and the connection."""
        if self.watching is not None and self.watching is not asyncio.current_task():
            self.watching.cancel()
            await asyncio.gather(self.watching, return_exceptions=True)
        self._channel.close()

    async def _call(self, method: str, request: Message, answer: type[Answer], deadline: float) -> Answer:
        try:
            return await self._channel.call(_SERVICE + method, request, answer, deadline)
        except CallFailed as error:
            # A plugin that stops may cancel its calls before the connection ends.
            transient = (UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED)
            kind = Unavailable if error.status in transient else Refused
            raise kind(rpc_error(error.status, error.details), subject=self.resource) from None
