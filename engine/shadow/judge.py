"""Compare an observation with every kind of decision. Pure: a callable reads cgroup files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from engine.shadow.kinds.admission import AdmissionComparer
from engine.shadow.kinds.alignment import Alignment
from engine.shadow.kinds.cgroups import (
    CgroupRules,
    ReadGroup,
    Rotation,
    RulesHistory,
    compare_group,
    compare_pod,
    expected_levels,
)
from engine.shadow.kinds.choices import ChoiceComparer, ManagerAssignments
from engine.shadow.kinds.comparison import Finding, ShadowKind
from engine.shadow.kinds.cpus import CpuRules
from engine.shadow.kinds.devices import DeviceComparer
from engine.shadow.kinds.eviction import EvictionComparer
from engine.shadow.kinds.images import ImageComparer
from engine.shadow.kinds.memory import MemoryRules
from engine.shadow.kinds.observation import Observation
from engine.shadow.kinds.pod_resources import compare_resources
from engine.shadow.kinds.probes import ProbeComparer
from engine.shadow.kinds.restarts import RestartComparer
from engine.shadow.kinds.status import StatusComparer
from engine.topologymanager.policy import TopologyPolicy

REPEATABLE: Final[frozenset[ShadowKind]] = frozenset(
    ["admission", "preemption", "restart", "back-off", "eviction", "pressure", "images", "probes", "status"]
)
"""Kinds that a record suffices for. The others need cgroup files, state files, or the pod-resources API."""


@dataclass(frozen=True, slots=True)
class MachineRules:
    """Hold the policies of the resource managers on this machine; `cpus` is None without the static
    policy.
    """

    topology: TopologyPolicy = field(default_factory=TopologyPolicy)
    cpus: CpuRules | None = None


class Judge:
    """Compare one observation after another. It holds the state that the kinds need between observations."""

    def __init__(self) -> None:
        self._admission = AdmissionComparer()
        self._restarts = RestartComparer()
        self._eviction = EvictionComparer()
        self._images = ImageComparer()
        self._choices = ChoiceComparer()
        self._before: Observation | None = None
        self._devices = DeviceComparer()
        self._probes = ProbeComparer()
        self._status = StatusComparer()
        self._rotation = Rotation()
        self._rules = RulesHistory()
        self._groups: dict[str, list[Finding]] = {}

    def repeatable(self, seen: Observation) -> Iterator[Finding]:
        """Yield the findings of the `REPEATABLE` kinds."""
        yield from self._admission.compare(seen)
        yield from self._restarts.compare(seen)
        yield from self._eviction.compare(seen)
        yield from self._images.compare(seen)
        yield from self._probes.compare(seen)
        yield from self._status.compare(seen)

    def judge(
        self,
        seen: Observation,
        rules: CgroupRules | None,
        machine: MachineRules,
        read: ReadGroup,
        doubted: Iterable[str],
    ) -> Iterator[Finding]:
        """Yield the findings of one observation. The cgroups of `doubted` subjects, whose last comparison
        differed, are read in any case.

        Without `rules`, the node has no cgroups of pods (cgroupsPerQOS false).
        """
        memory_rules = MemoryRules.of(seen.config, seen.memory)
        yield from self.repeatable(seen)
        yield from self._choices.compare(
            seen,
            [
                ManagerAssignments("cpus", machine.cpus, seen.cpus.entries if seen.cpus is not None else {}),
                ManagerAssignments(
                    "memory", memory_rules, seen.memory.entries if seen.memory is not None else {}
                ),
            ],
            Alignment(machine.topology, seen, self._before),
        )
        self._before = seen
        yield from self._devices.compare(seen)
        yield from compare_resources(seen, machine.cpus)
        if rules is not None:
            yield from self._cgroups(seen, rules, read, doubted)

    def _cgroups(
        self,
        seen: Observation,
        rules: CgroupRules,
        read: ReadGroup,
        doubted: Iterable[str],
    ) -> Iterator[Finding]:
        exclusive = {uid: list(of) for uid, of in (seen.cpus.entries if seen.cpus else {}).items()}
        for level in expected_levels(seen, rules):
            yield from compare_group(level, read(level))
        chosen = self._rotation.choose(seen, doubted)
        active = {pod.uid for pod in seen.active()}
        self._groups = {uid: found for uid, found in self._groups.items() if uid in active}
        self._rules.update(rules, seen.at)
        for pod in chosen:
            self._groups[pod.uid] = list(compare_pod(pod, seen.record(pod.uid), self._rules, exclusive, read))
        # Pods whose cgroups were not read this time keep their last findings.
        for found in self._groups.values():
            yield from found
