"""Computes the values of the QoS levels from running sums, in O(1) per added or removed pod.

Source: kubelet v1.32 `qosContainerManager`, KEP-2570; pinned by `tests/conformance` (cgroup_qos).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api.amounts.cpu_weight import MIN_SHARES
from engine.api.pod import Pod
from engine.api.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, qos_class
from engine.api.quantity import ZERO
from engine.api.resources import CPU, MEMORY, pod_requests
from engine.cgroups.formulas.conversion import milli_cpu_to_shares
from engine.cgroups.formulas.file_names import MEMORY_LOW, MEMORY_MIN
from engine.cgroups.formulas.values import GroupValues

LEVELS = (GUARANTEED, BURSTABLE, BEST_EFFORT)


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """Hold the part of one pod in its level: requested milli-CPU and bytes."""

    qos_class: str
    cpu_milli: int = 0
    memory: int = 0

    @classmethod
    def of(cls, pod: Pod) -> Contribution:
        requests = pod_requests(pod)
        return cls(qos_class(pod), requests.get(CPU, ZERO).milli, requests.get(MEMORY, ZERO).value)


class LevelRules(msgspec.Struct, frozen=True):
    """Hold the settings of the levels.

    `reserved_percent` is `qosReserved.memory` (None: no reservation). Memory is in bytes, None if the node
    does not report it. `cpuset` is passed through. With `best_effort_idle` the BestEffort level gets only
    CPU that nobody else wants.
    """

    allocatable_memory: int | None = None
    reserved_percent: int | None = None
    memory_qos: bool = False
    tiered_memory: bool = False
    cpuset: str | None = None
    best_effort_idle: bool = False


class LevelSums(msgspec.Struct):
    """Hold the summed requests of the active pods by class."""

    pods: dict[str, Contribution] = msgspec.field(default_factory=dict)
    burstable_milli: int = 0
    burstable_memory: int = 0
    guaranteed_memory: int = 0
    best_effort: int = 0
    """The number of pods of each class."""

    def put(self, uid: str, contribution: Contribution) -> None:
        """Add a pod, or replace what it added before."""
        self.drop(uid)
        self.pods[uid] = contribution
        self._count(contribution, 1)

    def drop(self, uid: str) -> None:
        before = self.pods.pop(uid, None)
        if before is not None:
            self._count(before, -1)

    def _count(self, pod: Contribution, sign: int) -> None:
        if pod.qos_class == BURSTABLE:
            self.burstable_milli += sign * pod.cpu_milli
            self.burstable_memory += sign * pod.memory
        elif pod.qos_class == GUARANTEED:
            self.guaranteed_memory += sign * pod.memory
        else:
            self.best_effort += sign

    def values(self, rules: LevelRules) -> dict[str, GroupValues]:
        """Return each level's values; Guaranteed stands for the root of all pods.

        Integer division truncates toward zero, and the BestEffort limit may become negative; the kubelet
        does both too.
        """
        burstable_limit = best_effort_limit = None
        if rules.reserved_percent is not None and rules.allocatable_memory:
            percent = rules.reserved_percent
            burstable_limit = rules.allocatable_memory - self.guaranteed_memory * percent // 100
            best_effort_limit = burstable_limit - self.burstable_memory * percent // 100
        root_files: dict[str, str] = {}
        burstable_files: dict[str, str] = {}
        if rules.memory_qos:
            root_files, burstable_files = self._protection(rules.tiered_memory)
        return {
            GUARANTEED: GroupValues(unified=root_files, cpuset=rules.cpuset),
            BURSTABLE: GroupValues(
                cpu_shares=milli_cpu_to_shares(self.burstable_milli),
                memory=burstable_limit,
                cpuset=rules.cpuset,
                unified=burstable_files,
            ),
            BEST_EFFORT: GroupValues(
                cpu_shares=None if rules.best_effort_idle else MIN_SHARES,
                cpu_idle=rules.best_effort_idle,
                memory=best_effort_limit,
                cpuset=rules.cpuset,
            ),
        }

    def _protection(self, tiered: bool) -> tuple[dict[str, str], dict[str, str]]:
        """Return the memory protection files of the root and of the Burstable level.

        The root must protect the sum of everything below in both ways, since the kernel would otherwise scale
        the levels' protection down. The kubelet writes only memory.min at the root: memory.low
        below it has no effect.
        """
        everything = self.guaranteed_memory + self.burstable_memory
        if not tiered:
            return _file(MEMORY_MIN, everything), _file(MEMORY_MIN, self.burstable_memory)
        root = _file(MEMORY_MIN, everything) | _file(MEMORY_LOW, everything)
        return root, _file(MEMORY_LOW, self.burstable_memory)


def _file(name: str, amount: int) -> dict[str, str]:
    return {name: str(amount)} if amount > 0 else {}


def raised_to_usage(values: Mapping[str, GroupValues], usage: Mapping[str, int]) -> dict[str, GroupValues]:
    """Return the values with a memory limit below the usage raised to it, for use after a refused write."""
    return {
        level: msgspec.structs.replace(wanted, memory=usage[level])
        if wanted.memory is not None and usage.get(level, 0) > wanted.memory
        else wanted
        for level, wanted in values.items()
    }
