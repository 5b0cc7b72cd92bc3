"""Compare the assignments of the CPU and memory managers, as their state files show them, with our own.

The state files are read once per observation. The assignment of a container that is new in one of them is
computed again from the state of the observation before, after the new containers that arrived earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.alignment import Alignment, ManagerHints
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged, ShadowKind
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.policy import Hint
from engine.topologymanager.provider import AllocationError

Entries = Mapping[str, Mapping[str, Any]]
"""Maps the uid of a pod and the name of a container to its assignment, in the form of the state file."""


class ManagerAllocator(Protocol):
    """Allocate for one container after another, from the resources that are free at first. `policy` returns
    the hints.
    """

    @property
    def policy(self) -> ManagerHints: ...

    def needs_assignment(self, pod: Pod, container: Container) -> bool:
        """Return whether the policy assigns resources to the container. Raise `AllocationError`."""

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Allocate for the container; return the reason for the choice. Raise `AllocationError`."""

    def assigned(self, pod: Pod, container: Container) -> str:
        """Return the assignment of the container, without what later containers of its pod reuse."""


class ManagerRules(Protocol):
    """Hold the static policy of one manager and the resources of this machine."""

    def allocator(self, entries: Entries) -> ManagerAllocator:
        """Return an allocator in the state with these entries. Raise `InvalidInput`."""

    def text(self, assignment: Any) -> str:
        """Return an assignment of the state file as text."""


@dataclass(frozen=True, slots=True)
class ManagerAssignments:
    """Hold the rules of one manager, None without a static policy, and the entries of its state file."""

    kind: ShadowKind
    rules: ManagerRules | None
    entries: Entries


@dataclass(slots=True)
class _ManagerComparison:
    """Compare the assignments of one manager in one observation. `obstacle` is the reason why they cannot be
    computed again, "" if they can.
    """

    manager: ManagerAssignments
    rules: ManagerRules
    allocator: ManagerAllocator
    obstacle: str
    reasons: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def allocate(self, pod: Pod, container: Container, hint: Hint | str) -> None:
        """Allocate for a container; a text instead of a hint is the reason why the topology policy
        refuses.
        """
        try:
            if isinstance(hint, str):
                raise AllocationError(hint)
            self.reasons[container.name] = self.allocator.allocate(pod, container, hint)
        except AllocationError as error:
            self.reasons[container.name] = str(error)
            self.failed.add(container.name)

    def finding(self, pod: Pod, container: Container, obstacle: str) -> Finding:
        """Return the finding about a container, for which `allocate` was called if there is no obstacle."""
        kind, subject = self.manager.kind, f"{pod.full_name}/{container.name}"
        if obstacle:
            return NotJudged(kind, subject, obstacle)
        ours = "none" if container.name in self.failed else self.allocator.assigned(pod, container)
        entry = self.manager.entries.get(pod.uid, {}).get(container.name)
        theirs = "none" if entry is None else self.rules.text(entry)
        return Comparison(kind, subject, ours, theirs, self.reasons[container.name], "its state file")


class ChoiceComparer:
    """Compare each container once, when it first has an assignment, or first runs without one that it
    needs.
    """

    def __init__(self) -> None:
        self._before: dict[ShadowKind, Entries] = {}
        self._judged: dict[tuple[ShadowKind, str, str], Finding] = {}

    def compare(
        self, seen: Observation, managers: Sequence[ManagerAssignments], alignment: Alignment
    ) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods. A manager without a static policy is not
        judged.
        """
        present = seen.pods.keys() | {uid for manager in managers for uid in manager.entries}
        off = {manager.kind for manager in managers if manager.rules is None}
        self._judged = {
            key: found for key, found in self._judged.items() if key[1] in present and key[0] not in off
        }
        comparisons: list[_ManagerComparison] = []
        for manager in managers:
            if manager.rules is None:
                self._before.pop(manager.kind, None)
                yield NotJudged(manager.kind, "node", "the kubelet has no static policy for them")
                continue
            before = self._before.get(manager.kind)
            try:
                allocator = manager.rules.allocator(manager.entries if before is None else before)
            except InvalidInput as error:
                yield NotJudged(manager.kind, "node", str(error))
                continue
            obstacle = _obstacle(before, manager.entries, seen)
            comparisons.append(_ManagerComparison(manager, manager.rules, allocator, obstacle))
        for pod in sorted(seen.active(), key=arrival):
            if not is_refused(pod):
                self._judge(pod, seen, comparisons, alignment)
        for one in comparisons:
            self._before[one.manager.kind] = self._compared_entries(one.manager)
        yield from (found for (_, uid, _), found in self._judged.items() if uid in seen.pods)

    def _compared_entries(self, manager: ManagerAssignments) -> Entries:
        """Return the entries that were compared. A pod may be in a state file before the kubelet lists it:
        its entries stay free until then, and are compared with a later observation.
        """
        compared = {
            uid: {name: entry for name, entry in of.items() if (manager.kind, uid, name) in self._judged}
            for uid, of in manager.entries.items()
        }
        return {uid: of for uid, of in compared.items() if of}

    def _judge(
        self, pod: Pod, seen: Observation, comparisons: Sequence[_ManagerComparison], alignment: Alignment
    ) -> None:
        """Set the findings about the new containers of a pod."""
        started = not seen.record(pod.uid).empty
        new = [
            (one, container)
            for container in pod.all_containers
            for one in comparisons
            # A pod that is neither started nor in the state file may still get its assignment.
            if (started or pod.uid in one.manager.entries)
            and (one.manager.kind, pod.uid, container.name) not in self._judged
            and one.allocator.needs_assignment(pod, container)
        ]
        obstacle = alignment.obstacle(pod) or next((one.obstacle for one, _ in new if one.obstacle), "")
        hints: dict[str, Hint | str] = {}
        for one, container in new if not obstacle else ():
            # One hint for all managers, as the topology manager merges theirs.
            if container.name not in hints:
                hints[container.name] = _hint(pod, container, comparisons, alignment)
            one.allocate(pod, container, hints[container.name])
        for one, container in new:
            self._judged[one.manager.kind, pod.uid, container.name] = one.finding(pod, container, obstacle)
        alignment.assign_devices(pod)


def _hint(
    pod: Pod, container: Container, comparisons: Sequence[_ManagerComparison], alignment: Alignment
) -> Hint | str:
    """Return the hint for a container, or the reason why the topology policy refuses it."""
    try:
        return alignment.hint(pod, container, [one.allocator.policy for one in comparisons])
    except AllocationError as error:
        return str(error)


def _obstacle(before: Entries | None, entries: Entries, seen: Observation) -> str:
    """Return the reason why the assignments of an observation cannot be computed again, "" if they can."""
    if before is None:
        return "chosen before the first observation"
    if any(name not in entries.get(uid, {}) for uid, of in before.items() for name in of):
        return "other containers gave theirs back at the same time"
    if any(uid not in before and uid not in seen.pods for uid in entries):
        return "another pod that was not seen yet got its part at the same time"
    return ""
