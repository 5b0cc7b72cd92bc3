"""Divides the shared CPUs of a running node: measures the use of pods, and reports pools that change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from engine.api import cpu_set as cpu_sets
from engine.api.decisions import Decisions
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.cpumanager.recent_use import RecentCpuUse
from engine.cpumanager.shared_cpus import SharedCpus, SharingPod
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.host.tasks import Tasks
from engine.metrics import Registry

INTERVAL = 10.0
STEP_SECONDS = 30.0


class Division:
    """Divide the shared CPUs among the active pods.

    `cpu_seconds` returns the CPU seconds that a pod has used, by its uid, and raises `Refused` if it has no
    cgroup. It is called every `interval` seconds for the pods of pools that are sized by use.
    """

    def __init__(
        self,
        shares: SharedCpus,
        *,
        active: Callable[[], Iterable[Pod]],
        cpu_seconds: Callable[[str], float],
        decisions: Decisions,
        tasks: Tasks,
        interval: float = INTERVAL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shares = shares
        self._active, self._cpu_seconds = active, cpu_seconds
        self._decisions = decisions
        self._interval, self._monotonic = interval, monotonic
        self._use = RecentCpuUse()
        self._task = tasks.task("cpu-pools")

    def start(self, changed: Callable[[], None]) -> None:
        """Start to measure pods, if a pool is sized by use; `changed` is called after each reading."""
        if self.shares.by_use:
            self._task.start(lambda: self._measure_again_and_again(changed))

    async def stop(self) -> None:
        await self._task.stop()

    def divide(self, policy: StaticCpuPolicy) -> None:
        """Divide the CPUs that are not exclusive among the pods of this moment."""
        before = dict(self.shares.pools)
        self.shares.divide(policy, self._pods(), self._use)
        for name, cpus in self.shares.pools.items():
            if cpus != before.get(name, 0):
                inputs = {
                    "pool": name,
                    "before": cpu_sets.text(before.get(name, 0)),
                    "cpus": cpu_sets.text(cpus),
                    "pods": self.shares.members[name],
                }
                self._decisions.record("cpus", "pooled", "", inputs)

    def register(self, registry: Registry) -> None:
        """Register the metrics of the pools."""
        shares = self.shares
        registry.collected(
            "gauge",
            "kubengine_cpu_pool_cpus",
            "CPUs of a pool of Burstable pods.",
            ("pool",),
            lambda: [((name,), float(cpus.bit_count())) for name, cpus in shares.pools.items()],
        )
        registry.collected(
            "gauge",
            "kubengine_cpu_pool_pods",
            "Pods that share the CPUs of a pool.",
            ("pool",),
            lambda: [((name,), float(count)) for name, count in shares.members.items()],
        )
        registry.collected(
            "gauge",
            "kubengine_cpu_pods_kept_together",
            "Burstable pods that run on one last-level cache or NUMA node.",
            (),
            lambda: [((), float(shares.kept_together))],
        )

    def measure(self) -> None:
        """Read the CPU seconds of each pod in a pool that is sized by use."""
        seconds = {}
        for pod in self._pods():
            if self.shares.is_sized_by_use(pod):
                try:
                    seconds[pod.uid] = self._cpu_seconds(pod.uid)
                except Refused:  # the pod starts or ends; the next reading finds it, or the pod is gone
                    continue
        self._use.add(self._monotonic(), seconds)

    def _pods(self) -> list[SharingPod]:
        return [pod for pod in map(SharingPod.of, self._active()) if pod is not None]

    async def _measure_again_and_again(self, changed: Callable[[], None]) -> None:
        while True:
            with self._task.step(STEP_SECONDS):
                self.measure()
                changed()
            await asyncio.sleep(self._interval)
