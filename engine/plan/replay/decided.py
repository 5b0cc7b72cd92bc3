"""Hold the decisions that a replay repeats, and read the agent's own from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from engine.admission.readmission import ADMITTED
from engine.plan.replay.recorded import NodeRecording
from engine.record.blocks import RecordRow

REFUSED, PREEMPTED, EVICTED, COLLECTED = "refused", "preempted", "evicted", "collected"
IMAGES: Final = "image-gc"
RESTART: Final = "restart"
_RESTARTED: Final = "restarted"


class Replayed(NamedTuple):
    """Hold one decision: its Unix time, kind (admission, preemption, eviction, image-gc, restart), pod,
    outcome and reason.

    Of an image, `uid` is its key and `pod` its name. `part` tells apart what may happen to one of them more
    than once: the container and the number of its restart, and how often the image has been collected.
    `size` are the bytes of an image.
    """

    at: float
    kind: str
    uid: str
    pod: str
    outcome: str
    why: str = ""
    part: str = ""
    size: int = 0


def restarted(delay: float) -> str:
    """Return the outcome of a restart: how long the next one would wait, in seconds."""
    return f"{_RESTARTED}, back-off {delay:g} s"


def restart_part(container: str, number: int) -> str:
    return f"{container} {number}"


def collection(at: float, key: str, name: str, why: str, size: int, times: Counter[str]) -> Replayed:
    """Return the removal of an image, and count it in `times`."""
    times[key] += 1
    return Replayed(at, IMAGES, key, name or key, COLLECTED, why, str(times[key]), size)


def recorded_collection(row: RecordRow, times: Counter[str]) -> Replayed:
    """Return the removal that a row reports, and count it."""
    name = str(next(iter(row.inputs.get("names") or ()), ""))
    key, size = str(row.inputs["image"]), int(row.inputs.get("size", 0))
    return collection(row.time, key, name, row.text, size, times)


def recorded_decisions(node: NodeRecording) -> Iterator[Replayed]:
    """Yield the agent's own decisions of the kinds that a replay repeats, without those that were taken
    before the record begins and only reported after it.
    """
    times: Counter[tuple[str, str]] = Counter()
    collected: Counter[str] = Counter()
    taken: set[tuple[str, str]] = set()
    for _, row in node.rows:
        if row.stream == "node" and row.name == "state":
            taken = _taken_before(row)
        elif row.stream == "pod" and row.name == "judged":
            taken.discard(("admission", row.uid))
        if row.stream != "decision":
            continue
        kind, _, outcome = row.name.partition(" ")
        if (kind, row.uid) in taken:
            taken.discard((kind, row.uid))
        elif kind == IMAGES and outcome == COLLECTED:
            yield recorded_collection(row, collected)
        elif kind == RESTART and outcome == _RESTARTED:
            times[row.uid, row.container] += 1
            part = restart_part(row.container, times[row.uid, row.container])
            said = restarted(float(row.inputs.get("backOff", 0.0)))
            yield Replayed(row.time, kind, row.uid, row.pod, said, row.text, part)
        elif outcome in (ADMITTED, REFUSED, PREEMPTED, EVICTED):
            yield Replayed(row.time, kind, row.uid, row.pod, outcome, row.text)


def _taken_before(state: RecordRow) -> set[tuple[str, str]]:
    """Return the kinds and uids of decisions that a state may have been written in the middle of: a pod is
    admitted once its victims have ended.
    """
    admission = state.inputs["admission"]
    there = (*admission["pods"], *admission["leaving"], *state.inputs["arriving"])
    admitted = {("admission", pod["metadata"]["uid"]) for pod in there}
    return admitted | {("preemption", pod["metadata"]["uid"]) for pod in admission["leaving"]}
