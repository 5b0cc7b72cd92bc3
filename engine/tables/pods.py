"""PodTable: the pods of one node (or of several), one row each; PodCells: the memory of its columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from engine._fast.preemption.requests import Filler
from engine._fast.ranking.eviction_ranking import look_up
from engine.api.errors import Bug, InvalidInput
from engine.api.pod import Pod
from engine.tables.amounts import PodEntry, pod_entry
from engine.tables.cells import FLOAT64, INT32, INT64, UINT8, Cells, take_over, zeros
from engine.tables.columns import LIMITED_RESOURCES, LIVE, NAMES, ROW, Fractions, PodColumns, Rows
from engine.tables.names import EPHEMERAL_STORAGE_ID, ResourceNames
from engine.tables.rows import RowSpace, grown


class PodCells(msgspec.Struct):
    """Hold the fields of `PodColumns`, to be read and written cell by cell."""

    node: Cells
    qos: Cells
    flags: Cells
    priority: Cells
    creation: Cells
    requests: Cells
    ranking: Cells
    limits: Cells
    fractions: Fractions = msgspec.field(default_factory=dict)

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


class PodTable:
    """Hold pods by row and by uid. Add, update and remove cost the same however many there are.

    When the table grows, `cells` are replaced, and with them `columns`, the same memory as arrays: read them
    again after an `add`; rows keep their numbers.
    Every method that raises leaves the table as it was.
    """

    def __init__(self, resources: ResourceNames | None = None, capacity: int = 64) -> None:
        self.resources = resources if resources is not None else ResourceNames()
        self.cells = PodCells.zeros(capacity, len(self.resources))
        self._columns: tuple[PodCells, PodColumns] | None = None
        self._rows = RowSpace()
        self._row_of: dict[str, int] = {}
        self._uids: list[str] = []
        self._live: Rows | None = None
        self._filler: tuple[PodCells, Filler] | None = None

    @classmethod
    def from_pods(cls, pods: Iterable[Pod], resources: ResourceNames | None = None) -> PodTable:
        """Make a table with rows in the order of `pods`. Raise `InvalidInput` as `add` does."""
        pods = list(pods)
        table = cls(resources, capacity=max(len(pods), 1))
        table.add_all(pods)
        return table

    @classmethod
    def from_columns(cls, columns: PodColumns, resources: ResourceNames, uids: Sequence[str]) -> PodTable:
        """Take over filled columns, one row per uid. Raise `InvalidInput` naming the column."""
        check_columns(columns, len(uids), resources)
        table = cls(resources, capacity=1)
        table.cells = PodCells.of(columns)
        table._columns = (table.cells, columns)
        table._uids = list(uids)
        table._row_of = {uid: row for row, uid in enumerate(table._uids)}
        if len(table._row_of) != len(uids):
            raise InvalidInput("two rows have the same uid", subject="uids")
        columns.flags |= LIVE
        table._rows.take_many(len(uids))
        return table

    @property
    def columns(self) -> PodColumns:
        if self._columns is None or self._columns[0] is not self.cells:
            self._columns = (self.cells, self.cells.columns())
        return self._columns[1]

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, uid: object) -> bool:
        return uid in self._row_of

    def __iter__(self) -> Iterator[str]:
        """Iterate over uids in row order."""
        return (self._uids[row] for row in self.live_rows())

    def add(self, pod: Pod, node: int = 0) -> int:
        """Add a pod and return its row. Raises `InvalidInput` for a known uid or a bad amount."""
        # A refused pod may bring new resource names, and must not leave wider columns behind.
        before = self.cells
        row = self.add_ordinary(pod, node)
        if row is not None:
            return row
        try:
            if pod.uid in self._row_of:
                raise InvalidInput(f"uid {pod.uid} is in the table already", subject=pod.full_name)
            entry = pod_entry(pod)
            self._intern(entry, pod)
        except InvalidInput:
            self.cells = before
            raise
        row = self._rows.next
        self.cells.write(row, entry, node, self.resources.ids)
        self._row_of[pod.uid] = row
        self._enter(row, pod.uid)
        return row

    def add_ordinary(self, pod: Pod, node: int = 0) -> int | None:
        """Add an ordinary pod with known resources and return its row; return None for any other pod."""
        row, cells = self._rows.next, self.cells
        if row >= cells.capacity:
            self.cells = cells.resized(grown(cells.capacity, row + 1), cells.resources)
        if not self._fill_rows([pod], 0, row, node):
            return None
        self._enter(row, pod.metadata.uid)
        return row

    def _enter(self, row: int, uid: str) -> None:
        """Enter the filled next row under the uid."""
        self._rows.take()
        if row == len(self._uids):
            self._uids.append(uid)
        else:
            self._uids[row] = uid
        self._live = None

    def add_all(self, pods: Sequence[Pod], node: int = 0) -> None:
        """Add pods; their rows are in order if none was ever removed. Raise as `add` does."""
        listed = list(pods)
        done = 0
        try:
            while done < len(listed):
                done += self._fill_end(listed, done, node)
                if done < len(listed):
                    self.add(listed[done], node)
                    done += 1
        except InvalidInput:
            for pod in listed[:done]:
                self.remove(pod.uid)
            raise

    def _fill_end(self, pods: list[Pod], start: int, node: int) -> int:
        """Fill rows at the end for as many ordinary pods as fit into the columns; return the number."""
        # The kernel fills consecutive rows; a released row in between is taken one by one first.
        if self._rows.next != self.end:
            return 0
        count = self._fill_rows(pods, start, self.end, node)
        first = self._rows.take_many(count)
        self._uids[first:] = [pod.uid for pod in pods[start : start + count]]
        self._live = None
        return count

    def _fill_rows(self, pods: list[Pod], start: int, row: int, node: int) -> int:
        # Names without a column yet: `add` makes the columns wider, and the next pods take this way again.
        if self.cells.resources != len(self.resources):
            return 0
        return self._fill().fill(pods, start, row, node, self.resources.ids, self._row_of)

    def _fill(self) -> Filler:
        """Return the function that fills the current cells."""
        if self._filler is None or self._filler[0] is not self.cells:
            self._filler = (self.cells, Filler(self.cells))
        return self._filler[1]

    def update(self, pod: Pod) -> int:
        """Replace a pod's row in place. Raises `InvalidInput` if the uid is not there."""
        row = self.row(pod.uid)
        entry = pod_entry(pod)
        self._intern(entry, pod)
        self.cells.write(row, entry, int(self.cells.node[row]), self.resources.ids)
        return row

    def remove(self, uid: str) -> int:
        """Free a pod's row and return it. Raises `InvalidInput` if the uid is not there."""
        row = self.row(uid)
        del self._row_of[uid]
        self._uids[row] = ""
        self._fill().clear(row)
        self.cells.fractions.pop(row, None)
        self._rows.release(row)
        self._live = None
        return row

    def row(self, uid: str) -> int:
        try:
            return self._row_of[uid]
        except KeyError:
            raise InvalidInput("no pod with this uid in the table", subject=uid or "''") from None

    def requests(self, uid: str) -> dict[str, int]:
        """Return a pod's non-zero requests as admission counts them. Raise as `row` does."""
        row, requests = self.row(uid), self.cells.requests
        named = enumerate(self.resources.in_order[: len(requests)])
        amounts = ((name, int(requests[id, row])) for id, name in named)
        return {name: amount for name, amount in amounts if amount}

    def look_up(
        self, pods: Sequence[Pod], usage: dict[str, Any], name: str
    ) -> tuple[array[int], array[int], array[int]]:
        """Return for each pod its row (-1: none), the amount `name` of its usage, and whether it is known."""
        return look_up(pods, usage, self._row_of, name)

    def uid(self, row: int) -> str:
        return self._uids[row]

    @property
    def end(self) -> int:
        """Return one past the last row ever used; live rows are below it."""
        return self._rows.end

    def live_rows(self) -> list[int]:
        """Return what `rows` does as a list."""
        flags = self.cells.flags
        return [row for row in range(self.end) if flags[row] & LIVE]

    def rows(self) -> Rows:
        """Return int32[len]: live rows in ascending order, the order in which decisions see the pods."""
        if self._live is None:
            self._live = np.flatnonzero(self.columns.flags[: self.end] & LIVE).astype(ROW)
        return self._live

    def validate(self) -> None:
        """Check every invariant; for tests. Raises `Bug`."""
        self._rows.validate()
        check_columns(self.columns, self.end, self.resources)
        live = {row for row in range(self.end) if self.columns.flags[row] & LIVE}
        if live != set(self._row_of.values()) or live & set(self._rows.free):
            raise Bug("live rows, uids and the free list disagree", subject="PodTable")
        if any(self._uids[row] != uid for uid, row in self._row_of.items()):
            raise Bug("a row has another uid than its index entry", subject="PodTable")
        for name, column in self.columns.arrays():
            if np.any(column[..., list(self._rows.free)]):
                raise Bug(f"a free row is not zero in {name}", subject="PodTable")

    def _intern(self, entry: PodEntry, pod: Pod) -> None:
        for name in (*entry.requests, *entry.ranking):
            try:
                self.resources.intern(name)
            except InvalidInput as error:
                raise InvalidInput(f"{error.subject!r} is {error.message}", subject=pod.full_name) from None
        if len(self.resources) > self.cells.resources:
            self.cells = self.cells.resized(self.cells.capacity, len(self.resources))


def check_columns(columns: PodColumns, rows: int, resources: ResourceNames) -> None:
    """Check shapes, dtypes and ranges of foreign columns. Raise `InvalidInput` naming the column."""
    model = PodColumns.zeros(0, 0)
    capacity = columns.capacity
    expected = {"requests": (columns.resources, capacity), "ranking": (columns.resources, capacity)}
    expected["limits"] = (LIMITED_RESOURCES, capacity)
    for name, column in columns.arrays():
        dtype, shape = getattr(model, name).dtype, expected.get(name, (capacity,))
        if column.dtype != dtype or column.shape != shape:
            raise InvalidInput(
                f"expected {dtype}{list(shape)}, got {column.dtype}{list(column.shape)}", subject=name
            )
        if not column.flags.c_contiguous:
            raise InvalidInput("expected a C-contiguous array", subject=name)
        if name in ("requests", "ranking", "limits") and column.size and column.min() < 0:
            raise InvalidInput("an amount is negative", subject=name)
    if capacity < rows:
        raise InvalidInput(f"{capacity} rows for {rows} pods", subject="columns")
    if not EPHEMERAL_STORAGE_ID < columns.resources <= len(resources):
        raise InvalidInput(f"{columns.resources} resources, names for {len(resources)}", subject="requests")
    if rows and columns.qos[:rows].max() >= 3:
        raise InvalidInput("a class is not 0, 1 or 2", subject="qos")
