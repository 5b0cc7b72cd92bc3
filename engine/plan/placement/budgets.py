"""Apply disruption budgets: how many of a set of pods may be disrupted at once, and in which rounds.

Source: the eviction API and the disruption controller of Kubernetes v1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import selects_labels
from engine.api.references import LabelSelector
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import coded

_selector = msgspec.json.Decoder(LabelSelector | None)


class Budgets:
    """Hold the budgets of a snapshot over its placed pods, all of which count as healthy."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._budgets = [_Budget(row) for row in snapshot.budgets.to_pylist()]

    def held(self) -> NDArray[np.bool_]:
        """Return bool[placed]: pods of which a budget allows no disruption."""
        found = np.zeros(self._snapshot.placed, bool)
        for budget in self._budgets:
            mine = self._protected(budget)
            if not budget.allows(int(mine.sum())):
                found |= mine
        return found

    def pace_of(self, pods: NDArray[np.int64]) -> list[PacedBudget]:
        """Return the budgets that protect some of these pods."""
        if not self._budgets or not len(pods):
            return []
        found = []
        labels, namespaces = self._label_code[pods], self._namespace_code[pods]
        for budget in self._budgets:
            here = namespaces == self._namespace_number(budget.namespace)
            selected = [
                code for code in np.unique(labels[here]).tolist() if budget.selects(self._labels[code])
            ]
            hit = pods[here & np.isin(labels, selected)].tolist() if selected else []
            if hit:
                found.append(PacedBudget(budget.name, self._allowed(budget), set(hit)))
        return found

    def _allowed(self, budget: _Budget) -> int:
        """Return how many pods of a budget may be down at once."""
        if budget.allowed is None:
            budget.allowed = budget.allows(int(self._protected(budget).sum()))
        return budget.allowed

    def _protected(self, budget: _Budget) -> NDArray[np.bool_]:
        """Return bool[placed]: the pods that a budget protects."""
        found: NDArray[np.bool_] = self._namespace_code == self._namespace_number(budget.namespace)
        if found.any():
            found &= np.array([budget.selects(labels) for labels in self._labels], bool)[self._label_code]
        return found

    def _namespace_number(self, name: str) -> int:
        return self._namespaces.get(name, -1)

    @cached_property
    def _namespaces(self) -> dict[str, int]:
        names, _ = coded(self._snapshot.pods, "namespace")
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def _namespace_code(self) -> NDArray[np.int32]:
        return _codes(self._snapshot, "namespace")

    @cached_property
    def _label_code(self) -> NDArray[np.int32]:
        return _codes(self._snapshot, "labels")

    @cached_property
    def _labels(self) -> list[Mapping[str, str]]:
        texts, _ = coded(self._snapshot.pods, "labels")
        return [msgspec.json.decode(text) or {} if text else {} for text in texts]


class _Budget:
    """Hold one budget, and how many disruptions it allows once that is known."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._selector = _selector.decode(row["selector"] or "null")
        self.namespace: str = row["namespace"]
        self.name = f"{row['namespace']}/{row['name']}"
        self.allowed: int | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        return selects_labels(self._selector, labels)

    def allows(self, total: int) -> int:
        """Return how many of `total` pods may be down at once."""
        return allowed_disruptions(self._row, total)


def _codes(snapshot: Snapshot, name: str) -> NDArray[np.int32]:
    return coded(snapshot.pods, name)[1][: snapshot.placed]


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
        self.budgets = budgets.pace_of(pods)
        self._of: dict[int, list[PacedBudget]] = {}
        for budget in self.budgets:
            for row in budget.pods:
                self._of.setdefault(row, []).append(budget)

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
