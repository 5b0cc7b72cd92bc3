"""Compare the consequences of probes: readiness, the end of startup, and the end of a container.

Probes are not run again, because they act on their pod. The kubelet counts the outcomes of each probe. If all
outcomes between two observations are equal, their order is known, and thresholds can be applied. After mixed
outcomes, a probe is judged again once enough equal ones have followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from engine._fast.probing.state import (
    FAILURE,
    LIVENESS,
    NONE,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    READINESS,
    STARTUP,
    SUCCESS,
    ProbeState,
)
from engine.api.pod import Container, Pod, Probe
from engine.api.status import ContainerStatus
from engine.cri.records import ContainerRecord
from engine.shadow.kinds.admission import is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import Observation
from engine.shadow.kinds.status import statuses

SETTLE: Final = 30.0
STATUS_SETTLE: Final = 60.0
"""Seconds within which a kubelet under load shows an outcome in a status."""
TYPES: Final = {"Liveness": LIVENESS, "Readiness": READINESS, "Startup": STARTUP}
RUNS, ENDS = "runs on", "is ended"
MIXED: Final = "successes and failures between two observations, in an unknown order"
SERIES: Final = "prober_probe_total{"
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')


class ProbeKey(NamedTuple):
    """Identify one probe: the uid of the pod, the container, and the type Liveness, Readiness or Startup."""

    uid: str
    container: str
    type: str


class ProbeCounts(NamedTuple):
    """Hold the kubelet's counters of the outcomes of a probe."""

    successful: int = 0
    failed: int = 0
    unknown: int = 0


@dataclass(slots=True)
class _TrackedProbe:
    """Track a probe of one incarnation of a container: its state, and the outcomes that are part of it.

    `mixed` says that the last outcomes had an unknown order, and too few equal ones have followed.
    """

    container_id: str
    attempt: int
    state: ProbeState
    counts: ProbeCounts
    mixed: bool = False


class ProbeComparer:
    """Track the outcomes of probes from observation to observation."""

    def __init__(self) -> None:
        self._tracked: dict[ProbeKey, _TrackedProbe] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about the probes of running containers, and of those that probes ended."""
        if not seen.probes_served:
            self._tracked = {}
            yield NotJudged("probes", "node", "the kubelet serves no /metrics/probes")
            return
        counted, tracked = probe_counts(seen.series), {}
        for pod in seen.pods.values():
            if is_refused(pod) or pod.metadata.deletion_timestamp is not None:
                continue
            record, shown = seen.record(pod.uid), statuses(pod.status)
            for container in pod.all_containers:
                newest, status = record.container(container.name), shown.get(container.name)
                for name, probe in _probes(container):
                    key = ProbeKey(pod.uid, container.name, name)
                    counts = counted.get(key)
                    if newest is None or status is None or counts is None:
                        continue
                    before = self._tracked.get(key)
                    if before is not None and before.container_id != newest.id:
                        yield from _compare_replaced(pod, container, probe, name, before, counts)
                    one = tracked[key] = _updated(before, newest, counts, probe, name)
                    yield from _compare_newest(pod, container, probe, name, one, newest, status)
        self._tracked = tracked


def probe_counts(series: Mapping[str, float]) -> dict[ProbeKey, ProbeCounts]:
    """Return the counters of each probe from the series of the kubelet."""
    found: dict[ProbeKey, ProbeCounts] = {}
    for text, value in series.items():
        if not text.startswith(SERIES):
            continue
        labels = dict(_LABEL.findall(text))
        key = ProbeKey(labels.get("pod_uid", ""), labels.get("container", ""), labels.get("probe_type", ""))
        result = labels.get("result", "")
        name = result if result in ProbeCounts._fields else "unknown"
        counts = found.get(key, ProbeCounts())
        found[key] = counts._replace(**{name: getattr(counts, name) + int(value)})
    return found


def _updated(
    before: _TrackedProbe | None, newest: ContainerRecord, counts: ProbeCounts, probe: Probe, name: str
) -> _TrackedProbe:
    """Return the tracked probe after an observation; a new one for another container."""
    one = before
    # Counters that decreased are those of a kubelet that has restarted.
    if one is None or one.container_id != newest.id or any(map(int.__lt__, counts, one.counts)):
        # The counters of a pod start at 0, so those of a first container are all its own.
        counted = ProbeCounts() if one is None and newest.attempt == 0 else counts
        one = _TrackedProbe(newest.id, newest.attempt, _state(name, probe), counted)
    _apply(one, counts, _state(name, probe))
    return one


def _apply(one: _TrackedProbe, counts: ProbeCounts, fresh: ProbeState) -> None:
    """Apply the outcomes since the last observation to the state; `fresh` is the state without outcomes."""
    new = [after - before for after, before in zip(counts, one.counts, strict=True)]
    one.counts = counts
    if new[2] or (new[0] and new[1]):
        one.state, one.mixed = fresh, True
        return
    outcome = OUTCOME_SUCCESS if new[0] else OUTCOME_FAILURE
    for _ in range(max(new)):
        one.state.finish(outcome)
    if one.state.published != NONE:
        one.mixed = False


def _state(name: str, probe: Probe) -> ProbeState:
    return ProbeState(
        TYPES[name], failure_threshold=probe.failure_threshold, success_threshold=probe.success_threshold
    )


def _compare_replaced(
    pod: Pod, container: Container, probe: Probe, name: str, one: _TrackedProbe, counts: ProbeCounts
) -> Iterator[Finding]:
    """Yield a comparison for a container that was replaced after its probe failed. Its last outcomes are in
    the current counters, together with those of the new container.
    """
    _apply(one, counts, _state(name, probe))
    if name != "Readiness" and one.state.published == FAILURE:
        yield Comparison(
            "probes", _subject(pod, container, name, one), ENDS, ENDS, _reason(one, probe),
            "another container runs in its place",
        )  # fmt: skip


def _compare_newest(
    pod: Pod, container: Container, probe: Probe, name: str, one: _TrackedProbe, newest: ContainerRecord,
    status: ContainerStatus,
) -> Iterator[Finding]:  # fmt: skip
    """Yield a comparison of the state of a probe with the kubelet's reaction to the outcomes so far."""
    subject, published = _subject(pod, container, name, one), one.state.published
    if one.mixed:
        yield NotJudged("probes", subject, MIXED)
    if published == NONE:
        return
    reason, settle = _reason(one, probe), SETTLE
    if name != "Readiness" and published == FAILURE:
        ours, theirs = ENDS, RUNS if newest.running else ENDS
        settle += grace_of(pod, probe)
        theirs_reason = "it runs" if newest.running else f"exit code {newest.exit_code}"
    elif not newest.running or status.container_id.rpartition("/")[2] != newest.id:
        return
    elif name == "Liveness":
        ours, theirs, theirs_reason = RUNS, RUNS, "it runs"
    elif name == "Startup":
        settle, theirs_reason = STATUS_SETTLE, "its status"
        ours, theirs = "started", _or_not("started", holds=bool(status.started))
    elif status.started:
        settle, theirs_reason = STATUS_SETTLE, "its status"
        ours = _or_not("ready", holds=published == SUCCESS)
        theirs = _or_not("ready", holds=status.ready)
    else:
        # Until its container has started, a readiness probe does not run.
        return
    yield Comparison("probes", subject, ours, theirs, reason, theirs_reason, settle)


def grace_of(pod: Pod, probe: Probe) -> float:
    """Return the grace period of a container whose probe failed, in seconds."""
    own = probe.termination_grace_period_seconds
    of_pod = pod.spec.termination_grace_period_seconds
    return float(own if own is not None else of_pod if of_pod is not None else 30)


def _probes(container: Container) -> Iterator[tuple[str, Probe]]:
    """Yield the type and the specification of each probe of a container."""
    for name, probe in (
        ("Liveness", container.liveness_probe),
        ("Readiness", container.readiness_probe),
        ("Startup", container.startup_probe),
    ):
        if probe is not None:
            yield name, probe


def _subject(pod: Pod, container: Container, name: str, one: _TrackedProbe) -> str:
    return f"{pod.full_name}/{container.name} {name.lower()} attempt {one.attempt}"


def _or_not(word: str, *, holds: bool) -> str:
    return word if holds else f"not {word}"


def _reason(one: _TrackedProbe, probe: Probe) -> str:
    return (
        f"{one.counts.successful} successes and {one.counts.failed} failures, thresholds "
        f"{probe.success_threshold} and {probe.failure_threshold}"
    )
