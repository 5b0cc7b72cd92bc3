"""Selects which images may be removed and in which order, and why the others stay. Pure: columns
in, rows out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine._fast.ranking.image_order import order_and_cut
from engine.images.policy import LARGEST_FIRST, LAYERS, LRU, ImageGCPolicy
from engine.tables import NEVER, ImageColumns

EVERYTHING: Final = 2**63 - 1
"""The target of a collection that removes everything it may."""

DAY = 86400.0


def unused(columns: ImageColumns) -> NDArray[np.bool_]:
    """Return live rows that are neither in use nor pinned."""
    rows: NDArray[np.bool_] = columns.live & ~columns.in_use & ~columns.pinned
    return rows


def may_be_old(policy: ImageGCPolicy, now: float, began: float) -> bool:
    """Tell whether there is a maximum age, and the agent has run for longer than that."""
    return policy.max_age > 0 and now - began > policy.max_age


def old(columns: ImageColumns, policy: ImageGCPolicy, now: float, began: float) -> NDArray[np.bool_]:
    """Return rows unused for longer than the maximum age; none unless `may_be_old`.

    An image that was never used is infinitely old. The minimum age does not matter here.
    """
    if not may_be_old(policy, now, began):
        return np.zeros(len(columns.live), np.bool_)
    disused: NDArray[np.bool_] = (columns.last_used == NEVER) | (now - columns.last_used > policy.max_age)
    return unused(columns) & disused


def spare(columns: ImageColumns, policy: ImageGCPolicy, now: float) -> NDArray[np.bool_]:
    """Return rows that may be removed for space: unused, last used before `now`, and known for
    the minimum age.
    """
    return unused(columns) & (columns.last_used < now) & (now - columns.first_detected >= policy.min_age)


def order(
    columns: ImageColumns,
    eligible: NDArray[np.bool_],
    policy: ImageGCPolicy,
    now: float,
    target: int = EVERYTHING,
) -> NDArray[np.int64]:
    """Return eligible rows in the policy's order, cut when their sizes reach `target` bytes.

    `lru`, and `layers` without any: last used, then first detected. `largest-first`: size, then the same.
    `size-aware`: most bytes times days of disuse, where an image that was never used counts from its
    detection.
    """
    secondary = columns.first_detected
    if policy.order in (LRU, LAYERS):
        primary = columns.last_used
    elif policy.order == LARGEST_FIRST:
        primary, secondary = -columns.size.astype(np.float64), columns.last_used
    else:
        since = np.maximum(columns.last_used, columns.first_detected)
        primary, secondary = -columns.size * (np.maximum(now - since, 1.0) / DAY), columns.last_used
    return order_and_cut(primary, secondary, columns.size, eligible, target)[0]


def why_kept(columns: ImageColumns, row: int, policy: ImageGCPolicy, now: float) -> str:
    """Return the rule that keeps an image from removal for space, or an empty text."""
    if columns.in_use[row]:
        return "in use by a container"
    if columns.pinned[row]:
        return "pinned in the runtime"
    if columns.last_used[row] >= now:
        return "last used in the future: the clock was set back"
    age = now - float(columns.first_detected[row])
    if age < policy.min_age:
        return f"seen {max(age, 0):.0f} s ago, the minimum age is {policy.min_age:.0f} s"
    return ""
