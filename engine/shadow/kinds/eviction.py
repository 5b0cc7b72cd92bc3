"""Compare evictions and pressure: which pods are evicted first, and which node conditions are true?

The inputs are the kubelet's own statistics at the observation before the eviction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.quantity import Quantity
from engine.api.resources import EPHEMERAL_STORAGE, MEMORY, ranking_request
from engine.eviction import signals
from engine.eviction.layout import is_disk, measured_parts
from engine.eviction.local_storage import is_local_ephemeral
from engine.eviction.pressure import CONDITIONS, PressureTracker, met
from engine.eviction.signals import CONDITION_OF, RESOURCE_OF, Observations, SignalObservation
from engine.eviction.thresholds import thresholds_from_config
from engine.eviction.usage import ContainerUsage, PodUsage, rank
from engine.shadow.kinds.admission import is_rejected
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import FileSystem, MeasuredNode, MeasuredPod, Observation
from engine.tables.pods import PodTable

EVICTED: Final = "Evicted"
SETTLE: Final = 90.0
"""Seconds. The kubelet evaluates thresholds every 10 s, and sends node conditions with its status, every 10 s
or less often."""
_MEASURED: Final = " was using "
"""Part of the message of an evicted pod, for each container above its request, if there were statistics."""
_USED: Final = re.compile(r"Container (\S+) was using (\S+), request is ", re.ASCII)
_LOW_ON: Final = re.compile(r"^The node was low on resource: ([a-z-]+)\.")


class EvictionComparer:
    """Compare evicted pods with the ranking at the observation before, and the conditions of the node."""

    def __init__(self) -> None:
        self._before: Observation | None = None
        self._judged: dict[str, Finding] = {}
        self._tracker: PressureTracker | None = None
        self._config: KubeletConfiguration | None = None

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about evicted pods and about pressure."""
        self._judged = {uid: found for uid, found in self._judged.items() if uid in seen.pods}
        evicted = [
            pod for uid, pod in seen.pods.items()
            if pod.status.reason == EVICTED and not is_rejected(pod) and uid not in self._judged
        ]  # fmt: skip
        for pod in evicted:
            self._judged[pod.uid] = self._judge(pod, {one.uid for one in evicted})
        yield from self._judged.values()
        yield from self._pressure(seen)
        self._before = seen

    def _judge(self, pod: Pod, together: set[str]) -> Finding:
        """Return the finding about an evicted pod; `together` are all pods evicted since the observation
        before.
        """
        match = _LOW_ON.match(pod.status.message)
        if match is None:
            return NotJudged("eviction", pod.full_name, "evicted for its own use, not for the node's")
        before = self._before
        if before is None or before.use is None or pod.uid not in before.pods:
            return NotJudged("eviction", pod.full_name, "no statistics from before its eviction")
        active, starved, use = before.active(), starved_signals(before, match[1]), before.use
        orders = [
            list(_first(eviction_order(candidates, measured, signal), len(together)))
            # After that observation, the kubelet may have measured pods that had no statistics before, and
            # the pod that it evicted, whose use is in the message. An order from either input is right.
            for candidates in (active, [one for one in active if one.uid in use.pods])
            for measured in (use, _with_reported_use(use, pod, match[1]))
            for signal in starved
        ]
        agreeing = [order for order in orders if any(one.uid == pod.uid for one, _ in order)]
        if not agreeing and _MEASURED not in pod.status.message:
            return NotJudged(
                "eviction", pod.full_name, "the kubelet had no statistics of it, which puts it first"
            )
        first = (agreeing or orders or [[]])[0][: len(together)]
        return Comparison(
            "eviction", pod.full_name,
            pod.full_name if agreeing else ", ".join(one.full_name for one, _ in first) or "no pod",
            pod.full_name, "; ".join(f"{one.full_name} {why}" for one, why in first), pod.status.message,
        )  # fmt: skip

    def _pressure(self, seen: Observation) -> Iterator[Finding]:
        if seen.use is None:
            yield NotJudged("pressure", "node", "the kubelet serves no statistics")
            return
        ours = self._conditions(seen, seen.use)
        if not seen.node_known:
            yield NotJudged("pressure", "node", "the Node object is not known")
            return
        theirs = node_conditions(seen.node)
        yield Comparison(
            "pressure", "node", " ".join(ours) or "none", " ".join(theirs) or "none",
            _signals_text(observations(seen.use, seen.now)), "conditions of the Node object", SETTLE,
        )  # fmt: skip

    def _conditions(self, seen: Observation, use: MeasuredNode) -> Sequence[str]:
        """Return the pressure conditions that follow from the statistics so far."""
        if self._tracker is None or seen.config is not self._config:
            period = float(seen.config.eviction_pressure_transition_period)
            self._tracker = PressureTracker(thresholds_from_config(seen.config), period)
            self._config = seen.config
        return self._tracker.update(observations(use, seen.now), seen.now).conditions


def node_conditions(node: Node) -> list[str]:
    """Return the pressure conditions that are true in a Node object."""
    true = {condition.type for condition in node.status.conditions or () if condition.status == "True"}
    return [name for name in CONDITIONS if name in true]


def starved_signals(seen: Observation, resource: str) -> list[str]:
    """Return the signals that may have caused an eviction for a resource: those whose threshold is met, or
    all with a threshold if none was met yet when the statistics were read.
    """
    thresholds = [t for t in thresholds_from_config(seen.config) if RESOURCE_OF[t.signal] == resource]
    observed = observations(seen.use, seen.now) if seen.use is not None else {}
    return list(dict.fromkeys(t.signal for t in met(thresholds, observed) or thresholds))


def observations(use: MeasuredNode, at: float) -> Observations:
    """Return the signals that follow from statistics, read at `at` (monotonic seconds)."""
    pids = None if use.max_pids is None or use.processes is None else use.max_pids - use.processes
    amounts = {
        signals.MEMORY_AVAILABLE: _with_capacity(use.memory_available, use.memory_working_set),
        signals.ALLOCATABLE_MEMORY_AVAILABLE: _with_capacity(use.pods_available, use.pods_working_set),
        signals.NODEFS_AVAILABLE: (use.nodefs.available, use.nodefs.capacity),
        signals.NODEFS_INODES_FREE: (use.nodefs.inodes_free, use.nodefs.inodes),
        signals.IMAGEFS_AVAILABLE: (use.imagefs.available, use.imagefs.capacity),
        signals.IMAGEFS_INODES_FREE: (use.imagefs.inodes_free, use.imagefs.inodes),
        signals.PID_AVAILABLE: (pids, use.max_pids),
    }
    return {
        signal: SignalObservation(available, capacity, at)
        for signal, (available, capacity) in amounts.items()
        if available is not None and capacity is not None
    }


def _with_capacity(available: int | None, used: int | None) -> tuple[int | None, int | None]:
    """Return the available memory and the capacity, as the kubelet computes it: available plus working
    set.
    """
    return available, None if available is None else available + (used or 0)


def disk_is_low(seen: Observation, images: FileSystem) -> bool:
    """Return whether a threshold of a disk is met, so that the kubelet removes all unused images."""
    observed = observations(seen.use, seen.now) if seen.use is not None else {}
    if images.available is not None and images.capacity:
        observed[signals.IMAGEFS_AVAILABLE] = SignalObservation(images.available, images.capacity, seen.now)
    return any(
        CONDITION_OF[threshold.signal] == signals.DISK_PRESSURE
        for threshold in met(thresholds_from_config(seen.config), observed)
    )


def eviction_order(pods: Sequence[Pod], use: MeasuredNode, signal: str) -> Iterator[tuple[Pod, str]]:
    """Yield pods in the order of eviction for a signal, each with the reason for its rank. Critical pods are
    left out.
    """
    listed = [pod for pod in pods if not is_critical(pod)]
    usage = {pod.uid: _usage(pod, use.pods[pod.uid]) for pod in listed if pod.uid in use.pods}
    parts = measured_parts(use.layout, signal) if is_disk(signal) else ()
    resource = RESOURCE_OF[signal]
    for pod, amount in rank(PodTable.from_pods(listed), listed, usage, resource, parts):
        yield pod, _reason(pod, amount, resource)


def _first(order: Iterator[tuple[Pod, str]], count: int) -> Iterator[tuple[Pod, str]]:
    """Yield the first `count` pods of an order, and those with the same rank as the last of them, because the
    kubelet sorts pods of equal rank in any order.
    """
    last = ""
    for number, (pod, why) in enumerate(order):
        if number >= count and why != last:
            return
        last = why
        yield pod, why


def _with_reported_use(use: MeasuredNode, pod: Pod, resource: str) -> MeasuredNode:
    """Return the statistics with the use that the message of an evicted pod reports, where that is more."""
    known = use.pods.get(pod.uid, MeasuredPod())
    reported = {name: _amount(text) for name, text in _USED.findall(pod.status.message)}
    if resource == MEMORY:
        known = replace(known, memory=max(known.memory or 0, sum(reported.values())))
    elif resource == EPHEMERAL_STORAGE:
        containers = dict(known.containers)
        for name, used in reported.items():
            before = containers.get(name, ContainerUsage())
            if used > before.rootfs.bytes + before.logs.bytes:
                rootfs = before.rootfs._replace(bytes=used - before.logs.bytes)
                containers[name] = structs.replace(before, rootfs=rootfs)
        known = replace(known, containers=containers)
    return replace(use, pods={**use.pods, pod.uid: known})


def _amount(text: str) -> int:
    """Return a quantity of a message in bytes, 0 for a text that is none."""
    try:
        return Quantity.parse(text).value
    except InvalidInput:
        return 0


def _usage(pod: Pod, use: MeasuredPod) -> PodUsage:
    return PodUsage(
        memory=use.memory,
        processes=use.processes,
        containers=dict(use.containers),
        volumes={
            volume.name: use.volumes[volume.name]
            for volume in pod.spec.volumes or ()
            if volume.name in use.volumes and is_local_ephemeral(volume)
        },
        disk_known=use.storage is not None,
    )


def _reason(pod: Pod, amount: int | None, resource: str) -> str:
    priority = f"priority {pod.spec.priority or 0}"
    if amount is None:
        return f"has no statistics, {priority}"
    if resource == signals.PIDS:
        return f"has {amount} processes, {priority}"
    request = ranking_request(pod, resource).value
    return f"uses {amount} bytes of {resource} and requests {request}, {priority}"


def _signals_text(observed: Observations) -> str:
    return ", ".join(f"{name} {one.available} of {one.capacity}" for name, one in observed.items())
