"""Compare choices for containers that a state file shows: which would these rules take, given what was free?

The state file is read once a look. A container that is new in it is chosen again from the state of the look
before, after the other new ones that arrived earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.shadow.kinds.admission import arrival, is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged, ShadowKind
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.provider import AllocationError

Entries = Mapping[str, Mapping[str, Any]]
"""Pod uid → container → what it has, in the form of the state file."""


class Chooser(Protocol):
    """Choose for one container after another, from what was free at first."""

    def wants(self, pod: Pod, container: Container) -> bool:
        """Tell whether the container is to get something of its own. Raise `AllocationError`."""

    def choose(self, pod: Pod, container: Container) -> str:
        """Give the container its part; return why it is this one. Raise `AllocationError`."""

    def held(self, pod: Pod, container: Container) -> str:
        """Say what the container has been given, less what later ones of its pod have taken over."""


class ChoiceRules(Protocol):
    """What a static policy decides by on this machine."""

    @property
    def aligned(self) -> bool:
        """Tell whether a topology policy other than `none` narrows the choices."""

    def chooser(self, entries: Entries) -> Chooser:
        """Return the policy as it was with these entries. Raise `InvalidInput`."""

    def text(self, held: Any) -> str:
        """Say what a container has."""


class ChoiceComparer:
    """Judge each container once, when it is first seen with its part or without what it should have."""

    def __init__(self, kind: ShadowKind) -> None:
        self._kind: ShadowKind = kind
        self._before: Entries | None = None
        self._judged: dict[tuple[str, str], Finding] = {}

    def compare(
        self, seen: Observation, entries: Entries | None, rules: ChoiceRules | None
    ) -> Iterator[Finding]:
        """Yield the findings about the containers of all pods; without a static policy, only that."""
        if rules is None or entries is None:
            self._before, self._judged = None, {}
            yield NotJudged(self._kind, "node", "the kubelet has no static policy for them")
            return
        here = seen.pods.keys() | entries.keys()
        self._judged = {key: found for key, found in self._judged.items() if key[0] in here}
        try:
            self._judge(seen, entries, rules)
        except InvalidInput as error:
            yield NotJudged(self._kind, "node", str(error))
            return
        # A pod may be in the file before it is listed: a later look judges it.
        decided = {
            uid: {n: has for n, has in of.items() if (uid, n) in self._judged} for uid, of in entries.items()
        }
        self._before = {uid: of for uid, of in decided.items() if of}
        yield from (found for (uid, _), found in self._judged.items() if uid in seen.pods)

    def _judge(self, seen: Observation, entries: Entries, rules: ChoiceRules) -> None:
        why = _not_comparable(self._before, entries, seen, aligned=rules.aligned)
        chooser = rules.chooser(entries if self._before is None else self._before)
        for pod in sorted(seen.active(), key=arrival):
            if is_refused(pod) or (seen.record(pod.uid).empty and pod.uid not in entries):
                continue  # it was not given anything yet
            new = [
                container
                for container in pod.all_containers
                if (pod.uid, container.name) not in self._judged and chooser.wants(pod, container)
            ]
            chosen = {container.name: _choose(pod, container, chooser) for container in new if not why}
            for container in new:
                subject = f"{pod.full_name}/{container.name}"
                has = entries.get(pod.uid, {}).get(container.name)
                theirs = "none" if has is None else rules.text(has)
                self._judged[pod.uid, container.name] = (
                    NotJudged(self._kind, subject, why)
                    if why
                    else self._compared(
                        subject, theirs, *chosen[container.name], chooser.held(pod, container)
                    )
                )

    def _compared(self, subject: str, theirs: str, given: bool, reason: str, held: str) -> Comparison:
        ours = held if given else "none"
        return Comparison(self._kind, subject, ours, theirs, reason, "its state file")


def _choose(pod: Pod, container: Container, chooser: Chooser) -> tuple[bool, str]:
    """Return whether the container gets a part, and why it is this one or none."""
    try:
        return True, chooser.choose(pod, container)
    except AllocationError as error:
        return False, str(error)


def _not_comparable(before: Entries | None, entries: Entries, seen: Observation, *, aligned: bool) -> str:
    """Return why this look's choices cannot be repeated, an empty text if they can."""
    if before is None:
        return "chosen before the first look"
    if aligned:
        return "the hints of other managers are not recorded"
    if any(name not in entries.get(uid, {}) for uid, of in before.items() for name in of):
        return "other containers gave theirs back at the same time"
    if any(uid not in before and uid not in seen.pods for uid in entries):
        return "another pod that was not seen yet got its part at the same time"
    return ""
