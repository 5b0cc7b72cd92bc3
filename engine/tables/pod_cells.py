"""PodCells: the memory of a table of pods."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.tables.amounts import PodEntry
from engine.tables.cells import FLOAT64, INT32, INT64, UINT8, Cells, take_over, zeros
from engine.tables.columns import LIMITED_RESOURCES, NAMES, Fractions, PodColumns


@dataclass(slots=True)
class PodCells:
    """The fields of `PodColumns`, to be read and written cell by cell."""

    node: Cells
    qos: Cells
    flags: Cells
    priority: Cells
    creation: Cells
    requests: Cells
    ranking: Cells
    limits: Cells
    fractions: Fractions = field(default_factory=dict)

    @classmethod
    def zeros(cls, capacity: int, resources: int) -> PodCells:
        """Create memory for at least one row."""
        capacity = max(capacity, 1)
        return cls(
            node=zeros(INT32, capacity),
            qos=zeros(UINT8, capacity),
            flags=zeros(UINT8, capacity),
            priority=zeros(INT32, capacity),
            creation=zeros(FLOAT64, capacity),
            requests=zeros(INT64, resources, capacity),
            ranking=zeros(INT64, resources, capacity),
            limits=zeros(INT64, LIMITED_RESOURCES, capacity),
        )

    @classmethod
    def of(cls, columns: PodColumns) -> PodCells:
        """Wrap the memory of columns that were filled elsewhere."""
        return cls(**{name: getattr(columns, name) for name in NAMES}, fractions=columns.fractions)

    def columns(self) -> PodColumns:
        """Return the same memory as arrays."""
        arrays = {name: np.asarray(getattr(self, name)) for name in NAMES}
        return PodColumns(**arrays, fractions=self.fractions)

    @property
    def capacity(self) -> int:
        return len(self.flags)

    @property
    def resources(self) -> int:
        """Return the number of resource ids that have a column."""
        return len(self.ranking)

    def resized(self, capacity: int, resources: int) -> PodCells:
        """Return a copy for more rows or resources (never fewer)."""
        bigger = PodCells.zeros(capacity, resources)
        for name in NAMES:
            take_over(getattr(self, name), getattr(bigger, name))
        bigger.fractions = self.fractions
        return bigger

    def write(self, row: int, entry: PodEntry, node: int, ids: dict[str, int]) -> None:
        """Fill a row; `ids` are those of the resources."""
        self.node[row] = node
        self.qos[row] = entry.qos
        self.flags[row] = entry.flags
        self.priority[row] = entry.priority
        self.creation[row] = entry.creation
        for cells, amounts in ((self.requests, entry.requests), (self.ranking, entry.ranking)):
            for id in range(self.resources):
                cells[id, row] = 0
            for name, amount in amounts.items():
                cells[ids[name], row] = amount
        for id, limit in enumerate(entry.limits):
            self.limits[id, row] = limit
        if any(entry.fraction):
            self.fractions[row] = entry.fraction
        else:
            self.fractions.pop(row, None)
