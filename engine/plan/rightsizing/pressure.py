"""Find where recorded use would have been more than a node has, and what follows: evictions, and shares of
CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.eviction.signals import ALLOCATABLE_MEMORY_AVAILABLE, MEMORY_AVAILABLE
from engine.eviction.thresholds import Threshold
from engine.plan.eviction.eviction_course import EvictionCourses, Evictions, NodeStore
from engine.plan.eviction.pods_in_order import NodesPods
from engine.plan.rightsizing.replay import RecordedNode
from engine.plan.snapshot.columns import Snapshot

SQUEEZED: Final = 0.9
"""A pod that gets less than this share of the CPU that it used is reported."""
LEAST_WEIGHT: Final = 2.0
"""The CPU shares of a pod without a request, in milli-CPU."""
MOST_EVICTIONS: Final = 1000


@dataclass(frozen=True)
class MemoryOfNode:
    """Hold the memory of one node in bytes: its capacity, the limit of the cgroup of all pods, what is used
    outside of pods, and the hard thresholds that watch it.
    """

    capacity: int
    for_pods: int
    system: int
    thresholds: tuple[Threshold, ...]

    @property
    def threshold(self) -> int:
        """Return the bytes below which the node evicts at once."""
        return memory_threshold(self.thresholds, self.capacity)


def memory_threshold(thresholds: Iterable[Threshold], capacity: int) -> int:
    """Return the bytes below which a node with so much memory evicts at once; 0 without such a threshold."""
    mine = (one for one in thresholds if one.signal == MEMORY_AVAILABLE and one.hard)
    return max((one.limit(capacity) for one in mine), default=0)


@dataclass(frozen=True)
class PressedNode:
    """Hold a node whose memory would have run short: the first and the worst moment, how many there are, the
    bytes available at the worst (below 0 if pods used more than there is), and what its pods used then.
    """

    node: int
    first: int
    worst: int
    moments: int
    available: int
    pods: NDArray[np.int64]
    use: NDArray[np.int64]


def pressed(recorded: RecordedNode, memory: MemoryOfNode) -> PressedNode | None:
    """Return when a node's memory would have been below its threshold; None if never."""
    pods = recorded.memory.sum(axis=0, dtype=np.float64)
    available = min(memory.capacity - memory.system, memory.for_pods) - pods
    short = available < memory.threshold
    if not short.any():
        return None
    worst = int(available.argmin())
    return PressedNode(
        recorded.node, int(short.argmax()), worst, int(short.sum()), int(available[worst]),
        recorded.pods, recorded.memory[:, worst].astype(np.int64),
    )  # fmt: skip


class EvictedPod(NamedTuple):
    """Name a pod (row of the snapshot that `evictions` got), its node, and the bytes that it used."""

    pod: int
    node: int
    use: int


def evictions(
    snapshot: Snapshot, pressed: Sequence[PressedNode], memory: Sequence[MemoryOfNode], use: NDArray[np.int64]
) -> list[EvictedPod]:
    """Return the pods that nodes evict at their worst moment, in order.

    `snapshot` has each pod on its node; `memory` is indexed by node, `use`, int64[placed], are bytes at the
    moment of the pod's node.
    """
    alike: dict[tuple[Threshold, ...], list[PressedNode]] = {}
    for one in sorted(pressed, key=lambda one: one.node):
        alike.setdefault(memory[one.node].thresholds, []).append(one)
    known = np.ones(len(use), np.uint8)
    found = []
    for thresholds, mine in alike.items():
        nodes = np.array([one.node for one in mine], np.int64)
        pods = np.array([int(one.use.sum()) for one in mine], np.int64)
        sizes = [memory[one.node] for one in mine]
        images = np.zeros(len(mine), np.int64)
        stores = []
        for signal, capacity, limit in (
            (MEMORY_AVAILABLE, [s.capacity for s in sizes], [s.capacity - s.system for s in sizes]),
            (ALLOCATABLE_MEMORY_AVAILABLE, [s.for_pods for s in sizes], [s.for_pods for s in sizes]),
        ):
            available = np.array(limit, np.int64) - pods
            stores.append(NodeStore((signal,), np.array(capacity), available, images.copy(), (use, known)))
        courses = EvictionCourses(
            stores, thresholds, layout="shared", transition_period=0.0,
            order=NodesPods(snapshot, nodes, "memory").in_order, pods=snapshot.placed,
            max_evictions=MOST_EVICTIONS,
        )  # fmt: skip
        for place, course in sorted(courses.found.items()):
            node = int(nodes[place])
            for step in course.steps:
                if isinstance(step, Evictions):
                    found += [EvictedPod(pod, node, int(use[pod])) for pod in step.pods.tolist()]
    return found


class SqueezedPod(NamedTuple):
    """Name a pod (row of the snapshot) with the milli-CPU that it used and that it would have got."""

    pod: int
    used: float
    got: float


@dataclass(frozen=True)
class CPUContention:
    """Hold the moment at which pods used most CPU of a node, `demand` milli-CPU of `capacity`, the number of
    moments at which they used more than there is, and the pods that would have got less at the worst.
    """

    worst: int
    moments: int
    demand: float
    capacity: float
    squeezed: list[SqueezedPod]


def contention(recorded: RecordedNode, weight: NDArray[np.float64], capacity: float) -> CPUContention | None:
    """Return how a node's pods would have shared its CPU; None if there was always enough.

    `weight`, float64[pods of the node], are their requests; `capacity` in milli-CPU.
    """
    demand = recorded.cpu.sum(axis=0, dtype=np.float64) / 1000
    worst = int(demand.argmax())
    if not demand[worst] > capacity:
        return None
    mine = recorded.cpu[:, worst].astype(np.float64) / 1000
    got = shared_out(mine, np.maximum(weight, LEAST_WEIGHT), capacity)
    hit = np.flatnonzero(got < mine * SQUEEZED)
    squeezed = [
        SqueezedPod(int(recorded.pods[one]), float(mine[one]), float(got[one])) for one in hit.tolist()
    ]
    return CPUContention(worst, int((demand > capacity).sum()), float(demand[worst]), capacity, squeezed)


def shared_out(
    demand: NDArray[np.float64], weight: NDArray[np.float64], capacity: float
) -> NDArray[np.float64]:
    """Return what each pod gets of a CPU that is asked for more than it has: shares by weight, and what a pod
    does not need goes to the others.
    """
    got = np.zeros(len(demand))
    waiting = demand > 0
    left = capacity
    while waiting.any() and left > 1e-6:
        share = left * weight / weight[waiting].sum()
        full = waiting & (demand - got <= share + 1e-9)
        if not full.any():
            got[waiting] += share[waiting]
            break
        left -= float((demand - got)[full].sum())
        got[full] = demand[full]
        waiting &= ~full
    return got
