"""Read the stores of each node that eviction signals watch: memory, file systems, inodes and process IDs.

A store has a capacity and an available amount. Which file systems a node has depends on its layout: images
and writable layers may be on nodefs, on imagefs, or on containerfs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.api.config import KubeletConfiguration
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
from engine.plan.snapshot.distinct import distinct, distinct_numbers, numbered
from engine.plan.snapshot.schema import MAX_AMOUNT
from engine.tables.eviction import Ranked

Resource = Literal["memory", "disk", "inodes", "processes"]
LAYOUTS: Final[tuple[Layout, ...]] = ("shared", "imagefs", "split")
SAME_READING = 0.01
"""Share of the capacity by which two readings of one file system may differ: they are taken one after
another.
"""


@dataclass(frozen=True)
class Kind:
    """Describe one resource: the signals of each store by layout, the column by which pods are ranked for
    eviction, and the unit of amounts.
    """

    stores: dict[Layout, tuple[tuple[str, ...], ...]]
    ranked: Ranked
    unit: str

    @property
    def signals(self) -> tuple[str, ...]:
        """Return all signals of the resource."""
        return tuple(signal for store in self.stores["shared"] for signal in store)


def _disk(nodefs: str, imagefs: str, containerfs: str) -> dict[Layout, tuple[tuple[str, ...], ...]]:
    """Return by layout which of three signals watch the same file system."""
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

Values = NDArray[np.int64]
Grow = Callable[[Values, NDArray[np.uint8]], Values]
"""A function of int64[pods] use and uint8[pods] whether it is known: the use after the growth."""


@dataclass(frozen=True)
class _PodUse:
    """Hold what pods use of one store.

    `use` is per pod, after the growth. Per node: the sum `before` the growth, the `growth`, and whether the
    use of every pod is `known`.
    """

    use: Usage
    before: Values
    growth: Values
    known: NDArray[np.bool_]


class _Column(NamedTuple):
    """Hold one store of all nodes before the growth: its signals, int64[nodes] readings (-1 unknown), and
    what pods use of it.
    """

    signals: tuple[str, ...]
    capacity: Values
    available: Values
    of_pods: _PodUse

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Return bool[nodes]: the nodes with both readings."""
        known: NDArray[np.bool_] = (self.capacity > 0) & (self.available >= 0)
        return known


class NodeStores:
    """Hold the stores of each node after the growth of its pods. Stores without readings are left out.

    `groups` yields nodes with the same stores, and `of` returns the stores of such nodes. `usage` is the
    total use of pods, known or assumed. `assumed_available` is a signal, and a function of int64[nodes]
    capacities that returns the amount available in its store.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        resource: Resource,
        configurations: NodeConfigurations,
        usage: Usage,
        grow: Grow,
        assumed_available: tuple[str, Callable[[Values], Values]] | None,
        rows: Rows,
    ) -> None:
        self._resource, self._configurations = resource, configurations
        self._offsets, self._node_names = snapshot.offsets, snapshot.node_names
        self._memory = _capacity(snapshot, "memory")
        self._layout = (
            _layouts(snapshot) if resource in ("disk", "inodes") else np.zeros(snapshot.node_count, np.int64)
        )
        self._readings = _readings(snapshot, resource)
        self._assumed: dict[str, Values] = {}
        if assumed_available is not None:
            signal, available = assumed_available
            for stores in KINDS[resource].stores.values():
                # The readings of a store are stored under its first signal, which depends on the layout.
                first = next(store[0] for store in stores if signal in store)
                self._assumed[first] = available(self._readings[first][0])
            self._assumed_signal = signal
        self._pod_use: dict[str, _PodUse] = {}
        self._set_pod_use("all", usage, grow(*usage))
        if self._layout.any():
            self._split_pod_use(snapshot, usage, grow, rows)
        layouts = {LAYOUTS[number] for number in distinct_numbers(self._layout).tolist()}
        self._columns = {layout: self._columns_of(layout) for layout in LAYOUTS if layout in layouts}

    def groups(self) -> Iterator[tuple[Values, Layout, list[int]]]:
        """Yield groups of nodes with the same configuration, layout and readable stores: int64[n] nodes,
        their layout, and the indices of the readable stores in this layout.
        """
        readable = np.zeros(len(self._layout), np.int64)
        for layout, columns in self._columns.items():
            of_layout = self._layout == LAYOUTS.index(layout)
            for place, column in enumerate(columns):
                readable |= (of_layout & column.readable).astype(np.int64) << place
        # One number per node: the configuration, the layout, and four bits for the readable stores.
        code = (self._configurations.codes.astype(np.int64) << 8 | self._layout << 4) | readable
        found, which = distinct(code)
        for number, key in enumerate(found.tolist()):
            places = [place for place in range(4) if key >> place & 1]
            yield np.flatnonzero(which == number), LAYOUTS[key >> 4 & 3], places

    def of(self, nodes: Values, layout: Layout, readable: Iterable[int]) -> list[NodeStore]:
        """Return the readable stores of the nodes of a group, without bytes of images."""
        found = []
        for place in readable:
            column = self._columns[layout][place]
            available = column.available[nodes] - column.of_pods.growth[nodes]
            images = np.zeros(len(nodes), np.int64)
            found.append(
                NodeStore(column.signals, column.capacity[nodes], available, images, column.of_pods.use)
            )
        return found

    def _columns_of(self, layout: Layout) -> list[_Column]:
        """Return the stores of a layout, over all nodes."""
        columns = []
        for signals in KINDS[self._resource].stores[layout]:
            capacity, available = self._readings[signals[0]]
            of_pods = self._pod_use[self._part(signals, layout)]
            if signals[0] == ALLOCATABLE_MEMORY_AVAILABLE:
                capacity, available = self._memory_of_pods(capacity, available, of_pods)
            if self._assumed and self._assumed_signal in signals:
                available = self._assumed[signals[0]]
            columns.append(_Column(signals, capacity, available, of_pods))
        return columns

    def _memory_of_pods(self, capacity: Values, available: Values, of_pods: _PodUse) -> tuple[Values, Values]:
        """Return the limit of the cgroup of all pods, and what is available of it: -1 if they are unknown or
        there is no limit; 0 is available if pods use more than a new limit, as the kernel holds them to it.

        Without statistics of the cgroup, its limit follows from the configuration, and its use is the sum
        over the pods. A change of the configuration moves the limit that the statistics show.
        """
        capacity, available = capacity.copy(), available.copy()
        computed = np.flatnonzero((capacity < 0) & of_pods.known)
        if not len(computed) and not self._configurations.changed:
            return capacity, available
        own, known = self._pods_limits(own=True)
        limit, _ = self._pods_limits(own=False) if self._configurations.changed else (own, known)
        read = (capacity >= 0) & (limit != own)
        # If a node's own configuration is not known, its limit may already be that of the new one.
        change = np.where(read, limit - np.where(known, own, capacity), 0)
        gone = read & (limit < 0)
        capacity, available = capacity + change, np.where(read, np.maximum(available + change, 0), available)
        capacity[gone] = -1
        capacity[computed] = limit[computed]
        available[computed] = np.maximum(limit[computed] - of_pods.before[computed], 0)
        return capacity, available

    def _set_pod_use(self, part: str, before: Usage, grown: Values) -> None:
        """Set a part of the pods' use from the use before and after the growth."""
        known = _per_node(before[1], self._offsets) == np.diff(self._offsets)
        sums = [self._sum_per_node(values) for values in (before[0], grown)]
        self._pod_use[part] = _PodUse((grown, before[1]), sums[0], sums[1] - sums[0], known)

    def _sum_per_node(self, values: Values) -> Values:
        """Return int64[nodes]: the sums of int64[pods]. Raise `InvalidInput` for a sum that is too large."""
        if int(values.max(initial=0)) * len(values) > MAX_AMOUNT:
            # Sums of floats find the nodes: those of int64 would wrap around without an error.
            beyond = np.flatnonzero(_per_node(values.astype(np.float64), self._offsets) > MAX_AMOUNT)
            if len(beyond):
                name = self._node_names[int(beyond[0])]
                raise InvalidInput(
                    f"its pods use more {self._resource} than can be counted", subject=f"node {name}"
                )
        return _per_node(values, self._offsets)

    def _part(self, signals: tuple[str, ...], layout: Layout) -> str:
        """Return which part of the pods' use is in a store.

        Logs and volumes ("files") are on nodefs. Writable layers ("layers") are on imagefs, but on nodefs if
        only images have a file system of their own.
        """
        if layout == "shared":
            return "all"
        nodefs = KINDS[self._resource].signals[0]
        if layout == "imagefs":
            return "files" if nodefs in signals else "layers"
        return "all" if nodefs in signals else "none"

    def _split_pod_use(self, snapshot: Snapshot, usage: Usage, grow: Grow, rows: Rows) -> None:
        """Set the use of writable layers, and of logs and volumes, for nodes with several file systems."""
        layers, known = snapshot.usage("layers" if self._resource == "disk" else "layer_inodes")
        missing = int((usage[1] > known).sum())
        if missing:
            rows.note("pods whose use of writable layers is unknown, assumed to use only nodefs", missing)
        files = np.maximum(usage[0] - layers, 0), usage[1]
        # Growth by an amount goes to the layers alone, or both parts together would grow twice as much.
        grown_layers = np.minimum(grow(layers, known), grow(*usage)) if known.any() else layers
        self._set_pod_use("layers", (layers, known), grown_layers)
        self._set_pod_use("files", files, files[0] + (grow(*usage) - usage[0]) - (grown_layers - layers))
        nothing = np.zeros(len(layers), np.int64)
        self._set_pod_use("none", (nothing, np.ones(len(layers), np.uint8)), nothing)

    def _pods_limits(self, *, own: bool) -> tuple[Values, NDArray[np.bool_]]:
        """Return int64[nodes]: the memory limit of the cgroup of all pods in bytes, by the node's `own`
        configuration or the one that it gets, -1 if the node's memory is unknown or the cgroup has no limit;
        and bool[nodes]: whether that configuration is known.
        """
        configurations = self._configurations
        codes = configurations.own_codes if own else configurations.codes
        sizes, of_node = numbered(self._memory)
        first, which = numbered(codes.astype(np.int64) * len(sizes) + of_node)
        limits, known = list[int](), list[bool]()
        for node in first.tolist():
            config, is_known = configurations.own(node) if own else (configurations.of(node), True)
            limits.append(_pods_limit(config, int(self._memory[node])))
            known.append(is_known)
        return np.array(limits, np.int64)[which], np.array(known, bool)[which]


def _pods_limit(config: KubeletConfiguration, memory: int) -> int:
    """Return the memory limit of the cgroup of all pods of a node with so many bytes, -1 if it has none."""
    if memory < 0:
        return -1
    limit = CgroupSettings.resolve(config, {"memory": memory}, cgroup_v2=True).root_values().memory
    return -1 if limit is None else limit


def _per_node(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sum of one value per pod for each node."""
    running = values.cumsum()
    return np.diff(np.concatenate([np.zeros(1, running.dtype), running])[offsets])


def _layouts(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[nodes]: the layout of each node, an index of `LAYOUTS`.

    The summary API names file systems by use only: two with equal readings are one.
    """
    dedicated = ~_same(snapshot, "imagefs", "nodefs")
    split = dedicated & ~_same(snapshot, "containerfs", "imagefs")
    return dedicated.astype(np.int64) + split


def _same(snapshot: Snapshot, one: str, other: str) -> NDArray[np.bool_]:
    """Return bool[nodes]: whether two file systems of a node are the same one, or one of them is unknown."""
    sizes = [snapshot.reading(f"{name}_capacity") for name in (one, other)]
    free = [snapshot.reading(f"{name}_available") for name in (one, other)]
    same = (sizes[0] == sizes[1]) & (np.abs(free[0] - free[1]) <= sizes[0] * SAME_READING)
    known: NDArray[np.bool_] = same | (sizes[0] < 0) | (sizes[1] < 0)
    return known


def _readings(snapshot: Snapshot, resource: Resource) -> dict[str, tuple[Values, Values]]:
    """Map a signal to the capacity and the available amount, int64[nodes] each, -1 unknown."""
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


def _capacity(snapshot: Snapshot, resource: str) -> Values:
    return snapshot.allocatable(resource, "capacity")
