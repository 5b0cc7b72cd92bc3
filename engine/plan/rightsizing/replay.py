"""Add up what the pods of each node used at each recorded moment, wherever the pods are placed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.history.history import History
from engine.plan.rightsizing.workloads import Workloads
from engine.plan.snapshot.columns import Snapshot

Series = NDArray[np.float32]
POD_BATCH: Final = 4096
SIZES: Final = {"memory": "request/memory", "cpu": "request/cpu"}
MILLI: Final = 1000
"""micro-CPU of a milli-CPU, which requests are in."""


class PodUse:
    """Give the use of placed pods over time, in the units of the history.

    Where a pod has no value (it did not exist yet), the mean of its workload at that moment counts; if there
    is none, the mean of the pod's other moments; for a pod without any, its request. `assumed` counts pods
    without a record.
    """

    def __init__(self, snapshot: Snapshot, workloads: Workloads, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._workload = workloads.of_pod[: snapshot.placed]
        pods = zip(
            snapshot.pods["namespace"].slice(0, snapshot.placed).to_pylist(),
            snapshot.pods["name"].slice(0, snapshot.placed).to_pylist(),
            strict=True,
        )
        rows = {pod: row for row, pod in enumerate(pods)}
        namespaces, names = history.texts("namespace"), history.texts("pod")
        self._series = {measure: _by_pod(history, measure, rows, namespaces, names) for measure in SIZES}
        self._of_workload = _members(self._workload)
        self._means: dict[tuple[str, int], Series] = {}
        self.assumed = {
            measure: int((np.diff(offsets) == 0).sum()) for measure, (_, offsets) in self._series.items()
        }

    def of(self, pods: NDArray[np.int64], measure: str) -> Series:
        """Return float32[pods, moments] without gaps."""
        found = self._recorded(pods, measure)
        holes = np.isnan(found)
        for place in np.flatnonzero(holes.any(axis=1)).tolist():
            pod, mine = int(pods[place]), holes[place]
            fill = self._mean(measure, int(self._workload[pod]))
            found[place, mine] = fill[mine]
            left = np.isnan(found[place])
            if left.any():
                own = found[place][~left]
                found[place, left] = own.mean() if len(own) else self._request(pod, measure)
        return found

    def _recorded(self, pods: NDArray[np.int64], measure: str) -> Series:
        """Return the sums of the pods' containers, NaN where none has a value."""
        rows, offsets = self._series[measure]
        counts = offsets[pods + 1] - offsets[pods]
        found = np.full((len(pods), self._history.times.count), np.nan, np.float32)
        some = np.flatnonzero(counts)
        if len(some):
            mine = np.concatenate([rows[offsets[pod] : offsets[pod + 1]] for pod in pods[some].tolist()])
            values = self._history.values(mine)
            starts = np.concatenate([[0], np.cumsum(counts[some])[:-1]])
            sums = np.add.reduceat(np.nan_to_num(values), starts, axis=0)
            none = np.logical_and.reduceat(np.isnan(values), starts, axis=0)
            found[some] = np.where(none, np.nan, sums)
        return found

    def _mean(self, measure: str, workload: int) -> Series:
        """Return float32[moments]: the mean over the pods of a workload that have a value."""
        key = (measure, workload)
        if key not in self._means:
            order, offsets = self._of_workload
            pods = order[offsets[workload] : offsets[workload + 1]]
            values = self._recorded(pods[:POD_BATCH], measure)
            known = ~np.isnan(values)
            counts = known.sum(axis=0)
            sums = np.nan_to_num(values).sum(axis=0, dtype=np.float64)
            self._means[key] = np.where(counts, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
        return self._means[key]

    def _request(self, pod: int, measure: str) -> float:
        template = int(self._snapshot.column("template")[pod])
        amount = float(self._snapshot.templates[SIZES[measure]][template].as_py())
        return amount * MILLI if measure == "cpu" else amount


def _members(workload: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pods by workload, and where each workload begins."""
    counts = np.bincount(workload, minlength=int(workload.max(initial=-1)) + 1)
    return np.argsort(workload, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _by_pod(
    history: History,
    measure: str,
    rows: dict[tuple[str, str], int],
    namespaces: tuple[NDArray[np.int32], list[str]],
    names: tuple[NDArray[np.int32], list[str]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a measure's series sorted by pod, and int64[pods + 1]: where each pod's begin."""
    mine = history.rows(measure)
    pod = np.array(
        [
            rows.get((namespaces[1][space], names[1][name]), -1)
            for space, name in zip(namespaces[0][mine].tolist(), names[0][mine].tolist(), strict=True)
        ],
        np.int64,
    )
    mine, pod = mine[pod >= 0], pod[pod >= 0]
    order = np.argsort(pod, kind="stable")
    counts = np.bincount(pod, minlength=len(rows))
    return mine[order], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True)
class RecordedNode:
    """Hold one node's use over time with its pods: rows of the snapshot, and float32[pods, moments] each."""

    node: int
    pods: NDArray[np.int64]
    memory: Series
    cpu: Series


def each_node(use: PodUse, node_of_pod: NDArray[np.int64]) -> Iterator[RecordedNode]:
    """Yield the use of each node that has pods, with each pod on the node that `node_of_pod` says."""
    nodes = np.unique(node_of_pod[node_of_pod >= 0])
    order = np.argsort(node_of_pod, kind="stable")
    edges = np.searchsorted(node_of_pod[order], np.stack([nodes, nodes + 1]))
    for node, first, last in zip(nodes.tolist(), *edges.tolist(), strict=True):
        pods = order[first:last].astype(np.int64)
        yield RecordedNode(node, pods, use.of(pods, "memory"), use.of(pods, "cpu"))


def system_memory(
    use: PodUse, history: History, snapshot: Snapshot, reserved: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Return int64[nodes]: bytes that a node uses outside of its pods, and of how many nodes it is not known.

    It is the median of what the node used more than its pods; without a record the difference of the node's
    readings, or else what the node reserves.
    """
    column, names = history.texts("node")
    rows = history.rows("node-memory")
    recorded = {names[code]: int(row) for code, row in zip(column[rows].tolist(), rows.tolist(), strict=True)}
    whole, pods = snapshot.reading("memory_working_set"), snapshot.reading("pods_memory_working_set")
    read = (whole >= 0) & (pods >= 0)
    found = np.where(read, np.maximum(whole - pods, 0), np.maximum(reserved, 0))
    unknown = 0
    for node, name in enumerate(snapshot.node_names):
        row = recorded.get(name)
        if row is None:
            unknown += not read[node]
            continue
        mine = np.arange(snapshot.offsets[node], snapshot.offsets[node + 1])
        outside = history.values(np.array([row]))[0] - use.of(mine, "memory").sum(axis=0)
        known = outside[~np.isnan(outside)]
        if len(known):
            found[node] = max(int(np.median(known)), 0)
    return found.astype(np.int64), unknown
