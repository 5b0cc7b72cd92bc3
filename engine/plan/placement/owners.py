"""Classify placed pods by their owner: what becomes of a pod whose node is drained or fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import coded
from engine.tables import MIRROR, STATIC

Rows: TypeAlias = NDArray[np.int64] | slice
"""Rows of placed pods."""
ALL: Final = slice(None)


def of_daemon_sets(snapshot: Snapshot, rows: Rows = ALL) -> NDArray[np.bool_]:
    """Return bool[placed], or bool[n] of n rows: the pods of DaemonSets, which end with their node."""
    return _owned(snapshot, lambda owner: owner.startswith("DaemonSet/"), rows)


def bound_to_node(snapshot: Snapshot) -> NDArray[np.bool_]:
    """Return bool[placed]: daemon pods and static pods, which no other node takes."""
    static = (snapshot.column("flags") & (STATIC | MIRROR)) != 0
    bound: NDArray[np.bool_] = of_daemon_sets(snapshot) | static
    return bound


def without_controller(snapshot: Snapshot, rows: Rows = ALL) -> NDArray[np.bool_]:
    """Return bool[placed], or bool[n] of n rows: the pods without an owner, which no controller creates
    again.
    """
    return _owned(snapshot, lambda owner: not owner, rows)


def _owned(snapshot: Snapshot, matches: Callable[[str], bool], rows: Rows) -> NDArray[np.bool_]:
    """Return a bool for each row: whether the owner of the pod, `Kind/name` or "", matches; called once per
    distinct owner.
    """
    owners, codes = coded(snapshot.pods, "owner")
    found = np.array([matches(owner) for owner in owners], bool)
    mask: NDArray[np.bool_] = found[codes[: snapshot.placed][rows]]
    return mask
