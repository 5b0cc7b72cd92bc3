"""Let a second configuration decide next to the live one: what it would have decided otherwise, when and why.

It sees the same pods and statistics. A pod that it would have evicted goes on running, so its use is
subtracted from then on; otherwise it would be evicted again with every observation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from engine.admission.readmission import ADMITTED, Readmission
from engine.api.config import KubeletConfiguration
from engine.api.configuration_changes import configuration_changes
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.quantity import ZERO
from engine.api.resources import MEMORY, pod_requests
from engine.eviction import signals
from engine.eviction.pressure import PressureTracker
from engine.eviction.signals import CONDITION_OF, Observations
from engine.eviction.thresholds import Threshold, thresholds_from_config
from engine.images.policy import ImageGCPolicy
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.cgroups import CgroupRules, WantedGroup, wanted_levels, wanted_of_pod
from engine.shadow.kinds.eviction import eviction_order, observations
from engine.shadow.kinds.observation import MeasuredNode, Observation
from engine.shadow.kinds.restarts import delay_at_most, kubelets_delay
from engine.shadow.kinds.status import statuses

MOST_CHANGES: Final = 2000
_LIMITS: Final = ("memory.limit_in_bytes", "memory.max")


class NextChange(NamedTuple):
    """Hold one decision that the second configuration takes otherwise: `now` is the live one, `next`
    its own.

    `decision` is admit, refuse, preempt, evict, pressure, resize, throttle, limit, collect, restart, start or
    back-off; `at` is a Unix time.
    """

    at: float
    decision: str
    subject: str
    now: str
    next: str
    why: str


@dataclass(frozen=True, slots=True)
class NextNode:
    """Hold the node under the second configuration, and pods that are there `more`, before all others."""

    config: KubeletConfiguration
    rules: CgroupRules
    node: Node
    more: Sequence[Pod] = ()


@dataclass(slots=True)
class SecondConfiguration:
    """Decide under a second configuration; `changes` are the last decisions that differ, bounded.

    A change is listed once while it stays the same. `counts` is by decision.
    """

    changes: deque[NextChange] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    counts: dict[str, int] = field(default_factory=dict)
    _standing: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    _trackers: dict[str, PressureTracker] = field(default_factory=dict)
    _evicted: dict[str, str] = field(default_factory=dict)

    def compare(self, seen: Observation, live: CgroupRules, following: NextNode) -> list[NextChange]:
        """Compare both configurations over one observation; return the changes that are new."""
        found: dict[tuple[str, str], NextChange] = {}
        for change in (
            *_fields(seen, following),
            *_admission(seen, following),
            *_values(seen, live, following.rules),
            *_images(seen, following.config),
            *_delays(seen, following.config),
            *self._pressure(seen, following),
        ):
            found[change.decision, change.subject] = change
        new = [
            change for key, change in found.items() if self._standing.get(key) != (change.now, change.next)
        ]
        self._standing = {key: (change.now, change.next) for key, change in found.items()}
        for change in new:
            self.changes.append(change)
            self.counts[change.decision] = self.counts.get(change.decision, 0) + 1
        return new

    def describe(self) -> dict[str, Any]:
        """Return what is known, ready for JSON."""
        return {"counts": dict(self.counts), "changes": [change._asdict() for change in self.changes]}

    def _pressure(self, seen: Observation, following: NextNode) -> Iterator[NextChange]:
        """Yield evictions and conditions, which need the course of time under either configuration."""
        self._evicted = {uid: why for uid, why in self._evicted.items() if uid in seen.pods}
        if seen.use is not None:
            yield from self._conditions(seen, seen.use, following)
        for uid, why in self._evicted.items():
            pod = seen.pods[uid]
            if pod.status.reason != "Evicted":
                yield NextChange(seen.at, "evict", pod.full_name, "stays", "evicted", why)

    def _conditions(self, seen: Observation, use: MeasuredNode, following: NextNode) -> Iterator[NextChange]:
        told = observations(use, seen.now)
        now = self._tracker("now", seen.config).update(told, seen.now)
        left = _without(told, use, self._evicted, following.more)
        tracker = self._tracker("next", following.config)
        coming = tracker.update(left, seen.now)
        if now.conditions != coming.conditions:
            low = (
                ", ".join(f"{t.signal} below {t.value}" for t in coming.act_on or now.act_on)
                or "after the transition period"
            )
            yield NextChange(
                seen.at, "pressure", "node", " ".join(now.conditions) or "none",
                " ".join(coming.conditions) or "none", low,
            )  # fmt: skip
        # As a kubelet does, which evicts at most one pod in a pass, for its first threshold.
        for threshold in coming.act_on[:1]:
            if threshold not in now.act_on:
                self._evict_first(seen, use, threshold, left)

    def _evict_first(
        self, seen: Observation, use: MeasuredNode, threshold: Threshold, left: Observations
    ) -> None:
        there = [pod for pod in seen.active() if pod.uid not in self._evicted]
        first = next(eviction_order(there, use, threshold.signal), None)
        if first is None:
            return
        observed = left[threshold.signal]
        self._evicted[first[0].uid] = (
            f"{threshold.signal} was {observed.available} of {observed.capacity}, below {threshold.value}; "
            f"it {first[1]}"
        )

    def _tracker(self, name: str, config: KubeletConfiguration) -> PressureTracker:
        wanted = thresholds_from_config(config)
        known = self._trackers.get(name)
        if known is None or list(known.thresholds) != wanted:
            period = float(config.eviction_pressure_transition_period)
            known = self._trackers[name] = PressureTracker(wanted, period)
        return known


def _fields(seen: Observation, following: NextNode) -> Iterator[NextChange]:
    """Yield what the change itself does when the kubelet starts with it."""
    for change in configuration_changes(seen.config, following.config):
        if change.effect == "changes":
            continue
        restarts = change.effect == "restarts"
        decision, whose = ("restart", "every pod") if restarts else ("start", "kubelet")
        yield NextChange(
            at=seen.at,
            decision=decision,
            subject=f"{whose} ({change.field})",
            now=f"{change.field}: {change.before}",
            next=change.effect,
            why=f"{change.field}: {change.after}; {change.why}",
        )


def _admission(seen: Observation, following: NextNode) -> Iterator[NextChange]:
    """Judge all pods in the order of their arrival, as a kubelet that starts with the configuration does."""
    now, coming = Readmission(seen.node), Readmission(following.node)
    for pod in following.more:
        reason, why = coming.judge(pod)
        if reason != ADMITTED:
            yield NextChange(seen.at, "refuse", pod.full_name, "not there", reason, why)
    refused = [pod for pod in seen.pods.values() if is_refused(pod)]
    for pod in sorted((*seen.active(), *refused), key=arrival):
        before, (after, why) = now.judge(pod)[0], coming.judge(pod)
        if before == after or (is_refused(pod) and before == ADMITTED):
            continue  # what the live one refused for another reason says nothing about its configuration
        decision = "admit" if after == ADMITTED else "refuse"
        yield NextChange(seen.at, decision, pod.full_name, before, after, why)
    names = {pod.uid: pod.full_name for pod in (*following.more, *seen.pods.values())}
    for victim, preemptor in coming.victims.items():
        if victim not in now.victims:
            name = names[victim]
            yield NextChange(
                seen.at, "preempt", name, "stays", "preempted", f"for the critical pod {preemptor}"
            )


def _values(seen: Observation, live: CgroupRules, following: CgroupRules) -> Iterator[NextChange]:
    """Yield cgroup values that change, and say which of them throttle or limit."""
    after = {group.subject: group for group in _groups(seen, following)}
    for group in _groups(seen, live):
        other = after.get(group.subject)
        if other is None:
            continue
        files = [file for file, text in group.files.items() if other.files.get(file) != text]
        files += [file for file in other.files if file not in group.files]
        if files:
            yield NextChange(
                seen.at, _meaning(group.files, other.files, files), group.subject,
                _shown(group.files, files), _shown(other.files, files), group.reason,
            )  # fmt: skip


def _groups(seen: Observation, rules: CgroupRules) -> Iterator[WantedGroup]:
    yield from wanted_levels(seen, rules)
    for pod in seen.active():
        yield from wanted_of_pod(pod, seen.record(pod.uid), rules, {})


def _shown(files: Mapping[str, str], chosen: list[str]) -> str:
    return " ".join(f"{file}={files.get(file, 'unset')}" for file in chosen)


def _meaning(before: Mapping[str, str], after: Mapping[str, str], files: list[str]) -> str:
    """Tell whether a change leaves less memory or CPU time, or is of another kind."""
    if any(_amount(after.get(file)) < _amount(before.get(file)) for file in files if file in _LIMITS):
        return "limit"
    slower = _amount(after.get("memory.high")) < _amount(before.get("memory.high"))
    return "throttle" if slower or _cpus(after) < _cpus(before) else "resize"


def _amount(text: str | None) -> float:
    return float(text) if text and text.isdigit() else float("inf")


def _cpus(files: Mapping[str, str]) -> float:
    """Return the number of CPUs that a quota allows; infinity without one.

    A shorter period has a smaller quota and allows the same.
    """
    quota, _, period = files.get("cpu.max", "").partition(" ")
    quota, period = files.get("cpu.cfs_quota_us", quota), files.get("cpu.cfs_period_us", period)
    return _amount(quota) / float(period or 100_000)


def _images(seen: Observation, config: KubeletConfiguration) -> Iterator[NextChange]:
    use = seen.use
    if use is None or not use.imagefs.capacity or use.imagefs.available is None:
        return
    capacity, available = use.imagefs.capacity, use.imagefs.available
    freed = [
        ImageGCPolicy.from_config(one).bytes_to_free(capacity, available) for one in (seen.config, config)
    ]
    if freed[0] != freed[1]:
        used = ImageGCPolicy.used_percent(capacity, available)
        said = ["nothing" if amount is None else f"{max(amount, 0)} bytes" for amount in freed]
        yield NextChange(
            seen.at, "collect", "images", said[0], said[1], f"the image file system is {used} % full"
        )


def _delays(seen: Observation, config: KubeletConfiguration) -> Iterator[NextChange]:
    for pod in seen.active():
        for name, status in statuses(pod.status).items():
            waiting = status.state.waiting
            delay = kubelets_delay(waiting.message) if waiting is not None else None
            if delay is None:
                continue
            other = delay_at_most(config, delay)
            if other != delay:
                yield NextChange(
                    seen.at, "back-off", f"{pod.full_name}/{name}", f"{delay:g} s", f"{other:g} s",
                    "crashLoopBackOff.maxContainerRestartPeriod",
                )  # fmt: skip


def _without(
    told: Observations, use: MeasuredNode, evicted: Mapping[str, str], more: Sequence[Pod]
) -> Observations:
    """Return the signals as if some pods no longer ran, and more used the memory that they request."""
    measured = [use.pods[uid] for uid in evicted if uid in use.pods]
    added = sum(pod_requests(pod).get(MEMORY, ZERO).value for pod in more)
    freed = {
        signals.MEMORY_PRESSURE: sum(one.memory or 0 for one in measured) - added,
        signals.DISK_PRESSURE: sum(one.storage or 0 for one in measured),
        signals.PID_PRESSURE: sum(one.processes or 0 for one in measured),
    }
    return {
        signal: observed._replace(available=observed.available + freed[CONDITION_OF[signal]])
        if "inodes" not in signal
        else observed
        for signal, observed in told.items()
    }
