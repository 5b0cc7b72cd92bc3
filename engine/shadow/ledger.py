"""Count agreement by kind of decision, and keep the differences. Pure, and bounded in memory.

A decision is counted once, for as long as neither side changes it. A difference is counted after it has
lasted for its settle time. One that ends earlier was a delay of the kubelet, and is not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from engine.shadow.kinds.comparison import KINDS, Comparison, Finding, NotJudged, ShadowKind

MAX_DIFFERENCES: Final = 1000
MAX_REASONS: Final = 50


@dataclass(slots=True)
class Tally:
    """Count the decisions of one kind; `not_judged` maps a reason to a count."""

    agreed: int = 0
    differed: int = 0
    not_judged: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"agreed": self.agreed, "differed": self.differed, "notJudged": dict(self.not_judged)}


@dataclass(slots=True)
class Difference:
    """Hold a difference: both decisions, when it was first and last seen (Unix seconds), how often it has
    begun, and whether it still lasts (`stands`).
    """

    comparison: Comparison
    first: float
    last: float
    times: int = 1
    stands: bool = True

    def as_dict(self) -> dict[str, Any]:
        one = self.comparison
        return {
            "kind": one.kind,
            "subject": one.subject,
            "ours": one.ours,
            "kubelets": one.kubelets,
            "ourReason": one.our_reason,
            "kubeletsReason": one.kubelets_reason,
            "first": self.first,
            "last": self.last,
            "times": self.times,
            "stands": self.stands,
        }


@dataclass(slots=True)
class _Standing:
    """Hold a comparison that has not changed since a time (monotonic seconds), and whether it was counted."""

    comparison: Comparison
    since: float
    counted: bool


class AgreementLedger:
    """Count the findings of one observation after another. It holds at most `most` differences, the
    latest.
    """

    def __init__(self, most: int = MAX_DIFFERENCES) -> None:
        self.tallies: dict[ShadowKind, Tally] = {kind: Tally() for kind in KINDS}
        self.dropped = 0
        self._most = most
        self._standing: dict[tuple[str, str], _Standing] = {}
        self._not_judged: dict[tuple[str, str], str] = {}
        self._differences: OrderedDict[tuple[str, str, str, str], Difference] = OrderedDict()

    def add(self, findings: Iterable[Finding], *, now: float, wall: float) -> list[Difference]:
        """Add the findings of one observation, and return the differences that are counted from now on.

        `now` is in seconds of a monotonic clock, and `wall` is a Unix time. A decision that is not among the
        findings has ended.
        """
        new: list[Difference] = []
        present: dict[tuple[str, str], _Standing] = {}
        not_judged: dict[tuple[str, str], str] = {}
        for finding in findings:
            key: tuple[str, str] = (finding.kind, finding.subject)
            if isinstance(finding, NotJudged):
                not_judged[key] = finding.why
                if self._not_judged.get(key) != finding.why:
                    self._count_not_judged(finding)
                continue
            before = self._standing.get(key)
            # Kind, subject and both decisions. Reasons may change, such as amounts in them.
            same = before is not None and before.comparison[:4] == finding[:4]
            one = before if same and before is not None else _Standing(finding, now, counted=False)
            present[key] = one
            difference = self._count(one, now, wall)
            if difference is not None:
                new.append(difference)
        for ended_key, ended in self._standing.items():
            following = present.get(ended_key)
            if following is None or following is not ended:
                self._end(ended, wall)
        self._standing, self._not_judged = present, not_judged
        return new

    def interrupt(self) -> None:
        """Drop the comparisons that were not counted yet: an observation was skipped, so it is not known
        whether they lasted.
        """
        self._standing = {key: one for key, one in self._standing.items() if one.counted}

    def differences(self) -> list[Difference]:
        """Return the counted differences, the latest last."""
        return list(self._differences.values())

    def unsettled(self) -> set[str]:
        """Return the subjects of decisions that differ and are not counted yet."""
        return {one.comparison.subject for one in self._standing.values() if not one.counted}

    @property
    def agreed(self) -> int:
        return sum(tally.agreed for tally in self.tallies.values())

    @property
    def differed(self) -> int:
        return sum(tally.differed for tally in self.tallies.values())

    def _count(self, one: _Standing, now: float, wall: float) -> Difference | None:
        """Count a comparison if it agrees or has settled; return the difference if it is one that is new."""
        found = one.comparison
        if one.counted:
            if not found.agrees:
                self._extend(found, wall)
            return None
        if found.agrees:
            one.counted = True
            self.tallies[found.kind].agreed += 1
            return None
        if now - one.since < found.settle:
            return None
        one.counted = True
        self.tallies[found.kind].differed += 1
        return self._begin(found, wall)

    def _begin(self, found: Comparison, wall: float) -> Difference:
        key = found[:4]
        known = self._differences.pop(key, None)
        if known is None:
            known = Difference(found, wall, wall)
        else:
            known.times, known.stands, known.last = known.times + 1, True, wall
        self._differences[key] = known
        if len(self._differences) > self._most:
            self._differences.popitem(last=False)
            self.dropped += 1
        return known

    def _extend(self, found: Comparison, wall: float) -> None:
        known = self._differences.get(found[:4])
        if known is not None:
            known.last = wall

    def _end(self, ended: _Standing, wall: float) -> None:
        known = self._differences.get(ended.comparison[:4])
        if known is not None and ended.counted:
            known.stands, known.last = False, wall

    def _count_not_judged(self, finding: NotJudged) -> None:
        reasons = self.tallies[finding.kind].not_judged
        # Some reasons contain messages of the kubelet: without a bound there could be any number of them.
        why = finding.why if finding.why in reasons or len(reasons) < MAX_REASONS else "other reasons"
        reasons[why] = reasons.get(why, 0) + 1
