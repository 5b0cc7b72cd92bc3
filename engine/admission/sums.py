"""Keeps the summed requests of a node's pods, and checks whether another pod's fit."""

from __future__ import annotations

from array import array
from typing import Final

from engine._fast.preemption.predicates import Ledger
from engine.admission.predicates import NATIVE, NodeFacts, is_counted
from engine.tables import PodTable
from engine.tables.cells import INT64
from engine.tables.pod_cells import PodCells

UNLIMITED: Final = 2**63 - 1


class Sums:
    """Sums over rows of a pod table, in its units: milli-CPU, and whole numbers for the rest."""

    def __init__(self, table: PodTable, node: NodeFacts) -> None:
        self._table, self._node = table, node
        self._used = array(INT64)
        self._kept: tuple[PodCells, Ledger] | None = None

    def set_node(self, node: NodeFacts) -> None:
        self._node, self._kept = node, None

    def fits(self, row: int) -> bool:
        """Tell whether a row fits next to what is counted.

        False also if a closer look is needed, because of extended resources that the node does not have.
        """
        return self._ledger().fits(row)

    def add(self, row: int) -> bool:
        """Count a row; return False, without a change, if a sum would exceed 64 bits."""
        return self._ledger().add(row)

    def remove(self, row: int) -> None:
        self._ledger().remove(row)

    def by_name(self) -> dict[str, int]:
        return dict(zip(self._table.resources.in_order, self._used.tolist(), strict=False))

    def _ledger(self) -> Ledger:
        """Return the running sums, computed again if the table's memory was replaced or the node changed."""
        cells = self._table.cells
        if self._kept is None or self._kept[0] is not cells:
            self._used = array(INT64, [*self._used, *[0] * (cells.resources - len(self._used))])
            names = self._table.resources.in_order[: cells.resources]
            limits = array(INT64, map(self._limit, names))
            self._kept = (cells, Ledger(cells.requests, self._used, limits))
        return self._kept[1]

    def _limit(self, name: str) -> int:
        if name not in NATIVE and not is_counted(name):
            return UNLIMITED
        return min(self._node.allocatable.get(name, 0), UNLIMITED)
