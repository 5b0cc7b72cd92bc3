"""Explain from a record what became of a pod: the rows about it, and the reason for its end. Pure.

The decisions of a record say that. A shadow sees a kubelet's decisions only by their results, and sees none
of a pod that is gone before its next observation; there, the kubelet's own events tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.record.blocks import RecordRow
from engine.record.reader import moment

_ENDINGS: Final[Mapping[str, str]] = {
    "eviction evicted": "was evicted",
    "preemption preempted": "was preempted",
    "admission refused": "was refused",
    "restart restarted": "was restarted",
    "restart unhealthy": "was stopped because of a probe",
    "restart withheld": "was not restarted",
    "eviction failed": "could not be evicted",
    "resize infeasible": "was not resized",
    "resize deferred": "waits for its resize",
}
"""The decisions that end or change a pod against the will of its owner, in words."""
_EVENTS: Final[Mapping[str, str]] = {
    "Evicted": "eviction evicted",
    "Preempting": "preemption preempted",
    "Killing": "restart unhealthy",
}
"""The reasons of Events that tell of such a decision."""
_CONDITION: Final = "The node had condition: "
"""How the message of `Evicted` begins for a pod that was not admitted."""
_BY_A_PROBE: Final = (" failed liveness probe", " failed startup probe")
"""One of these is in the message of `Killing` if a probe failed."""


class Cause(msgspec.Struct, frozen=True):
    """Hold one thing that was decided about a pod, when, and why; `inputs` are what the decision examined."""

    at: float
    pod: str
    container: str
    what: str
    why: str
    inputs: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """Return the decision as one sentence."""
        whose = f"{self.pod}/{self.container}" if self.container else self.pod
        return f"{moment(self.at)}: {whose} {self.what}" + (f": {self.why.strip()}" if self.why else "")

    def as_dict(self) -> dict[str, Any]:
        return {
            "time": self.at,
            "pod": self.pod,
            "container": self.container,
            "what": self.what,
            "why": self.why,
            "inputs": dict(self.inputs),
        }


def is_about(pod: str, row: RecordRow) -> bool:
    """Tell whether a row is about a pod: `namespace/name`, a name (namespace `default`) or a uid."""
    name = pod if "/" in pod else f"default/{pod}"
    return bool(row.pod) and (row.pod == name or row.uid == pod)


def causes(rows: Iterable[RecordRow]) -> Iterator[Cause]:
    """Yield the decisions that ended or changed pods, in the order of the rows; an event counts where no row
    of a decision tells the same of its pod.
    """
    rows = list(rows)
    decided = {(row.pod, row.uid, row.name) for row in rows if row.stream == "decision"}
    for row in rows:
        name = row.name if row.stream == "decision" else _told_by(row)
        what = _ENDINGS.get(name)
        if what is not None and (row.stream == "decision" or (row.pod, row.uid, name) not in decided):
            yield Cause(row.time, row.pod, row.container, what, row.text, row.inputs)


def _told_by(row: RecordRow) -> str:
    """Return the name of the decision that an event tells of, '' for any other row."""
    if row.stream != "event" or (row.name == "Killing" and not any(text in row.text for text in _BY_A_PROBE)):
        return ""
    if row.name == "Evicted" and row.text.startswith(_CONDITION):
        return "admission refused"
    return _EVENTS.get(row.name, "")


def inputs_in_words(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each input of a decision; lists of objects have a line for each object."""
    for name, value in inputs.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            for place, one in enumerate(value, 1):
                yield f"{name} {place}: " + ", ".join(f"{key} {_text(given)}" for key, given in one.items())
        elif isinstance(value, Mapping):
            yield f"{name}: " + ", ".join(f"{key} {_text(given)}" for key, given in value.items())
        else:
            yield f"{name}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(given)}" for name, given in value.items())
    return "none" if value is None else str(value)
