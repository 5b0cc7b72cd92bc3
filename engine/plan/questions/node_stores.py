"""Find what can run short on each node, as eviction watches it: memory, file systems by layout,
process ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.cgroups.formulas.settings import CgroupSettings
from engine.eviction.layout import Layout
from engine.eviction.signals import (
    ALLOCATABLE_MEMORY_AVAILABLE,
    CONTAINERFS_AVAILABLE,
    CONTAINERFS_INODES_FREE,
    IMAGEFS_AVAILABLE,
    IMAGEFS_INODES_FREE,
    MEMORY_AVAILABLE,
    NODEFS_AVAILABLE,
    NODEFS_INODES_FREE,
    PID_AVAILABLE,
)
from engine.plan.answers.answer import Rows
from engine.plan.eviction.eviction_course import NodeStore, Usage
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.schema import MAX_AMOUNT
from engine.tables.eviction import Ranked

Resource = Literal["memory", "disk", "inodes", "processes"]
LAYOUTS: Final[tuple[Layout, ...]] = ("shared", "imagefs", "split")
SAME_READING = 0.01
"""Statistics of one file system are taken at slightly different times, once for each of its uses."""


@dataclass(frozen=True)
class Kind:
    """Describe one resource: the signals of each of its stores by layout, how pods are ranked, and the unit
    of amounts.
    """

    stores: dict[Layout, tuple[tuple[str, ...], ...]]
    ranked: Ranked
    unit: str

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(signal for store in self.stores["shared"] for signal in store)


def _disk(nodefs: str, imagefs: str, containerfs: str) -> dict[Layout, tuple[tuple[str, ...], ...]]:
    return {
        "shared": ((nodefs, imagefs, containerfs),),
        "imagefs": ((nodefs,), (imagefs, containerfs)),
        "split": ((nodefs, containerfs), (imagefs,)),
    }


KINDS: dict[Resource, Kind] = {
    "memory": Kind({"shared": ((MEMORY_AVAILABLE,), (ALLOCATABLE_MEMORY_AVAILABLE,))}, "memory", "bytes"),
    "disk": Kind(
        _disk(NODEFS_AVAILABLE, IMAGEFS_AVAILABLE, CONTAINERFS_AVAILABLE), "ephemeral-storage", "bytes"
    ),
    "inodes": Kind(
        _disk(NODEFS_INODES_FREE, IMAGEFS_INODES_FREE, CONTAINERFS_INODES_FREE), "inodes", "inodes"
    ),
    "processes": Kind({"shared": ((PID_AVAILABLE,),)}, "processes", "processes"),
}

Unusable = NDArray[np.int64]
Grow = Callable[[Unusable, NDArray[np.uint8]], Unusable]
"""Compute use after the requested growth, from use and whether it is known."""


@dataclass(frozen=True)
class _Held:
    """Hold a part of the pods' use after their growth; per node: its value before, the amount added, and
    whether it is known of every pod.
    """

    use: Usage
    before: Unusable
    growth: Unusable
    known: NDArray[np.bool_]


class _Column(NamedTuple):
    """Hold one store of all nodes before the growth: its readings, the nodes that can have it, and the pods'
    use.
    """

    signals: tuple[str, ...]
    capacity: Unusable
    available: Unusable
    held: _Held

    @property
    def readable(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = (self.capacity > 0) & (self.available >= 0)
        return known


class NodeStores:
    """Hold each node's stores after its pods' growth; stores that cannot be read are left out.

    `alike` groups the nodes that have the same ones, and `of` returns those of such nodes. `usage` is the
    pods' total use, known or assumed;
    `given` is a signal and, computed from the capacities, the amount available in its store on every node.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        resource: Resource,
        configurations: NodeConfigurations,
        usage: Usage,
        grow: Grow,
        given: tuple[str, Callable[[Unusable], Unusable]] | None,
        rows: Rows,
    ) -> None:
        self._resource, self._configurations = resource, configurations
        self._offsets, self._node_names = snapshot.offsets, snapshot.node_names
        self._memory = _capacity(snapshot, "memory")
        self._layout = (
            _layouts(snapshot) if resource in ("disk", "inodes") else np.zeros(snapshot.node_count, np.int64)
        )
        self._readings = _readings(snapshot, resource)
        self._given: dict[str, Unusable] = {}
        if given is not None:
            signal, available = given
            for stores in KINDS[resource].stores.values():
                # The readings of a store are kept under its first signal, and the layout says which that is.
                first = next(store[0] for store in stores if signal in store)
                self._given[first] = available(self._readings[first][0])
            self._given_signal = signal
        self._held: dict[str, _Held] = {}
        self._put_use("all", usage, grow(*usage))
        if self._layout.any():
            self._divide(snapshot, usage, grow, rows)
        there = {LAYOUTS[number] for number in np.unique(self._layout).tolist()}
        self._columns = {layout: self._stores(layout) for layout in LAYOUTS if layout in there}

    def alike(self) -> Iterator[tuple[Unusable, Layout, list[int]]]:
        """Yield nodes with the same configuration and layout that have the same stores, and the indices of
        these in the layout.
        """
        readable = np.zeros(len(self._layout), np.int64)
        for layout, columns in self._columns.items():
            mine = self._layout == LAYOUTS.index(layout)
            for place, column in enumerate(columns):
                readable |= (mine & column.readable).astype(np.int64) << place
        code = (self._configurations.codes.astype(np.int64) << 8 | self._layout << 4) | readable
        found, which = np.unique(code, return_inverse=True)
        for number, key in enumerate(found.tolist()):
            places = [place for place in range(4) if key >> place & 1]
            yield np.flatnonzero(which == number), LAYOUTS[key >> 4 & 3], places

    def of(self, nodes: Unusable, layout: Layout, readable: Iterable[int]) -> list[NodeStore]:
        """Return their columns, one entry for each of the nodes, without images."""
        found = []
        for place in readable:
            column = self._columns[layout][place]
            available = column.available[nodes] - column.held.growth[nodes]
            images = np.zeros(len(nodes), np.int64)
            found.append(
                NodeStore(column.signals, column.capacity[nodes], available, images, column.held.use)
            )
        return found

    def _stores(self, layout: Layout) -> list[_Column]:
        columns = []
        for group in KINDS[self._resource].stores[layout]:
            capacity, available = self._readings[group[0]]
            held = self._held[self._part(group, layout)]
            if group[0] == ALLOCATABLE_MEMORY_AVAILABLE:
                limited = np.flatnonzero((capacity < 0) & held.known)
                limits = self._allocatable_limits(limited)
                capacity, available = capacity.copy(), available.copy()
                capacity[limited], available[limited] = limits, np.maximum(limits - held.before[limited], 0)
            if self._given and self._given_signal in group:
                available = self._given[group[0]]
            columns.append(_Column(group, capacity, available, held))
        return columns

    def _put_use(self, part: str, before: Usage, grown: Unusable) -> None:
        known = _per_node(before[1], self._offsets) == np.diff(self._offsets)
        uses = [self._sums(values) for values in (before[0], grown)]
        self._held[part] = _Held((grown, before[1]), uses[0], uses[1] - uses[0], known)

    def _sums(self, values: Unusable) -> Unusable:
        """Sum per node. Raise `InvalidInput` if a sum exceeds the range of amounts."""
        if int(values.max(initial=0)) * len(values) > MAX_AMOUNT:
            # The sums of floats first: those of int64 would wrap around without an error.
            beyond = np.flatnonzero(_per_node(values.astype(np.float64), self._offsets) > MAX_AMOUNT)
            if len(beyond):
                name = self._node_names[int(beyond[0])]
                raise InvalidInput(
                    f"its pods use more {self._resource} than can be counted", subject=f"node {name}"
                )
        return _per_node(values, self._offsets)

    def _part(self, group: tuple[str, ...], layout: Layout) -> str:
        """Return the part of the pods' use that lies in this store."""
        if layout == "shared":
            return "all"
        nodefs = KINDS[self._resource].signals[0]
        if layout == "imagefs":
            return "files" if nodefs in group else "layers"
        return "all" if nodefs in group else "none"

    def _divide(self, snapshot: Snapshot, usage: Usage, grow: Grow, rows: Rows) -> None:
        """Separate writable layers from logs and volumes, for nodes that keep them on different
        file systems.
        """
        layers, known = snapshot.usage("layers" if self._resource == "disk" else "layer_inodes")
        missing = int((usage[1] > known).sum())
        if missing:
            rows.note("pods whose use of writable layers is unknown, assumed to use only nodefs", missing)
        files = np.maximum(usage[0] - layers, 0), usage[1]
        # Growth by an amount goes to the layers alone, or both parts together would grow twice as much.
        grown_layers = np.minimum(grow(layers, known), grow(*usage)) if known.any() else layers
        self._put_use("layers", (layers, known), grown_layers)
        self._put_use("files", files, files[0] + (grow(*usage) - usage[0]) - (grown_layers - layers))
        nothing = np.zeros(len(layers), np.int64)
        self._put_use("none", (nothing, np.ones(len(layers), np.uint8)), nothing)

    def _allocatable_limits(self, nodes: Unusable) -> Unusable:
        """Return the bytes that the cgroup of all pods may use on each of these nodes, by the configuration;
        -1 if memory is not known.
        """
        pairs = np.stack([self._configurations.codes[nodes], self._memory[nodes]])
        distinct, first, which = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        limits = [
            self._allocatable_limit(int(nodes[at]), memory)
            for at, memory in zip(first.tolist(), distinct[1].tolist(), strict=True)
        ]
        return np.array(limits, np.int64)[which]

    def _allocatable_limit(self, node: int, memory: int) -> int:
        if memory < 0:
            return -1
        config = self._configurations.of(node)
        limit = CgroupSettings.resolve(config, {"memory": memory}, cgroup_v2=True).root_values().memory
        return -1 if limit is None else limit


def _per_node(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Sum one value per pod over each node."""
    running = values.cumsum()
    return np.diff(np.concatenate([np.zeros(1, running.dtype), running])[offsets])


def _layouts(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return where images and writable layers lie on each node, as an index of `LAYOUTS`, by whether file
    systems have equal readings.
    """
    dedicated = ~_same(snapshot, "imagefs", "nodefs")
    split = dedicated & ~_same(snapshot, "containerfs", "imagefs")
    return dedicated.astype(np.int64) + split


def _same(snapshot: Snapshot, one: str, other: str) -> NDArray[np.bool_]:
    """Tell whether two file systems of a node are one; also true if either is not known."""
    sizes = [snapshot.reading(f"{name}_capacity") for name in (one, other)]
    free = [snapshot.reading(f"{name}_available") for name in (one, other)]
    same = (sizes[0] == sizes[1]) & (np.abs(free[0] - free[1]) <= sizes[0] * SAME_READING)
    known: NDArray[np.bool_] = same | (sizes[0] < 0) | (sizes[1] < 0)
    return known


def _readings(snapshot: Snapshot, resource: Resource) -> dict[str, tuple[Unusable, Unusable]]:
    """Return capacity and available amount by signal, -1 if not known."""
    if resource == "memory":
        free, used = snapshot.reading("pods_memory_available"), snapshot.reading("pods_memory_working_set")
        known = (free >= 0) & (used >= 0)
        capacity = snapshot.reading("memory_capacity")
        capacity = np.where(capacity < 0, _capacity(snapshot, "memory"), capacity)
        return {
            MEMORY_AVAILABLE: (capacity, snapshot.reading("memory_available")),
            ALLOCATABLE_MEMORY_AVAILABLE: (np.where(known, free + used, -1), np.where(known, free, -1)),
        }
    if resource == "processes":
        capacity, used = snapshot.reading("pid_max"), snapshot.reading("pid_used")
        return {PID_AVAILABLE: (capacity, np.where(used < 0, -1, capacity - used))}
    nodefs, imagefs, _ = KINDS[resource].signals
    of, free_of = ("capacity", "available") if resource == "disk" else ("inodes", "inodes_free")
    capacity = snapshot.reading(f"nodefs_{of}")
    if resource == "disk":
        capacity = np.where(capacity < 0, _capacity(snapshot, "ephemeral-storage"), capacity)
    return {
        nodefs: (capacity, snapshot.reading(f"nodefs_{free_of}")),
        imagefs: (snapshot.reading(f"imagefs_{of}"), snapshot.reading(f"imagefs_{free_of}")),
    }


def _capacity(snapshot: Snapshot, resource: str) -> Unusable:
    return snapshot.allocatable(resource, "capacity")
