"""Compare the choice of exclusive CPUs: which would these rules take for a container, given what was free?

The state file is read once a look. A container that is new in it is chosen again from the state of the look
before, after the other new ones that arrived earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.api import cpu_set
from engine.api.errors import InvalidInput
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.cpumanager.topology import CpuTopology
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.policy import Hint, Numa
from engine.topologymanager.provider import AllocationError


@dataclass(frozen=True, slots=True)
class CpuRules:
    """What the static policy decides by on this machine. `aligned` means that a topology policy other than
    `none` narrows its choice.
    """

    topology: CpuTopology
    reserved: int
    options: StaticOptions
    numa: Numa
    aligned: bool = False

    @property
    def pool(self) -> int:
        """Return the CPUs that are shared before any assignment."""
        return self.topology.cpus & ~(self.reserved if self.options.strict_reservation else 0)

    def policy(self, checkpoint: CpuCheckpoint) -> StaticCpuPolicy:
        """Return the policy as it was with this state. Raise `InvalidInput`."""
        state = CpuState(self.pool)
        for uid, containers in checkpoint.entries.items():
            for name, cpus in containers.items():
                state.assign(uid, name, cpu_set.parse(cpus))
        return StaticCpuPolicy(self.topology, self.reserved, self.options, self.numa, state)


class CpuComparer:
    """Judge each container once, when it is first seen with CPUs or without those that it should have."""

    def __init__(self) -> None:
        self._before: CpuCheckpoint | None = None
        self._judged: dict[tuple[str, str], Finding] = {}

    def compare(self, seen: Observation, rules: CpuRules | None) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods; none without the static policy."""
        if rules is None or seen.cpus is None:
            self._before, self._judged = None, {}
            return
        here = seen.pods.keys() | seen.cpus.entries.keys()
        self._judged = {key: found for key, found in self._judged.items() if key[0] in here}
        try:
            self._judge(seen, seen.cpus, rules)
        except InvalidInput as error:
            yield NotJudged("cpus", "node", str(error))
            return
        self._before = self._decided(seen.cpus)
        yield from (found for (uid, _), found in self._judged.items() if uid in seen.pods)

    def _decided(self, state: CpuCheckpoint) -> CpuCheckpoint:
        """Return the state without what a later look judges: a pod may be in the file before it is listed."""
        entries = {
            uid: {name: cpus for name, cpus in of.items() if (uid, name) in self._judged}
            for uid, of in state.entries.items()
        }
        return CpuCheckpoint(
            state.policy_name, state.default_cpu_set, {k: v for k, v in entries.items() if v}
        )

    def _judge(self, seen: Observation, state: CpuCheckpoint, rules: CpuRules) -> None:
        before = self._before
        why = _not_comparable(before, state, seen, aligned=rules.aligned)
        policy = rules.policy(before or state)
        for pod in sorted(seen.active(), key=arrival):
            if is_refused(pod) or (seen.record(pod.uid).empty and pod.uid not in state.entries):
                continue  # it was not given CPUs yet
            for container in pod.all_containers:
                key, count = (pod.uid, container.name), policy.count(pod, container)
                if not count or key in self._judged:
                    continue
                subject = f"{pod.full_name}/{container.name}"
                if why:
                    self._judged[key] = NotJudged("cpus", subject, why)
                    continue
                try:
                    policy.allocate(pod, container, Hint(None, preferred=True))
                    ours = cpu_set.text(policy.state.held(*key) or 0)
                except AllocationError as error:
                    ours = f"none: {error}"
                theirs = state.entries.get(pod.uid, {}).get(container.name, "none")
                left = cpu_set.text(policy.available) or "none"
                self._judged[key] = Comparison(
                    "cpus", subject, f"CPUs {ours}", f"CPUs {theirs}",
                    f"takes {count} of those that were free, and {left} are left", "its state file",
                )  # fmt: skip


def _not_comparable(
    before: CpuCheckpoint | None, state: CpuCheckpoint, seen: Observation, *, aligned: bool
) -> str:
    """Return why this look's choices cannot be repeated, an empty text if they can."""
    if before is None:
        return "chosen before the first look"
    if aligned:
        return "the hints of other managers are not recorded"
    if any(name not in state.entries.get(uid, {}) for uid, of in before.entries.items() for name in of):
        return "other containers gave CPUs back at the same time"
    if any(uid not in before.entries and uid not in seen.pods for uid in state.entries):
        return "another pod that was not seen yet got CPUs at the same time"
    return ""
