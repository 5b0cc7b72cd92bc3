"""DeviceTable: one row per device that a plugin offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.tables.rows import RowSpace, grown

NO_TOPOLOGY: Final = 0
"""`numa` of a device that reports no topology."""
FREE: Final = -1
"""`owner` of a device that nobody holds."""


@dataclass(slots=True)
class DeviceColumns:
    """resource int32 (id in the caller's ResourceNames), numa uint64 (bit per NUMA node), healthy bool,
    owner int32 (row of the pod that holds it, FREE if none), live bool."""

    resource: NDArray[np.int32]
    numa: NDArray[np.uint64]
    healthy: NDArray[np.bool_]
    owner: NDArray[np.int32]
    live: NDArray[np.bool_]

    @classmethod
    def zeros(cls, capacity: int) -> DeviceColumns:
        return cls(
            np.zeros(capacity, np.int32),
            np.zeros(capacity, np.uint64),
            np.zeros(capacity, np.bool_),
            np.full(capacity, FREE, np.int32),
            np.zeros(capacity, np.bool_),
        )


_COLUMNS = ("resource", "numa", "healthy", "owner", "live")


class DeviceTable:
    """Devices by row and by (resource id, device id). Rows are stable; see `RowSpace`."""

    def __init__(self, capacity: int = 64) -> None:
        self.columns = DeviceColumns.zeros(capacity)
        self._rows = RowSpace()
        self._row_of: dict[tuple[int, str], int] = {}
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, resource: int, device: str, *, healthy: bool, numa: int = NO_TOPOLOGY) -> int:
        """The row of a new device. Raises `InvalidInput` if it is there already or `numa` has > 64 bits."""
        if (resource, device) in self._row_of:
            raise InvalidInput("is in the table already", subject=device)
        if not 0 <= numa < 1 << 64:
            raise InvalidInput("expected NUMA nodes 0 to 63", subject=device)
        row = self._rows.take()
        if row >= len(self.columns.live):
            bigger = DeviceColumns.zeros(grown(len(self.columns.live), row + 1))
            for name in _COLUMNS:
                getattr(bigger, name)[:row] = getattr(self.columns, name)
            self.columns = bigger
        if row == len(self._ids):
            self._ids.append(device)
        else:
            self._ids[row] = device
        self._row_of[resource, device] = row
        self.columns.resource[row] = resource
        self.columns.numa[row] = numa
        self.columns.healthy[row] = healthy
        self.columns.owner[row] = FREE
        self.columns.live[row] = True
        return row

    def remove(self, resource: int, device: str) -> int:
        row = self.row(resource, device)
        del self._row_of[resource, device]
        self._ids[row] = ""
        self.columns.healthy[row] = self.columns.live[row] = False
        self.columns.owner[row] = FREE
        self._rows.release(row)
        return row

    def row(self, resource: int, device: str) -> int:
        try:
            return self._row_of[resource, device]
        except KeyError:
            raise InvalidInput("no such device in the table", subject=device) from None

    def device(self, row: int) -> str:
        return self._ids[row]

    def counts(self, resource: int) -> tuple[int, int, int]:
        """(all, healthy, healthy and free) devices of a resource."""
        mine = self.columns.live & (self.columns.resource == resource)
        healthy = mine & self.columns.healthy
        return int(mine.sum()), int(healthy.sum()), int((healthy & (self.columns.owner == FREE)).sum())
