"""Compare what follows from probes: readiness, the end of the start, and the end of a container.

A probe acts on its pod, so it is not repeated. The kubelet counts each outcome by probe. Outcomes of one kind
between two observations have one order only, so the rule of thresholds can be applied to them; from mixed
outcomes on, a probe is judged again once enough equal ones have followed.
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
"""Seconds that a kubelet under load may take to show an outcome, as for any other part of a status."""
TYPES: Final = {"Liveness": LIVENESS, "Readiness": READINESS, "Startup": STARTUP}
RUNS, ENDS = "runs on", "is ended"
MIXED: Final = "successes and failures between two observations, in an unknown order"
SERIES: Final = "prober_probe_total{"
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')


class ProbeKey(NamedTuple):
    """Name one probe of a container: the pod's uid, the container, and Liveness, Readiness or Startup."""

    uid: str
    container: str
    type: str


class ProbeCounts(NamedTuple):
    """Hold the outcomes of a probe that the kubelet has counted."""

    successful: int = 0
    failed: int = 0
    unknown: int = 0


@dataclass(slots=True)
class _Followed:
    """Follow a probe of one incarnation of a container, with the outcomes that are part of its state.

    `mixed`: outcomes in an unknown order came last, and too few equal ones since.
    """

    container_id: str
    attempt: int
    state: ProbeState
    counts: ProbeCounts
    mixed: bool = False


class ProbeComparer:
    """Follow the outcomes of probes from observation to observation."""

    def __init__(self) -> None:
        self._followed: dict[ProbeKey, _Followed] = {}

    def compare(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings about the probes of all containers that run, or that were to be ended."""
        if not seen.probes_served:
            self._followed = {}
            yield NotJudged("probes", "node", "the kubelet serves no /metrics/probes")
            return
        counted, followed = probe_counts(seen.series), {}
        for pod in seen.pods.values():
            if is_refused(pod) or pod.metadata.deletion_timestamp is not None:
                continue
            record, shown = seen.record(pod.uid), statuses(pod.status)
            for container in pod.all_containers:
                newest, told = record.container(container.name), shown.get(container.name)
                for name, probe in _probes(container):
                    key = ProbeKey(pod.uid, container.name, name)
                    counts = counted.get(key)
                    if newest is None or told is None or counts is None:
                        continue
                    before = self._followed.get(key)
                    if before is not None and before.container_id != newest.id:
                        yield from _ended(pod, container, probe, name, before, counts)
                    one = followed[key] = _next(before, newest, counts, probe, name)
                    yield from _judged(pod, container, probe, name, one, newest, told)
        self._followed = followed


def probe_counts(series: Mapping[str, float]) -> dict[ProbeKey, ProbeCounts]:
    """Return what the kubelet counted of each probe."""
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


def _next(
    before: _Followed | None, newest: ContainerRecord, counts: ProbeCounts, probe: Probe, name: str
) -> _Followed:
    """Return the state of a probe after an observation."""
    one = before
    # Counts that went down are those of a kubelet that has started again.
    if one is None or one.container_id != newest.id or any(map(int.__lt__, counts, one.counts)):
        # All that was counted since the pod began is of its first container.
        known = ProbeCounts() if one is None and newest.attempt == 0 else counts
        one = _Followed(newest.id, newest.attempt, _state(name, probe), known)
    _feed(one, counts, _state(name, probe))
    return one


def _feed(one: _Followed, counts: ProbeCounts, fresh: ProbeState) -> None:
    """Let the outcomes since the last observation act on the state; `fresh` is one that knows nothing."""
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


def _ended(
    pod: Pod, container: Container, probe: Probe, name: str, one: _Followed, counts: ProbeCounts
) -> Iterator[Finding]:
    """Judge a container that another one has replaced; its last outcomes are among those of the new one."""
    _feed(one, counts, _state(name, probe))
    if name != "Readiness" and one.state.published == FAILURE:
        yield Comparison(
            "probes", _subject(pod, container, name, one), ENDS, ENDS, _reason(one, probe),
            "another container runs in its place",
        )  # fmt: skip


def _judged(
    pod: Pod, container: Container, probe: Probe, name: str, one: _Followed, newest: ContainerRecord,
    told: ContainerStatus,
) -> Iterator[Finding]:  # fmt: skip
    """Judge what the kubelet has made of the outcomes so far."""
    subject, published = _subject(pod, container, name, one), one.state.published
    if one.mixed:
        yield NotJudged("probes", subject, MIXED)
    if published == NONE:
        return
    reason, settle = _reason(one, probe), SETTLE
    if name != "Readiness" and published == FAILURE:
        ours, theirs = ENDS, RUNS if newest.running else ENDS
        settle += grace_of(pod, probe)
        why = "it runs" if newest.running else f"exit code {newest.exit_code}"
    elif not newest.running or told.container_id.rpartition("/")[2] != newest.id:
        return
    elif name == "Liveness":
        ours, theirs, why = RUNS, RUNS, "it runs"
    elif name == "Startup":
        settle = STATUS_SETTLE
        ours, theirs, why = "started", _not("started", unless=bool(told.started)), "its status"
    else:
        settle = STATUS_SETTLE
        ours = _not("ready", unless=published == SUCCESS)
        theirs, why = _not("ready", unless=told.ready), "its status"
        if not told.started:
            return  # the probe waits for the start
    yield Comparison("probes", subject, ours, theirs, reason, why, settle)


def grace_of(pod: Pod, probe: Probe) -> float:
    """Return the seconds that a container has to end after a probe failed."""
    own = probe.termination_grace_period_seconds
    of_pod = pod.spec.termination_grace_period_seconds
    return float(own if own is not None else of_pod if of_pod is not None else 30)


def _probes(container: Container) -> Iterator[tuple[str, Probe]]:
    for name, probe in (
        ("Liveness", container.liveness_probe),
        ("Readiness", container.readiness_probe),
        ("Startup", container.startup_probe),
    ):
        if probe is not None:
            yield name, probe


def _subject(pod: Pod, container: Container, name: str, one: _Followed) -> str:
    return f"{pod.full_name}/{container.name} {name.lower()} attempt {one.attempt}"


def _not(word: str, *, unless: bool) -> str:
    return word if unless else f"not {word}"


def _reason(one: _Followed, probe: Probe) -> str:
    return (
        f"{one.counts.successful} successes and {one.counts.failed} failures, thresholds "
        f"{probe.success_threshold} and {probe.failure_threshold}"
    )
