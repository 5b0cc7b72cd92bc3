"""Run a small DRA driver that implements the public protocol, and fails on demand.

It tracks the prepared claims and detects contradictory calls: `wrong` lists a device that was prepared for
two claims at once, and overlapping calls for one claim.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from engine.wire import dra_health_v1alpha1_pb2 as health
from engine.wire import dra_v1_pb2 as wire
from engine.wire import pluginregistration_v1_pb2 as registration
from engine.wire.dra_health_v1alpha1_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from engine.wire.pluginregistration_v1_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

Context = grpc.aio.ServicerContext[Any, Any]
HANGS: Final = -1
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
_MESSAGES: dict[str, tuple[Any, Any]] = {
    PREPARE: (wire.NodePrepareResourcesRequest, wire.NodePrepareResourcesResponse),
    UNPREPARE: (wire.NodeUnprepareResourcesRequest, wire.NodeUnprepareResourcesResponse),
}


@dataclass(frozen=True, slots=True)
class DraCall:
    """Record one call: its method, the service, and the uids of the claims."""

    method: str
    service: str
    claims: tuple[str, ...]


class SampleDraDriver(RegistrationServicer, DRAResourceHealthServicer):
    """Run the driver `name` with its sockets `<instance>.sock` in `directory` and
    `<name>-<instance>-reg.sock` in `registry`.

    `devices_of(claim)` returns a claim's devices; by default one device `dev-<name of the claim>` with the
    CDI id `<name>/device=<name of the claim>`. `faults` maps a method to the gRPC status with which it fails
    without doing anything (`HANGS`: it never answers), and `half_done` to the status with which it fails
    after doing its work. `errors` maps a claim's name to its error, `skips` names claims that get no answer,
    and `strays` adds answers for claims that were not requested. `delay` is in seconds.

    With a directory `cdi` the driver writes a CDI specification for each claim that it prepares, and removes
    it with the claim: a container sees `DRA_<pool>_<device>`, with `_` for every other sign, set to the
    claim's uid. The driver does not publish ResourceSlices.
    """

    def __init__(
        self,
        directory: Path,
        registry: Path,
        name: str = "dra.example.com",
        *,
        instance: str = "1",
        services: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        tells_health: bool = False,
        cdi: Path | None = None,
    ) -> None:
        self.name = name
        self.socket = directory / f"{instance}.sock"
        self.registration = registry / f"{name}-{instance}-reg.sock"
        self.services = services
        self.tells_health = tells_health
        self.cdi = cdi
        self.faults: dict[str, int] = {}
        self.half_done: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.skips: set[str] = set()
        self.strays: list[str] = []
        self.delay = 0.0
        self.devices_of: Callable[[wire.Claim], list[wire.Device]] = self._device
        self.before: Callable[[str], None] = lambda method: None
        self.calls: list[DraCall] = []
        self.prepared: dict[str, list[wire.Device]] = {}
        self.wrong: list[str] = []
        self.status: list[registration.RegistrationStatus] = []
        self._busy: set[str] = set()
        self._health: list[health.DeviceHealth] = []
        self._news = asyncio.Event()
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Serve, and wait for registration."""
        await self.serve()
        self.registration.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        await self._listen(server, self.registration)

    async def serve(self) -> None:
        """Serve at the driver's own socket, without registering."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        for service in self.services:
            name = f"k8s.io.kubelet.pkg.apis.dra.{service}"
            server.add_generic_rpc_handlers((_handlers(name, service, self._answer),))
        if self.tells_health:
            add_DRAResourceHealthServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        await self._listen(server, self.socket)

    async def _listen(self, server: grpc.aio.Server, path: Path) -> None:
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        """Stop as after a crash; what is prepared stays prepared."""
        servers, self._servers = self._servers, []
        self.registration.unlink(missing_ok=True)
        await asyncio.gather(*(server.stop(None) for server in servers))
        self.socket.unlink(missing_ok=True)
        self._busy.clear()

    async def die(self) -> None:
        """End all connections but keep the registration, as after a crash."""
        server = self._servers.pop(0)
        await server.stop(None)
        self._busy.clear()

    def called(self, method: str) -> list[tuple[str, ...]]:
        """Return the claims of each call of a method, in order."""
        return [call.claims for call in self.calls if call.method == method]

    async def report(self, *devices: tuple[str, str, str], timeout: int = 0, pool: str = "pool") -> None:
        """Report the health of devices: (name, Healthy or Unhealthy or Unknown, message)."""
        self._health = [
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=pool, device_name=name),
                health=word.upper(),
                message=message,
                health_check_timeout_seconds=timeout,
            )
            for name, word, message in devices
        ]
        self._news.set()
        self._news = asyncio.Event()

    # The protocol

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:  # noqa: N802
        return registration.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=str(self.socket), supported_versions=self.services
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.status.append(request)
        return registration.RegistrationStatusResponse()

    async def NodeWatchResources(  # noqa: N802
        self, request: health.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            news = self._news
            yield health.NodeWatchResourcesResponse(devices=self._health)
            await news.wait()

    async def _answer(self, method: str, service: str, request: Any, context: Context) -> Any:
        self.before(method)
        uids = {claim.uid for claim in request.claims}
        self.calls.append(DraCall(method, service, tuple(claim.uid for claim in request.claims)))
        if crossed := uids & self._busy:
            self.wrong.append(f"{method} of {min(crossed)} while another call for it is under way")
        self._busy |= uids
        try:
            await _fail(self.faults.get(method), method, context)
            await asyncio.sleep(self.delay)
            answer = self._prepare(request) if method == PREPARE else self._unprepare(request)
            await _fail(self.half_done.get(method), method, context)
        finally:
            self._busy -= uids
        for uid in self.strays:
            answer.claims[uid].error = ""
        return answer

    def _prepare(self, request: wire.NodePrepareResourcesRequest) -> wire.NodePrepareResourcesResponse:
        answer = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            if claim.name in self.skips:
                continue
            if claim.name in self.errors:
                answer.claims[claim.uid].error = self.errors[claim.name]
                continue
            devices = self.devices_of(claim)
            for uid, others in self.prepared.items():
                shared = {_key(device) for device in others} & {_key(device) for device in devices}
                if uid != claim.uid and shared:
                    self.wrong.append(f"{min(shared)} prepared for two claims")
            self.prepared[claim.uid] = devices
            if self.cdi is not None:
                self._write_specification(self.cdi, claim.uid, devices)
            answer.claims[claim.uid].devices.extend(devices)
        return answer

    def _unprepare(self, request: wire.NodeUnprepareResourcesRequest) -> wire.NodeUnprepareResourcesResponse:
        answer = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            if claim.name in self.skips:
                continue
            answer.claims[claim.uid].error = self.errors.get(claim.name, "")
            if claim.name not in self.errors:
                self.prepared.pop(claim.uid, None)
                if self.cdi is not None:
                    self._specification(self.cdi, claim.uid).unlink(missing_ok=True)
        return answer

    def _specification(self, directory: Path, uid: str) -> Path:
        return directory / f"{self.name}-{uid}.json"

    def _write_specification(self, directory: Path, uid: str, devices: Sequence[wire.Device]) -> None:
        """Write the file whole under a name that runtimes do not read first: they watch the directory."""
        listed = [
            {"name": id.partition("=")[2], "containerEdits": {"env": [f"{_variable(device)}={uid}"]}}
            for device in devices
            for id in device.cdi_device_ids
        ]
        document = {"cdiVersion": "0.6.0", "kind": f"{self.name}/device", "devices": listed}
        directory.mkdir(parents=True, exist_ok=True)
        path = self._specification(directory, uid)
        written = path.with_suffix(".new")
        written.write_text(json.dumps(document))
        written.replace(path)

    def _device(self, claim: wire.Claim) -> list[wire.Device]:
        id = f"{self.name}/device={claim.name}"
        return [wire.Device(pool_name="pool", device_name=f"dev-{claim.name}", cdi_device_ids=[id])]


def _key(device: wire.Device) -> tuple[str, str, str]:
    return device.pool_name, device.device_name, device.share_id


def _variable(device: wire.Device) -> str:
    return re.sub("[^A-Za-z0-9]", "_", f"DRA_{device.pool_name}_{device.device_name}")


def _handlers(name: str, service: str, answer: Callable[..., Any]) -> Any:
    """Return the two methods of a service, which have the same messages in both versions."""

    def handler(method: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def call(request: Any, context: Context) -> Any:
            return await answer(method, service, request, context)

        asked, answered = _MESSAGES[method]
        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
        )

    return grpc.method_handlers_generic_handler(name, {method: handler(method) for method in _MESSAGES})


async def _fail(status: int | None, method: str, context: Context) -> None:
    if status == HANGS:
        await asyncio.sleep(3600)
    elif status is not None:
        code = next(code for code in grpc.StatusCode if code.value[0] == status)
        await context.abort(code, f"told to fail: {method}")
