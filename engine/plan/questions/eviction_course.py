"""The course of eviction on one node, look by look, with availability computed instead of read.

Every decision is the agent's: `PressureTracker` says what is met and due, `layout.reclaims` what is cleaned
up first, `eviction_order` who goes. Use stays as it is, so time matters for grace periods alone: looks are
`LOOK_INTERVAL` apart while one runs, and a pod is gone as soon as it is evicted. Looks that can only find
what the last one found are not made: pods go together up to the one whose end changes which thresholds are
met. Pure: values in, steps out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.api.kubengine_config import EvictionSection
from engine.eviction.layout import Layout, reclaims
from engine.eviction.pressure import PressureTracker
from engine.eviction.signals import Observation, Observations
from engine.eviction.thresholds import Threshold

LOOK_INTERVAL: Final = float(EvictionSection().interval)
"""Seconds between the agent's looks."""

Usage = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""int64[pods] in the store's unit, and uint8[pods]: whether it is known."""


@dataclass(slots=True)
class Store:
    """What runs short (memory, a file system, process ids) with the signals that watch it; `use` is what this
    node's pods hold of it, `images` the bytes of unused images in it."""

    signals: tuple[str, ...]
    capacity: int
    available: int
    use: Usage
    images: int = 0


class Step(NamedTuple):
    """`waits`: `amount` seconds until `threshold` is due; `reclaim`: bytes of images."""

    decision: Literal["waits", "reclaim"]
    threshold: Threshold
    amount: int


class Evictions(NamedTuple):
    """Pods that go one after another because of `threshold`: their places among the node's, what each frees
    of what it is about, and whether that is known. int64[n], int64[n], uint8[n]."""

    threshold: Threshold
    pods: NDArray[np.int64]
    freed: NDArray[np.int64]
    known: NDArray[np.uint8]


class Course(NamedTuple):
    """`began` is the threshold that was due first, None if none was; `missing` what is still short in the end
    (0: relieved); `clears` the seconds after which each node condition that was raised is gone again."""

    steps: Sequence[Step | Evictions]
    began: Threshold | None
    missing: int
    clears: Mapping[str, int]


def course(
    stores: Sequence[Store],
    thresholds: Sequence[Threshold],
    *,
    layout: Layout,
    transition_period: float,
    order: Callable[[Usage], NDArray[np.int64]],
    max_evictions: int,
) -> Course:
    """What follows until no threshold is due any more, or nobody is left to evict. `order` gives the places
    of the pods that may be evicted, first to go first. `stores` are one or more."""
    tracker = PressureTracker(thresholds, transition_period)
    store_of = {signal: store for store in stores for signal in store.signals}
    limits = [_limits(thresholds, store) for store in stores]
    orders: dict[int, NDArray[np.int64]] = {}
    gone = np.zeros(len(stores[0].use[0]), bool)
    left_to_evict = max_evictions
    steps: list[Step | Evictions] = []
    began: Threshold | None = None
    missing = look = 0
    now = 0.0
    while True:
        look += 1
        seen = tracker.look(_observations(store_of, look), now)
        if not seen.act_on:
            if not seen.waiting:
                break
            threshold, left = min(seen.waiting, key=lambda waiting: waiting[1])
            steps.append(Step("waits", threshold, math.ceil(left)))
            now += max(math.ceil(left / LOOK_INTERVAL), 1) * LOOK_INTERVAL
            continue
        threshold = seen.act_on[0]
        began = began or threshold
        cleaned = _clean_up(stores, layout, threshold)
        if cleaned:
            steps.append(Step("reclaim", threshold, cleaned))
            if tracker.is_relieved(_observations(store_of, look)):
                continue
        short = store_of[threshold.signal]
        use, known = short.use
        if id(use) not in orders:
            orders[id(use)] = order(short.use)
        pods = orders[id(use)]
        pods = pods[~gone[pods]][:left_to_evict]
        if not len(pods):
            missing = max(_missing(due, store_of[due.signal]) for due in seen.act_on)
            break
        pods = pods[: _let_go(stores, limits, pods)]
        gone[pods] = True
        left_to_evict -= len(pods)
        steps.append(Evictions(threshold, pods, use[pods], known[pods]))
    clears = {} if missing else {c: round(at + transition_period) for c, at in tracker.last_seen.items()}
    return Course(steps, began, missing, clears)


def _limits(thresholds: Sequence[Threshold], store: Store) -> set[int]:
    """Amounts at which a threshold of this store begins or ceases to be met, or to be covered."""
    watching = [threshold for threshold in thresholds if threshold.signal in store.signals]
    return {t.limit(store.capacity, reclaimed=reclaimed) for t in watching for reclaimed in (False, True)}


def _let_go(stores: Sequence[Store], limits: Sequence[set[int]], pods: NDArray[np.int64]) -> int:
    """Let pods go until what is available of a store has crossed one of its limits, all of them if it never
    does; how many went."""
    count = len(pods)
    freed: dict[int, NDArray[np.int64]] = {}
    for store, amounts in zip(stores, limits, strict=True):
        use = store.use[0]
        if id(use) not in freed:
            freed[id(use)] = use[pods].cumsum()
        for limit in amounts:
            short = limit - store.available
            crossed = freed[id(use)] >= short if short > 0 else freed[id(use)] < short
            first = int(crossed.argmax())
            if crossed[first]:
                count = min(count, first + 1)
    for store in stores:
        store.available += int(freed[id(store.use[0])][count - 1])
    return count


def _observations(store_of: Mapping[str, Store], look: int) -> Observations:
    return {
        signal: Observation(store.available, store.capacity, float(look))
        for signal, store in store_of.items()
    }


def _clean_up(stores: Sequence[Store], layout: Layout, threshold: Threshold) -> int:
    """Bytes freed by deleting unused images, if `threshold` lets the agent do that."""
    if "images" not in reclaims(layout, threshold.signal):
        return 0
    freed = 0
    for store in stores:
        freed += store.images
        store.available += store.images
        store.images = 0
    return freed


def _missing(threshold: Threshold, store: Store) -> int:
    return threshold.limit(store.capacity, reclaimed=True) - store.available


def nearest(thresholds: Sequence[Threshold], stores: Sequence[Store]) -> tuple[Threshold, int] | None:
    """The threshold with the least above it, and how much that is; None if none can be judged."""
    distances = [
        (store.available - threshold.limit(store.capacity), index)
        for index, threshold in enumerate(thresholds)
        for store in stores
        if threshold.signal in store.signals
    ]
    if not distances:
        return None
    distance, index = min(distances)
    return thresholds[index], distance
