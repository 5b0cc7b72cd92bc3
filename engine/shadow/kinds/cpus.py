"""Allocate exclusive CPUs as the static policy of the kubelet does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api import cpu_set
from engine.api.pod import Container, Pod
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.cpumanager.topology import CpuTopology
from engine.shadow.kinds.choices import Entries
from engine.topologymanager.policy import Hint, Numa


@dataclass(frozen=True, slots=True)
class CpuRules:
    """Hold the static policy and the CPUs of this machine. `reserved` is a CPU set."""

    topology: CpuTopology
    reserved: int
    options: StaticOptions
    numa: Numa

    @property
    def pool(self) -> int:
        """Return the CPU set that is shared before any assignment."""
        return self.topology.cpus & ~(self.reserved if self.options.strict_reservation else 0)

    def allocator(self, entries: Entries) -> CpuAllocator:
        """Return an allocator in the state with these entries. Raise `InvalidInput`."""
        state = CpuState(self.pool)
        for uid, containers in entries.items():
            for name, cpus in containers.items():
                state.assign(uid, name, cpu_set.parse(cpus))
        return CpuAllocator(StaticCpuPolicy(self.topology, self.reserved, self.options, self.numa, state))

    def text(self, assignment: str) -> str:
        """Return an assignment of the state file, a list of CPUs, as text."""
        return f"CPUs {assignment}"


@dataclass(frozen=True, slots=True)
class CpuAllocator:
    """Allocate CPUs from those that are free in `policy`."""

    policy: StaticCpuPolicy

    def needs_assignment(self, pod: Pod, container: Container) -> bool:
        """Return whether the container gets exclusive CPUs."""
        return bool(self.policy.count(pod, container))

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Allocate CPUs for the container; return the reason. Raise `AllocationError`."""
        self.policy.allocate(pod, container, hint)
        left = cpu_set.text(self.policy.available) or "none"
        count = self.policy.count(pod, container)
        return f"takes {count} of those that were free, and {left} are left"

    def assigned(self, pod: Pod, container: Container) -> str:
        """Return the CPUs of the container as text."""
        return f"CPUs {cpu_set.text(self.policy.state.held(pod.uid, container.name) or 0)}"
