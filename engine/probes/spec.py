"""Reads the probes of a pod's manifest, with names resolved and times in seconds. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from engine._fast.probing.state import LIVENESS, READINESS, STARTUP
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Container, IntOrString, Pod, Probe
from engine.api.quantity import decimal
from engine.probes.probe_annotations import (
    ANNOTATION,
    MIN_PERIOD_MS,
    ProbeAnnotations,
    read_annotations,
    subject,
)

TYPES = {"liveness": LIVENESS, "readiness": READINESS, "startup": STARTUP}
NETWORKS = ("node", "pod")
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
"""Whom a probe from inside the pod asks, by the version of the pod's address."""
GETS = ("http", "https", "h2c")
"""Kinds of httpGet."""


class ProbeSpec(msgspec.Struct, frozen=True):
    """Describe one probe of one container; times in seconds. Equal specs are one object.

    `kind` is exec, http, https, h2c, tcp, grpc or grpcs. `host` is empty where the pod's address is meant,
    or with `network` "pod", from where the probe goes out, the pod's loopback. `start_period` is the period
    until the container has succeeded once, 0 where it is `period` too.
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
    network: str = "node"
    start_period: float = 0.0
    named_port: int | None = None
    """What the container calls `port`, where that is a name of its own."""

    def resolve_port(self) -> int:
        """Return a port given as a number or by the container's name for it. Raises `InvalidInput`."""
        port: Any = self.port
        if isinstance(port, str):
            number = self.named_port if self.named_port is not None else decimal(port)
            if number is None:
                raise InvalidInput(f"couldn't find port {port!r} for probe", subject=self.container)
            port = number
        if not 0 < port < 65536:
            raise InvalidInput(f"invalid port number: {port}", subject=self.container)
        return int(port)

    @property
    def native(self) -> bool:
        """Tell whether the native loop can run it: not over TLS, and to an address rather than a name."""
        if self.kind in ("https", "grpcs"):
            return False
        try:
            return not self.host or bool(ipaddress.ip_address(self.host))
        except ValueError:
            return False


@lru_cache(maxsize=1024)
def _shared(spec: ProbeSpec) -> ProbeSpec:
    """Return the one object for equal specs, since many pods come from one template."""
    return spec


def check_section(section: ProbesSection) -> None:
    """Raise `InvalidInput` naming the first field with an impossible value."""
    if section.metrics not in ("container", "pod", "none"):
        raise InvalidInput(f"{section.metrics!r} is not container, pod or none", subject="probes.metrics")
    if section.max_connections < 1 or section.library_concurrency < 1:
        raise InvalidInput("bounds must be at least 1", subject="probes")
    if section.network not in NETWORKS:
        raise InvalidInput(f"{section.network!r} is not {' or '.join(NETWORKS)}", subject="probes.network")
    if section.start_period and section.start_period < MIN_PERIOD_MS / 1000:
        raise InvalidInput(f"is less than {MIN_PERIOD_MS} ms", subject="probes.startPeriod")


def probe_specs(pod: Pod, section: ProbesSection) -> list[ProbeSpec]:
    """Return the probes of the pod's containers and sidecars, in order; ordinary init containers have none.

    Raises `InvalidInput` naming the field.
    """
    annotations = read_annotations(pod)
    containers = [c for c in pod.init_containers if c.is_sidecar] + pod.spec.containers
    unknown = annotations.keys() - {c.name for c in containers}
    if unknown:
        raise InvalidInput(f"no container {min(unknown)!r} has probes", subject=subject(pod))
    own_network = not pod.spec.host_network
    return [
        _spec(
            container,
            type,
            probe,
            annotations.get(container.name, {}).get(type, ProbeAnnotations()),
            ports,
            section,
            own_network,
        )
        for container in containers
        for ports in [{p.name: p.container_port for p in container.ports or () if p.name}]
        for type, probe in (
            ("startup", container.startup_probe),
            ("readiness", container.readiness_probe),
            ("liveness", container.liveness_probe),
        )
        if probe is not None
    ]


def never_restarts(pod: Pod, name: str) -> bool:
    """Tell whether no policy and no rule of the pod can start this container again after it has ended."""
    containers = pod.all_containers
    if any(container.restart_policy_rules for container in containers):
        return False
    own = next(container.restart_policy for container in containers if container.name == name)
    return (own or pod.spec.restart_policy) == "Never"


def without_annotations(pod: Pod) -> Pod:
    """Return the pod without its annotations about probes."""
    rest = {name: value for name, value in pod.annotations.items() if name != ANNOTATION}
    return replace(pod, metadata=replace(pod.metadata, annotations=rest))


def _spec(
    container: Container,
    type: str,
    probe: Probe,
    annotated: ProbeAnnotations,
    ports: Mapping[str, int],
    section: ProbesSection,
    own_network: bool,
) -> ProbeSpec:
    what = _action(container, type, probe, annotated)
    start_period = 0.0
    if annotated.start_period_milliseconds is not None:
        start_period = annotated.start_period_milliseconds / 1000
    elif what["kind"] != "exec":
        start_period = float(section.start_period)
    inside = own_network and what["kind"] != "exec" and (annotated.network or section.network) == "pod"
    return _shared(
        ProbeSpec(
            container=container.name,
            type=type,
            period=_seconds(annotated.period_milliseconds, max(probe.period_seconds, 1)),
            timeout=_seconds(annotated.timeout_milliseconds, max(probe.timeout_seconds, 1)),
            initial_delay=_seconds(annotated.initial_delay_milliseconds, probe.initial_delay_seconds),
            failure_threshold=probe.failure_threshold,
            success_threshold=probe.success_threshold,
            grace_period_seconds=probe.termination_grace_period_seconds,
            network="pod" if inside else "node",
            start_period=0.0 if type == "liveness" else start_period,
            named_port=ports.get(str(what.get("port"))),
            **what,
        )
    )


def _seconds(milliseconds: int | None, otherwise: int) -> float:
    return float(otherwise) if milliseconds is None else milliseconds / 1000


def _action(container: Container, type: str, probe: Probe, annotated: ProbeAnnotations) -> dict[str, Any]:
    """Return kind and target of a probe, as `ProbeSpec` has them."""
    where = f"{container.name}.{type}Probe"
    if annotated.tls and probe.grpc is None:
        raise InvalidInput("tls is for grpc; HTTPS is httpGet's scheme", subject=where)
    if annotated.http2 and (probe.http_get is None or probe.http_get.scheme.lower() == "https"):
        raise InvalidInput("http2 is for httpGet without TLS", subject=where)
    if probe.exec is not None:
        return {"kind": "exec", "command": tuple(probe.exec.command or ())}
    if probe.http_get is not None:
        get = probe.http_get
        secure = get.scheme.lower() == "https"
        return {
            "kind": "https" if secure else "h2c" if annotated.http2 else "http",
            "host": get.host,
            "port": get.port,
            "path": get.path or "/",
            "headers": tuple((h.name, h.value) for h in get.http_headers or ()),
        }
    if probe.tcp_socket is not None:
        return {"kind": "tcp", "host": probe.tcp_socket.host, "port": probe.tcp_socket.port}
    if probe.grpc is not None:
        kind = "grpcs" if annotated.tls else "grpc"
        return {"kind": kind, "port": probe.grpc.port, "service": probe.grpc.service or ""}
    raise InvalidInput("needs one of exec, httpGet, tcpSocket, grpc", subject=where)
