"""Rows of the pod columns straight from Pod objects; the plain form takes no shortcut.

The rule is `engine.api.resources` (sums), `engine.api.qos` (class, critical) and
`engine.tables.amounts.pod_entry`, which puts them together. A filler may leave any pod to its caller, who
then goes by that rule; this one leaves all of them. The compiled one takes ordinary pods and leaves what
is odd or wrong: negative or enormous amounts, fractions of a byte, pod-level resources, no uid.
"""

from __future__ import annotations

from typing import Any


class Filler:
    """Fills rows of `columns` (an `engine.tables.PodColumns`); made anew when they are replaced."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def fill(
        self,
        pods: list[Any],
        start: int,
        row: int,
        node: int,
        ids: dict[str, int],
        row_of: dict[str, int],
    ) -> int:
        """Write `pods[start:]` to the rows from `row` on and their uids to `row_of`; returns how many.

        Stops before a pod that it leaves to the caller, one whose uid is in `row_of`, one that names a
        resource without a column, and at the end of the columns.
        """
        return 0

    def clear(self, row: int) -> None:
        """Every column of a row becomes 0."""
        for _, column in self.columns.arrays():
            column[..., row] = 0


def requests(pod: Any, ids: dict[str, int], names: list[str]) -> dict[str, int] | None:
    """The pod's scaled requests by name as admission counts them, or None to leave it to the caller: also
    where it names a resource that is not in `ids`."""
    return None


Amounts = tuple[str, bool, bool, int, int, int, int]


def amounts(pod: Any) -> Amounts | None:
    """The pod's class; whether cpu, and memory, are limited throughout; its requests of cpu (milli) and
    memory (bytes), and its limits of them. None leaves it to the caller: also where it names another
    resource, or has init containers and a container without a limit."""
    return None
