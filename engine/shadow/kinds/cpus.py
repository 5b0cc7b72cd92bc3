"""Choose exclusive CPUs again, as the static policy does. Pure."""

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
    """Hold what the static policy decides by on this machine."""

    topology: CpuTopology
    reserved: int
    options: StaticOptions
    numa: Numa

    @property
    def pool(self) -> int:
        """Return the CPUs that are shared before any assignment."""
        return self.topology.cpus & ~(self.reserved if self.options.strict_reservation else 0)

    def chooser(self, entries: Entries) -> CpuChooser:
        """Return the policy as it was with these assignments. Raise `InvalidInput`."""
        state = CpuState(self.pool)
        for uid, containers in entries.items():
            for name, cpus in containers.items():
                state.assign(uid, name, cpu_set.parse(cpus))
        return CpuChooser(StaticCpuPolicy(self.topology, self.reserved, self.options, self.numa, state))

    def text(self, held: str) -> str:
        """Return the CPUs of a container."""
        return f"CPUs {held}"


@dataclass(frozen=True, slots=True)
class CpuChooser:
    """Choose CPUs from those that `policy` has left."""

    policy: StaticCpuPolicy

    def wants(self, pod: Pod, container: Container) -> bool:
        """Tell whether the container is to get CPUs of its own."""
        return bool(self.policy.count(pod, container))

    def choose(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Give the container its CPUs; return why. Raise `AllocationError`."""
        self.policy.allocate(pod, container, hint)
        left = cpu_set.text(self.policy.available) or "none"
        count = self.policy.count(pod, container)
        return f"takes {count} of those that were free, and {left} are left"

    def held(self, pod: Pod, container: Container) -> str:
        """Return the CPUs that the container was assigned."""
        return f"CPUs {cpu_set.text(self.policy.state.held(pod.uid, container.name) or 0)}"
