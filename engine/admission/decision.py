"""Describes the result of a preemption and how it was reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.api.errors import Refused
from engine.api.struct import PartlyShown
from engine.tables import CRITICAL, HAS_PRIORITY, PODS_ID, PROTECTED, QOS_NAMES, PodTable

Requirements = tuple[tuple[str, int], ...]
NO_LIMIT: Final = 2**62
"""The steps of a search for victims that only time limits."""


class NotEnoughToPreempt(Refused):
    """Raised if not even all preemptable pods together are enough.

    `short` lists (resource, quantity) in the order of the requirements.
    """

    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, short: Requirements) -> None:
        self.short = short
        listed = "".join(f"(res: {name}, q: {quantity}), " for name, quantity in short)
        super().__init__(f"no set of running pods found to reclaim resources: [{listed}]")


class AdmissionStep(msgspec.Struct, frozen=True):
    """Hold one victim: what was missing before, what it frees of that, and the distance that remains (0:
    none).
    """

    uid: str
    qos: str
    priority: int | None
    short: Requirements
    frees: Requirements
    distance: float


class PassedOver(msgspec.Struct, frozen=True):
    """Hold a pod that stays, and why."""

    uid: str
    qos: str
    priority: int | None
    why: str


class Preemption(PartlyShown, frozen=True):
    """Hold the pods that end for another one.

    `victims` are uids in the order of killing; `requirements` is what had to be freed; `proven` is False if
    a time limit cut the search off and the best result so far is used. The explanation (`steps`,
    `passed_over`) is computed on demand from the table: ask before the table changes.
    """

    HIDDEN = frozenset(("rows", "table"))
    policy: str
    preemptor: str
    requirements: Requirements
    victims: tuple[str, ...]
    rows: tuple[int, ...]
    table: PodTable
    critical: bool
    priority: int | None
    proven: bool = True
    note: str = ""

    def steps(self) -> Iterator[AdmissionStep]:
        """Return the choice victim by victim.

        The kubelet's policy chooses Guaranteed victims first and kills them last; its steps are in the order
        of choice.
        """
        rows = list(self.rows)
        short = dict(self.requirements)
        if self.policy == "kubelet":
            rows.sort(key=lambda row: -int(self.table.cells.qos[row]))
            yield from self._kubelet_steps(rows)
            return
        for row in rows:
            yield self._step(row, short)
            short = self._without(short, [row])

    def _kubelet_steps(self, rows: Sequence[int]) -> Iterator[AdmissionStep]:
        """Choose within each class as if all pods of lower classes were gone."""
        qos = self.table.cells.qos
        allowed = [row for row in self.table.live_rows() if self._why_not(row) is None]
        # Guaranteed first: whoever is chosen there is needed even without all lower classes, which the next
        # classes then reckon with (`getPodsToPreempt`).
        for code in (2, 1, 0):
            mine = [row for row in rows if qos[row] == code]
            gone = [row for row in allowed if qos[row] < code] + [row for row in rows if qos[row] > code]
            short = self._without(dict(self.requirements), gone)
            for row in mine:
                yield self._step(row, short)
                short = self._without(short, [row])

    def _step(self, row: int, short: dict[str, int]) -> AdmissionStep:
        frees = {name: min(self._amount(name, row), quantity) for name, quantity in short.items()}
        # The relative distance of `admissionRequirementList.distance`: squares, so that one large gap weighs
        # more.
        distance = 0.0
        for name, quantity in short.items():
            distance += (float(quantity - frees[name]) / float(quantity)) ** 2
        return AdmissionStep(
            self.table.uid(row), self._qos(row), self._priority(row), _listed(short), _listed(frees), distance
        )

    def passed_over(self) -> Iterator[PassedOver]:
        """Return the node's other pods in their order."""
        chosen = set(self.rows)
        for row in self.table.live_rows():
            if row not in chosen:
                why = self._why_not(row) or "enough was freed without it"
                yield PassedOver(self.table.uid(row), self._qos(row), self._priority(row), why)

    def describe(self, names: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the result, ready for JSON. `names` maps uids to readable names."""
        names = names or {}
        return {
            "policy": self.policy,
            "preemptor": self.preemptor,
            "requirements": _json(self.requirements),
            "victims": list(self.victims),
            "proven": self.proven,
            "note": self.note,
            "steps": [
                {
                    "uid": step.uid,
                    "name": names.get(step.uid, step.uid),
                    "qos": step.qos,
                    "priority": step.priority,
                    "short": _json(step.short),
                    "frees": _json(step.frees),
                    "distance": step.distance,
                }
                for step in self.steps()
            ],
            "passedOver": [
                {
                    "uid": other.uid,
                    "name": names.get(other.uid, other.uid),
                    "qos": other.qos,
                    "priority": other.priority,
                    "why": other.why,
                }
                for other in self.passed_over()
            ],
        }

    def _why_not(self, row: int) -> str | None:
        return why_not_preemptable(
            self.table, row, self.critical, self.priority, respect_protection=self.policy != "kubelet"
        )

    def _without(self, short: dict[str, int], rows: Sequence[int]) -> dict[str, int]:
        left = {name: need - sum(self._amount(name, row) for row in rows) for name, need in short.items()}
        return {name: need for name, need in left.items() if need > 0}

    def _amount(self, name: str, row: int) -> int:
        id = self.table.resources.find(name)
        if id == PODS_ID:
            return 1
        return 0 if id is None else int(self.table.cells.ranking[id, row])

    def _qos(self, row: int) -> str:
        return QOS_NAMES[int(self.table.cells.qos[row])]

    def _priority(self, row: int) -> int | None:
        cells = self.table.cells
        return int(cells.priority[row]) if cells.flags[row] & HAS_PRIORITY else None


def why_not_preemptable(
    table: PodTable, row: int, critical: bool, priority: int | None, *, respect_protection: bool
) -> str | None:
    """Return why a preemptor of this kind may not evict the pod, or None if it may."""
    flags = int(table.cells.flags[row])
    if respect_protection and flags & PROTECTED:
        return "protected by an annotation"
    # A critical pod preempts any that is not, without comparing priorities (`types.Preemptable`).
    if critical and not flags & CRITICAL:
        return None
    if priority is None or not flags & HAS_PRIORITY:
        return (
            "also critical, and one of the two pods has no priority"
            if critical
            else "one of the two pods has no priority"
        )
    theirs = int(table.cells.priority[row])
    return None if priority > theirs else f"its priority {theirs} is not below {priority}"


def _listed(amounts: dict[str, int]) -> Requirements:
    return tuple(amounts.items())


def _json(amounts: Requirements) -> list[dict[str, Any]]:
    return [{"resource": name, "quantity": quantity} for name, quantity in amounts]
