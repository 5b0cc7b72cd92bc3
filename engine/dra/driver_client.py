"""Calls to one instance of a driver, each with a deadline, in the protocol's messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from engine.api.grpc_codes import NAMES, UNIMPLEMENTED, rpc_error
from engine.dra.answers import MAX_CLAIM_DEVICES, ClaimAnswer
from engine.dra.driver_calls import DraDriverFailed, NoHealth
from engine.dra.health import HEALTHY, MAX_DEVICES, UNHEALTHY, UNKNOWN, DeviceHealth, reported
from engine.dra.table import ClaimState, PreparedDevice
from engine.metrics import Registry
from engine.plugins.channel import Answer, PluginChannel
from engine.transport.grpc_channel import CallFailed
from engine.wire import UNREADABLE
from engine.wire import dra_health_v1alpha1_pb2 as health_wire
from engine.wire import dra_v1_pb2 as wire

CALL_SECONDS: Final = 45.0
BUCKETS: Final = tuple(0.1 * 400 ** (i / 14) for i in range(15))
_HEALTH: Final = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
_HEALTH_WORDS = {health_wire.HEALTHY: HEALTHY, health_wire.UNHEALTHY: UNHEALTHY}


class DraDriverClient:
    """Implement `engine.dra.driver_calls.DraDriver` at `socket`.

    `service` is `v1.DRAPlugin` or `v1beta1.DRAPlugin`, `seconds` the deadline of each call.
    """

    def __init__(
        self, name: str, socket: Path, service: str, registry: Registry, seconds: float = CALL_SECONDS
    ) -> None:
        self._name = name
        self._prefix = f"/k8s.io.kubelet.pkg.apis.dra.{service}/"
        self._seconds = seconds
        self._channel = PluginChannel(socket)
        self._lasted = registry.histogram(
            "dra_grpc_operations_duration_seconds",
            "Duration in seconds of the DRA gRPC operations",
            ("driver_name", "method_name", "grpc_status_code"),
            buckets=BUCKETS,
        )

    async def reach(self) -> None:
        await self._channel.connected()

    async def lost(self) -> None:
        await self._channel.lost()

    def close(self) -> None:
        self._channel.close()

    async def prepare(self, claims: Sequence[ClaimState]) -> Mapping[str, ClaimAnswer]:
        request = wire.NodePrepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodePrepareResources", request, wire.NodePrepareResourcesResponse)
        return {
            uid: ClaimAnswer(_devices(answer.claims[uid].devices), answer.claims[uid].error)
            for uid in _answered(claims, answer.claims)
        }

    async def unprepare(self, claims: Sequence[ClaimState]) -> Mapping[str, ClaimAnswer]:
        request = wire.NodeUnprepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodeUnprepareResources", request, wire.NodeUnprepareResourcesResponse)
        return {uid: ClaimAnswer(error=answer.claims[uid].error) for uid in _answered(claims, answer.claims)}

    async def health(self) -> AsyncIterator[list[DeviceHealth]]:
        request = health_wire.NodeWatchResourcesRequest()
        try:
            async with aclosing(self._channel.messages(_HEALTH, request)) as messages:
                async for message in messages:
                    listed = health_wire.NodeWatchResourcesResponse.FromString(message).devices
                    if len(listed) > MAX_DEVICES:
                        raise DraDriverFailed(f"more than {MAX_DEVICES} devices", begun=True)
                    yield [_health(device) for device in listed]
        except CallFailed as error:
            if error.status == UNIMPLEMENTED:
                raise NoHealth from None
            raise DraDriverFailed(rpc_error(error.status, error.details), begun=True) from None
        except (*UNREADABLE, RecursionError, MemoryError):
            raise DraDriverFailed("the list of devices cannot be decoded", begun=True) from None

    async def _call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        begun, code = time.perf_counter(), 0
        try:
            return await self._channel.call(f"{self._prefix}{method}", request, answer, self._seconds)
        except CallFailed as error:
            code = error.status
            begun_there = not (error.unsent or code == UNIMPLEMENTED)
            raise DraDriverFailed(f"{method}: {rpc_error(code, error.details)}", begun=begun_there) from None
        finally:
            status = NAMES[code] if 0 <= code < len(NAMES) else str(code)
            lasted = time.perf_counter() - begun
            self._lasted.observe(lasted, self._name, f"{self._prefix}{method}", status)


def _named(claims: Sequence[ClaimState]) -> list[wire.Claim]:
    return [wire.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _answered(claims: Sequence[ClaimState], answers: Mapping[str, object]) -> list[str]:
    """Return the uids of the requested claims that an answer contains, and one unknown uid if there are any.

    An answer may contain hundreds of thousands.
    """
    asked = [claim.uid for claim in claims if claim.uid in answers]
    return asked + list(islice((uid for uid in answers if uid not in asked), 1))


def _devices(devices: Iterable[wire.Device]) -> tuple[PreparedDevice, ...]:
    """Return the devices, at most one more than the limit, since a message may hold a million."""
    return tuple(map(_device, islice(devices, MAX_CLAIM_DEVICES + 1)))


def _device(device: wire.Device) -> PreparedDevice:
    share = device.share_id if device.HasField("share_id") else None
    requests, ids = tuple(device.request_names), tuple(device.cdi_device_ids)
    return PreparedDevice(device.pool_name, device.device_name, share, requests, ids)


def _health(device: health_wire.DeviceHealth) -> DeviceHealth:
    return reported(
        device.device.pool_name,
        device.device.device_name,
        _HEALTH_WORDS.get(device.health, UNKNOWN),
        device.message,
        float(device.health_check_timeout_seconds),
    )
