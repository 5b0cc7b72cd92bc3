"""Measure one agent at growing numbers of pods: two containers each, one HTTP probe of 10 s each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.api.errors import KubengineError
from engine.bench import workload
from engine.bench.agents import AgentKind
from engine.bench.parts import HollowRuntimeProcess, ProbeTarget, http_get
from engine.bench.phases import BenchSession
from engine.bench.procfs import usage
from engine.bench.workspace import Workspace, uninterrupted

PERIOD = 10
HEALTH_LOOKS_PER_SECOND = 20


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Hold the options of a scale bench.

    `seconds` is how long the steady state is watched at each size; `/healthz` is requested for half as long
    afterwards, because requests cost time.
    """

    sizes: tuple[int, ...] = (110, 500, 1000, 2500)
    seconds: float = 60.0
    limit: float = 900.0


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """Hold one size's figures: `late_probes` came more than half a period late; `worst_late_s` is the longest
    delay.
    """

    pods: int
    start_cpu_ms: float
    ready_s: float
    ready_cpu_s: float
    cpu_percent: float
    cpu_us_per_pod_per_s: float
    rss_mb: float
    pss_mb: float
    probes: int
    late_probes: int
    worst_late_s: float
    healthz_p50_ms: float
    healthz_p99_ms: float


def run_scale(options: ScaleOptions, say: Callable[[str], None]) -> list[ScaleRow]:
    """Return a row for each size that could be measured; a size that fails is reported and ends the run."""
    done: list[ScaleRow] = []
    for size in options.sizes:
        say(f"{size} pods")
        try:
            done.append(_measure(size, options))
        except (KubengineError, OSError) as error:
            say(f"{size} pods: {error}")
            break
    return done


def _measure(size: int, options: ScaleOptions) -> ScaleRow:
    workspace = Workspace()
    parts: list[HollowRuntimeProcess | ProbeTarget] = []
    session: BenchSession | None = None
    try:
        workspace.make_cgroups()
        runtime = HollowRuntimeProcess(workspace.runtime_socket, workspace.path)
        parts.append(runtime)
        target = ProbeTarget(workspace.path, period=PERIOD)
        parts.append(target)
        endpoint = f"unix://{workspace.runtime_socket}"
        session = BenchSession(
            AgentKind("engine"), workspace, endpoint, runtime, target, size, options.seconds, options.limit
        )  # fmt: skip
        return _watch(session, size)
    finally:
        with uninterrupted():
            if session is not None and session.agent is not None:
                session.agent.stop(kill=True)
            for part in parts:
                part.stop(kill=True)
            workspace.remove()


def _watch(session: BenchSession, size: int) -> ScaleRow:
    agent = session.start_agent()
    pid = agent.part.pid
    ports = session.target.ports
    began, cpu = time.monotonic(), usage(pid).cpu
    session.put(
        [
            workload.pod(
                f"s{index}",
                containers=2,
                probes=[
                    {
                        "readinessProbe": workload.http_probe(
                            ports[index % len(ports)], f"/s{index}", period=PERIOD
                        )
                    }
                ],
            )
            for index in range(size)
        ]
    )
    session.wait_ready()
    ready_s, ready_cpu = time.monotonic() - began, usage(pid).cpu - cpu
    time.sleep(PERIOD)
    http_get(ports[0], "/forget")
    before, counts = usage(pid), session.target.counts()
    session.watch(session.seconds)
    after, seen = usage(pid), session.target.counts()
    waits = _healthz_waits(session, session.seconds / 2)
    late = session.target.counts()
    agent.part.check()
    spent = after.cpu - before.cpu
    return ScaleRow(
        pods=size,
        start_cpu_ms=agent.start_cpu * 1e3,
        ready_s=ready_s,
        ready_cpu_s=ready_cpu,
        cpu_percent=spent / session.seconds * 100,
        cpu_us_per_pod_per_s=spent / session.seconds / size * 1e6,
        rss_mb=after.rss / 1e6,
        pss_mb=after.pss / 1e6,
        probes=seen["http"] - counts["http"],
        late_probes=late["late"],
        worst_late_s=late["worst"],
        healthz_p50_ms=waits[len(waits) // 2] * 1e3,
        healthz_p99_ms=waits[int(len(waits) * 0.99)] * 1e3,
    )


def _healthz_waits(session: BenchSession, seconds: float) -> list[float]:
    """Return sorted answer times of `/healthz`, requested at a steady rate."""
    port, waits, end = session.workspace.ports["healthz"], [], time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < end:
        began = time.perf_counter()
        http_get(port, "/healthz")
        waits.append(time.perf_counter() - began)
        pause.wait(1 / HEALTH_LOOKS_PER_SECOND)
    return sorted(waits)
