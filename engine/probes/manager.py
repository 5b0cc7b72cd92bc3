"""The probe manager: pods in, results out. One worker per probe; the native loop does the probing."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine._fast import _probe_state_py as rule
from engine._fast._probe_loop_c import ProbeLoop
from engine._fast._probe_state_py import (
    RUNNING,
    TERMINATED,
    WAITING,
    Observation,
)
from engine.api.errors import InvalidInput, KubengineError
from engine.api.events import WARNING, EventRecorder
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.metrics import Registry
from engine.probes.library import Outcome, run_exec, run_http, run_tcp
from engine.probes.messages import Reason, text
from engine.probes.request import grpc_request, http_request
from engine.probes.scrape import ProbeMetrics
from engine.probes.spec import TYPES, ProbeSpec, probe_specs, without_times
from engine.probes.workers import RESULTS, ContainerProbes, PodProbes, Worker, described
from engine.runtime.client import RuntimeClient

if TYPE_CHECKING:
    from engine._fast._probe_loop_c import News

TCP, HTTP, GRPC, LIBRARY = range(4)
NEWS_PUBLISHED, NEWS_OUTCOME, NEWS_DUE = 1, 2, 8
KINDS = {"tcp": TCP, "http": HTTP, "grpc": GRPC}

log = logging.getLogger("kubengine.probes")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A transition. `type` is liveness, readiness or startup; `result` success, failure or unknown."""

    pod_uid: str
    container: str
    container_id: str
    type: str
    result: str


class ProbeManager:
    """Runs the probes of a node's pods.

    `on_result` is called on the event loop for each transition, initial values included; it must not
    block. Everything else is called from that loop too. `runtime` may be None where no exec probes run.
    """

    def __init__(
        self,
        *,
        section: ProbesSection,
        recorder: EventRecorder,
        registry: Registry,
        clock: Callable[[], float],
        on_result: Callable[[ProbeResult], None],
        runtime: RuntimeClient | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if section.metrics not in ("container", "pod", "off"):
            raise InvalidInput(f"{section.metrics!r} is not container, pod or off", subject="probes.metrics")
        if section.max_connections < 1 or section.library_concurrency < 1:
            raise InvalidInput("bounds must be at least 1", subject="probes")
        self._recorder = recorder
        self._clock = clock
        self._on_result = on_result
        self._runtime = runtime
        self._jitter = jitter
        self._began = clock()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._native = ProbeLoop(max_connections=max(1, min(section.max_connections, descriptors // 2)))
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pods: dict[str, PodProbes] = {}
        self._workers: dict[int, Worker] = {}
        self._numbers = 0
        self._library = asyncio.Semaphore(section.library_concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self.entries = 0
        """How often the native loop has called for Python."""
        self._metrics = ProbeMetrics(registry, self._native, section.metrics, self._labels)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.fileno(), self._take_news)
        self._thread = threading.Thread(target=self._native.run, name="kubengine-probes", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the loop and what is in flight. Results stay readable."""
        if self._loop is None or self._thread is None:
            return
        self._loop.remove_reader(self._native.fileno())
        self._native.stop()
        await asyncio.to_thread(self._thread.join)
        self._thread = None
        self._native.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add_pod(self, pod: Pod, *, restored: PodStatus | None = None) -> None:
        """Begin to probe a pod; again has no effect.

        `restored` is the status that an earlier agent last reported: containers that were ready stay
        so until their first result, and startup probes of started ones don't run again.
        """
        if pod.uid in self._pods:
            return
        try:
            specs = probe_specs(pod)
        except InvalidInput as error:
            self._recorder.pod(pod, WARNING, "InvalidProbe", str(error))
            try:
                specs = probe_specs(without_times(pod))
            except InvalidInput:
                specs = []
        entry = self._pods[pod.uid] = PodProbes(pod)
        never = pod.spec.restart_policy == "Never"
        sidecars = {c.name for c in pod.init_containers}
        uptime = self._clock() - self._began
        for spec in specs:
            container = entry.containers.get(spec.container)
            if container is None:
                container = entry.containers[spec.container] = ContainerProbes(entry, spec.container)
            key = self._native.add(
                type=TYPES[spec.type],
                kind=KINDS[spec.kind] if spec.native else LIBRARY,
                period=spec.period,
                timeout=spec.timeout,
                failure_threshold=spec.failure_threshold,
                success_threshold=spec.success_threshold,
                initial_delay=spec.initial_delay,
                never_restarts=never and spec.container not in sidecars,
                first_in=self._jitter() * spec.period if spec.period > uptime else 0.0,
            )
            worker = Worker(spec, container, key)
            container.workers[spec.type] = worker
            self._workers[key] = worker
        if restored is not None:
            for status in [*(restored.init_container_statuses or []), *(restored.container_statuses or [])]:
                if status.name in entry.containers and status.container_id:
                    known = (status.container_id, status.ready, bool(status.started))
                    entry.containers[status.name].restored = known
        self._aim(entry)

    def update_pod(self, pod_uid: str, *, pod_ip: str | None = None, phase: str | None = None) -> None:
        """The pod's address or phase (`Failed` and `Succeeded` end its probes). Unknown pods are ignored."""
        entry = self._pods.get(pod_uid)
        if entry is None:
            return
        if pod_ip is not None and pod_ip != entry.address:
            entry.address = pod_ip
            self._aim(entry)
        terminal = phase in ("Failed", "Succeeded")
        if phase is not None and terminal != entry.phase_terminal:
            entry.phase_terminal = terminal
            for container in entry.containers.values():
                self._observe(container)

    def update_container(
        self, pod_uid: str, name: str, *, container_id: str, state: str, started_at: float = 0.0
    ) -> None:
        """What the runtime says: `state` is waiting, running or terminated, `started_at` a Unix time.

        Without probes, or when nothing changed, nothing happens.
        """
        entry = self._pods.get(pod_uid)
        container = entry.containers.get(name) if entry is not None else None
        if container is None:
            return
        number = {"waiting": WAITING, "running": RUNNING, "terminated": TERMINATED}[state]
        if (container.id, container.state, container.started_at) == (container_id, number, started_at):
            return
        if container.id != container_id:
            self._numbers += 1
            container.id = container_id
            container.number = self._numbers if container_id else 0
            for worker in container.workers.values():
                worker.published = rule.NONE
                worker.output = ""
        container.state = number
        container.started_at = started_at
        self._observe(container)
        self._hurry_readiness(container)

    def stop_liveness_and_startup(self, pod_uid: str) -> None:
        """The pod is terminating: only readiness goes on."""
        entry = self._pods.get(pod_uid)
        if entry is None or entry.deleted:
            return
        entry.deleted = True
        for container in entry.containers.values():
            self._observe(container)
            for type in ("liveness", "startup"):
                if type in container.workers:
                    self._native.trigger(container.workers[type].key)

    def remove_pod(self, pod_uid: str) -> None:
        """Forget a pod and its counters."""
        entry = self._pods.pop(pod_uid, None)
        for container in entry.containers.values() if entry is not None else ():
            for worker in container.workers.values():
                self._native.remove(worker.key)
                del self._workers[worker.key]

    def is_started(self, pod_uid: str, container: str, container_id: str = "") -> bool:
        """Running, and its startup probe (if any) has succeeded. True for containers without probes."""
        found = self._container(pod_uid, container)
        return found is None or ((not container_id or found.id == container_id) and found.started())

    def is_ready(self, pod_uid: str, container: str, container_id: str = "") -> bool:
        """Started, and its readiness probe (if any) has succeeded. True for containers without probes."""
        found = self._container(pod_uid, container)
        return found is None or ((not container_id or found.id == container_id) and found.ready())

    def failed(self, pod_uid: str, container: str, container_id: str) -> str:
        """`liveness` or `startup` when that probe wants this container restarted, else empty."""
        found = self._container(pod_uid, container)
        if found is None or found.id != container_id or found.state != RUNNING:
            return ""
        for type in ("liveness", "startup"):
            worker = found.workers.get(type)
            if worker is not None and worker.published == rule.FAILURE:
                return type
        return ""

    def describe(self, pod: str = "", **_: str) -> dict[str, Any]:
        """Every probe, of one pod (`namespace/name` or UID) if given, and the loop as a whole."""
        probes = []
        for worker in self._workers.values():
            of = worker.container.pod.pod
            if pod and pod not in (of.full_name, of.metadata.name, of.uid):
                continue
            probes.append(described(worker, self._native.info(worker.key)))
        probes.sort(key=lambda p: (p["pod"], p["container"], p["type"]))
        return {"probes": probes, "loop": {**self._native.stats(), "entries_into_python": self.entries}}

    def _container(self, pod_uid: str, name: str) -> ContainerProbes | None:
        entry = self._pods.get(pod_uid)
        return entry.containers.get(name) if entry is not None else None

    def _labels(self, key: int) -> tuple[Pod, ProbeSpec]:
        worker = self._workers[key]
        return worker.container.pod.pod, worker.spec

    def _aim(self, entry: PodProbes) -> None:
        for container in entry.containers.values():
            for worker in container.workers.values():
                self._aim_worker(worker, entry.address)

    def _aim_worker(self, worker: Worker, pod_ip: str) -> None:
        """Tell the native loop where to; what cannot be reached errs at each tick with the reason."""
        spec = worker.spec
        if spec.kind == "exec":
            return
        host = spec.host or pod_ip
        try:
            if not host:
                raise InvalidInput("the pod has no address yet")
            port = spec.resolve_port()
            request = http_request(host, port, spec.path, spec.headers) if "http" in spec.kind else None
        except InvalidInput as error:
            worker.target = None
            worker.text = str(error)
            self._native.untarget(worker.key)
            return
        worker.target = (host, port)
        worker.text = ""
        if not spec.native:
            return
        if request is not None:
            self._native.target(worker.key, host, port, *request)
        elif spec.kind == "grpc":
            self._native.target(worker.key, host, port, raw=grpc_request(host, port, spec.service))
        else:
            self._native.target(worker.key, host, port)

    def _observe(self, container: ContainerProbes) -> None:
        seen = Observation(
            pod_known=True,
            phase_terminal=container.pod.phase_terminal,
            container=container.number,
            state=container.state,
            started=container.started(),
            started_at_ms=int(container.started_at * 1000),
            deleted=container.pod.deleted,
        )
        for type, worker in container.workers.items():
            self._native.observe(worker.key, seen, initial=container.initial(type))

    def _hurry_readiness(self, container: ContainerProbes) -> None:
        """A container that has just started needn't wait a period for its first readiness probe."""
        readiness = container.workers.get("readiness")
        if readiness is not None and container.started() and not container.ready():
            self._native.trigger(readiness.key)

    def _take_news(self) -> None:
        self.entries += 1
        for news in self._native.drain():
            worker = self._workers.get(news[0])
            if worker is not None:
                self._take(worker, news)

    def _take(self, worker: Worker, news: News) -> None:
        _, generation, what, published, number, outcome, reason, detail, excerpt = news
        container = worker.container
        if what & NEWS_OUTCOME and outcome != rule.OUTCOME_SUCCESS:
            self._report(worker, outcome, reason, detail, excerpt)
        if what & NEWS_PUBLISHED and number == container.number and published != worker.published:
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
            task = asyncio.ensure_future(self._run_library(worker, generation))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _report(self, worker: Worker, outcome: int, reason: int, detail: int, excerpt: bytes) -> None:
        spec = worker.spec
        if reason == Reason.LIBRARY:
            why = worker.text
        elif worker.target is None:
            why = worker.text or text(spec, spec.host, 0, Reason.NO_TARGET, 0)
        else:
            why = text(spec, *worker.target, reason, detail, excerpt)
        worker.output = why
        name = spec.type.capitalize()
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
            if self._workers.get(worker.key) is not worker:
                return
            try:
                found = await self._attempt(worker)
            except KubengineError as error:
                found = Outcome(rule.OUTCOME_ERROR, str(error))
            except Exception as error:
                log.exception("%s probe of %s", spec.type, worker.container.pod.pod.full_name)
                found = Outcome(rule.OUTCOME_ERROR, f"{type(error).__name__}: {error}")
        if self._workers.get(worker.key) is worker:
            worker.text = found.text
            self._native.finish(worker.key, generation, found.outcome, Reason.LIBRARY)

    async def _attempt(self, worker: Worker) -> Outcome:
        spec = worker.spec
        if spec.kind == "exec":
            if self._runtime is None:
                return Outcome(rule.OUTCOME_ERROR, "there is no runtime to run the command")
            return await run_exec(
                self._runtime, worker.container.id.partition("://")[2] or worker.container.id, spec
            )
        if worker.target is None:
            return Outcome(rule.OUTCOME_ERROR, worker.text)
        host, port = worker.target
        return await (run_tcp if spec.kind == "tcp" else run_http)(spec, host, port)
