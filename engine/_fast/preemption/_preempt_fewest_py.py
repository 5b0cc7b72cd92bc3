"""Find the best set of exactly this many candidates by branch and bound; the rule, in plain Python.

A set is built one candidate after another in index order. A branch is cut when even the largest amounts
among the remaining candidates cannot meet what is left, when even the lowest priorities among them cannot
match the best set so far, and when it already frees more beyond need than that set.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

CHECK_EVERY = 64
SLACK = 1e-12


class _TimeIsUpError(Exception):
    """Report that the time limit has passed."""


def best_of_size(
    amounts: NDArray[np.int64],
    priorities: NDArray[np.int64],
    needs: NDArray[np.int64],
    goals: NDArray[np.int64],
    size: int,
    start: NDArray[np.int32],
    seconds: float,
    steps: int,
) -> tuple[NDArray[np.int32], bool, int]:
    """Return, of all sets of `size` candidates that meet `needs` (int64[k], positive) by their `amounts`
    (int64[n, k]), the one of least total priority (`priorities` int64[n]), then of least excess: the sum
    over the needs of (freed - need) / need.

    With `goals` (int64[k], empty for none), return instead the set that comes nearest to them: the greatest
    sum of min(freed / goal, 1). Column sums of `amounts` stay below 2^62. `start`, int32[size] or empty, is
    a set that is known to meet the needs. Returns the set in ascending order, or an empty array if there is
    none; False if `seconds` passed or `steps` were taken before that was certain; the number of steps taken.
    """
    if not 0 < size <= len(amounts) or not len(needs):
        return np.empty(0, np.int32), True, 0
    search = _Search(amounts, priorities, needs, goals, size, time.monotonic() + seconds, steps)
    if len(start):
        search.take(tuple(start.tolist()))
    finished = True
    try:
        search.run()
    except _TimeIsUpError:
        finished = False
    return np.array(search.best or (), np.int32), finished, search.visits


class _Search:
    def __init__(
        self,
        amounts: NDArray[np.int64],
        priorities: NDArray[np.int64],
        needs: NDArray[np.int64],
        goals: NDArray[np.int64],
        size: int,
        deadline: float,
        steps: int,
    ) -> None:
        self.amounts: list[tuple[int, ...]] = [tuple(row) for row in amounts.tolist()]
        self.priorities: list[int] = priorities.tolist()
        self.needs: tuple[int, ...] = tuple(needs.tolist())
        self.goals: list[int] = goals.tolist()
        self.size = size
        self.deadline = deadline
        self.steps = steps
        self.visits = 0
        self.best: tuple[int, ...] | None = None
        self.best_priority = 0
        self.best_beyond = 0.0

    def run(self) -> None:
        columns = list(zip(*self.amounts, strict=True)) if self.amounts else [() for _ in self.needs]
        self.most = [_suffix_sums([-a for a in column], self.size) for column in columns]
        self.least = [_suffix_sums(column, self.size) for column in columns]
        self.cheapest = _suffix_sums(self.priorities, self.size)
        self.extend((), self.needs, 0, self.size, 0)

    def take(self, chosen: tuple[int, ...]) -> None:
        """Keep a complete set if it is the best so far."""
        left = [need - sum(self.amounts[index][j] for index in chosen) for j, need in enumerate(self.needs)]
        priority = sum(self.priorities[index] for index in chosen)
        beyond = 0.0
        for j, need in enumerate(self.needs):
            if self.goals:
                beyond -= min(float(need - left[j]) / float(self.goals[j]), 1.0)
            else:
                beyond += float(-left[j]) / float(need)
        if self.best is None or (priority, beyond) < (self.best_priority, self.best_beyond):
            self.best, self.best_priority, self.best_beyond = chosen, priority, beyond

    def extend(
        self, chosen: tuple[int, ...], left: tuple[int, ...], first: int, more: int, priority: int
    ) -> None:
        self.visits += 1
        late = self.visits % CHECK_EVERY == 0 and time.monotonic() >= self.deadline
        if late or self.visits > self.steps:
            raise _TimeIsUpError
        if more == 0:
            if all(need <= 0 for need in left):
                self.take(chosen)
            return
        for index in range(first, len(self.amounts) - more + 1):
            if any(need > -most[index][more] for need, most in zip(left, self.most, strict=True)):
                return
            if self.best is not None:
                cost = priority + self.cheapest[index][more]
                if cost > self.best_priority:
                    return
                if cost == self.best_priority and not self.goals and self._beyond(left, index, more):
                    return
            rest = tuple(need - amount for need, amount in zip(left, self.amounts[index], strict=True))
            self.extend((*chosen, index), rest, index + 1, more - 1, priority + self.priorities[index])

    def _beyond(self, left: tuple[int, ...], index: int, more: int) -> bool:
        """Tell whether every continuation frees more beyond need than the best set."""
        beyond = 0.0
        for need, rest, least in zip(self.needs, left, self.least, strict=True):
            beyond += max(float(least[index][more] - rest), 0.0) / float(need)
        return beyond > self.best_beyond * (1 + SLACK) + SLACK


def _suffix_sums(values: Sequence[int], size: int) -> list[list[int]]:
    """Return `[i][r]`: the sum of the r smallest values from index i on (of all, if there are fewer)."""
    smallest: list[int] = []
    sums = [[0] * (size + 1)]
    for value in reversed(values):
        insort(smallest, value)
        del smallest[size:]
        row = list(accumulate(smallest, initial=0))
        sums.append(row + [row[-1]] * (size + 1 - len(row)))
    sums.reverse()
    return sums
