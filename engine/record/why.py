"""Explain from a record what became of a pod: the rows about it, and the reason for its end. Pure."""

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
        """Say it in one sentence."""
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
    """Yield the decisions that ended or changed pods, in the order of the rows."""
    for row in rows:
        what = _ENDINGS.get(row.name)
        if row.stream == "decision" and what is not None:
            yield Cause(row.time, row.pod, row.container, what, row.text, row.inputs)


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
