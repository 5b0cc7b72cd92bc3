"""Apply PodDisruptionBudgets: compute how many pods may be disrupted at once, and which may be evicted now.

Source: the eviction API (`pkg/registry/core/pod/storage/eviction.go`) and the disruption controller of
Kubernetes v1.36.
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
from engine.plan.snapshot.distinct import distinct_numbers
from engine.plan.snapshot.lazy_table import coded

_selector = msgspec.json.Decoder(LabelSelector | None)


class Budgets:
    """Hold the PodDisruptionBudgets of a snapshot. Every pod that has a node counts as healthy."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._budgets = [_Budget(row) for row in snapshot.budgets.to_pylist()]

    def undisruptable_pods(self) -> NDArray[np.bool_]:
        """Return bool[placed]: whether some budget of the pod allows no disruption."""
        found = np.zeros(self._snapshot.placed, bool)
        for budget in self._budgets:
            protected = self._protected_pods(budget)
            if not budget.disruptions_allowed(int(protected.sum())):
                found |= protected
        return found

    def protecting(self, pods: NDArray[np.int64]) -> list[TrackedBudget]:
        """Return the budgets that protect at least one of `pods`, each with the rows that it protects."""
        if not self._budgets or not len(pods):
            return []
        found = []
        labels, namespaces = self._label_code[pods], self._namespace_code[pods]
        for budget in self._budgets:
            in_namespace = namespaces == self._namespaces.get(budget.namespace, -1)
            # Pods of a workload share their labels, so each distinct set of labels is matched once.
            selected = [
                code
                for code in distinct_numbers(labels[in_namespace]).tolist()
                if budget.selects(self._labels[code])
            ]
            protected = pods[in_namespace & np.isin(labels, selected)].tolist() if selected else []
            if protected:
                found.append(TrackedBudget(budget.name, self._allowed(budget), set(protected)))
        return found

    def _allowed(self, budget: _Budget) -> int:
        """Return how many pods of a budget may be down at once."""
        if budget.allowed is None:
            budget.allowed = budget.disruptions_allowed(int(self._protected_pods(budget).sum()))
        return budget.allowed

    def _protected_pods(self, budget: _Budget) -> NDArray[np.bool_]:
        """Return bool[placed]: the pods that a budget selects."""
        found: NDArray[np.bool_] = self._namespace_code == self._namespaces.get(budget.namespace, -1)
        if found.any():
            found &= np.array([budget.selects(labels) for labels in self._labels], bool)[self._label_code]
        return found

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
    """Hold one PodDisruptionBudget; `allowed` caches how many disruptions it allows in this snapshot."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._selector = _selector.decode(row["selector"] or "null")
        self.namespace: str = row["namespace"]
        self.name = f"{row['namespace']}/{row['name']}"
        self.allowed: int | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        return selects_labels(self._selector, labels)

    def disruptions_allowed(self, total: int) -> int:
        """Return how many of `total` protected pods may be down at once."""
        return allowed_disruptions(self._row, total)


def _codes(snapshot: Snapshot, name: str) -> NDArray[np.int32]:
    return coded(snapshot.pods, name)[1][: snapshot.placed]


@dataclass
class TrackedBudget:
    """Track one budget during a drain: `allowed` pods may be down at once, and `down` pods are.

    `pods` are rows of the snapshot. `blocked` lists the pods that this budget never lets the drain evict.
    """

    name: str
    allowed: int
    pods: set[int]
    down: int = 0
    blocked: list[int] = field(default_factory=list)


class EvictionBudgets:
    """Decide which of some pods may be evicted now, as the eviction API does."""

    def __init__(self, budgets: Budgets, pods: NDArray[np.int64]) -> None:
        self.budgets = budgets.protecting(pods)
        self._of_pod: dict[int, list[TrackedBudget]] = {}
        for budget in self.budgets:
            for row in budget.pods:
                self._of_pod.setdefault(row, []).append(budget)

    def evict(self, row: int) -> bool:
        """Count a pod as down if its budgets allow it to be evicted; return whether they do."""
        budgets = self._of_pod.get(row, ())
        # The eviction API answers 500 for a pod that more than one budget selects.
        if len(budgets) > 1 or any(budget.down >= budget.allowed for budget in budgets):
            return False
        for budget in budgets:
            budget.down += 1
        return True

    def mark_healthy(self, row: int) -> None:
        """Count an evicted pod as healthy again: its replacement has a node."""
        for budget in self._of_pod.get(row, ()):
            budget.down -= 1

    def mark_blocked(self, row: int) -> str:
        """Record with its budgets that a pod cannot be evicted, and return the reason."""
        budgets = self._of_pod[row]
        for budget in budgets:
            budget.blocked.append(row)
        if len(budgets) > 1:
            return f"has {len(budgets)} budgets, and the eviction API refuses more than one"
        if not budgets[0].allowed:
            return f"its budget {budgets[0].name} allows no disruption"
        return f"its budget {budgets[0].name} waits for {budgets[0].down} evicted pods that have no node"


def allowed_disruptions(budget: Mapping[str, Any], total: int) -> int:
    """Return how many of `total` pods may be disrupted; percentages round up, as in the disruption
    controller.
    """
    if budget["max_unavailable"] is not None:
        return _count(budget["max_unavailable"], total)
    if budget["min_available"] is not None:
        return max(total - _count(budget["min_available"], total), 0)
    return total


def _count(text: str, total: int) -> int:
    """Return a number of pods from an IntOrString: a number, or a percentage of `total` rounded up."""
    if text.endswith("%"):
        return -(-total * int(text[:-1]) // 100)
    return int(text)
