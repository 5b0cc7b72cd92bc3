"""Selects which images may be removed and in which order, and why the others stay. Pure: columns
in, rows out.

The columns are an agent's cells or a planner's arrays. A mask has a byte for each row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, TypeAlias

from engine._fast.ranking import image_order
from engine._fast.ranking.image_order import order_and_cut
from engine.images.policy import LARGEST_FIRST, LAYERS, LRU, ImageGCPolicy
from engine.tables import ImageCells, ImageColumns

Columns: TypeAlias = ImageColumns | ImageCells

EVERYTHING: Final = 2**63 - 1
"""The target of a collection that removes everything it may."""

DAY = 86400.0


def may_be_old(policy: ImageGCPolicy, now: float, began: float) -> bool:
    """Tell whether there is a maximum age, and the agent has run for longer than that."""
    return policy.max_age > 0 and now - began > policy.max_age


def old(columns: Columns, policy: ImageGCPolicy, now: float, began: float) -> bytearray:
    """Return the mask of rows unused for longer than the maximum age; none unless `may_be_old`.

    An image that was never used is infinitely old. The minimum age does not matter here.
    """
    if not may_be_old(policy, now, began):
        return bytearray(len(columns.live))
    return image_order.disused(
        columns.live, columns.in_use, columns.pinned, columns.last_used, now, policy.max_age
    )


def spare(columns: Columns, policy: ImageGCPolicy, now: float) -> bytearray:
    """Return the mask of rows that may be removed for space: unused, last used before `now`, and known for
    the minimum age.
    """
    return image_order.spare(
        columns.live,
        columns.in_use,
        columns.pinned,
        columns.last_used,
        columns.first_detected,
        now,
        policy.min_age,
    )


def order(
    columns: Columns, eligible: bytearray, policy: ImageGCPolicy, now: float, target: int = EVERYTHING
) -> list[int]:
    """Return eligible rows in the policy's order, cut when their sizes reach `target` bytes.

    `lru`, and `layers` without any: last used, then first detected. `largest-first`: size, then the same.
    `size-aware`: most bytes times days of disuse, where an image that was never used counts from its
    detection.
    """
    last_used, detected = columns.last_used, columns.first_detected
    if policy.order in (LRU, LAYERS):
        return order_and_cut(last_used, detected, columns.size, eligible, target)[0]
    if policy.order == LARGEST_FIRST:
        primary = array("d", (-size for size in columns.size))
    else:
        times = zip(columns.size, last_used, detected, strict=True)
        primary = array(
            "d", (-size * (max(now - max(used, first), 1.0) / DAY) for size, used, first in times)
        )
    return order_and_cut(primary, last_used, columns.size, eligible, target)[0]


def leave_out(mask: bytearray, rows: Iterable[int]) -> None:
    """Clear these rows of a mask."""
    for row in rows:
        mask[row] = False


def reason_to_keep(columns: Columns, row: int, policy: ImageGCPolicy, now: float) -> str:
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
