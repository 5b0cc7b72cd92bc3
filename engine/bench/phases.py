"""Define the phases: what is done to an agent, and what is measured meanwhile.

A phase takes a `BenchSession` and returns figures by name; units are in the names (`_s` seconds, `_ms`,
`_mb`). The same observer examines every agent: its /pods page from time to time, the runtime's records,
/proc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api.errors import Unavailable
from engine.bench import workload
from engine.bench.agents import AgentKind, BenchAgent, ready
from engine.bench.parts import HollowRuntimeProcess, ProbeTarget
from engine.bench.probe_load import ProbeLoad
from engine.bench.procfs import ProcessUsage, usage
from engine.bench.workspace import Workspace
from engine.wire import cri_v1_pb2 as cri

Figures = dict[str, float]
POLL_SECONDS = 0.2


def seconds_to_next_poll(passed: float, good: int, wanted: int) -> float:
    """Return the seconds to wait with `good` pods of `wanted` ready after `passed` seconds.

    Wait half of the remaining time at this pace, so that a page of thousands of pods is requested some
    twenty times and not five times a second, which would take a fourth of the agent's time.
    """
    left = passed * (wanted - good) / good if good else passed
    return max(POLL_SECONDS, min(left, passed) / 2)


@dataclass(slots=True)
class BenchSession:
    """Hold one agent in its workspace. `seconds` is how long steady states are watched."""

    kind: AgentKind
    workspace: Workspace
    endpoint: str
    runtime: HollowRuntimeProcess | None
    target: ProbeTarget
    pods: int
    seconds: float
    limit: float
    load: ProbeLoad = field(default_factory=ProbeLoad)
    images: int = 0
    kubeconfig: Path | None = None
    agent: BenchAgent | None = None
    idle_cpu_per_second: float | None = None
    names: list[str] = field(default_factory=list)

    @property
    def running(self) -> BenchAgent:
        if self.agent is None:
            raise Unavailable("the agent is not running", subject=self.kind.label)
        return self.agent

    def start_agent(
        self, settings: Mapping[str, Any] | None = None, *, kubeconfig: Path | None = None
    ) -> BenchAgent:
        most = 2 * self.pods + 20
        self.agent = BenchAgent(
            self.kind, self.workspace, self.endpoint, max_pods=most, settings=settings, kubeconfig=kubeconfig
        )
        return self.agent

    def put(self, pods: Sequence[dict[str, Any]]) -> None:
        workload.put(self.workspace, pods)
        self.names += [each["metadata"]["name"].removeprefix(workload.PREFIX) for each in pods]

    def take(self, names: Sequence[str]) -> None:
        workload.take(self.workspace, names)
        self.names = [name for name in self.names if name not in set(names)]

    def wait_ready(self, limit: float | None = None) -> None:
        """Wait until exactly the wanted pods exist, Running and Ready. Raise `Unavailable` after `limit`."""
        limit = self.limit if limit is None else limit
        wanted = {f"{workload.PREFIX}{name}-" for name in self.names}
        began = time.monotonic()
        while True:
            pods = self.running.pods()
            good = {_stem(pod) for pod in pods if ready(pod)}
            if wanted <= good and len(pods) == len(self.names):
                return
            for pod in pods:
                status = pod.get("status", {})
                if status.get("phase") == "Failed" and _stem(pod) in wanted:
                    why = f"{status.get('reason', '')}: {status.get('message', '')}"
                    raise Unavailable(f"pod {pod['metadata']['name']} failed: {why}", subject=self.kind.label)
            passed = time.monotonic() - began
            if passed > limit:
                state = f"{len(good & wanted)} of {len(wanted)} ready, {len(pods)} of {len(self.names)} known"
                raise Unavailable(f"pods: {state} after {limit:g} s", subject=self.kind.label)
            time.sleep(seconds_to_next_poll(passed, len(good & wanted), len(wanted)))

    def wait_running(self, names: Iterable[str], *, without: Iterable[str]) -> None:
        """Wait until the runtime, not the agent, reports that these pods run and those do not."""
        deadline = time.monotonic() + self.limit
        while True:
            running = self._running()
            if all(any(_is_of(pod, name) for pod in running) for name in names) and not any(
                _is_of(pod, name) for pod in running for name in without
            ):
                return
            if time.monotonic() > deadline:
                raise Unavailable(f"pods are not replaced after {self.limit:g} s", subject=self.kind.label)
            self.running.part.check()
            time.sleep(POLL_SECONDS)

    def clear(self) -> None:
        """Remove every manifest; return when no pod is known any longer. Raise `Unavailable`
        after `limit`.
        """
        self.take(list(self.names))
        deadline = time.monotonic() + self.limit
        while left := self.running.pods():
            if time.monotonic() > deadline:
                raise Unavailable(f"{len(left)} pods were not removed", subject=self.kind.label)
            time.sleep(POLL_SECONDS)

    def watch(self, seconds: float) -> None:
        """Let time pass. Raise `Unavailable` if the agent ends meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.running.part.check()
            time.sleep(min(left, POLL_SECONDS))

    def runtime_calls(self) -> dict[str, dict[str, int]]:
        """Return calls and bytes by method; empty for a runtime that does not count."""
        return self.runtime.calls() if self.runtime is not None else {}

    def containers(self) -> dict[str, tuple[str, float]]:
        """Return running containers of the bench's pods at the runtime: id → (pod name, start as
        Unix seconds).
        """
        with workload.runtime_service(self.endpoint) as stub:

            def started(id: str) -> float:
                status = stub.ContainerStatus(cri.ContainerStatusRequest(container_id=id), timeout=30)
                return float(status.status.started_at) / 1e9

            return {id: (name, started(id)) for id, name in _running_containers(stub)}

    def _running(self) -> set[str]:
        """Return names of the bench's pods that have a running container."""
        with workload.runtime_service(self.endpoint) as stub:
            return {name for _, name in _running_containers(stub)}


def _running_containers(stub: Any) -> list[tuple[str, str]]:
    """Return container ids with their pods' names."""
    state = cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)
    request = cri.ListContainersRequest(filter=cri.ContainerFilter(state=state))
    found = stub.ListContainers(request, timeout=30).containers
    named = [(each.id, each.labels.get("io.kubernetes.pod.name", "")) for each in found]
    return [(id, name) for id, name in named if name.startswith(workload.PREFIX)]


@dataclass(slots=True)
class BenchWatch:
    """Measure the agent's process usage and its calls to the runtime between two moments."""

    session: BenchSession
    began: float
    usage: ProcessUsage
    counts: dict[str, int]
    calls: dict[str, dict[str, int]]

    @classmethod
    def begin(cls, session: BenchSession) -> BenchWatch:
        agent = session.running
        return cls(session, time.monotonic(), usage(agent.part.pid), agent.counts(), session.runtime_calls())

    def figures(self) -> Figures:
        session = self.session
        session.running.part.check()
        seconds = time.monotonic() - self.began
        now, counts = usage(session.running.part.pid), session.running.counts()
        figures: Figures = {
            "wall_s": seconds,
            "cpu_s": now.cpu - self.usage.cpu,
            "rss_mb": now.rss / 1e6,
            "pss_mb": now.pss / 1e6,
            "context_switches": now.switches - self.usage.switches,
        }
        figures |= {name: count - self.counts[name] for name, count in counts.items()}
        if session.runtime is not None:
            time.sleep(1.1)  # the runtime writes its counts each second
            after = session.runtime_calls()
            for key, name in (("calls", "runtime_calls"), ("bytes", "runtime_bytes")):
                figures[name] = sum(_sum(row, key) for row in after.values()) - sum(
                    _sum(row, key) for row in self.calls.values()
                )
        return figures


def _sum(row: dict[str, int], key: str) -> int:
    return sum(value for name, value in row.items() if key in name)


def start(session: BenchSession) -> Figures:
    """Measure from process start to `/healthz`."""
    agent = session.start_agent()
    return {"wall_s": agent.start_wall, "cpu_s": agent.start_cpu, "rss_mb": usage(agent.part.pid).rss / 1e6}


def pods(session: BenchSession) -> Figures:
    """Measure from manifests to every pod Running and Ready; per pod, from the manifest to its container's
    start.
    """
    watch = BenchWatch.begin(session)
    written = time.time()
    session.put([workload.pod(f"p{index}") for index in range(session.pods)])
    session.wait_ready()
    figures = watch.figures()
    starts = [started - written for _, started in session.containers().values()]
    return {
        **figures,
        **percentiles("start", starts),
        "cpu_ms_per_pod": figures["cpu_s"] / session.pods * 1e3,
    }


def idle(session: BenchSession) -> Figures:
    """Measure a node on which nothing changes."""
    session.watch(3)
    watch = BenchWatch.begin(session)
    session.watch(session.seconds)
    figures = watch.figures()
    session.idle_cpu_per_second = figures["cpu_s"] / session.seconds
    return {**figures, "cpu_ms_per_pod_per_s": session.idle_cpu_per_second / session.pods * 1e3}


def cost_of_probes(cpu: float, probes: int) -> Figures:
    """Return the cost of a probe, for `cpu` seconds beyond those of the idle agent.

    Return nothing if they are negative: then the idle agent was disturbed, and the cost is not known.
    """
    return {"cpu_us_per_probe": cpu / max(probes, 1) * 1e6} if cpu >= 0 else {}


def probing(session: BenchSession) -> Figures:
    """Measure probing of other pods, as `load` specifies."""
    session.clear()
    load = session.load
    session.put(load.pods(session.pods, session.target.ports))
    session.wait_ready()
    session.watch(2)
    before, watch = _probes(session), BenchWatch.begin(session)
    session.watch(session.seconds)
    after = _probes(session)
    figures = watch.figures()
    counts = {kind: after[kind] - before[kind] for kind in after}
    if "exec" in load.mix and session.runtime is None:
        counts["exec"] = round(load.rate(session.pods, "exec") * session.seconds)
    probes = sum(counts.values())
    cpu = figures["cpu_s"] - (session.idle_cpu_per_second or 0.0) * session.seconds
    return {
        **figures,
        **{f"{kind}_per_s": count / session.seconds for kind, count in counts.items()},
        "probes_per_s": probes / session.seconds,
        **cost_of_probes(cpu, probes),
    }


def _probes(session: BenchSession) -> dict[str, int]:
    """Return the probes so far, by kind: requests at the target, and exec calls at the runtime (a
    second old).
    """
    seen = session.target.counts()
    calls = session.runtime_calls().get("ExecSync", {})
    counts = {"http": seen["http"], "tcp": seen["tcp"], "exec": calls.get("calls", 0)}
    return {kind: counts[kind] for kind in session.load.mix}


def churn(session: BenchSession) -> Figures:
    """Replace a twentieth of the resting pods (at least one), one after another; measure until the runtime
    runs the new pod and no longer the old. CPU is the amount beyond rest.
    """
    session.clear()
    session.put([workload.pod(f"c{index}") for index in range(session.pods)])
    session.wait_ready()
    session.watch(2)
    count = max(1, session.pods // 20)
    known = set(session.containers())
    watch = BenchWatch.begin(session)
    written: dict[str, float] = {}
    for index in range(count):
        old, new = session.names[0], f"n{index}-{time.monotonic_ns()}"
        session.take([old])
        written[new] = time.time()
        session.put([workload.pod(new)])
        session.wait_running({new}, without={old})
    figures = watch.figures()
    cpu = figures["cpu_s"] - (session.idle_cpu_per_second or 0.0) * figures["wall_s"]
    started = {name: at for id, (name, at) in session.containers().items() if id not in known}
    latencies = [
        at - since for new, since in written.items() for name, at in started.items() if _is_of(name, new)
    ]
    session.wait_ready()
    return {**figures, **percentiles("start", latencies), "cpu_ms_per_pod": cpu / count * 1e3}


def refill(session: BenchSession) -> Figures:
    """Remove all resting pods at once; once the runtime runs none of them, start as many others. CPU is for
    both, per pod.
    """
    session.clear()
    session.put([workload.pod(f"d{index}") for index in range(session.pods)])
    session.wait_ready()
    session.watch(2)
    watch = BenchWatch.begin(session)
    resting, began = list(session.names), time.monotonic()
    session.take(resting)
    session.wait_running((), without=resting)
    drained = time.monotonic()
    session.put([workload.pod(f"r{index}") for index in range(session.pods)])
    session.wait_ready()
    filled = time.monotonic()
    figures = watch.figures()
    return {
        **figures,
        "drained_s": drained - began,
        "refilled_s": filled - drained,
        "cpu_ms_per_pod": figures["cpu_s"] / session.pods * 1e3,
    }


def restart(session: BenchSession) -> Figures:
    """Stop with everything running and start again; measure how long until all pods are known, and count
    restarts.
    """
    before = session.containers()
    stopping = time.monotonic()
    session.running.stop()
    stopped = time.monotonic() - stopping
    agent = session.start_agent()
    session.wait_ready()
    adopted = time.monotonic() - stopping - stopped
    time.sleep(2)
    after = session.containers()
    return {
        "stop_s": stopped,
        "wall_s": adopted,
        "healthz_s": agent.start_wall,
        "cpu_s": usage(agent.part.pid).cpu,
        "restarts_caused": float(len(set(after) - set(before))),
    }


def _is_of(pod_name: str, name: str) -> bool:
    """Tell whether a static pod's name is that of a manifest: either agent appends the node's."""
    return pod_name.startswith(f"{workload.PREFIX}{name}-")


def _stem(pod: dict[str, Any]) -> str:
    """Return a static pod's name without the node's, which either agent appends."""
    name: str = pod["metadata"]["name"]
    return name.removesuffix("bench-node")


def percentiles(name: str, values: Sequence[float]) -> Figures:
    """Return `name_p50_s`, `name_p90_s` and `name_p99_s`, nearest rank; nothing for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        f"{name}_p{percent}_s": ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100) - 1)]
        for percent in (50, 90, 99)
    }
