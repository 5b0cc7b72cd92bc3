"""Record faults of a snapshot: reported by object and field, counted, and refused under `--strict`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.api.errors import InvalidInput

MAX_KEPT = 1000
NOT_LISTED = "cannot list "
"""Precedes the kind of objects that an API server did not list, in the kind of the fault."""


@dataclass(frozen=True, slots=True)
class SnapshotFault:
    """Describe one fault. `origin` is the file, `subject` the object (`Pod shop/cart-0`), `field`
    its path.
    """

    origin: str
    subject: str
    field: str
    problem: str

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.origin, self.subject, self.field) if part)
        return f"{where}: {self.problem}"


class FaultLog:
    """Collect faults. The first thousand are kept whole, the rest are only counted.

    With `strict` the first fault is raised as `InvalidInput`.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.kept: list[SnapshotFault] = []
        self.counts: Counter[str] = Counter()

    def add(self, origin: str, subject: str, field: str, problem: str, *, kind: str = "") -> None:
        """Record a fault; it is counted under `kind`, by default the problem's text."""
        fault = SnapshotFault(origin, subject, field, problem)
        if self.strict:
            where = ": ".join(part for part in (subject, field) if part)
            raise InvalidInput(f"{where}: {problem}" if where else problem, subject=origin)
        if len(self.kept) < MAX_KEPT:
            self.kept.append(fault)
        if len(self.counts) < MAX_KEPT or (kind or problem) in self.counts:
            self.counts[kind or problem] += 1
        else:
            self.counts["other"] += 1

    @property
    def total(self) -> int:
        return self.counts.total()

    def summary(self) -> list[str]:
        """Return one line per kind of fault, most frequent first."""
        return [f"{count} × {kind}" for kind, count in self.counts.most_common()]
