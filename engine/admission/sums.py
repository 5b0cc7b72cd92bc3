"""What a node's pods ask for together, kept as they come and go, and whether another one's requests fit."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine._fast.predicates import Ledger
from engine.admission.predicates import NATIVE, NodeFacts, is_counted
from engine.tables import PodTable
from engine.tables.columns import AMOUNT, PodColumns

UNLIMITED: Final = 2**63 - 1


class Sums:
    """Sums over rows of a table of pods, in its units: cpu in milli, all else whole."""

    def __init__(self, table: PodTable, node: NodeFacts) -> None:
        self._table, self._node = table, node
        self._used = np.zeros(0, AMOUNT)
        self._kept: tuple[PodColumns, Ledger] | None = None

    def set_node(self, node: NodeFacts) -> None:
        self._node, self._kept = node, None

    def fits(self, row: int) -> bool:
        """Whether the node has what a row asks for beside what is counted. False also where that takes a
        closer look: at extended resources that the node does not name."""
        return self._ledger().fits(row)

    def add(self, row: int) -> bool:
        """Count a row. False, and nothing is changed, where a sum would exceed 64 bits."""
        return self._ledger().add(row)

    def remove(self, row: int) -> None:
        self._ledger().remove(row)

    def by_name(self) -> dict[str, int]:
        return dict(zip(self._table.resources.in_order, self._used.tolist(), strict=False))

    def _ledger(self) -> Ledger:
        """Made anew when the columns were replaced or the node has changed."""
        columns = self._table.columns
        if self._kept is None or self._kept[0] is not columns:
            used = np.zeros(columns.resources, AMOUNT)
            used[: len(self._used)] = self._used
            names = self._table.resources.in_order[: columns.resources]
            limits = np.array([self._limit(name) for name in names], AMOUNT)
            self._used = used
            self._kept = (columns, Ledger(columns.requests, used, limits))
        return self._kept[1]

    def _limit(self, name: str) -> int:
        if name not in NATIVE and not is_counted(name):
            return UNLIMITED
        return min(self._node.allocatable.get(name, 0), UNLIMITED)
