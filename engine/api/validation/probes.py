"""Probes, the handlers that they share with the life cycle's hooks, and the signals that stop a container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import Container, HTTPGetAction, LifecycleHandler, Pod, Probe
from engine.api.struct import json_name
from engine.api.validation.names import in_range, is_port, is_port_name, one_of

_HEADER = re.compile(r"[-A-Za-z0-9]+")
_PROBES = ("liveness_probe", "readiness_probe", "startup_probe")
_COUNTS = (
    "initial_delay_seconds",
    "timeout_seconds",
    "period_seconds",
    "success_threshold",
    "failure_threshold",
)
_PLAIN = (
    "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL SIGPIPE "
    "SIGPOLL SIGPROF SIGPWR SIGQUIT SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU "
    "SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIGRTMIN SIGRTMAX"
)
_LINUX = {
    *_PLAIN.split(),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
}
_WINDOWS = frozenset({"SIGKILL", "SIGTERM"})


def probe_problems(pod: Pod, container: Container, where: str, *, may_have: bool) -> Iterator[str]:
    """Return the faults of probes and hooks; an init container that ends (not `may_have`) has neither."""
    if not may_have:
        for name in (*_PROBES, "lifecycle"):
            if getattr(container, name) is not None:
                yield (
                    f"{where}.{json_name(name)}: may be set only for long-running containers "
                    "(restartPolicy Always)"
                )
        return
    for name in _PROBES:
        probe = getattr(container, name)
        if probe is not None:
            yield from _probe(probe, f"{where}.{json_name(name)}", readiness=name == "readiness_probe")
    lifecycle = container.lifecycle
    if lifecycle is None:
        return
    grace = pod.spec.termination_grace_period_seconds
    for name, handler in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if handler is not None:
            field = f"{where}.lifecycle.{name}"
            yield from _handler(handler, ("exec", "http_get", "tcp_socket", "sleep"), field)
            if handler.sleep is not None:
                # A sleep that outlasts the grace period would be cut off without a sign (KEP-3960).
                most = 30 if grace is None else grace
                yield from in_range(handler.sleep.seconds, 0, most, f"{field}.sleep.seconds")
    if lifecycle.stop_signal is not None:
        yield from stop_signal_problems(pod, lifecycle.stop_signal, f"{where}.lifecycle.stopSignal")


def _probe(probe: Probe, where: str, *, readiness: bool) -> Iterator[str]:
    yield from _handler(probe, ("exec", "http_get", "tcp_socket", "grpc"), where)
    for name in _COUNTS:
        if getattr(probe, name) < 0:
            yield f"{where}.{json_name(name)}: expected 0 or more, got {getattr(probe, name)}"
    # A liveness or startup probe decides with its first success; only readiness may ask for several.
    if not readiness and probe.success_threshold != 1:
        yield f"{where}.successThreshold: expected 1, got {probe.success_threshold}"
    grace = probe.termination_grace_period_seconds
    if grace is not None and readiness:
        yield (
            f"{where}.terminationGracePeriodSeconds: must not be set for a readiness probe, which "
            "never kills a container"
        )
    elif grace is not None and grace <= 0:
        yield f"{where}.terminationGracePeriodSeconds: expected more than 0, got {grace}"


def _handler(owner: Probe | LifecycleHandler, choices: tuple[str, ...], where: str) -> Iterator[str]:
    given = [name for name in choices if getattr(owner, name) is not None]
    if len(given) != 1:
        yield f"{where}: expected exactly one handler such as exec, httpGet or tcpSocket, got {len(given)}"
    if owner.exec is not None and not owner.exec.command:
        yield f"{where}.exec.command: expected a command"
    if owner.http_get is not None:
        yield from _http(owner.http_get, f"{where}.httpGet")
    if owner.tcp_socket is not None:
        yield from _port(owner.tcp_socket.port, f"{where}.tcpSocket.port")
    if isinstance(owner, Probe) and owner.grpc is not None:
        yield from _port(owner.grpc.port, f"{where}.grpc.port")


def _http(action: HTTPGetAction, where: str) -> Iterator[str]:
    yield from _port(action.port, f"{where}.port")
    yield from one_of(action.scheme, ("HTTP", "HTTPS", ""), f"{where}.scheme")
    for header in action.http_headers or []:
        if _HEADER.fullmatch(header.name) is None:
            yield f"{where}.httpHeaders: {header.name[:64]!r} is not a header's name"


def _port(port: int | str, field: str) -> Iterator[str]:
    if not (is_port(port) if isinstance(port, int) else is_port_name(port)):
        yield f"{field}: expected a port between 1 and 65535 or a port's name, got {str(port)[:64]!r}"


def stop_signal_problems(pod: Pod, signal: str, field: str) -> Iterator[str]:
    # Windows knows two signals only, so that the pod has to say where it runs (KEP-4960).
    if pod.spec.os is None:
        yield f"{field}: requires spec.os.name"
    elif signal not in (_WINDOWS if pod.spec.os.name == "windows" else _LINUX):
        yield f"{field}: expected a signal of {pod.spec.os.name} such as SIGTERM, got {signal[:64]!r}"
