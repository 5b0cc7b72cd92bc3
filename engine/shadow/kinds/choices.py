"""Compare choices for containers that a state file shows: which would these rules take, given what was free?

The state files are read once an observation. A container that is new in one of them is chosen again from the
state of the observation before, after the other new ones that arrived earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.alignment import Alignment, Hinting
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged, ShadowKind
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.policy import Hint
from engine.topologymanager.provider import AllocationError

Entries = Mapping[str, Mapping[str, Any]]
"""Pod uid → container → what it has, in the form of the state file."""


class Chooser(Protocol):
    """Choose for one container after another, from what was free at first; `policy` gives the hints."""

    @property
    def policy(self) -> Hinting: ...

    def wants(self, pod: Pod, container: Container) -> bool:
        """Tell whether the container is to get something of its own. Raise `AllocationError`."""

    def choose(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Give the container its part; return why it is this one. Raise `AllocationError`."""

    def held(self, pod: Pod, container: Container) -> str:
        """Return what the container was assigned, without what later containers of its pod took over."""


class ChoiceRules(Protocol):
    """Hold what a static policy decides by on this machine."""

    def chooser(self, entries: Entries) -> Chooser:
        """Return the policy as it was with these entries. Raise `InvalidInput`."""

    def text(self, held: Any) -> str:
        """Return what a container has."""


@dataclass(frozen=True, slots=True)
class GivenPart:
    """Hold what one manager gives: its rules, None without a static policy, and its state file."""

    kind: ShadowKind
    rules: ChoiceRules | None
    entries: Entries


@dataclass(slots=True)
class _Judging:
    """Judge one part once. `why` tells why its choices cannot be repeated."""

    part: GivenPart
    rules: ChoiceRules
    chooser: Chooser
    why: str
    reasons: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def choose(self, pod: Pod, container: Container, hint: Hint | str) -> None:
        """Give the container its part; a text instead of a hint says why it gets none."""
        try:
            if isinstance(hint, str):
                raise AllocationError(hint)
            self.reasons[container.name] = self.chooser.choose(pod, container, hint)
        except AllocationError as error:
            self.reasons[container.name] = str(error)
            self.failed.add(container.name)

    def finding(self, pod: Pod, container: Container, why: str) -> Finding:
        kind, subject = self.part.kind, f"{pod.full_name}/{container.name}"
        if why:
            return NotJudged(kind, subject, why)
        ours = "none" if container.name in self.failed else self.chooser.held(pod, container)
        has = self.part.entries.get(pod.uid, {}).get(container.name)
        theirs = "none" if has is None else self.rules.text(has)
        return Comparison(kind, subject, ours, theirs, self.reasons[container.name], "its state file")


class ChoiceComparer:
    """Judge each container once, when it is first seen with its part or without what it should have."""

    def __init__(self) -> None:
        self._before: dict[ShadowKind, Entries] = {}
        self._judged: dict[tuple[ShadowKind, str, str], Finding] = {}

    def compare(
        self, seen: Observation, parts: Sequence[GivenPart], alignment: Alignment
    ) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods; without a static policy, only that."""
        here = seen.pods.keys() | {uid for part in parts for uid in part.entries}
        off = {part.kind for part in parts if part.rules is None}
        self._judged = {
            key: found for key, found in self._judged.items() if key[1] in here and key[0] not in off
        }
        judging: list[_Judging] = []
        for part in parts:
            if part.rules is None:
                self._before.pop(part.kind, None)
                yield NotJudged(part.kind, "node", "the kubelet has no static policy for them")
                continue
            before = self._before.get(part.kind)
            try:
                chooser = part.rules.chooser(part.entries if before is None else before)
            except InvalidInput as error:
                yield NotJudged(part.kind, "node", str(error))
                continue
            why = _not_comparable(before, part.entries, seen)
            judging.append(_Judging(part, part.rules, chooser, why))
        for pod in sorted(seen.active(), key=arrival):
            if not is_refused(pod):
                self._judge(pod, seen, judging, alignment)
        for one in judging:
            self._before[one.part.kind] = self._decided(one.part)
        yield from (found for (_, uid, _), found in self._judged.items() if uid in seen.pods)

    def _decided(self, part: GivenPart) -> Entries:
        """Return the entries without what a later observation judges: a pod may be in a file before it is
        listed.
        """
        decided = {
            uid: {name: has for name, has in of.items() if (part.kind, uid, name) in self._judged}
            for uid, of in part.entries.items()
        }
        return {uid: of for uid, of in decided.items() if of}

    def _judge(self, pod: Pod, seen: Observation, judging: Sequence[_Judging], alignment: Alignment) -> None:
        started = not seen.record(pod.uid).empty
        new = [
            (one, container)
            for container in pod.all_containers
            for one in judging
            if (started or pod.uid in one.part.entries)  # else it was not given anything yet
            and (one.part.kind, pod.uid, container.name) not in self._judged
            and one.chooser.wants(pod, container)
        ]
        why = alignment.why_not(pod) or next((one.why for one, _ in new if one.why), "")
        hints: dict[str, Hint | str] = {}
        for one, container in new if not why else ():
            if container.name not in hints:
                hints[container.name] = _hint(pod, container, judging, alignment)
            one.choose(pod, container, hints[container.name])
        for one, container in new:
            self._judged[one.part.kind, pod.uid, container.name] = one.finding(pod, container, why)
        alignment.follow(pod)


def _hint(pod: Pod, container: Container, judging: Sequence[_Judging], alignment: Alignment) -> Hint | str:
    """Return the hint for a container, or why the topology policy admits none."""
    try:
        return alignment.hint(pod, container, [one.chooser.policy for one in judging])
    except AllocationError as error:
        return str(error)


def _not_comparable(before: Entries | None, entries: Entries, seen: Observation) -> str:
    """Return why this observation's choices cannot be repeated, an empty text if they can."""
    if before is None:
        return "chosen before the first observation"
    if any(name not in entries.get(uid, {}) for uid, of in before.items() for name in of):
        return "other containers gave theirs back at the same time"
    if any(uid not in before and uid not in seen.pods for uid in entries):
        return "another pod that was not seen yet got its part at the same time"
    return ""
