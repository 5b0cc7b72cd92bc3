"""Fill rows of the pod columns straight from Pod objects; the plain form takes no shortcut.

The rule is `engine.api.resources` (sums), `engine.api.qos` (class, critical) and
`engine.tables.amounts.pod_entry`, which combines them. A filler may leave any pod to its caller, which then
applies that rule; this one leaves all of them. The compiled one handles ordinary pods and leaves unusual or
invalid ones: negative or very large amounts, fractions of a byte, pod-level resources, no uid.
"""

from __future__ import annotations

from typing import Any


class Filler:
    """Fill rows of the memory of an `engine.tables.PodTable`, or of its columns; create a new filler when
    that is replaced.
    """

    def __init__(self, cells: Any) -> None:
        self.cells = cells

    def fill(
        self,
        pods: list[Any],
        start: int,
        row: int,
        node: int,
        ids: dict[str, int],
        row_of: dict[str, int],
    ) -> int:
        """Write `pods[start:]` to the rows from `row` on and their uids to `row_of`; return how many.

        Stops before a pod that it leaves to the caller, one whose uid is in `row_of`, one that names a
        resource without a column, and at the end of the columns.
        """
        return 0

    def clear(self, row: int) -> None:
        """Set every column of a row to 0."""
        if not 0 <= row < len(self.cells.flags):
            raise IndexError(f"row {row} of {len(self.cells.flags)}")
        for name in ("node", "qos", "flags", "priority", "creation"):
            getattr(self.cells, name)[row] = 0
        for name in ("requests", "ranking", "limits"):
            column = getattr(self.cells, name)
            for id in range(len(column)):
                column[id, row] = 0


def requests(pod: Any, ids: dict[str, int], names: list[str]) -> dict[str, int] | None:
    """Return the pod's scaled requests by name as admission counts them, or None to leave it to the caller:
    also if it names a resource that is not in `ids`.
    """
    return None


Amounts = tuple[str, bool, bool, int, int, int, int]


def amounts(pod: Any) -> Amounts | None:
    """Return the pod's class; whether cpu, and memory, are limited throughout; its requests of cpu (milli)
    and memory (bytes), and its limits of them.

    None leaves it to the caller: also if it names another resource, or has init containers and a container
    without a limit.
    """
    return None
