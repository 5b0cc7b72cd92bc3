"""Keep results of functions of a snapshot with it, so that each is computed once, on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from engine.plan.snapshot.columns import Snapshot

T = TypeVar("T")
_KEPT = "_kept"


def once_per_snapshot(compute: Callable[[Snapshot], T]) -> Callable[[Snapshot], T]:
    """Compute a result once per snapshot. It may depend only on the nodes and on the placed pods."""

    @wraps(compute)
    def kept(snapshot: Snapshot) -> T:
        results: dict[Callable[[Snapshot], Any], Any] = snapshot.__dict__.setdefault(_KEPT, {})
        if compute not in results:
            results[compute] = compute(snapshot)
        found: T = results[compute]
        return found

    return kept


def share_results(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Return `other`, which has the same nodes and placed pods, with the results of `snapshot`, also those
    computed later.
    """
    other.__dict__[_KEPT] = snapshot.__dict__.setdefault(_KEPT, {})
    other.__dict__["node_names"] = snapshot.node_names
    return other
