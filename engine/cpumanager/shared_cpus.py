"""Divides the CPUs that are not exclusive among Burstable pods: pools, and caches or NUMA nodes. Pure.

Without `cpus.pools`, `cpus.keepTogether` and `cpus.respectIsolated`, all containers without exclusive CPUs
share them all, as in a kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from engine.api import cpu_set as cpu_sets
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CpuPool, CpusSection
from engine.api.pod import Pod
from engine.api.qos import BURSTABLE, qos_class
from engine.api.resources import CPU, pod_requests
from engine.cpumanager.nearest import nearest_cpus
from engine.cpumanager.static_policy import StaticCpuPolicy, take
from engine.topologymanager.policy import Hint

MILLI = 1000
ANYWHERE = Hint(None, preferred=False)


class SharingPod(NamedTuple):
    """A Burstable pod, and the CPU that it requests in thousandths."""

    uid: str
    namespace: str
    labels: Mapping[str, str]
    milli: int

    @classmethod
    def of(cls, pod: Pod) -> SharingPod | None:
        """Return what counts of a pod; None unless it is Burstable."""
        if qos_class(pod) != BURSTABLE:
            return None
        requested = pod_requests(pod).get(CPU)
        milli = requested.milli if requested is not None else 0
        return cls(pod.uid, pod.metadata.namespace or "", pod.metadata.labels or {}, milli)


class SharedCpus:
    """The CPUs of pods without exclusive ones, as `divide` last decided.

    `isolated` are the CPUs that the kernel was started with in `isolcpus`. Pods in no pool and on no cache or
    node of their own have `rest`. Raises `InvalidInput` for invalid pools.
    """

    def __init__(self, section: CpusSection, isolated: int) -> None:
        names = [pool.name for pool in section.pools]
        for i, pool in enumerate(section.pools):
            subject = f"cpus.pools[{i}]"
            if not pool.name or names.count(pool.name) > 1:
                raise InvalidInput("each pool needs a name of its own", subject=f"{subject}.name")
            if not pool.namespaces and not pool.labels:
                raise InvalidInput("needs namespaces or labels of pods", subject=subject)
            if not 0 <= pool.min_cpus <= (pool.max_cpus or pool.min_cpus):
                raise InvalidInput("expected 0 <= minCPUs <= maxCPUs", subject=subject)
        self.rest = 0
        self.pools: dict[str, int] = {}
        self.members: dict[str, int] = {}
        self._section = section
        self._isolated = isolated if section.respect_isolated else 0
        self._of: dict[str, int] = {}
        self._group_of: dict[str, int] = {}

    @property
    def kept_together(self) -> int:
        """Return the number of pods on one cache or NUMA node."""
        return len(self._group_of)

    def of(self, pod_uid: str) -> int:
        """Return the CPUs of a pod."""
        return self._of.get(pod_uid, self.rest)

    def describe(self) -> list[dict[str, Any]]:
        """Describe the pools as JSON-able values."""
        return [
            {"name": name, "cpus": cpu_sets.text(cpus), "pods": self.members[name]}
            for name, cpus in self.pools.items()
        ]

    def divide(self, policy: StaticCpuPolicy, pods: Iterable[SharingPod]) -> None:
        """Divide the CPUs that `policy` shares now among the Burstable pods.

        A pool has as many CPUs as its pods request together, between its bounds, and keeps those that it has.
        Reserved CPUs, and at least one, stay outside of all pools.
        """
        shared = policy.state.shared
        usable = shared & ~self._isolated or shared
        by_pool: dict[str, list[SharingPod]] = {pool.name: [] for pool in self._section.pools}
        others: list[SharingPod] = []
        for pod in sorted(pods):
            name = self._pool_of(pod)
            (by_pool[name] if name is not None else others).append(pod)
        free = usable & ~policy.reserved
        left = free.bit_count() - (usable == free)
        self._of = {}
        for pool in self._section.pools:
            members = by_pool[pool.name]
            wanted = min(_wanted(pool, members), max(left, 0))
            cpus = _resized(policy, self.pools.get(pool.name, 0) & free, free, wanted)
            self.pools[pool.name], self.members[pool.name] = cpus, len(members)
            free &= ~cpus
            left -= wanted
            self._of.update(dict.fromkeys((pod.uid for pod in members), cpus) if cpus else {})
        pooled = 0
        for cpus in self.pools.values():
            pooled |= cpus
        self.rest = usable & ~pooled
        self._place_together(policy, others)

    def _pool_of(self, pod: SharingPod) -> str | None:
        """Return the first pool that takes the pod."""
        for pool in self._section.pools:
            if (not pool.namespaces or pod.namespace in pool.namespaces) and (
                pool.labels.items() <= pod.labels.items()
            ):
                return pool.name
        return None

    def _place_together(self, policy: StaticCpuPolicy, pods: Sequence[SharingPod]) -> None:
        """Give each pod one cache or NUMA node on which its requests fit beside those of earlier ones.

        A pod keeps its group while it fits there. Any other pod gets the group with the most free CPU.
        """
        layout = policy.topology.layout
        groups = {"cache": layout.caches, "node": layout.nodes}.get(self._section.keep_together, {})
        room = {group: (cpus & self.rest).bit_count() * MILLI for group, cpus in groups.items()}
        before, self._group_of = self._group_of, {}
        for pod in sorted(pods, key=lambda pod: pod.uid not in before):
            group = before.get(pod.uid)
            if group is None or room.get(group, 0) < pod.milli:
                group = max(room, key=lambda group: (room[group], -group), default=None)
            if group is None or not pod.milli or room[group] < pod.milli:
                continue
            room[group] -= pod.milli
            self._group_of[pod.uid] = group
            self._of[pod.uid] = groups[group] & self.rest


def _wanted(pool: CpuPool, members: Sequence[SharingPod]) -> int:
    requested = -(-sum(pod.milli for pod in members) // MILLI)
    wanted = max(requested, pool.min_cpus, 1 if members else 0)
    return min(wanted, pool.max_cpus) if pool.max_cpus else wanted


def _resized(policy: StaticCpuPolicy, before: int, free: int, wanted: int) -> int:
    """Return `wanted` of the free CPUs: some of those before, or those and others near them."""
    missing = wanted - before.bit_count()
    if missing <= 0:
        return take(policy.topology, policy.options, before, wanted)
    if not before:
        return take(policy.topology, policy.options, free, wanted)
    return before | nearest_cpus(policy, before, free & ~before, missing, ANYWHERE)
