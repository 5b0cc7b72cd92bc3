"""What a pod's manifest says about its probes, with names resolved and times in seconds. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from engine._fast.probing._state_py import LIVENESS, READINESS, STARTUP
from engine.api.errors import InvalidInput
from engine.api.pod import Container, IntOrString, Pod, Probe

ANNOTATION = "kubengine.dev/probes"
"""JSON: container name → `liveness`, `readiness` or `startup` → times in milliseconds."""
TYPES = {"liveness": LIVENESS, "readiness": READINESS, "startup": STARTUP}
MIN_PERIOD_MS = 10


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One probe of one container; times in seconds. Equal specs are one object.

    `kind` is exec, http, https, tcp or grpc. `host` is empty where the pod's address is meant.
    """

    container: str
    type: str
    kind: str
    period: float
    timeout: float
    initial_delay: float
    failure_threshold: int
    success_threshold: int
    grace_period_seconds: int | None
    host: str = ""
    port: IntOrString = 0
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    service: str = ""
    command: tuple[str, ...] = ()
    named_port: int | None = None
    """What the container calls `port`, where that is a name of its own."""

    def resolve_port(self) -> int:
        """The port by number or by the container's name for it. Raises `InvalidInput`."""
        port: Any = self.port
        if isinstance(port, str):
            if self.named_port is None and not port.isdecimal():
                raise InvalidInput(f"couldn't find port {port!r} for probe", subject=self.container)
            port = self.named_port if self.named_port is not None else int(port)
        if not 0 < port < 65536:
            raise InvalidInput(f"invalid port number: {port}", subject=self.container)
        return int(port)

    @property
    def native(self) -> bool:
        """Whether the native loop can run it: not over TLS, and to an address rather than a name."""
        if self.kind == "https":
            return False
        try:
            return not self.host or bool(ipaddress.ip_address(self.host))
        except ValueError:
            return False


@lru_cache(maxsize=1024)
def _shared(spec: ProbeSpec) -> ProbeSpec:
    """The one object for equal specs: pods of one template come in numbers."""
    return spec


def probe_specs(pod: Pod) -> list[ProbeSpec]:
    """The probes of the pod's containers and sidecars, in order; ordinary init containers have none.

    Raises `InvalidInput` naming the field.
    """
    times = _millisecond_times(pod)
    containers = [c for c in pod.init_containers if c.is_sidecar] + pod.spec.containers
    unknown = times.keys() - {c.name for c in containers}
    if unknown:
        raise InvalidInput(f"no container {min(unknown)!r} has probes", subject=_annotation_of(pod))
    return [
        _spec(container, type, probe, times.get(container.name, {}).get(type, {}), ports)
        for container in containers
        for ports in [{p.name: p.container_port for p in container.ports or () if p.name}]
        for type, probe in (
            ("startup", container.startup_probe),
            ("readiness", container.readiness_probe),
            ("liveness", container.liveness_probe),
        )
        if probe is not None
    ]


def without_times(pod: Pod) -> Pod:
    """The pod with the times of its manifest only."""
    rest = {name: value for name, value in pod.annotations.items() if name != ANNOTATION}
    return replace(pod, metadata=replace(pod.metadata, annotations=rest))


class _Times(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    period_milliseconds: int | None = None
    timeout_milliseconds: int | None = None
    initial_delay_milliseconds: int | None = None


class _OfContainer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    liveness: _Times = _Times()
    readiness: _Times = _Times()
    startup: _Times = _Times()


def _annotation_of(pod: Pod) -> str:
    return f"{pod.full_name} metadata.annotations[{ANNOTATION}]"


def _millisecond_times(pod: Pod) -> dict[str, dict[str, dict[str, float]]]:
    text = pod.annotations.get(ANNOTATION)
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text.encode(), type=dict[str, _OfContainer])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(str(error), subject=_annotation_of(pod)) from None
    times: dict[str, dict[str, dict[str, float]]] = {}
    for name, container in found.items():
        for type in TYPES:
            given: _Times = getattr(container, type)
            where = f"{_annotation_of(pod)}.{name}.{type}"
            for label, value, least in (
                ("periodMilliseconds", given.period_milliseconds, MIN_PERIOD_MS),
                ("timeoutMilliseconds", given.timeout_milliseconds, 1),
                ("initialDelayMilliseconds", given.initial_delay_milliseconds, 0),
            ):
                if value is not None and value < least:
                    raise InvalidInput(f"{value} is less than {least}", subject=f"{where}.{label}")
            times.setdefault(name, {})[type] = {
                key: value / 1000
                for key, value in (
                    ("period", given.period_milliseconds),
                    ("timeout", given.timeout_milliseconds),
                    ("initial_delay", given.initial_delay_milliseconds),
                )
                if value is not None
            }
    return times


def _spec(
    container: Container, type: str, probe: Probe, times: Mapping[str, float], ports: Mapping[str, int]
) -> ProbeSpec:
    what: dict[str, Any]
    if probe.exec is not None:
        what = {"kind": "exec", "command": tuple(probe.exec.command or ())}
    elif probe.http_get is not None:
        get = probe.http_get
        what = {
            "kind": "https" if get.scheme.lower() == "https" else "http",
            "host": get.host,
            "port": get.port,
            "path": get.path or "/",
            "headers": tuple((h.name, h.value) for h in get.http_headers or ()),
        }
    elif probe.tcp_socket is not None:
        what = {"kind": "tcp", "host": probe.tcp_socket.host, "port": probe.tcp_socket.port}
    elif probe.grpc is not None:
        what = {"kind": "grpc", "port": probe.grpc.port, "service": probe.grpc.service or ""}
    else:
        raise InvalidInput(
            "needs one of exec, httpGet, tcpSocket, grpc", subject=f"{container.name}.{type}Probe"
        )
    return _shared(
        ProbeSpec(
            container=container.name,
            type=type,
            period=times.get("period", float(max(probe.period_seconds, 1))),
            timeout=times.get("timeout", float(max(probe.timeout_seconds, 1))),
            initial_delay=times.get("initial_delay", float(probe.initial_delay_seconds)),
            failure_threshold=probe.failure_threshold,
            success_threshold=probe.success_threshold,
            grace_period_seconds=probe.termination_grace_period_seconds,
            named_port=ports.get(str(what.get("port"))),
            **what,
        )
    )
