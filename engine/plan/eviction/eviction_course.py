"""Compute the course of eviction on nodes with the same thresholds, pass by pass, with availability computed
instead of read.

Every decision is the agent's: `PressureTracker` decides which thresholds are met and due, `layout.reclaims`
what is cleaned up first, `eviction_order` which pod goes. Use stays constant, so time matters only for grace
periods: passes are `LOOK_INTERVAL` apart while one runs, and a pod is gone as soon as it is evicted. Passes
that can only repeat the last result are skipped: pods go together up to the one whose end changes which
thresholds are met. Nodes that have met the same thresholds at every pass so far are processed together, as
the tracker sees nothing else of them. Pure: values in, steps out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.api.kubengine_config import EvictionSection
from engine.eviction.layout import Layout, reclaims
from engine.eviction.pressure import PressureTracker
from engine.eviction.signals import Observations, SignalObservation
from engine.eviction.thresholds import Threshold
from engine.plan.eviction.pods_in_order import PodsInOrder
from engine.plan.snapshot.distinct import distinct

LOOK_INTERVAL: Final = float(EvictionSection().interval)
"""Seconds between the agent's passes."""

Usage = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""int64[pods] in the store's unit, and uint8[pods]: whether it is known."""
Amounts = NDArray[np.int64]


@dataclass(slots=True)
class NodeStore:
    """Hold a resource that runs short (memory, a file system, process ids) with the signals that watch it.

    int64[nodes] each: its size, its available amount, and the bytes of unused images in it; `use` is what
    the snapshot's pods hold of it.
    """

    signals: tuple[str, ...]
    capacity: Amounts
    available: Amounts
    images: Amounts
    use: Usage


class EvictionStep(NamedTuple):
    """Hold one step: `waits` means `amount` seconds until `threshold` is due, `reclaim` bytes of images."""

    decision: Literal["waits", "reclaim"]
    threshold: Threshold
    amount: int


class Evictions(NamedTuple):
    """Hold pods evicted one after another because of `threshold`: their rows in the snapshot, the amount that
    each frees of the threshold's resource, and whether that is known. int64[n], int64[n], uint8[n].
    """

    threshold: Threshold
    pods: NDArray[np.int64]
    freed: NDArray[np.int64]
    known: NDArray[np.uint8]


@dataclass(slots=True)
class EvictionRun:
    """Hold one node's result. `began` is the threshold that was due first, None if none was; `missing` what
    is still short at the end (0: relieved); `clears` the seconds after which each raised node condition is
    cleared.
    """

    steps: list[EvictionStep | Evictions]
    began: Threshold | None = None
    missing: int = 0
    clears: Mapping[str, int] = field(default_factory=dict)


class _Limit(NamedTuple):
    """Hold int64[nodes]: the amounts of `store` at which a threshold begins or ceases to be met,
    or covered.
    """

    store: NodeStore
    amounts: Amounts


@dataclass(slots=True)
class _Alike:
    """Group nodes whose passes have had the same results so far."""

    nodes: NDArray[np.int64]
    tracker: PressureTracker
    looks: int = 0
    now: float = 0.0
    began: Threshold | None = None


class EvictionCourses:
    """Compute the course of each node until no threshold is due or no pod is left to evict: `found` for nodes
    where one was met, by their positions, and in `stores` (one or more, the same on each node) what is
    available then.

    `order` returns the pods that may be evicted of some nodes (their positions), in order of eviction;
    `pods` is the number of pods in the snapshot.
    """

    def __init__(
        self,
        stores: Sequence[NodeStore],
        thresholds: Sequence[Threshold],
        *,
        layout: Layout,
        transition_period: float,
        order: Callable[[Usage, NDArray[np.int64]], PodsInOrder],
        pods: int,
        max_evictions: int,
    ) -> None:
        count = len(stores[0].capacity)
        self.found: dict[int, EvictionRun] = {}
        self._stores, self._layout, self._transition_period = stores, layout, transition_period
        self._store_of = {signal: store for store in stores for signal in store.signals}
        self._limits = [
            _Limit(store, limits(threshold, store.capacity, reclaimed=reclaimed))
            for threshold in thresholds
            for store in stores
            if threshold.signal in store.signals
            for reclaimed in ((False, True) if threshold.min_reclaim is not None else (False,))
        ]
        self._order = order
        self._orders: dict[int, PodsInOrder] = {}
        self._gone = np.zeros(pods, bool)
        self._left_to_evict = np.full(count, max_evictions, np.int64)
        everywhere = np.arange(count, dtype=np.int64)
        self._pressed = everywhere[self._met(everywhere) != 0]
        looking = [_Alike(everywhere, PressureTracker(thresholds, transition_period))]
        while looking:
            looking.extend(self._look(looking.pop()))

    def _met(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which limits are not reached, one bit each."""
        met = np.zeros(len(nodes), np.int64)
        for bit, (store, amounts) in enumerate(self._limits):
            met |= (store.available[nodes] < amounts[nodes]).astype(np.int64) << bit
        return met

    def _look(self, before: _Alike) -> Iterator[_Alike]:
        """Return the nodes that need another pass."""
        for nodes in self._apart(before.nodes):
            tracker = msgspec.structs.replace(before.tracker, last_seen=dict(before.tracker.last_seen))
            alike = replace(before, nodes=nodes, tracker=tracker, looks=before.looks + 1)
            self._follow(alike)
            if len(alike.nodes):
                yield alike

    def _apart(self, nodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Group nodes by the thresholds that they meet."""
        met, which = distinct(self._met(nodes))
        return [nodes[which == number] for number in range(len(met))]

    def _follow(self, alike: _Alike) -> None:
        """Run one pass and its consequences; nodes whose course has ended are left out afterwards."""
        seen = alike.tracker.update(self._observations(int(alike.nodes[0]), alike.looks), alike.now)
        if not seen.act_on and not seen.waiting:
            if alike.began is None:
                alike.nodes = alike.nodes[:0]
                return
            last_seen = alike.tracker.last_seen.items()
            clears = {condition: round(at + self._transition_period) for condition, at in last_seen}
            for course in self._courses(alike.nodes):
                course.began, course.clears = alike.began, clears
            alike.nodes = alike.nodes[:0]
            return
        if not seen.act_on:
            threshold, left = min(seen.waiting, key=lambda waiting: waiting[1])
            for course in self._courses(alike.nodes):
                course.steps.append(EvictionStep("waits", threshold, math.ceil(left)))
            alike.now += max(math.ceil(left / LOOK_INTERVAL), 1) * LOOK_INTERVAL
            return
        threshold = seen.act_on[0]
        alike.began = alike.began or threshold
        stuck = self._evict(self._clean_up(alike, threshold), threshold)
        for node in stuck.tolist():
            missing = max(self._missing(due, node) for due in seen.act_on)
            course = self._course(node)
            course.began, course.missing = alike.began, missing
        alike.nodes = np.setdiff1d(alike.nodes, stuck, assume_unique=True)

    def _courses(self, nodes: NDArray[np.int64]) -> Iterator[EvictionRun]:
        return map(self._course, nodes.tolist())

    def _course(self, node: int) -> EvictionRun:
        found = self.found.get(node)
        if found is None:
            found = self.found[node] = EvictionRun([])
        return found

    def _observations(self, node: int, look: int) -> Observations:
        return {
            signal: SignalObservation(int(store.available[node]), int(store.capacity[node]), float(look))
            for signal, store in self._store_of.items()
        }

    def _missing(self, threshold: Threshold, node: int) -> int:
        store = self._store_of[threshold.signal]
        return threshold.limit(int(store.capacity[node]), reclaimed=True) - int(store.available[node])

    def _clean_up(self, alike: _Alike, threshold: Threshold) -> NDArray[np.int64]:
        """Delete unused images if `threshold` allows the agent to; return the nodes that this
        does not relieve.
        """
        nodes = alike.nodes
        if "images" not in reclaims(self._layout, threshold.signal):
            return nodes
        cleaned = np.zeros(len(nodes), np.int64)
        for store in self._stores:
            cleaned += store.images[nodes]
            store.available[nodes] += store.images[nodes]
            store.images[nodes] = 0
        for course, amount in zip(self._courses(nodes), cleaned.tolist(), strict=True):
            if amount:
                course.steps.append(EvictionStep("reclaim", threshold, amount))
        relieved = [
            some
            for some in self._apart(nodes[cleaned > 0])
            if alike.tracker.is_relieved(self._observations(int(some[0]), alike.looks))
        ]
        return np.setdiff1d(nodes, np.concatenate(relieved), assume_unique=True) if relieved else nodes

    def _evict(self, nodes: NDArray[np.int64], threshold: Threshold) -> NDArray[np.int64]:
        """Evict on each node until one of its limits is crossed; return the nodes with no pod
        left to evict.
        """
        if not len(nodes):
            return nodes
        use, known = self._store_of[threshold.signal].use
        if id(use) not in self._orders:
            self._orders[id(use)] = self._order((use, known), self._pressed)
        listed = self._orders[id(use)].of(nodes)
        listed = listed.where(~self._gone[listed.pods]).first(self._left_to_evict[nodes])
        empty = listed.counts == 0
        stuck: NDArray[np.int64] = nodes[empty]
        nodes, listed = nodes[~empty], listed.among(~empty)
        if not len(nodes):
            return stuck
        going = listed.first(self._let_go(nodes, listed))
        self._gone[going.pods] = True
        self._left_to_evict[nodes] -= going.counts
        freed, is_known = use[going.pods], known[going.pods]
        ends = going.counts.cumsum()
        for course, begin, end in zip(
            self._courses(nodes), (ends - going.counts).tolist(), ends.tolist(), strict=True
        ):
            mine = slice(begin, end)
            course.steps.append(Evictions(threshold, going.pods[mine], freed[mine], is_known[mine]))
        return stuck

    def _let_go(self, nodes: NDArray[np.int64], listed: PodsInOrder) -> NDArray[np.int64]:
        """Evict pods until the available amount of a store crosses one of its limits, or all of them if it
        never does; return how many pods of each node were evicted.
        """
        count = listed.counts
        freed: dict[int, NDArray[np.int64]] = {}
        for store in self._stores:
            use = store.use[0]
            if id(use) not in freed:
                freed[id(use)] = listed.running(use[listed.pods])
        for store, amounts in self._limits:
            before = store.available[nodes]
            after = before[listed.node_of] + freed[id(store.use[0])]
            reached = after >= amounts[nodes][listed.node_of]
            crossed = reached == (before < amounts[nodes])[listed.node_of]
            count = np.minimum(count, listed.until(crossed))
        last = listed.offsets + count - 1
        for store in self._stores:
            store.available[nodes] += freed[id(store.use[0])][last]
        return count


def limits(threshold: Threshold, capacity: Amounts, *, reclaimed: bool = False) -> Amounts:
    """Compute `Threshold.limit` of many capacities; amounts beyond 64 bits are clamped."""
    sizes, which = distinct(capacity)
    found = [threshold.limit(size, reclaimed=reclaimed) for size in sizes.tolist()]
    return np.array([min(max(amount, -(2**63)), 2**63 - 1) for amount in found], np.int64)[which]


def nearest(
    thresholds: Sequence[Threshold], stores: Sequence[NodeStore]
) -> tuple[NDArray[np.int64], Amounts]:
    """Return for each node the index of the threshold with the least distance above it, and that distance;
    index 0 and distance 0 if none can be judged.
    """
    least = np.full(len(stores[0].capacity), 2**63 - 1, np.int64)
    place = np.zeros(len(least), np.int64)
    judged = False
    for index, threshold in enumerate(thresholds):
        for store in stores:
            if threshold.signal in store.signals:
                distance = store.available - limits(threshold, store.capacity)
                place[distance < least] = index
                least, judged = np.minimum(least, distance), True
    return place, least if judged else np.zeros_like(least)
