"""Collects the numbers of a summary's pods and containers as columns with their output forms. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.reading.groups import ABSENT
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

Numbers: TypeAlias = "NDArray[np.int64]"
Stalled = dict[str, list[Numbers]]
"""PSI by `full` and `some`: microseconds and three averages."""


class Items(msgspec.Struct, frozen=True, eq=False):
    """Hold the items of a summary.

    `rows` are their rows in a reading, -1 without a cgroup. `runtime` has the runtime's numbers by name,
    `disk` the `DISK` numbers of each. `pods` are the items that are pods, `of` the index in `pods` of each
    item, and `files` bytes and inodes of each pod outside of writable layers.
    """

    rows: NDArray[np.intp]
    runtime: Mapping[str, Numbers]
    disk: Numbers
    pods: NDArray[np.intp]
    of: NDArray[np.intp]
    files: Numbers


def counted(table: GroupTable) -> NDArray[np.bool_]:
    """Tell for each row whether its cgroup provides everything that the runtime could."""
    cpu, memory, threads = (table.column(name) != ABSENT for name in ("cpu", "memory", "threads"))
    all_three: NDArray[np.bool_] = cpu & memory & threads
    return all_three


def forms(table: GroupTable, items: Items, whole: bool = True) -> list[list[MemberStep]]:
    """Return the forms `CONTAINER`, `POD`, `NETWORK` and `EPHEMERAL`, one row per item; only CPU, memory and
    swap unless `whole`.
    """
    count = len(items.rows)
    now = np.full(count, int(table.time), np.int64)
    used = [*_used(table, items, now)]
    if not whole:
        return [used, used, [], []]
    used += _object("io", now, [], _stalled(table, "io", items.rows))
    layer = items.runtime
    has_layer = layer["layer_second"] != ABSENT
    disk = [
        (name, np.where(has_layer, values, ABSENT)) for name, values in zip(DISK, items.disk.T, strict=True)
    ]
    rootfs = [*disk, ("usedBytes", layer["used_bytes"]), ("inodesUsed", layer["inodes_used"])]
    threads = _of(table.column("threads"), items.rows)
    processes = np.where(threads == ABSENT, layer["processes"], threads)
    ephemeral = []
    for at, name in enumerate(("used_bytes", "inodes_used")):
        sums = np.zeros(count, np.int64)
        sums[items.pods] = items.files[:, at]
        np.add.at(sums, items.pods[items.of], np.where(layer[name] == ABSENT, 0, layer[name]))
        ephemeral.append(sums)
    return [
        [*used, *_object("rootfs", layer["layer_second"], rootfs)],
        [*used, *_object("process_stats", None, [("process_count", processes)])],
        [MemberStep(b'"time":', now, MOMENT)],
        [_number("usedBytes", ephemeral[0]), _number("inodesUsed", ephemeral[1])],
    ]


def _used(table: GroupTable, items: Items, now: Numbers) -> Iterator[MemberStep]:
    """Prefer the cgroup's numbers over the runtime's, separately for CPU and memory."""
    rows, runtime = items.rows, items.runtime
    group = {
        "usage_core_nano_seconds": _of(table.column("cpu"), rows),
        "usage_nano_cores": _of(table.rates, rows),
        "usage_bytes": _of(table.column("memory"), rows),
        "working_set_bytes": _of(table.working_set, rows),
        "rss_bytes": _of(table.column("rss"), rows),
        "page_faults": _of(table.column("faults"), rows),
        "major_page_faults": _of(table.column("major_faults"), rows),
    }
    group["available_bytes"] = _left(_of(table.column("memory_limit"), rows), group["working_set_bytes"])
    stalled = {name: _stalled(table, name, rows) for name in ("cpu", "memory")}
    for name, columns in (("cpu", runtime_numbers.CPU), ("memory", runtime_numbers.MEMORY)):
        own = _any([*(group[column] for column in columns), *stalled[name].get("full", ())])
        second = np.where(own, now, runtime[f"{name}_second"])
        numbers = [(_NAMES[column], np.where(own, group[column], runtime[column])) for column in columns]
        yield from _object(name, second, numbers, stalled[name])
    swap, most = _of(table.column("swap"), rows), _of(table.column("swap_limit"), rows)
    unused = np.where(swap == ABSENT, ABSENT, _left(most, swap))
    yield from _object("swap", now, [("swapAvailableBytes", unused), ("swapUsageBytes", swap)])


def _of(column: Numbers, rows: NDArray[np.intp]) -> Numbers:
    return np.where(rows < 0, ABSENT, column[rows])


def _left(most: Numbers, used: Numbers) -> Numbers:
    """Return limit minus usage if both are known."""
    known = (most != ABSENT) & (used != ABSENT)
    return np.where(known, np.maximum(np.where(known, most - used, 0), 0), ABSENT)


def _any(columns: Sequence[Numbers]) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = np.logical_or.reduce([column != ABSENT for column in columns])
    return known


def _stalled(table: GroupTable, name: str, rows: NDArray[np.intp]) -> Stalled:
    """Return PSI; if the cgroup has only one of both, the other is zero. Empty on a kernel without PSI."""
    found = {kind: table.averages(name, kind) for kind in ("full", "some")}
    known = _any([columns[0] for columns in found.values()])
    if not known.any():
        return {}
    return {
        kind: [_of(np.where(known & (column == ABSENT), 0, column), rows) for column in columns]
        for kind, columns in found.items()
    }


def _object(
    name: str, second: Numbers | None, numbers: Sequence[tuple[str, Numbers]], stalled: Stalled | None = None
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


def _number(name: str, values: Numbers, point: int = 0) -> MemberStep:
    return MemberStep(f'"{name}":'.encode(), values, point)
