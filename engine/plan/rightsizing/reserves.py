"""Fit what nodes of one type should reserve to what they used outside of their pods.

Memory and CPU outside of pods are the node's use less that of its pods, moment by moment: of the cgroup of
all pods where it is recorded, else the sum over pods. The part of `system.slice` goes to systemReserved, the
rest to kubeReserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.plan.history.history import History
from engine.plan.rightsizing.replay import MILLI, PodUse, Series
from engine.plan.snapshot.columns import Snapshot

LEAST_THRESHOLD: Final = 100 * 2**20
"""The kubelet's own hard threshold of memory.available."""
MEASURES: Final = ("memory", "cpu")


@dataclass(frozen=True)
class NodeOutside:
    """Hold one node: its use outside of pods and that of `system.slice` (None: not recorded), in bytes or
    milli-CPU, NaN where a moment is missing; and the largest rise of its memory from one moment to the next.
    """

    node: int
    outside: dict[str, Series]
    system: dict[str, Series | None]
    rise: float
    pods_summed: bool

    @property
    def has_memory(self) -> bool:
        """Return whether the memory of the node and that of its pods are recorded at any same moment."""
        return "memory" in self.outside and not bool(np.isnan(self.outside["memory"]).all())


@dataclass(frozen=True)
class FittedReserve:
    """Hold what one type should reserve of CPU (milli) or memory (bytes): for the kubelet and runtime, and
    for the system, with the number of values; and how many moments were above the sum.
    """

    kube: int
    system: int
    values: int
    above: int

    @property
    def total(self) -> int:
        return self.kube + self.system


def nodes_outside(snapshot: Snapshot, history: History, use: PodUse) -> list[NodeOutside]:
    """Return the nodes whose own memory and CPU are recorded."""
    rows = {name: _by_node(history, name) for name in _series_names()}
    found = []
    for node, name in enumerate(snapshot.node_names):
        if name not in rows["node-memory"]:
            continue
        pods = np.arange(snapshot.offsets[node], snapshot.offsets[node + 1])
        outside: dict[str, Series] = {}
        system: dict[str, Series | None] = {}
        for measure in MEASURES:
            unit = MILLI if measure == "cpu" else 1
            whole = _values(history, rows[f"node-{measure}"], name)
            inside = _values(history, rows[f"pods-{measure}"], name)
            if whole is None:
                continue
            less = inside if inside is not None else use.of(pods, measure).sum(axis=0)
            outside[measure] = (np.maximum(whole - less, 0) / unit).astype(np.float32)
            part = _values(history, rows[f"system-{measure}"], name)
            system[measure] = (part / unit).astype(np.float32) if part is not None else None
        memory = _values(history, rows["node-memory"], name)
        steps = np.diff(memory) if memory is not None else np.zeros(0)
        rise = float(np.nanmax(steps)) if np.isfinite(steps).any() else 0.0
        found.append(NodeOutside(node, outside, system, rise, name not in rows["pods-memory"]))
    return found


def fitted(nodes: list[NodeOutside], measure: str, percentile: float, margin: float) -> FittedReserve | None:
    """Return the reserve that covers this percentile of all moments of these nodes, plus a margin in percent;
    None without values.
    """
    series = [one.outside[measure] for one in nodes if measure in one.outside]
    values = np.concatenate([one[~np.isnan(one)] for one in series]) if series else np.zeros(0)
    if not len(values):
        return None
    total = _raised(float(np.percentile(values, percentile)), measure, margin)
    parts = [part for one in nodes if (part := one.system.get(measure)) is not None]
    system = 0
    if parts:
        known = np.concatenate([part[~np.isnan(part)] for part in parts])
        if len(known):
            system = min(_raised(float(np.percentile(known, percentile)), measure, margin), total)
    return FittedReserve(total - system, system, len(values), int((values > total).sum()))


def _raised(value: float, measure: str, margin: float) -> int:
    """Return a value plus the margin, rounded up to 10 MiB or 10 milli-CPU."""
    step = 10 * 2**20 if measure == "memory" else 10
    return int(-(-value * (1 + margin / 100) // step)) * step


def fitted_threshold(nodes: list[NodeOutside], capacity: int) -> int:
    """Return a hard threshold of memory.available that leaves time to evict: the largest rise from one moment
    to the next, between 100 MiB and a tenth of the node.
    """
    rise = max((one.rise for one in nodes), default=0.0)
    return max(LEAST_THRESHOLD, min(_raised(rise, "memory", 0), capacity // 10))


def fitted_max_pods(
    nodes: list[NodeOutside], counts: NDArray[np.int64], pod_memory: float, capacity: int, threshold: int
) -> tuple[int, float] | None:
    """Return how many pods of the usual size the memory of a node allows, and how many bytes each adds
    outside of pods: the slope over nodes with different numbers of pods. None without memory of pods.

    `counts` are the pods of these nodes.
    """
    there = np.array([one.has_memory for one in nodes], bool)
    if not there.any() or pod_memory <= 0:
        return None
    counts = counts[there]
    worst = np.array([float(np.nanmax(one.outside["memory"])) for one in nodes if one.has_memory])
    slope, base = 0.0, float(worst.max())
    if len(np.unique(counts)) > 1:
        slope, base = (float(value) for value in np.polyfit(counts, worst, 1))
        slope, base = (slope, max(base, 0.0)) if slope > 0 else (0.0, float(worst.max()))
    return max(int((capacity - threshold - base) / (pod_memory + slope)), 0), slope


def _series_names() -> list[str]:
    return [f"{part}-{measure}" for part in ("node", "pods", "system") for measure in MEASURES]


def _by_node(history: History, measure: str) -> dict[str, int]:
    codes, names = history.texts("node")
    rows = history.rows(measure)
    return {names[code]: int(row) for code, row in zip(codes[rows].tolist(), rows.tolist(), strict=True)}


def _values(history: History, rows: dict[str, int], name: str) -> Series | None:
    row = rows.get(name)
    return None if row is None else history.values(np.array([row]))[0]
