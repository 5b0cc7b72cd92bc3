"""Count agreement by kind of decision, and keep the differences. Pure, and bounded in memory.

A decision is counted once for as long as both sides stay with it. A difference counts when it has stood for
its time to settle; one that ends before is agreement that took a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from engine.shadow.kinds.comparison import KINDS, Comparison, Finding, NotJudged, ShadowKind

MOST_DIFFERENCES: Final = 1000
MOST_REASONS: Final = 50


@dataclass(slots=True)
class Tally:
    """Count one kind of decision; `not_judged` counts by reason."""

    agreed: int = 0
    differed: int = 0
    not_judged: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"agreed": self.agreed, "differed": self.differed, "notJudged": dict(self.not_judged)}


@dataclass(slots=True)
class Difference:
    """Hold a difference: the decision, when it was first and last seen (Unix seconds), how often it has
    begun, and whether it still stands.
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
class _Open:
    """Hold a decision that both sides still stand by, since when (monotonic), and whether it has been
    counted.
    """

    comparison: Comparison
    since: float
    counted: bool


class AgreementLedger:
    """Take the findings of one observation after another."""

    def __init__(self, most: int = MOST_DIFFERENCES) -> None:
        self.tallies: dict[ShadowKind, Tally] = {kind: Tally() for kind in KINDS}
        self.dropped = 0
        self._most = most
        self._open: dict[tuple[str, str], _Open] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._differences: OrderedDict[tuple[str, str, str, str], Difference] = OrderedDict()

    def take(self, findings: Iterable[Finding], *, now: float, wall: float) -> list[Difference]:
        """Take what one observation found and return the differences that begin to count.

        `now` is in seconds of a monotonic clock, `wall` a Unix time. Decisions that are not among the
        findings have ended.
        """
        new: list[Difference] = []
        present: dict[tuple[str, str], _Open] = {}
        told: dict[tuple[str, str], str] = {}
        for finding in findings:
            key: tuple[str, str] = (finding.kind, finding.subject)
            if isinstance(finding, NotJudged):
                told[key] = finding.why
                if self._told.get(key) != finding.why:
                    self._count_not_judged(finding)
                continue
            before = self._open.get(key)
            same = before is not None and before.comparison[:4] == finding[:4]
            one = before if same and before is not None else _Open(finding, now, counted=False)
            present[key] = one
            difference = self._count(one, now, wall)
            if difference is not None:
                new.append(difference)
        for ended_key, ended in self._open.items():
            following = present.get(ended_key)
            if following is None or following is not ended:
                self._end(ended, wall)
        self._open, self._told = present, told
        return new

    def interrupt(self) -> None:
        """Forget what has not settled, because the node could not be seen for a while."""
        self._open = {key: one for key, one in self._open.items() if one.counted}

    def differences(self) -> list[Difference]:
        """Return the differences, the latest last."""
        return list(self._differences.values())

    def unsettled(self) -> set[str]:
        """Return the subjects of decisions that differ and have not counted yet."""
        return {one.comparison.subject for one in self._open.values() if not one.counted}

    @property
    def agreed(self) -> int:
        return sum(tally.agreed for tally in self.tallies.values())

    @property
    def differed(self) -> int:
        return sum(tally.differed for tally in self.tallies.values())

    def _count(self, one: _Open, now: float, wall: float) -> Difference | None:
        found = one.comparison
        if one.counted:
            if not found.agrees:
                self._seen(found, wall)
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

    def _seen(self, found: Comparison, wall: float) -> None:
        known = self._differences.get(found[:4])
        if known is not None:
            known.last = wall

    def _end(self, ended: _Open, wall: float) -> None:
        known = self._differences.get(ended.comparison[:4])
        if known is not None and ended.counted:
            known.stands, known.last = False, wall

    def _count_not_judged(self, finding: NotJudged) -> None:
        reasons = self.tallies[finding.kind].not_judged
        why = finding.why if finding.why in reasons or len(reasons) < MOST_REASONS else "other reasons"
        reasons[why] = reasons.get(why, 0) + 1
