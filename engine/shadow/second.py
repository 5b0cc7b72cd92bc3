"""Decide under a second configuration next to the live one, and report the decisions that it would change.

Both see the same pods and statistics. A pod that the second one would have evicted runs on, so its use is
subtracted from then on. Otherwise the pod would be evicted again at every observation.
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
from engine.shadow.kinds.cgroups import CgroupRules, ExpectedGroup, expected_levels, expected_of_pod
from engine.shadow.kinds.eviction import eviction_order, observations
from engine.shadow.kinds.observation import MeasuredNode, Observation
from engine.shadow.kinds.restarts import capped_delay, delay_in_message
from engine.shadow.kinds.status import statuses

MAX_CHANGES: Final = 2000
_LIMITS: Final = ("memory.limit_in_bytes", "memory.max")


class NextChange(NamedTuple):
    """Hold one decision that the second configuration changes: `now` is that of the live configuration, and
    `next` is that of the second one.

    `decision` is admit, refuse, preempt, evict, pressure, resize, throttle, limit, collect, restart, start or
    back-off. `at` is a Unix time.
    """

    at: float
    decision: str
    subject: str
    now: str
    next: str
    why: str


@dataclass(frozen=True, slots=True)
class NextNode:
    """Hold the node under the second configuration. `added_pods` arrive before all others, and run only
    there.
    """

    config: KubeletConfiguration
    rules: CgroupRules
    node: Node
    added_pods: Sequence[Pod] = ()


@dataclass(slots=True)
class SecondConfiguration:
    """Decide under a second configuration. `changes` are the latest decisions that it changes, bounded.

    A change is listed once for as long as it stays the same. `counts` maps a decision to the number of
    changes.
    """

    changes: deque[NextChange] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    counts: dict[str, int] = field(default_factory=dict)
    _current: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    _trackers: dict[str, PressureTracker] = field(default_factory=dict)
    _evicted: dict[str, str] = field(default_factory=dict)

    def compare(self, seen: Observation, live: CgroupRules, next_node: NextNode) -> list[NextChange]:
        """Compare both configurations over one observation; return the changes that are new."""
        found: dict[tuple[str, str], NextChange] = {}
        for change in (
            *_fields(seen, next_node),
            *_admission(seen, next_node),
            *_cgroup_values(seen, live, next_node.rules),
            *_images(seen, next_node.config),
            *_delays(seen, next_node.config),
            *self._pressure(seen, next_node),
        ):
            found[change.decision, change.subject] = change
        new = [change for key, change in found.items() if self._current.get(key) != (change.now, change.next)]
        self._current = {key: (change.now, change.next) for key, change in found.items()}
        for change in new:
            self.changes.append(change)
            self.counts[change.decision] = self.counts.get(change.decision, 0) + 1
        return new

    def describe(self) -> dict[str, Any]:
        """Return counts and changes, ready for JSON."""
        return {"counts": dict(self.counts), "changes": [change._asdict() for change in self.changes]}

    def _pressure(self, seen: Observation, next_node: NextNode) -> Iterator[NextChange]:
        """Yield changes of evictions and node conditions, which depend on earlier observations."""
        self._evicted = {uid: why for uid, why in self._evicted.items() if uid in seen.pods}
        if seen.use is not None:
            yield from self._conditions(seen, seen.use, next_node)
        for uid, why in self._evicted.items():
            pod = seen.pods[uid]
            if pod.status.reason != "Evicted":
                yield NextChange(seen.at, "evict", pod.full_name, "stays", "evicted", why)

    def _conditions(self, seen: Observation, use: MeasuredNode, next_node: NextNode) -> Iterator[NextChange]:
        observed = observations(use, seen.now)
        live = self._tracker("now", seen.config).update(observed, seen.now)
        adjusted = _adjusted(observed, use, self._evicted, next_node.added_pods)
        second = self._tracker("next", next_node.config).update(adjusted, seen.now)
        if live.conditions != second.conditions:
            reason = (
                ", ".join(f"{t.signal} below {t.value}" for t in second.act_on or live.act_on)
                or "after the transition period"
            )
            yield NextChange(
                seen.at, "pressure", "node", " ".join(live.conditions) or "none",
                " ".join(second.conditions) or "none", reason,
            )  # fmt: skip
        # A kubelet evicts at most one pod per synchronization, for its first threshold.
        for threshold in second.act_on[:1]:
            # For a threshold that the live configuration meets too, the kubelet evicts the pod itself.
            if threshold not in live.act_on:
                self._evict_first(seen, use, threshold, adjusted)

    def _evict_first(
        self, seen: Observation, use: MeasuredNode, threshold: Threshold, adjusted: Observations
    ) -> None:
        """Record the eviction of the first pod in the order of eviction, if there is one."""
        candidates = [pod for pod in seen.active() if pod.uid not in self._evicted]
        first = next(eviction_order(candidates, use, threshold.signal), None)
        if first is None:
            return
        observed = adjusted[threshold.signal]
        self._evicted[first[0].uid] = (
            f"{threshold.signal} was {observed.available} of {observed.capacity}, below {threshold.value}; "
            f"it {first[1]}"
        )

    def _tracker(self, name: str, config: KubeletConfiguration) -> PressureTracker:
        """Return the tracker of a configuration; a new one if its thresholds have changed."""
        thresholds = thresholds_from_config(config)
        found = self._trackers.get(name)
        if found is None or list(found.thresholds) != thresholds:
            period = float(config.eviction_pressure_transition_period)
            found = self._trackers[name] = PressureTracker(thresholds, period)
        return found


def _fields(seen: Observation, next_node: NextNode) -> Iterator[NextChange]:
    """Yield the fields whose change restarts pods, or keeps the kubelet from starting."""
    for change in configuration_changes(seen.config, next_node.config):
        if change.effect == "changes":
            continue
        restarts = change.effect == "restarts"
        decision, subject = ("restart", "every pod") if restarts else ("start", "kubelet")
        yield NextChange(
            at=seen.at,
            decision=decision,
            subject=f"{subject} ({change.field})",
            now=f"{change.field}: {change.before}",
            next=change.effect,
            why=f"{change.field}: {change.after}; {change.why}",
        )


def _admission(seen: Observation, next_node: NextNode) -> Iterator[NextChange]:
    """Yield changes of admission and preemption, with all pods admitted again in the order of their arrival,
    as by a kubelet that starts.
    """
    live, second = Readmission(seen.node), Readmission(next_node.node)
    for pod in next_node.added_pods:
        reason, why = second.judge(pod)
        if reason != ADMITTED:
            yield NextChange(seen.at, "refuse", pod.full_name, "not there", reason, why)
    refused = [pod for pod in seen.pods.values() if is_refused(pod)]
    for pod in sorted((*seen.active(), *refused), key=arrival):
        before, (after, why) = live.judge(pod)[0], second.judge(pod)
        # A pod that the kubelet refused although it fits was refused for a reason other than its
        # configuration.
        if before == after or (is_refused(pod) and before == ADMITTED):
            continue
        decision = "admit" if after == ADMITTED else "refuse"
        yield NextChange(seen.at, decision, pod.full_name, before, after, why)
    names = {pod.uid: pod.full_name for pod in (*next_node.added_pods, *seen.pods.values())}
    for victim, preemptor in second.victims.items():
        if victim not in live.victims:
            name = names[victim]
            yield NextChange(
                seen.at, "preempt", name, "stays", "preempted", f"for the critical pod {preemptor}"
            )


def _cgroup_values(seen: Observation, live: CgroupRules, second: CgroupRules) -> Iterator[NextChange]:
    """Yield the cgroups whose values change."""
    after = {group.subject: group for group in _groups(seen, second)}
    for group in _groups(seen, live):
        other = after.get(group.subject)
        if other is None:
            continue
        files = [file for file, text in group.files.items() if other.files.get(file) != text]
        files += [file for file in other.files if file not in group.files]
        if files:
            yield NextChange(
                seen.at, _decision(group.files, other.files, files), group.subject,
                _values_text(group.files, files), _values_text(other.files, files), group.reason,
            )  # fmt: skip


def _groups(seen: Observation, rules: CgroupRules) -> Iterator[ExpectedGroup]:
    """Yield the cgroups of the QoS levels and of all active pods."""
    yield from expected_levels(seen, rules)
    for pod in seen.active():
        yield from expected_of_pod(pod, seen.record(pod.uid), rules, {})


def _values_text(files: Mapping[str, str], chosen: list[str]) -> str:
    return " ".join(f"{file}={files.get(file, 'unset')}" for file in chosen)


def _decision(before: Mapping[str, str], after: Mapping[str, str], files: list[str]) -> str:
    """Return `limit` if a change lowers a memory limit, `throttle` if it slows the group, else `resize`."""
    if any(_amount(after.get(file)) < _amount(before.get(file)) for file in files if file in _LIMITS):
        return "limit"
    slower = _amount(after.get("memory.high")) < _amount(before.get("memory.high"))
    return "throttle" if slower or _cpus(after) < _cpus(before) else "resize"


def _amount(text: str | None) -> float:
    return float(text) if text and text.isdigit() else float("inf")


def _cpus(files: Mapping[str, str]) -> float:
    """Return the number of CPUs that quota and period allow; infinity without a quota."""
    quota, _, period = files.get("cpu.max", "").partition(" ")
    quota, period = files.get("cpu.cfs_quota_us", quota), files.get("cpu.cfs_period_us", period)
    return _amount(quota) / float(period or 100_000)


def _images(seen: Observation, config: KubeletConfiguration) -> Iterator[NextChange]:
    """Yield the change of the bytes that image garbage collection frees, if there is one."""
    use = seen.use
    if use is None or not use.imagefs.capacity or use.imagefs.available is None:
        return
    capacity, available = use.imagefs.capacity, use.imagefs.available
    freed = [
        ImageGCPolicy.from_config(one).bytes_to_free(capacity, available) for one in (seen.config, config)
    ]
    if freed[0] != freed[1]:
        used = ImageGCPolicy.used_percent(capacity, available)
        now, changed = ("nothing" if amount is None else f"{max(amount, 0)} bytes" for amount in freed)
        yield NextChange(
            seen.at, "collect", "images", now, changed, f"the image file system is {used} % full"
        )


def _delays(seen: Observation, config: KubeletConfiguration) -> Iterator[NextChange]:
    """Yield the changes of restart delays of containers in back-off."""
    for pod in seen.active():
        for name, status in statuses(pod.status).items():
            waiting = status.state.waiting
            delay = delay_in_message(waiting.message) if waiting is not None else None
            if delay is None:
                continue
            other = capped_delay(config, delay)
            if other != delay:
                yield NextChange(
                    seen.at, "back-off", f"{pod.full_name}/{name}", f"{delay:g} s", f"{other:g} s",
                    "crashLoopBackOff.maxContainerRestartPeriod",
                )  # fmt: skip


def _adjusted(
    observed: Observations, use: MeasuredNode, evicted: Mapping[str, str], added_pods: Sequence[Pod]
) -> Observations:
    """Return the signals as if `evicted` pods no longer ran, and `added_pods` used the memory that they
    request. Inodes of pods are not measured, so their signals stay.
    """
    measured = [use.pods[uid] for uid in evicted if uid in use.pods]
    added = sum(pod_requests(pod).get(MEMORY, ZERO).value for pod in added_pods)
    freed = {
        signals.MEMORY_PRESSURE: sum(one.memory or 0 for one in measured) - added,
        signals.DISK_PRESSURE: sum(one.storage or 0 for one in measured),
        signals.PID_PRESSURE: sum(one.processes or 0 for one in measured),
    }
    return {
        signal: one._replace(available=one.available + freed[CONDITION_OF[signal]])
        if "inodes" not in signal
        else one
        for signal, one in observed.items()
    }
