"""Manages the probes of a node's pods: one worker per probe, while the native loop does the probing."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine._fast.probing import state as rule
from engine._fast.probing.loop import ProbeLoop
from engine._fast.probing.state import (
    RUNNING,
    TERMINATED,
    WAITING,
    ProbeObservation,
)
from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, KubengineError
from engine.api.events import WARNING
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.host.node_context import NodeContext
from engine.metrics import Registry
from engine.probes import library
from engine.probes.beyond import beyond
from engine.probes.exec_tree import Leftovers
from engine.probes.kills import KillBudget, owner_of
from engine.probes.messages import Reason
from engine.probes.networks import NETWORK_OF_THE_NODE, PodNetworks
from engine.probes.request import exec_request, url_host
from engine.probes.scrape import ProbeMetrics
from engine.probes.spec import (
    TYPES,
    ProbeSpec,
    check_section,
    never_restarts,
    probe_specs,
    without_annotations,
)
from engine.probes.workers import RESULTS, ContainerProbes, PodProbes, Worker, described, request_parts

if TYPE_CHECKING:
    from engine._fast.probing.loop import News

KINDS = {"tcp": 0, "http": 1, "grpc": 2, "exec": 3, "h2c": 5}
LIBRARY = 4
_NETWORK_RETRIES = RetryDelays(0.1, 30.0)
NEWS_PUBLISHED, NEWS_OUTCOME, NEWS_DUE, NEWS_SLOW = 1, 2, 8, 16

log = logging.getLogger("kubengine.probes")


class ProbeResult(msgspec.Struct, frozen=True):
    """Hold a transition. `type` is liveness, readiness or startup; `result` is success, failure or
    unknown.
    """

    pod_uid: str
    container: str
    container_id: str
    type: str
    result: str


class ProbeManager:
    """Run the probes of a node's pods.

    `on_result` is called on the event loop for each transition, including initial values; of several that
    came before the loop got to them, only the last is reported. It must not block. All methods are called
    from that loop too. Exec probes need the CRI runtime's unix socket, probes from inside of pods need
    `networks`.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        on_result: Callable[[ProbeResult], None],
        runtime_socket: Path | None = None,
        networks: PodNetworks | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        section = context.kubengine_config.probes
        check_section(section)
        self._section = section
        self._kills = KillBudget(section)
        self._decisions, self._recorder, self._clock = context.decisions, context.recorder, context.clock
        self._on_result = on_result
        self._has_runtime = runtime_socket is not None
        self._networks = networks
        self._jitter = jitter
        self._began = context.clock()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._native = ProbeLoop(
            # The other half is for the agent: the API server, the runtime, logs.
            max_connections=max(1, min(section.max_connections, descriptors // 2)),
            max_execs=section.library_concurrency,
        )
        if runtime_socket is not None:
            self._native.runtime(bytes(runtime_socket))
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pods: dict[str, PodProbes] = {}
        self._workers: list[Worker | None] = []
        """Workers by key; the native loop numbers keys from 0 and reuses them."""
        self._numbers = 0
        self._library = asyncio.Semaphore(section.library_concurrency)
        self._work = context.tasks.passing("probe-work")
        self._leftovers = Leftovers()
        self.entries = 0
        """How often the native loop has called Python."""
        self._create_metrics(context.registry)

    def _create_metrics(self, registry: Registry) -> None:
        self._withheld = registry.counter(
            "kubengine_liveness_kills_withheld_total",
            "Containers not killed after a failed liveness probe.",
        )
        self._came_back = registry.counter(
            "kubengine_probe_restored_containers_total",
            "Containers that an earlier agent probed, by recorded result: ready or waiting.",
            ("as",),
        )
        self._metrics = ProbeMetrics(registry, self._native, self._section.metrics, self._labels)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.fileno(), self._take_news)
        self._thread = threading.Thread(target=self._native.run, name="kubengine-probes", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the loop and pending probes. Results stay readable."""
        if self._loop is None or self._thread is None:
            return
        self._loop.remove_reader(self._native.fileno())
        self._native.stop()
        await asyncio.to_thread(self._thread.join)
        self._thread = None
        self._native.close()
        await self._work.stop()
        for entry in self._pods.values():
            self._release_network(entry)

    def add_pod(self, pod: Pod, *, restored: PodStatus | None = None) -> None:
        """Start probing a pod; a second call has no effect.

        `restored` is the status that an earlier agent reported last: ready containers stay ready until their
        first result, and startup probes of started containers do not run again.
        """
        if pod.uid in self._pods:
            return
        try:
            specs = probe_specs(pod, self._section)
        except InvalidInput as error:
            self._recorder.pod(pod, WARNING, "InvalidProbe", str(error))
            try:
                specs = probe_specs(without_annotations(pod), self._section)
            except InvalidInput:
                specs = []
        entry = self._pods[pod.uid] = PodProbes(pod)
        for spec in specs:
            if entry.container(spec.container) is None:
                entry.containers += (ContainerProbes(entry, spec.container),)
            self._add(entry, spec)
        if restored is not None:
            for status in [*(restored.init_container_statuses or []), *(restored.container_statuses or [])]:
                container = entry.container(status.name)
                if container is not None and status.container_id:
                    container.restored = (status.container_id, status.ready, bool(status.started))
        self._aim(entry)

    def _add(self, entry: PodProbes, spec: ProbeSpec) -> None:
        container = entry.container(spec.container)
        assert container is not None
        uptime = self._clock() - self._began
        # As in the kubelet: after a restart, all probes would otherwise begin together.
        first_in = self._jitter() * spec.period if spec.period > uptime else 0.0
        self._register(container, spec, first_in)

    def _register(self, container: ContainerProbes, spec: ProbeSpec, first_in: float) -> Worker:
        pod = container.pod.pod
        key = self._native.add(
            type=TYPES[spec.type],
            kind=KINDS[spec.kind] if spec.native else LIBRARY,
            period=spec.period,
            timeout=spec.timeout,
            failure_threshold=spec.failure_threshold,
            success_threshold=spec.success_threshold,
            initial_delay=spec.initial_delay,
            never_restarts=never_restarts(pod, spec.container),
            first_in=first_in,
            start_period=spec.start_period,
        )
        worker = Worker(spec, container, key)
        setattr(container, spec.type, worker)
        while len(self._workers) <= key:
            self._workers.append(None)
        self._workers[key] = worker
        return worker

    def _deregister(self, worker: Worker) -> None:
        self._native.remove(worker.key)
        self._leftovers.forget(worker.key)
        self._workers[worker.key] = None

    def update_pod(
        self,
        pod_uid: str,
        *,
        pod_ip: str | None = None,
        phase: str | None = None,
        sandbox: str | None = None,
    ) -> None:
        """Update the pod's address, phase (`Failed` and `Succeeded` end its probes) or ready sandbox, which
        may be empty.

        Unknown pods are ignored.
        """
        entry = self._pods.get(pod_uid)
        if entry is None:
            return
        if sandbox is not None and sandbox != entry.sandbox:
            entry.sandbox = sandbox
            self._release_network(entry)
            if sandbox and entry.within() and self._networks is not None:
                self._work.start(self._enter_network(entry, sandbox, self._networks), pod_uid)
        if pod_ip is not None and pod_ip != entry.address:
            entry.address = pod_ip
            self._aim(entry)
        terminal = phase in ("Failed", "Succeeded")
        if phase is not None and terminal != entry.phase_terminal:
            entry.phase_terminal = terminal
            for container in entry.containers:
                self._observe(container)

    def update_container(
        self, pod_uid: str, name: str, *, container_id: str, state: str, started_at: float = 0.0
    ) -> None:
        """Update a container: `state` is waiting, running or terminated, `started_at` a Unix time.

        Without probes or changes, nothing happens.
        """
        container = self._container(pod_uid, name)
        if container is None:
            return
        number = {"waiting": WAITING, "running": RUNNING, "terminated": TERMINATED}[state]
        if (container.id, container.state, container.started_at) == (container_id, number, started_at):
            return
        if container.id != container_id:
            # News of the native loop carries it, so that late news of an earlier one is recognised.
            self._numbers += 1
            container.id = container_id
            container.number = self._numbers if container_id else 0
            for worker in container.workers():
                worker.published = rule.NONE
                worker.output = ""
                if worker.spec.kind == "exec":
                    self._aim_worker(worker)
            if container_id and container.restored[0] == container_id:
                self._comes_back(container)
        container.state = number
        container.started_at = started_at
        self._observe(container)
        self._hurry_readiness(container)

    def _comes_back(self, container: ContainerProbes) -> None:
        """Restore a container that an earlier agent probed: it is ready at once, or waits for its probes."""
        _, ready, started = container.restored
        self._came_back.inc("ready" if ready else "waiting")
        if not ready:
            why = "it was not ready when the previous agent stopped: its probes have to succeed first"
            inputs = {"started": started, "probes": [worker.spec.type for worker in container.workers()]}
            self._decisions.pod(container.pod.pod, "probes", "waiting", why, inputs, container=container.name)

    def stop_liveness_and_startup(self, pod_uid: str) -> None:
        """Stop all probes but readiness, since the pod is terminating."""
        entry = self._pods.get(pod_uid)
        if entry is None or entry.deleted:
            return
        entry.deleted = True
        for container in entry.containers:
            self._observe(container)
            # The loop notices the deletion at the next tick of a probe, which may be minutes away.
            for worker in (container.liveness, container.startup):
                if worker is not None:
                    self._native.trigger(worker.key)

    def remove_pod(self, pod_uid: str) -> None:
        """Forget a pod and its counters."""
        entry = self._pods.pop(pod_uid, None)
        if entry is None:
            return
        self._release_network(entry)
        for container in entry.containers:
            for worker in container.workers():
                self._deregister(worker)

    def is_started(self, pod_uid: str, container: str, container_id: str = "") -> bool:
        """Tell whether the container runs and its startup probe (if any) has succeeded; true
        without probes.
        """
        found = self._container(pod_uid, container)
        return found is None or ((not container_id or found.id == container_id) and found.started())

    def is_ready(self, pod_uid: str, container: str, container_id: str = "") -> bool:
        """Tell whether the container has started and its readiness probe (if any) has succeeded; true without
        probes.
        """
        found = self._container(pod_uid, container)
        return found is None or ((not container_id or found.id == container_id) and found.ready())

    def failed(self, pod_uid: str, container: str, container_id: str) -> str:
        """Return `liveness` or `startup` if that probe wants the container restarted, or an empty text."""
        found = self._container(pod_uid, container)
        if found is None or found.id != container_id or found.state != RUNNING or found.pod.deleted:
            return ""
        for worker in (found.liveness, found.startup):
            if worker is not None and worker.published == rule.FAILURE:
                return worker.spec.type
        return ""

    def describe(self, pod: str = "") -> dict[str, Any]:
        """Return every probe, or those of one pod (`namespace/name` or UID), and the state of the loop."""
        probes = []
        for worker in self._registered():
            of = worker.container.pod.pod
            if pod and pod not in (of.full_name, of.metadata.name, of.uid):
                continue
            probes.append(described(worker, self._native.info(worker.key)))
        probes.sort(key=lambda p: (p["pod"], p["container"], p["type"]))
        return {"probes": probes, "loop": {**self._native.stats(), "entries_into_python": self.entries}}

    def beyond(self, pod: Pod) -> dict[str, list[str]]:
        """Return the features of the pod's probes beyond the kubelet, by container and type."""
        return beyond(pod, self._section)

    def commands(self, pod: str = "") -> list[dict[str, Any]]:
        """Return by pod how often commands ran, how long they took, and what they cost this
        agent, in seconds.
        """
        found: dict[str, dict[str, Any]] = {}
        seconds = {row[0]: row[3] for row in self._native.counters()}
        for worker in self._registered():
            entry = worker.container.pod
            of = entry.pod
            if worker.spec.kind != "exec" or (pod and pod not in (of.full_name, of.metadata.name, of.uid)):
                continue
            info = self._native.info(worker.key)
            about = {"pod": of.full_name, "pod_uid": of.uid, "sandbox": entry.sandbox}
            costs = found.setdefault(of.uid, about)
            for name, amount in (
                ("runs", sum(info["outcomes"])),
                ("seconds", seconds[worker.key]),
                ("cpu_seconds", info["cpu"]),
            ):
                costs[name] = costs.get(name, 0) + amount
        return sorted(found.values(), key=lambda costs: str(costs["pod"]))

    def _container(self, pod_uid: str, name: str) -> ContainerProbes | None:
        entry = self._pods.get(pod_uid)
        return entry.container(name) if entry is not None else None

    def _registered(self) -> list[Worker]:
        return [worker for worker in self._workers if worker is not None]

    def _labels(self, key: int) -> tuple[Pod, ProbeSpec]:
        worker = self._workers[key]
        assert worker is not None
        return worker.container.pod.pod, worker.spec

    def _aim(self, entry: PodProbes) -> None:
        for container in entry.containers:
            for worker in container.workers():
                self._aim_worker(worker)

    def _aim_worker(self, worker: Worker) -> None:
        """Set the target of the native probe; an invalid target fails at each period with the reason."""
        spec, key = worker.spec, worker.key
        try:
            if spec.kind == "exec":
                self._aim_exec(worker)
                return
            host, port = worker.target()
            parts = request_parts(spec, host, port)
        except InvalidInput:
            self._native.untarget(key)
            return
        if spec.native:
            other = url_host(host) if spec.kind == "http" else b""
            self._native.target(key, host, port, *parts, url_host=other, network=worker.network)

    def _aim_exec(self, worker: Worker) -> None:
        if worker.container.id and self._has_runtime:
            head, tail = exec_request(worker.spec.command, worker.spec.timeout)
            self._native.target_container(worker.key, worker.container.runtime_id.encode(), head, tail)

    def _observe(self, container: ContainerProbes) -> None:
        seen = ProbeObservation(
            pod_known=True,
            phase_terminal=container.pod.phase_terminal,
            container=container.number,
            state=container.state,
            started=container.started(),
            started_at_ms=int(container.started_at * 1000),
            deleted=container.pod.deleted,
        )
        for worker in container.workers():
            self._native.observe(worker.key, seen, initial=container.initial(worker.spec.type))

    def _hurry_readiness(self, container: ContainerProbes) -> None:
        """Probe readiness soon after a start, instead of waiting for a period."""
        readiness = container.readiness
        if readiness is not None and container.started() and not container.ready():
            self._native.trigger(readiness.key)

    def _take_news(self) -> None:
        self.entries += 1
        for news in self._native.drain():
            worker = self._workers[news[0]]
            if worker is not None:
                self._take(worker, news)

    def _take(self, worker: Worker, news: News) -> None:
        _, generation, what, published, number, outcome, reason, detail, excerpt = news
        container = worker.container
        if what & NEWS_SLOW:
            elapsed = self._native.info(worker.key)["elapsed"]
            self._leftovers.note(worker.key, container.runtime_id, elapsed or worker.spec.timeout)
        if what & NEWS_OUTCOME and outcome != rule.OUTCOME_SUCCESS:
            self._report(worker, outcome, reason, detail, excerpt)
        # News of an earlier incarnation may still be on the way when its container is replaced.
        if what & NEWS_PUBLISHED and number == container.number and published != worker.published:
            if published == rule.FAILURE and worker.spec.type != "readiness" and container.state == RUNNING:
                if why := self._spared_because(worker):
                    self._spare(worker, why)
                    return
                self._unhealthy(worker)
            worker.published = published
            if worker.spec.type == "startup":
                self._observe(container)
                self._hurry_readiness(container)
            self._on_result(
                ProbeResult(
                    container.pod.pod.uid, container.name, container.id, worker.spec.type, RESULTS[published]
                )
            )
        if what & NEWS_DUE:
            self._work.start(self._run_library(worker, generation))

    def _spared_because(self, worker: Worker) -> str:
        """Return why a container may not be killed for this probe, or an empty text."""
        if worker.spec.type != "liveness" or not self._kills.bounds:
            return ""
        lateness = self._native.info(worker.key)["lateness"]
        now = asyncio.get_running_loop().time()
        return self._kills.take(owner_of(worker.container.pod.pod), now, lateness)

    def _spare(self, worker: Worker, why: str) -> None:
        """Let the container live until the probe has failed as often again."""
        container, spec = worker.container, worker.spec
        self._withheld.inc()
        self._decide_restart(worker, "withheld", why)
        self._event(worker, "LivenessKillWithheld", f"Liveness probe failed, container not restarted: {why}")
        # A new registration, because only that resets the count of failures in the loop.
        self._deregister(worker)
        again = self._register(container, spec, spec.period)
        again.published, again.output = worker.published, worker.output
        self._aim_worker(again)
        self._observe(container)

    def _unhealthy(self, worker: Worker) -> None:
        """Record that the container is to be killed for this probe, with the lateness of the node's loop."""
        self._decide_restart(worker, "unhealthy", f"{worker.spec.type} probe failed: {worker.output}")

    def _decide_restart(self, worker: Worker, outcome: str, why: str) -> None:
        container, spec, info = worker.container, worker.spec, self._native.info(worker.key)
        inputs = {
            "probe": spec.type,
            "output": worker.output,
            "failures": spec.failure_threshold,
            "lateness": info["lateness"],
            "late": info["late"],
        }
        self._decisions.pod(container.pod.pod, "restart", outcome, why, inputs, container=container.name)

    def _report(self, worker: Worker, outcome: int, reason: int, detail: int, excerpt: bytes) -> None:
        worker.output = why = worker.why(reason, detail, excerpt)
        if reason == Reason.EXEC_TIMEOUT:
            cut_off = worker.spec.timeout % 1 > 0
            self._work.start(self._leftovers.kill(worker.key, worker.container.runtime_id, cut_off=cut_off))
        name = worker.spec.type.capitalize()
        if outcome == rule.OUTCOME_WARNING:
            self._event(worker, "ProbeWarning", f"{name} probe warning: {why}")
        elif outcome == rule.OUTCOME_ERROR:
            self._event(worker, "Unhealthy", f"{name} probe errored and resulted in unknown state: {why}")
        else:
            self._event(worker, "Unhealthy", f"{name} probe failed: {why}")

    def _event(self, worker: Worker, reason: str, message: str) -> None:
        pod = worker.container.pod.pod
        self._recorder.pod(pod, WARNING, reason, message, container=worker.spec.container)

    async def _run_library(self, worker: Worker, generation: int) -> None:
        spec = worker.spec
        async with self._library:
            # The probe may have been removed while it waited for its turn.
            if self._workers[worker.key] is not worker:
                return
            try:
                found = await library.run(spec, *worker.target(), worker.network)
            except KubengineError as error:
                found = library.LibraryProbeOutcome(rule.OUTCOME_ERROR, str(error))
            except Exception as error:
                log.exception("%s probe of %s", spec.type, worker.container.pod.pod.full_name)
                found = library.LibraryProbeOutcome(rule.OUTCOME_ERROR, f"{type(error).__name__}: {error}")
        if self._workers[worker.key] is worker:
            if found.text:
                worker.output = found.text
            self._native.finish(worker.key, generation, found.outcome, Reason.LIBRARY)

    async def _enter_network(self, entry: PodProbes, sandbox: str, networks: PodNetworks) -> None:
        """Open the network of the pod's sandbox for its probes, as soon as possible."""
        pauses = iter(_NETWORK_RETRIES)
        while self._is_in(entry, sandbox):
            try:
                found = await networks.open(sandbox)
            except (KubengineError, OSError) as error:
                if self._is_in(entry, sandbox):
                    self._no_network(entry, str(error))
                if isinstance(error, InvalidInput):
                    return
                await asyncio.sleep(next(pauses))
                continue
            # The pod may have gone, or got another sandbox, while the runtime answered.
            if not self._is_in(entry, sandbox):
                os.close(found)
                return
            entry.network, entry.network_trouble = found, ""
            inputs = {"sandbox": sandbox, "probes": len(entry.within())}
            self._decisions.pod(entry.pod, "probes", "inside", "probed from the pod's own network", inputs)
            for worker in entry.within():
                self._aim_worker(worker)

    def _is_in(self, entry: PodProbes, sandbox: str) -> bool:
        """Tell whether the pod is here with that sandbox, and its network is not open yet."""
        return self._pods.get(entry.pod.uid) is entry and entry.sandbox == sandbox and not entry.is_inside()

    def _no_network(self, entry: PodProbes, why: str) -> None:
        """Let probes from inside of the pod fail without killing it, until its network is open."""
        if why != entry.network_trouble:
            entry.network_trouble = why
            inputs = {"sandbox": entry.sandbox}
            self._decisions.pod(
                entry.pod, "probes", "failed", f"cannot enter the pod's network: {why}", inputs
            )

    def _release_network(self, entry: PodProbes) -> None:
        """Close the pod's network, because an open descriptor keeps the namespace alive."""
        inside, network = entry.is_inside(), entry.network
        entry.network, entry.network_trouble = NETWORK_OF_THE_NODE, ""
        if inside:
            # First the loop, which could otherwise enter another file that gets the same number.
            for worker in entry.within():
                self._native.untarget(worker.key)
            os.close(network)
