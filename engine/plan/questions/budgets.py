"""Apply disruption budgets: how many of a set of pods may be disrupted at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.plan.reading.documents import LabelSelectorDocument
from engine.plan.snapshot.columns import Snapshot


class Budgets:
    """Hold the budgets of a snapshot over its placed pods, all of which count as healthy."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._budgets: list[dict[str, Any]] = snapshot.budgets.to_pylist()

    def broken(self, pods: NDArray[np.int64]) -> Iterator[tuple[str, int, int, int]]:
        """Return (budget, allowed disruptions, disrupted pods, the first of them) for each budget that is
        exceeded.
        """
        if not len(pods):
            return
        going = np.zeros(self._snapshot.placed, bool)
        going[pods] = True
        for budget, mine in self._protecting():
            hit = np.flatnonzero(mine & going)
            allowed = _allowed(budget, int(mine.sum()))
            if len(hit) > allowed:
                yield f"{budget['namespace']}/{budget['name']}", allowed, len(hit), int(hit[0])

    def held(self) -> NDArray[np.bool_]:
        """Return bool[placed]: pods of which a budget allows no disruption."""
        found = np.zeros(self._snapshot.placed, bool)
        for budget, mine in self._protecting():
            if not _allowed(budget, int(mine.sum())):
                found |= mine
        return found

    def _protecting(self) -> Iterator[tuple[dict[str, Any], NDArray[np.bool_]]]:
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
            selector = msgspec.json.decode(budget["selector"] or "null", type=LabelSelectorDocument | None)
            matching = np.array([_matches(selector, one) for one in decoded], bool)
            yield budget, matching[codes] & (namespaces == budget["namespace"])


def _matches(selector: LabelSelectorDocument | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    for requirement in selector.match_expressions or ():
        value = labels.get(requirement.key)
        match requirement.operator:
            case "In" if value not in (requirement.values or ()):
                return False
            case "NotIn" if value in (requirement.values or ()):
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return True


def _allowed(budget: Mapping[str, Any], total: int) -> int:
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
