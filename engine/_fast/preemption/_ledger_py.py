"""Do the requests of a pod fit next to those that a node has admitted; the rule, in plain Python.

Source: kubelet v1.36 `lifecycle/predicate.go` and the scheduler's `noderesources.Fits`. The predicates of a
cluster are in another module, because they load a library of threads, which a node does not need.
"""

from __future__ import annotations

from typing import Any

LARGEST = 2**63 - 1


class Ledger:
    """Track the total of rows of `requests` (int64[R, N], not negative) against limits.

    `used` (int64[R]) grows and shrinks with the rows that are added and removed; `limits` (int64[R]) is read
    at each question. Both and `requests` stay the caller's, arrays or other memory of that format. Raise
    `IndexError` for a row out of range.
    """

    def __init__(self, requests: Any, used: Any, limits: Any) -> None:
        if not len(requests) == len(used) == len(limits):
            raise ValueError("requests, used and limits must have as many resources")
        self.requests, self.used, self.limits = requests, used, limits

    def fits(self, row: int) -> bool:
        """Tell whether enough is left of every resource that a row requests."""
        return all(
            amount == 0 or amount <= limit - used
            for amount, used, limit in zip(
                self._row(row), self.used.tolist(), self.limits.tolist(), strict=True
            )
        )

    def add(self, row: int) -> bool:
        """Count a row. Return False and change nothing if a sum would exceed 64 bits."""
        sums = [used + amount for used, amount in zip(self.used.tolist(), self._row(row), strict=True)]
        if max(sums, default=0) > LARGEST:
            return False
        for id, total in enumerate(sums):
            self.used[id] = total
        return True

    def remove(self, row: int) -> None:
        """Subtract a row that was added."""
        for id, amount in enumerate(self._row(row)):
            self.used[id] -= amount

    def _row(self, row: int) -> list[int]:
        if not 0 <= row < self.requests.shape[1]:
            raise IndexError(f"row {row} of {self.requests.shape[1]}")
        return [int(self.requests[id, row]) for id in range(len(self.requests))]
