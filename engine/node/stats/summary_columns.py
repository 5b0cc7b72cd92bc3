"""Collects the numbers of a summary's pods and containers as columns with their output forms. Pure."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from engine._fast.reading.groups import ABSENT
from engine._fast.writing.exposition import ColumnRows, Numbers, Values
from engine._fast.writing.members import CLOSE, MOMENT, OPEN, MemberStep
from engine.node.stats import runtime_numbers
from engine.node.stats.group import GroupTable

CONTAINER, POD, NETWORK, EPHEMERAL = range(4)
"""Output forms; `NONE` is for a text without anything after it."""
NONE: Final = -1
DISK: Final = ("availableBytes", "capacityBytes", "inodesFree", "inodes")
_NAMES: Final = {
    "usage_core_nano_seconds": "usageCoreNanoSeconds",
    "usage_nano_cores": "usageNanoCores",
    "available_bytes": "availableBytes",
    "usage_bytes": "usageBytes",
    "working_set_bytes": "workingSetBytes",
    "rss_bytes": "rssBytes",
    "page_faults": "pageFaults",
    "major_page_faults": "majorPageFaults",
}
_AVERAGES: Final = ("avg10", "avg60", "avg300")

Stalled = Mapping[str, Sequence[Values]]
"""PSI by `full` and `some`: microseconds and three averages."""


class Items(msgspec.Struct, frozen=True, eq=False):
    """Hold the items of a summary.

    `rows` are their rows in a reading, -1 without a cgroup. `runtime` has the runtime's numbers by name.
    `pods` are the items that are pods, `of` the index in `pods` of each item. Each pod has the `DISK` numbers
    in the columns `disk`, and in `files` its bytes and inodes outside of writable layers.
    """

    rows: array[int]
    runtime: Mapping[str, Sequence[int]]
    disk: Sequence[array[int]]
    pods: Sequence[int]
    of: Sequence[int]
    files: Sequence[tuple[int, int]]


def counted(table: GroupTable) -> list[bool]:
    """Tell for each row whether its cgroup provides everything that the runtime could."""
    columns = (table.column(name) for name in ("cpu", "memory", "threads"))
    return [least != ABSENT for least in map(min, *columns)]


def forms(table: GroupTable, items: Items, whole: bool = True) -> list[list[MemberStep]]:
    """Return the forms `CONTAINER`, `POD`, `NETWORK` and `EPHEMERAL`, one row per item; only CPU, memory and
    swap unless `whole`.
    """
    rows = items.rows
    now = array("q", [int(table.time)]) * len(rows)
    used = [*_used(table, items, now)]
    if not whole:
        return [used, used, [], []]
    used += _object("io", now, [], _stalled(table, "io", rows))
    layer = {name: array("q", items.runtime[name]) for name in runtime_numbers.LAYER}
    with_layer = array(
        "q", [-1 if at == ABSENT else pod for at, pod in zip(layer["layer_second"], items.of, strict=True)]
    )
    disk = [(name, ColumnRows(column, with_layer)) for name, column in zip(DISK, items.disk, strict=True)]
    rootfs: list[tuple[str, Values]] = [
        *disk,
        ("usedBytes", layer["used_bytes"]),
        ("inodesUsed", layer["inodes_used"]),
    ]
    threads = _taken(table.column("threads"), rows)
    processes = array("q", map(_either, threads, items.runtime[runtime_numbers.PROCESSES]))
    return [
        [*used, *_object("rootfs", layer["layer_second"], rootfs)],
        [*used, *_object("process_stats", None, [("process_count", processes)])],
        [MemberStep(b'"time":', now, MOMENT)],
        [
            _number("usedBytes", _ephemeral(items, layer["used_bytes"], 0)),
            _number("inodesUsed", _ephemeral(items, layer["inodes_used"], 1)),
        ],
    ]


def _ephemeral(items: Items, layers: array[int], at: int) -> array[int]:
    """Return the sum of a pod's files and writable layers for the items that are pods."""
    sums = array("q", bytes(8 * len(items.rows)))
    for pod, files in zip(items.pods, items.files, strict=True):
        sums[pod] = files[at]
    for index, amount in zip(items.of, layers, strict=True):
        if amount != ABSENT:
            sums[items.pods[index]] += amount
    return sums


def _used(table: GroupTable, items: Items, now: array[int]) -> Iterator[MemberStep]:
    """Prefer the cgroup's numbers over the runtime's, separately for CPU and memory."""
    rows, runtime = items.rows, items.runtime
    group: dict[str, Numbers] = {
        "usage_core_nano_seconds": table.column("cpu"),
        "usage_nano_cores": table.rates,
        "usage_bytes": table.column("memory"),
        "working_set_bytes": table.working_set,
        "rss_bytes": table.column("rss"),
        "page_faults": table.column("faults"),
        "major_page_faults": table.column("major_faults"),
        "available_bytes": array("q", map(_left, table.column("memory_limit"), table.working_set)),
    }
    parts = (
        ("cpu", runtime_numbers.CPU, "usage_core_nano_seconds"),
        ("memory", runtime_numbers.MEMORY, "usage_bytes"),
    )
    for name, columns, always in parts:
        stalled = _stalled(table, name, rows)
        if ABSENT not in _taken(group[always], rows):
            numbers = [(_NAMES[column], ColumnRows(group[column], rows)) for column in columns]
            yield from _object(name, now, numbers, stalled)
            continue
        taken = {column: _taken(group[column], rows) for column in columns}
        known = [*taken.values(), *(_taken(table.stalled(name, kind), rows) for kind in stalled)]
        own = [most != ABSENT for most in map(max, *known)]
        second = _preferred(own, now, runtime[f"{name}_second"])
        mixed = [(_NAMES[column], _preferred(own, taken[column], runtime[column])) for column in columns]
        yield from _object(name, second, mixed, stalled)
    swap = table.column("swap")
    unused = array("q", map(_left, _taken(table.column("swap_limit"), rows), _taken(swap, rows)))
    yield from _object(
        "swap", now, [("swapAvailableBytes", unused), ("swapUsageBytes", ColumnRows(swap, rows))]
    )


def _taken(column: Numbers, rows: array[int]) -> list[int]:
    """Return the numbers at these rows."""
    values = column.tolist()
    return [values[row] if row >= 0 else ABSENT for row in rows]


def _preferred(own: Sequence[bool], first: Sequence[int], second: Sequence[int]) -> array[int]:
    return array("q", [a if is_own else b for is_own, a, b in zip(own, first, second, strict=True)])


def _either(first: int, second: int) -> int:
    return second if first == ABSENT else first


def _left(most: int, used: int) -> int:
    """Return limit minus usage if both are known."""
    return ABSENT if ABSENT in (most, used) else max(most - used, 0)


def _stalled(table: GroupTable, name: str, rows: array[int]) -> Stalled:
    """Return PSI; if the cgroup has only one of both, the other is zero. Empty on a kernel without PSI."""
    found = {kind: table.averages(name, kind) for kind in ("full", "some")}
    full, some = ([total != ABSENT for total in columns[0]] for columns in found.values())
    if not any(full) and not any(some):
        return {}
    if full == some:
        return {kind: [ColumnRows(column, rows) for column in columns] for kind, columns in found.items()}
    known = [*map(operator.or_, full, some)]
    return {
        kind: [ColumnRows(_zero_where(known, column), rows) for column in columns]
        for kind, columns in found.items()
    }


def _zero_where(known: Sequence[bool], column: Numbers) -> array[int]:
    """Return a column with 0 where another number of the same row is known."""
    values = zip(known, column, strict=True)
    return array("q", [0 if is_known and value == ABSENT else value for is_known, value in values])


def _object(
    name: str, second: Numbers | None, numbers: Sequence[tuple[str, Values]], stalled: Stalled | None = None
) -> Iterator[MemberStep]:
    yield MemberStep(f'"{name}":{{'.encode(), None, OPEN)
    if second is not None:
        yield MemberStep(b'"time":', second, MOMENT)
    for each, values in numbers:
        yield _number(each, values)
    if stalled:
        yield MemberStep(b'"psi":{', None, OPEN)
        for kind, (total, *averages) in stalled.items():
            yield MemberStep(f'"{kind}":{{'.encode(), None, OPEN)
            yield _number("total", total)
            for each, values in zip(_AVERAGES, averages, strict=True):
                yield _number(each, values, 2)
            yield MemberStep(b"", None, CLOSE)
        yield MemberStep(b"", None, CLOSE)
    yield MemberStep(b"", None, CLOSE)


def _number(name: str, values: Values, point: int = 0) -> MemberStep:
    return MemberStep(f'"{name}":'.encode(), values, point)
