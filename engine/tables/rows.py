"""Rows that stay where they are: allocation and reuse, for every table."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.errors import Bug


class RowSpace:
    """Hand out row numbers. A row keeps its number until it is released; released rows are reused, latest
    first.
    """

    __slots__ = ("_free", "end")

    def __init__(self) -> None:
        self.end = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.end - len(self._free)

    @property
    def next(self) -> int:
        """Return the row that `take` gives."""
        return self._free[-1] if self._free else self.end

    def take(self) -> int:
        """Take a row number; `end` grows when no released one is left."""
        # The latest, whose memory is still in the cache.
        if self._free:
            return self._free.pop()
        self.end += 1
        return self.end - 1

    def take_many(self, count: int) -> int:
        """Take `count` new rows at the end and return the first."""
        first = self.end
        self.end += count
        return first

    def release(self, row: int) -> None:
        self._free.append(row)

    def release_many(self, rows: Sequence[int]) -> None:
        self._free.extend(rows)

    def validate(self) -> None:
        if len(set(self._free)) != len(self._free) or any(not 0 <= row < self.end for row in self._free):
            raise Bug("the free list repeats a row or holds one out of range", subject="table")

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(self._free)


def grown(capacity: int, needed: int) -> int:
    """Return the next capacity: double while small, then a quarter more."""
    # A large table that doubles would waste as much memory as it uses.
    step = capacity if capacity < 1 << 14 else capacity >> 2
    return max(needed, capacity + step, 16)
