"""Measures what probing one target costs on this machine: rate, CPU, duration, lateness.

It uses the native loop as the agent does. Since it generates load, it only accepts loopback targets.
"""

from __future__ import annotations

import ipaddress
import math
import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from engine._fast.probing.loop import BOUNDS, LATENESS, ProbeLoop
from engine._fast.probing.state import RUNNING, ProbeObservation
from engine.api.errors import InvalidInput
from engine.probes.networks import NETWORK_OF_THE_NODE
from engine.probes.request import grpc_request, http_request

_KINDS = {"tcp": 0, "http": 1, "grpc": 2}


class ProbeMeasurement(msgspec.Struct, frozen=True):
    """Hold the result of a run; times in seconds; quantiles are upper bounds of the loop's buckets."""

    probes: int
    seconds: float
    successful: int
    failed: int
    errored: int
    cpu_seconds: float
    duration_mean: float
    duration_p99: float
    lateness_mean: float
    lateness_p99: float
    most_connections: int
    entries_into_python: int

    @property
    def rate(self) -> float:
        return self.probes / self.seconds

    @property
    def cpu_per_probe(self) -> float:
        return self.cpu_seconds / max(self.probes, 1)


def parse_target(url: str) -> tuple[str, str, int, str]:
    """Parse `http://127.0.0.1:8080/healthz`, `tcp://[::1]:6379` or `grpc://127.0.0.1:9000/service`.

    Returns kind, address, port, and path or service. Raises `InvalidInput`.
    """
    parts = urlsplit(url)
    try:
        address, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError:
        raise InvalidInput(
            "needs an IP address and a port, such as http://127.0.0.1:8080/", subject=url
        ) from None
    if parts.scheme not in _KINDS or port is None:
        raise InvalidInput("needs a scheme (http, tcp, grpc) and a port", subject=url)
    if not address.is_loopback:
        raise InvalidInput("is not a loopback address; this is a load generator", subject=url)
    if parts.scheme == "grpc":
        return "grpc", str(address), port, parts.path.strip("/")
    return parts.scheme, str(address), port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def measure(
    url: str,
    *,
    probes: int = 1000,
    period: float = 1.0,
    seconds: float = 5.0,
    timeout: float = 1.0,
    spread: int = 1,
    max_connections: int = 1024,
    core: int | None = None,
    networks: Sequence[int] = (NETWORK_OF_THE_NODE,),
) -> ProbeMeasurement:
    """Run `probes` probes of one target for `seconds`, after they have settled.

    `spread` uses that many addresses 127.x.y.z (IPv4), because one address has only 28,000 source ports, and
    each connection occupies one for a minute. `core` pins the loop. `networks` are descriptors of network
    namespaces that the probes use in turn.
    """
    kind, address, port, path = parse_target(url)
    if probes < 1 or period < 0.01 or seconds <= 0 or spread < 1:
        raise InvalidInput("needs at least 1 probe, a period of 0.01 s, and a duration", subject=url)
    loop = ProbeLoop(max_connections=max_connections)
    for n in range(probes):
        where = _spread(address, n % spread), port, networks[n % len(networks)]
        _register(loop, kind, where, path, period, timeout)
    return watch(loop, warm_up=min(period, 10.0) + 0.1, seconds=seconds, core=core)


def watch(loop: ProbeLoop, *, warm_up: float, seconds: float, core: int | None = None) -> ProbeMeasurement:
    """Run the loop and return what it did in `seconds` after `warm_up`; `core` pins it."""
    thread = threading.Thread(target=loop.run, name="kubengine-measure", daemon=True)
    thread.start()
    try:
        if core is not None and thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {core})
        time.sleep(warm_up)
        loop.drain(loop.stats()["registered"] + 1)
        before, cpu, began = loop.stats(), _cpu(thread), time.monotonic()
        first = loop.counters()
        time.sleep(seconds)
        after, cpu, ended = loop.stats(), _cpu(thread) - cpu, time.monotonic()
        last = loop.counters()
    finally:
        loop.stop()
        thread.join()
        loop.close()
    outcomes = [b - a for a, b in zip(before["outcomes"], after["outcomes"], strict=True)]
    durations = _sum(row[2] for row in last), _sum(row[2] for row in first)
    spent = sum(row[3] for row in last) - sum(row[3] for row in first)
    begun = after["begun"] - before["begun"]
    return ProbeMeasurement(
        probes=begun,
        seconds=ended - began,
        successful=outcomes[0] + outcomes[2],
        failed=outcomes[1] + outcomes[3],
        errored=outcomes[4],
        cpu_seconds=cpu,
        duration_mean=spent / max(outcomes[0] + outcomes[2], 1),
        duration_p99=quantile(BOUNDS, *durations, 0.99),
        lateness_mean=(after["lateness_sum"] - before["lateness_sum"]) / max(begun, 1),
        lateness_p99=quantile(LATENESS, after["lateness_buckets"], before["lateness_buckets"], 0.99),
        most_connections=after["most_open_connections"],
        entries_into_python=after["notifications"] - before["notifications"],
    )


def first_bytes(url: str) -> bytes:
    """Return what a probe of the target sends first."""
    kind, address, port, path = parse_target(url)
    loop = ProbeLoop()
    key = _register(loop, kind, (address, port, NETWORK_OF_THE_NODE), path, 1.0, 1.0)
    loop.close()
    return loop.request(key)


def quantile(bounds: Sequence[float], after: Sequence[int], before: Sequence[int], q: float) -> float:
    """Return the upper bound of the quantile's bucket; infinite above the last."""
    counts = [b - a for a, b in zip(before, after, strict=True)]
    left = q * sum(counts)
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        left -= count
        if left <= 0:
            return bound
    return math.inf


def _sum(rows: Any) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _register(
    loop: ProbeLoop, kind: str, where: tuple[str, int, int], path: str, period: float, timeout: float
) -> int:
    """Register the probes; `where` is address, port and network."""
    address, port, network = where
    key = loop.add(
        type=0,
        kind=_KINDS[kind],
        period=period,
        timeout=timeout,
        failure_threshold=1 << 30,
        success_threshold=1,
        initial_delay=0.0,
        never_restarts=False,
        first_in=random.random() * period,
    )
    if kind == "http":
        loop.target(key, address, port, *http_request(address, port, path), network=network)
    elif kind == "grpc":
        head, tail = grpc_request(path)
        loop.target(key, address, port, head, b"", tail, network=network)
    else:
        loop.target(key, address, port, network=network)
    loop.observe(key, ProbeObservation(container=1, state=RUNNING, started=True))
    return key


def _spread(address: str, n: int) -> str:
    if ":" in address:
        return address
    return str(
        ipaddress.IPv4Address(
            (127 << 24) + (int(ipaddress.IPv4Address(address)) - (127 << 24) + n) % (1 << 24)
        )
    )


def _cpu(thread: threading.Thread) -> float:
    """Return the CPU seconds of a thread of this process, user and system."""
    spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
    return int(spent) / 1e9
