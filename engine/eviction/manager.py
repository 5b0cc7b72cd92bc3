"""Runs eviction: reads signals, reclaims, evicts one pod at a time.

Each round reads the signals, lets the tracker decide what is due, and evicts pods over their local storage
limits. Otherwise it takes the most urgent threshold, reclaims on the node, measures again, and only then
ranks and evicts one pod; then it waits until that is gone and starts again. Between rounds it sleeps for the
interval, or until the kernel reports that memory runs short.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.decisions import Measured
from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, KubengineError
from engine.api.events import WARNING
from engine.api.lifecycle import KillPod, PodEnd, PodKills
from engine.api.node import NodeCondition
from engine.api.pod import Pod
from engine.api.qos import is_critical, qos_class
from engine.api.query import is_set
from engine.api.resources import ranking_request
from engine.cri.client import RuntimeClient
from engine.cri.paths import pod_directory
from engine.eviction import admission, local_storage, message, pressure
from engine.eviction.cleanup import NO_COLLECTORS, Cleanup, GarbageCollectors
from engine.eviction.contention import FILES, StallReader, contentions, most_waiting
from engine.eviction.explain import explain
from engine.eviction.layout import is_disk, measured_parts, with_container_filesystem
from engine.eviction.measure import PatientMeter, PodCgroup, PodMeter
from engine.eviction.node_conditions import node_conditions
from engine.eviction.notifier import MemoryNotifiers
from engine.eviction.pressure import CONDITIONS, Pressure, PressureTracker
from engine.eviction.readings import NodeView, SignalReader
from engine.eviction.signals import MEMORY_STALL, RESOURCE_OF, Observations
from engine.eviction.stall import WHOLE, causes, pod_stalls, stall_thresholds
from engine.eviction.thresholds import Threshold, thresholds_from_config
from engine.eviction.usage import PodUsage, Ranking, rank
from engine.host.node_context import NodeContext
from engine.images.filesystem import runtime_filesystems, same_device
from engine.metrics import Registry, Sample
from engine.tables.pods import PodTable

HARD_GRACE_SECONDS: Final = 1
CLEANUP_TIMEOUT: Final = 30.0
CLEANUP_POLL: Final = 1.0
STEP_SECONDS: Final = 1800.0
"""Seconds after which a round counts as stuck."""
LAYOUT_TIMEOUT: Final = 3.0
LAYOUT_RETRY: Final = 30.0
MESSAGE_DEADLINE: Final = 2.0
"""Seconds for which an eviction waits for the containers' numbers, which only its message needs."""
MIN_WAKE_INTERVAL: Final = 0.01
FOLLOW_UP: Final = 0.1
"""After a wake-up, the next rounds follow after 0.1 s, 0.2 s, … up to the interval. The kernel counts page
cache that the working set does not, so a wake-up may come early, and there is only one for each crossing.
"""
UNKILLED: Final = "Container runtime did not kill the pod within specified grace period."

log = logging.getLogger("kubengine.eviction")


class EvictablePods(msgspec.Struct, frozen=True):
    """Hold the functions by which eviction reaches the pods of a node.

    `kill` ends a pod for good; `cgroup(uid)` returns the path of its cgroup; `cleaned_up(uid)` tells that
    nothing of it is left (by default: cgroup and volumes are gone). `swap_limit`, on cgroup v2, returns how
    many bytes a pod may swap.
    """

    active: Callable[[], Sequence[Pod]]
    kill: KillPod
    cgroup: PodCgroup
    cleaned_up: Callable[[str], bool] | None = None
    swap_limit: Callable[[Pod], int] | None = None


class EvictionManager:
    """Keep memory, disk and process ids above their thresholds.

    `table` has the rows of admitted pods; pods without a row are ranked by their specs. `view` tells what
    counts as the node. `collectors` run before a pod is evicted. `conditions_changed` is called when a node
    condition appears or clears. Raises `InvalidInput` for contradictory thresholds.
    """

    def __init__(
        self,
        context: NodeContext,
        pods: EvictablePods,
        *,
        table: PodTable | None = None,
        runtime: RuntimeClient | None = None,
        collectors: GarbageCollectors = NO_COLLECTORS,
        view: NodeView | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        conditions_changed: Callable[[], None] | None = None,
    ) -> None:
        self.section = section = context.kubengine_config.eviction
        view = view or NodeView()
        self._config = config = context.config
        stall = stall_thresholds(section, view.mounts)
        self._configured = [*thresholds_from_config(config), *stall]
        self._recorder, self._decisions, self._clock = context.recorder, context.decisions, context.clock
        self._active_pods, self._kills, self._pod_cgroup = pods.active, PodKills(pods.kill), pods.cgroup
        self._pod_cleaned_up = pods.cleaned_up or self._has_cleaned_up
        self._table = table if table is not None else PodTable()
        self._runtime, self._root_dir, self._monotonic = runtime, context.root, monotonic
        self._conditions_changed = conditions_changed
        self._contention = contentions(section)
        names = [one.name for one in self._contention]
        self._stalls = StallReader(names, view.mounts, view.pods_cgroup or view.cgroup)
        self.reader = self._create_reader(view, self._swap_allowed(pods.swap_limit), stall=bool(stall))
        self.meter = self._create_meter(view)
        self._limit_meter = PatientMeter(self.meter)
        self.tracker = PressureTracker(self._configured, float(config.eviction_pressure_transition_period))
        self._decisions.remembered["pressure"] = self.tracker.remembered
        self._since: dict[str, float] = dict.fromkeys((*CONDITIONS, *names), self._clock())
        self._layout_known = False
        self._ask_layout_at = self._limits_checked = float("-inf")
        self._wake, self._task = asyncio.Event(), context.tasks.task("eviction")
        self._notifiers = MemoryNotifiers(self.reader, self._configured, self._wake.set)
        self._cleanup = Cleanup(
            context, self.reader, self.tracker, collectors=collectors, monotonic=monotonic
        )
        self._create_metrics(context.registry)

    def _create_reader(
        self, view: NodeView, swap_allowed: Callable[[], int] | None, *, stall: bool
    ) -> SignalReader:
        return SignalReader(
            view,
            nodefs=self._root_dir,
            memory_signal=self.section.memory_signal,
            stall=stall,
            swap_allowed=swap_allowed,
        )

    def _create_meter(self, view: NodeView) -> PodMeter:
        return PodMeter(
            pod_cgroup=self._pod_cgroup,
            runtime=self._runtime,
            pod_logs_dir=Path(self._config.pod_logs_dir),
            root_dir=self._root_dir,
            mounts=view.mounts,
            count_swap=self.section.count_swap,
        )

    def _create_metrics(self, registry: Registry) -> None:
        registry.collected(
            "gauge",
            "kubengine_pods_stall_ratio",
            "Share of the last 10 s that pods waited, by the node condition that it determines.",
            ["condition"],
            lambda: [((one.name,), one.waited / WHOLE) for one in self._contention if one.waited is not None],
        )
        if self.section.count_swap:
            registry.collected(
                "gauge",
                "kubengine_memory_available_swap_bytes",
                "Part of the available memory that is swap which pods may still use.",
                (),
                self._swap_left,
            )
        self._evictions = registry.counter(
            "kubelet_evictions", "Pods evicted, by the signal whose threshold was met.", ["eviction_signal"]
        )
        self._stats_age = registry.histogram(
            "kubelet_eviction_stats_age_seconds",
            "Age of the readings that an eviction decision is based on.",
            ["eviction_signal"],
        )

    def _swap_allowed(self, limit: Callable[[Pod], int] | None) -> Callable[[], int] | None:
        if not self.section.count_swap:
            return None
        if limit is None:
            raise InvalidInput("needs cgroup v2", subject="eviction.countSwap")
        return lambda: sum(limit(pod) for pod in self._active_pods())

    def _swap_left(self) -> list[Sample]:
        try:
            return [((), float(self.reader.swap_left()))]
        except (OSError, KubengineError):
            return []

    async def start(self) -> None:
        """Start a round now, then one every interval and on each wake-up by the kernel."""
        if self.section.notifications:
            self._notifiers.start()
        self._task.start(self._loop)

    async def stop(self) -> None:
        """Stop waiting for evictions in progress."""
        await self._task.stop()
        await self._limit_meter.stop()
        await self._kills.stop()
        self._notifiers.stop()
        self._stalls.close()
        self.reader.close()

    def admit(self, pod: Pod) -> None:
        """Raise `AdmissionRejected` for a pod that the node rejects under its present pressure."""
        if self.tracker.conditions:
            admission.check(pod, self.tracker.conditions)

    @property
    def under_pressure(self) -> tuple[str, ...]:
        """Return which of MemoryPressure, DiskPressure and PIDPressure hold."""
        return self.tracker.conditions

    def conditions(self) -> list[NodeCondition]:
        """Return the conditions for the node's status: the kubelet's three, and the configured ones of
        contention.
        """
        now = self._clock()
        by_stall = [one.condition(self._since[one.name], now) for one in self._contention]
        return node_conditions(self.tracker.conditions, self._since, now) + by_stall

    async def describe(self, disk: str = "false") -> dict[str, Any]:
        """Return signals, thresholds with their distance, and which pods would be evicted first and why.

        `disk=true` also measures the pods' disk usage, which walks their files.
        """
        whole = is_set({"disk": disk}, "disk", "eviction")
        pods = list(self._active_pods())
        usage = await self.meter.whole(pods) if whole else self.meter.quick(pods)
        observations = self.reader.read(self._monotonic())
        return explain(self.tracker, self.reader.layout, observations, self._table, pods, usage, disk=whole)

    async def synchronize(self) -> list[Pod]:
        """Run one round; return the evicted pods: at most one for a threshold, and all over their storage
        limits.
        """
        self._check_contention()
        await self._find_layout()
        if not self.tracker.thresholds and not self._config.local_storage_capacity_isolation:
            return []
        pods = list(self._active_pods())
        observations = self.reader.read(self._monotonic())
        now = self._monotonic()
        seen = self.tracker.update(observations, now)
        self._record_signals(observations, now)
        self._announce(seen)
        # After each reading: on v1 the kernel compares usage, so its threshold moves with the page cache of
        # the moment.
        self._notifiers.arm(observations)
        if self._config.local_storage_capacity_isolation and self._limits_due():
            evicted = await self._evict_over_limits(pods)
            if evicted:
                return evicted
        if not seen.act_on:
            return []
        # The tracker sorts memory before everything else (kubelet: `byEvictionPriority`).
        threshold = seen.act_on[0]
        resource = RESOURCE_OF[threshold.signal]
        self._recorder.node(WARNING, "EvictionThresholdMet", f"Attempting to reclaim {resource}")
        # Unused images and dead containers go first: no pod has to end for them.
        if await self._cleanup.relieves(threshold.signal):
            self._measured("relieved", threshold.signal)
            return []
        if not pods:
            log.warning("the node is low on %s and has no pod to evict", resource)
            return []
        return await self._evict_one(threshold, seen, observations, pods)

    def _record_signals(self, observations: Observations, now: float) -> None:
        """Tell a record the signals of a round: the time of the round and of the reading in monotonic
        microseconds, then what is available and the capacity of each.
        """
        if self._decisions.record_measured is None or not observations:
            return
        values = [round(now * 1e6), *(round(one.at * 1e6) for one in islice(observations.values(), 1))]
        for one in observations.values():
            values += (one.available, one.capacity)
        layout = self.reader.layout if self._layout_known else ""
        self._measured(f"signals {layout}".rstrip(), " ".join(observations), values)

    def _record_ranking(self, threshold: Threshold, pods: Sequence[Pod], ranked: Ranking) -> None:
        """Tell a record what each pod used when it was ranked, -1 for a pod without statistics."""
        if self._decisions.record_measured is None:
            return
        used = {pod.uid: amount for pod, amount in ranked}
        values = [-1 if (amount := used[pod.uid]) is None else amount for pod in pods]
        self._measured(f"ranking {threshold.signal}", " ".join(pod.uid for pod in pods), values)

    def _measured(self, name: str, keys: str, values: Sequence[int] = ()) -> None:
        if self._decisions.record_measured is not None:
            self._decisions.record_measured(Measured("pressure", name, keys, values))

    def _check_contention(self) -> None:
        changed = [
            one for one in self._contention if one.update(self._stalls.read(one.name), self._monotonic())
        ]
        for one in changed:
            pods = list(self._active_pods())
            stalls = pod_stalls(pods, self._pod_cgroup, self.reader.view.mounts, FILES[one.name])
            inputs = {
                "condition": one.name,
                "waited": one.waited,
                "most": most_waiting(stalls, {pod.uid: pod.full_name for pod in pods}),
            }
            self._decisions.record("pressure", "raised" if one.holding else "cleared", one.message(), inputs)
            self._since[one.name] = self._clock()
            log.warning("node condition %s is %s: %s", one.name, one.holding, one.message())
        if changed and self._conditions_changed is not None:
            self._conditions_changed()

    async def ranking(self, signal: str, pods: Sequence[Pod]) -> list[tuple[Pod, int | None]]:
        """Return the pods in the order in which `signal` would evict them, with the usage that counts."""
        usage = await self.meter.whole(pods) if is_disk(signal) else self.meter.quick(pods)
        return list(self._ranked(signal, pods, usage))

    def _ranked(self, signal: str, pods: Sequence[Pod], usage: dict[str, PodUsage]) -> Ranking:
        parts = measured_parts(self.reader.layout, signal) if is_disk(signal) else ()
        return rank(self._table, pods, usage, RESOURCE_OF[signal], parts)

    async def _evict_one(
        self, threshold: Threshold, seen: Pressure, observations: Observations, pods: Sequence[Pod]
    ) -> list[Pod]:
        disk = is_disk(threshold.signal)
        stalls: dict[str, int] = {}
        if threshold.signal == MEMORY_STALL:
            stalls = pod_stalls(pods, self._pod_cgroup, self.reader.view.mounts)
            pods = causes(pods, stalls)
        usage = await self.meter.whole(pods) if disk else self.meter.quick(pods)
        ranked = self._ranked(threshold.signal, pods, usage)
        self._record_ranking(threshold, pods, ranked)
        # Measuring disk usage takes seconds, in which an earlier victim may have freed enough.
        if self.section.recheck_before_evict:
            again = self.reader.read(self._monotonic())
            if not pressure.met(seen.act_on, again, reclaimed=True):
                self._measured("recovered", threshold.signal)
                log.info("%s recovered before a pod was evicted", threshold.signal)
                return []
        now = self._monotonic()
        for due in seen.act_on:
            self._stats_age.observe(now - observations[due.signal].at, due.signal)
        for pod, amount in ranked:
            # Static, mirror and system-critical pods: the kubelet skips them here, too.
            if is_critical(pod):
                log.warning("pod %s is critical and is not evicted", pod.full_name)
                continue
            # For the message only: while memory is short, a slow runtime must not delay the eviction.
            if not disk:
                usage |= await self.meter.whole([pod], files=False, deadline=MESSAGE_DEADLINE)
            text, annotations = message.eviction_message(
                RESOURCE_OF[threshold.signal], pod, usage.get(pod.uid), seen.act_on, observations
            )
            end = PodEnd(
                message.REASON,
                text,
                self._grace(threshold, pod),
                message.CONDITION_REASON,
                annotations,
                by_exit_codes=True,
            )
            observed = observations[threshold.signal]
            inputs = {
                "signal": threshold.signal,
                "available": observed.available,
                "capacity": observed.capacity,
                "threshold": threshold.limit(observed.capacity),
                "gracePeriod": threshold.grace_period,
                "usage": amount,
                "request": str(ranking_request(pod, RESOURCE_OF[threshold.signal])),
                "priority": pod.spec.priority,
                "qos": qos_class(pod),
                "candidates": len(pods),
                **({"stall": stalls[pod.uid]} if pod.uid in stalls else {}),
                **({"countSwap": True} if self.section.count_swap else {}),
            }
            await self._evict(pod, end, inputs)
            self._evictions.inc(threshold.signal)
            # The kernel's average falls only over seconds: without a new grace period, the next round would
            # evict another pod for the same stall.
            if threshold.signal == MEMORY_STALL:
                self.tracker.restart_grace(threshold)
            # At most one pod a round, as in the kubelet: its memory may be enough.
            return [pod]
        log.warning("%s: no pod could be evicted", threshold.signal)
        return []

    def _grace(self, threshold: Threshold, pod: Pod) -> int:
        if threshold.hard:
            return HARD_GRACE_SECONDS
        # The maximum replaces the pod's own period only if that is longer.
        limit = self._config.eviction_max_pod_grace_period
        own = pod.spec.termination_grace_period_seconds
        return limit if own is None else min(limit, own)

    def _limits_due(self) -> bool:
        """Tell whether local storage limits are due: once an interval, however often the kernel wakes the
        manager, because checking walks files.
        """
        now = self._monotonic()
        if now - self._limits_checked < float(self.section.interval):
            return False
        self._limits_checked = now
        return True

    async def _evict_over_limits(self, pods: Sequence[Pod]) -> list[Pod]:
        limited = [pod for pod in pods if local_storage.has_limits(pod) and not is_critical(pod)]
        if not limited:
            return []
        usage = await self._limit_meter.whole(limited)
        evicted = []
        for pod in limited:
            if pod.uid not in usage:
                continue
            over = local_storage.exceeded(
                pod, usage[pod.uid], dedicated_imagefs=self.reader.layout != "shared"
            )
            if over is not None:
                end = PodEnd(message.REASON, over.message, HARD_GRACE_SECONDS, by_exit_codes=True)
                used = local_storage.usage_of_pod(usage[pod.uid])
                inputs = {"signal": over.signal, "used": used, "byQuota": usage[pod.uid].by_quota}
                await self._evict(pod, end, inputs)
                self._evictions.inc(over.signal)
                evicted.append(pod)
        return evicted

    async def _evict(self, pod: Pod, end: PodEnd, inputs: Mapping[str, Any]) -> None:
        """Evict a pod. A failure is logged, and the pod counts as evicted nevertheless."""
        # The event comes first: the pod's status, and with it the reason, may be long in coming.
        self._recorder.pod(pod, WARNING, end.reason, end.message, annotations=dict(end.annotations))
        self._decisions.pod(pod, "eviction", "evicted", end.message, inputs)
        try:
            await self._kills.end(pod, end)
        except TimeoutError:
            self._recorder.pod(
                pod,
                WARNING,
                "ExceededGracePeriod",
                UNKILLED,
            )
            self._decisions.pod(pod, "eviction", "failed", UNKILLED, inputs)
        except KubengineError as error:
            log.warning("evicting pod %s failed: %s", pod.full_name, error)
            self._decisions.pod(pod, "eviction", "failed", str(error), inputs)

    async def _find_layout(self) -> None:
        """Determine the layout once, as soon as the runtime tells where it keeps images."""
        if self._layout_known or self._monotonic() < self._ask_layout_at:
            return
        # A runtime that does not answer must not delay every round by LAYOUT_TIMEOUT.
        self._ask_layout_at = self._monotonic() + LAYOUT_RETRY
        if self._runtime is not None:
            try:
                async with asyncio.timeout(LAYOUT_TIMEOUT):
                    where = await runtime_filesystems(self._runtime)
                dedicated = not same_device(where.images, self.reader.nodefs)
                layers = where.containers or where.images
                split = dedicated and not same_device(where.images, layers)
            except (KubengineError, OSError, TimeoutError) as error:
                log.warning("the runtime's image file system is not known yet: %s", error)
                return
            self.reader.imagefs, self.reader.containerfs = where.images, layers
            self.reader.layout = "split" if split else "imagefs" if dedicated else "shared"
        else:
            self.reader.imagefs = self.reader.containerfs = self.reader.nodefs
        self.tracker.thresholds = with_container_filesystem(self._configured, self.reader.layout)
        self._layout_known = True

    def _announce(self, seen: Pressure) -> None:
        for name in (*seen.raised, *seen.cleared):
            self._since[name] = self._clock()
            log.warning("node condition %s is %s", name, name in seen.conditions)
        if (seen.raised or seen.cleared) and self._conditions_changed is not None:
            self._conditions_changed()

    async def _loop(self) -> None:
        interval = max(float(self.section.interval), FOLLOW_UP)
        pauses: Iterator[float] = repeat(interval)
        while True:
            try:
                with self._task.step(STEP_SECONDS):
                    evicted = await self.synchronize()
            except Exception as error:
                self._task.failed(error)
                evicted = []
            if evicted:
                # Then the next round begins at once: it measures what the eviction has freed.
                await self._wait_for_cleanup(evicted)
                continue
            if self.tracker.acted_on:
                # While a threshold is met the kernel wakes the manager all the time, and a second eviction
                # must wait for the effect of the first.
                await asyncio.sleep(interval)
                self._wake.clear()
                continue
            try:
                async with asyncio.timeout(next(pauses)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()
            pauses = iter(RetryDelays(FOLLOW_UP, interval))
            # The kernel may send events in a burst; one round answers all of them.
            await asyncio.sleep(MIN_WAKE_INTERVAL)

    async def _wait_for_cleanup(self, pods: Sequence[Pod]) -> None:
        deadline = self._monotonic() + CLEANUP_TIMEOUT
        left = {pod.uid: pod for pod in pods}
        while True:
            left = {uid: pod for uid, pod in left.items() if not self._pod_cleaned_up(uid)}
            if not left:
                return
            if self._monotonic() >= deadline:
                names = ", ".join(pod.full_name for pod in left.values())
                log.warning("pods still running %.0f s after their eviction: %s", CLEANUP_TIMEOUT, names)
                return
            await asyncio.sleep(CLEANUP_POLL)

    def _has_cleaned_up(self, uid: str) -> bool:
        """Tell whether neither cgroup nor volumes of a pod are left: many files go long after the
        last process.
        """
        cgroup = self._pod_cgroup(uid)
        if cgroup is not None and self.reader.view.mounts.directory("memory", cgroup).exists():
            return False
        return not (pod_directory(self._root_dir, uid) / "volumes").exists()
