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
from engine.cpumanager.recent_use import MILLI, RecentCpuUse
from engine.cpumanager.static_policy import StaticCpuPolicy, take_by_topology
from engine.topologymanager.policy import ANYWHERE


class SharingPod(NamedTuple):
    """Hold a Burstable pod, and its requested CPU in thousandths."""

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
    """Hold the CPUs of pods without exclusive ones, as `divide` last decided.

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

    @property
    def by_use(self) -> bool:
        """Return whether any pool is sized by use."""
        return any(pool.sized_by == "use" for pool in self._section.pools)

    def is_sized_by_use(self, pod: SharingPod) -> bool:
        """Return whether the pod belongs to a pool that is sized by use."""
        pool = self._pool_of(pod)
        return pool is not None and pool.sized_by == "use"

    def divide(self, policy: StaticCpuPolicy, pods: Iterable[SharingPod], use: RecentCpuUse) -> None:
        """Divide the CPUs that `policy` shares now among the Burstable pods.

        A pool has as many CPUs as its pods request or use together, between its bounds, and keeps those
        that it has. Reserved CPUs, and at least one, stay outside of all pools.
        """
        shared = policy.state.shared
        usable = shared & ~self._isolated or shared
        members: dict[str, list[SharingPod]] = {pool.name: [] for pool in self._section.pools}
        others: list[SharingPod] = []
        for pod in sorted(pods):
            pool = self._pool_of(pod)
            (members[pool.name] if pool is not None else others).append(pod)
        free = usable & ~policy.reserved
        sizes = self._sizes(members, use, max(free.bit_count() - (usable == free), 0))
        # Every pool shrinks before any grows, so that none grows onto CPUs that another keeps.
        pools = {name: _some_of(policy, self.pools.get(name, 0) & free, size) for name, size in sizes.items()}
        free &= ~_union(pools)
        for name, size in sizes.items():
            pools[name] = _grown(policy, pools[name], free, size)
            free &= ~pools[name]
        self.pools, self.members = pools, {name: len(pods) for name, pods in members.items()}
        self._of = {pod.uid: pools[name] for name, pods in members.items() for pod in pods if pools[name]}
        self.rest = usable & ~_union(pools)
        self._place_together(policy, others)

    def _pool_of(self, pod: SharingPod) -> CpuPool | None:
        """Return the first pool that takes the pod."""
        for pool in self._section.pools:
            if (not pool.namespaces or pod.namespace in pool.namespaces) and (
                pool.labels.items() <= pod.labels.items()
            ):
                return pool
        return None

    def _sizes(
        self, members: Mapping[str, Sequence[SharingPod]], use: RecentCpuUse, left: int
    ) -> dict[str, int]:
        """Return the number of CPUs of each pool, `left` at most in all.

        What pods request comes before what other pools use beyond their requests.
        """
        wanted: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for pool in self._section.pools:
            pods = members[pool.name]
            requested = sum(pod.milli for pod in pods)
            used = (
                sum(use.demand(pod.uid, pod.milli) for pod in pods) if pool.sized_by == "use" else requested
            )
            wanted[pool.name] = _bounded(pool, used, pods)
            sizes[pool.name] = min(wanted[pool.name], _bounded(pool, requested, pods), left)
            left -= sizes[pool.name]
        for name, size in sizes.items():
            more = min(wanted[name] - size, left)
            sizes[name] += more
            left -= more
        return sizes

    def _place_together(self, policy: StaticCpuPolicy, pods: Sequence[SharingPod]) -> None:
        """Give each pod one cache or NUMA node on which its requests fit beside those of earlier ones.

        A pod keeps its group while it fits there. Any other pod gets the group with the most free CPU.
        """
        layout = policy.topology.layout
        groups = {"cache": layout.caches, "node": layout.nodes}.get(self._section.keep_together, {})
        free = {group: (cpus & self.rest).bit_count() * MILLI for group, cpus in groups.items()}
        before, self._group_of = self._group_of, {}
        for pod in sorted(pods, key=lambda pod: pod.uid not in before):
            group = before.get(pod.uid)
            if group is None or free.get(group, 0) < pod.milli:
                group = max(free, key=lambda group: (free[group], -group), default=None)
            if group is None or not pod.milli or free[group] < pod.milli:
                continue
            free[group] -= pod.milli
            self._group_of[pod.uid] = group
            self._of[pod.uid] = groups[group] & self.rest


def _bounded(pool: CpuPool, milli: int, members: Sequence[SharingPod]) -> int:
    """Return the CPUs for `milli`, between the bounds of the pool, and at least one for pods."""
    cpus = max(-(-milli // MILLI), pool.min_cpus, 1 if members else 0)
    return min(cpus, pool.max_cpus) if pool.max_cpus else cpus


def _some_of(policy: StaticCpuPolicy, cpus: int, wanted: int) -> int:
    return (
        take_by_topology(policy.topology, policy.options, cpus, wanted) if cpus.bit_count() > wanted else cpus
    )


def _grown(policy: StaticCpuPolicy, cpus: int, free: int, wanted: int) -> int:
    """Return `wanted` CPUs: those in `cpus`, and free ones near them."""
    missing = wanted - cpus.bit_count()
    if not missing:
        return cpus
    if not cpus:
        return take_by_topology(policy.topology, policy.options, free, missing)
    return cpus | nearest_cpus(policy, cpus, free, missing, ANYWHERE)


def _union(pools: Mapping[str, int]) -> int:
    union = 0
    for cpus in pools.values():
        union |= cpus
    return union
