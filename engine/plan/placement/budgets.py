"""Apply disruption budgets: how many of a set of pods may be disrupted at once, and in which rounds.

Source: the eviction API and the disruption controller of Kubernetes v1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import selects_labels
from engine.api.references import LabelSelector
from engine.plan.snapshot.columns import Snapshot

_selector = msgspec.json.Decoder(LabelSelector | None)


class Budgets:
    """Hold the budgets of a snapshot over its placed pods, all of which count as healthy."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._budgets: list[dict[str, Any]] = snapshot.budgets.to_pylist()

    def held(self) -> NDArray[np.bool_]:
        """Return bool[placed]: pods of which a budget allows no disruption."""
        found = np.zeros(self._snapshot.placed, bool)
        for budget, mine in self.protecting():
            if not allowed_disruptions(budget, int(mine.sum())):
                found |= mine
        return found

    def protecting(self) -> Iterator[tuple[dict[str, Any], NDArray[np.bool_]]]:
        """Yield each budget with the pods that it protects, bool[placed]."""
        if not self._budgets:
            return
        snapshot = self._snapshot
        labels = snapshot.pods["labels"].slice(0, snapshot.placed).combine_chunks()
        texts = labels.dictionary.to_pylist()
        codes = labels.indices.to_numpy()
        decoded: list[Mapping[str, str]] = [msgspec.json.decode(text) or {} if text else {} for text in texts]
        namespaces = snapshot.pods["namespace"].slice(0, snapshot.placed).to_numpy(zero_copy_only=False)
        for budget in self._budgets:
            selector = _selector.decode(budget["selector"] or "null")
            matching = np.array([selects_labels(selector, one) for one in decoded], bool)
            yield budget, matching[codes] & (namespaces == budget["namespace"])


@dataclass
class PacedBudget:
    """Hold one budget during a drain: `allowed` pods may be down at once, `down` are."""

    name: str
    allowed: int
    pods: set[int]
    down: int = 0
    blocked: list[int] = field(default_factory=list)
    """Pods that it keeps from leaving at the end."""


class BudgetPace:
    """Decide which of some pods may be evicted now, as the eviction API does."""

    def __init__(self, budgets: Budgets, pods: NDArray[np.int64]) -> None:
        self.budgets: list[PacedBudget] = []
        self._of: dict[int, list[PacedBudget]] = {}
        if not len(pods):
            return
        for budget, mine in budgets.protecting():
            hit = pods[mine[pods]].tolist()
            if hit:
                name = f"{budget['namespace']}/{budget['name']}"
                found = PacedBudget(name, allowed_disruptions(budget, int(mine.sum())), set(hit))
                self.budgets.append(found)
                for row in hit:
                    self._of.setdefault(row, []).append(found)

    def leave(self, row: int) -> bool:
        """Count a pod as down if its budgets allow that, and tell whether they do.

        The eviction API refuses a pod of more than one budget.
        """
        mine = self._of.get(row, ())
        if len(mine) > 1 or any(budget.down >= budget.allowed for budget in mine):
            return False
        for budget in mine:
            budget.down += 1
        return True

    def back(self, row: int) -> None:
        """Count a pod as healthy on its new node."""
        for budget in self._of.get(row, ()):
            budget.down -= 1

    def block(self, row: int) -> str:
        """Note that a pod never leaves, and return the reason."""
        mine = self._of[row]
        for budget in mine:
            budget.blocked.append(row)
        if len(mine) > 1:
            return f"has {len(mine)} budgets, and the eviction API refuses more than one"
        if not mine[0].allowed:
            return f"its budget {mine[0].name} allows no disruption"
        return f"its budget {mine[0].name} waits for {mine[0].down} evicted pods that have no node"


def allowed_disruptions(budget: Mapping[str, Any], total: int) -> int:
    """Return how many of `total` may be disrupted; percentages round up, as in the disruption controller."""
    if budget["max_unavailable"] is not None:
        return _count(budget["max_unavailable"], total)
    if budget["min_available"] is not None:
        return max(total - _count(budget["min_available"], total), 0)
    return total


def _count(text: str, total: int) -> int:
    if text.endswith("%"):
        return -(-total * int(text[:-1]) // 100)
    return int(text)
