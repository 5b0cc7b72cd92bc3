"""Searches exactly for few victims, within a budget of time or steps. Pure.

The search itself is `engine._fast.preemption.preempt_fewest`. It tries sizes from the smallest that every
single requirement allows, so the first size that works is the fewest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from engine._fast.preemption import preempt_fewest as kernels
from engine.admission.decision import NO_LIMIT

_LARGEST_SUM: Final = 2**62
_LARGEST_TABLE: Final = 1 << 22
"""The largest product of candidates and victims; beyond it, the bounds alone would take too long."""


class Candidate(msgspec.Struct, frozen=True):
    """Hold a pod that may be preempted: its row, what it frees of each requirement, its priority (0
    without one).
    """

    row: int
    amounts: tuple[int, ...]
    priority: int


class FewestVictims(msgspec.Struct, frozen=True):
    """Hold the choice. `chosen` is in the order of the candidates; `proven` is False if the budget ran out
    first.
    """

    chosen: tuple[Candidate, ...]
    proven: bool


class Budget:
    """Limit a search in seconds from now, and in steps (examined sets), which are the same on every
    machine.
    """

    def __init__(self, seconds: float, steps: int = NO_LIMIT) -> None:
        self._deadline = time.monotonic() + seconds
        self.steps = steps

    @property
    def seconds(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    @property
    def spent(self) -> bool:
        return self.steps <= 0 or self.seconds <= 0


def fewest_victims(
    candidates: Sequence[Candidate],
    needs: Sequence[int],
    budget: Budget,
    goals: Sequence[int] | None = None,
) -> FewestVictims:
    """Return the fewest candidates that meet `needs`.

    Among equally few: the least total priority, then the least freed beyond need (sum over requirements of
    the excess share), or with `goals` the most freed of those. All candidates together must be enough.
    """
    active = [index for index, need in enumerate(needs) if need > 0]
    if not active:
        return FewestVictims((), True)
    wanted = [needs[index] for index in active]
    useful = [
        (candidate, freed)
        for candidate in candidates
        if any(freed := tuple(candidate.amounts[index] for index in active))
    ]
    # The search cuts branches by what the candidates ahead can still give: the best first cuts most.
    useful.sort(key=lambda pair: -_use(wanted, pair[1]))
    amounts = [freed for _, freed in useful]
    start = _greedy(amounts, wanted, budget)
    targets = [goals[index] for index in active] if goals is not None else None
    chosen, proven = _exact(amounts, [c.priority for c, _ in useful], wanted, targets, start, budget)
    place = {candidate.row: index for index, candidate in enumerate(candidates)}
    victims = sorted((useful[index][0] for index in chosen), key=lambda candidate: place[candidate.row])
    return FewestVictims(tuple(victims), proven)


def fewest_by_priority(
    candidates: Sequence[Candidate], needs: Sequence[int], budget: Budget
) -> FewestVictims:
    """Return as few candidates as possible of the highest priority involved, then of the next lower, and so
    on.

    Each priority is chosen as if everything below it were gone; among equally few, those that free the most.
    """
    chosen: list[Candidate] = []
    proven = True
    for priority in sorted({candidate.priority for candidate in candidates}, reverse=True):
        gone = [*chosen, *(candidate for candidate in candidates if candidate.priority < priority)]
        mine = [candidate for candidate in candidates if candidate.priority == priority]
        left = [need - sum(c.amounts[index] for c in gone) for index, need in enumerate(needs)]
        answer = fewest_victims(mine, left, budget, goals=needs)
        chosen += answer.chosen
        proven &= answer.proven
    return FewestVictims(tuple(reversed(chosen)), proven)


def _exact(
    amounts: Sequence[tuple[int, ...]],
    priorities: Sequence[int],
    needs: Sequence[int],
    goals: Sequence[int] | None,
    start: Sequence[int],
    budget: Budget,
) -> tuple[Sequence[int], bool]:
    """Return the best set, or the best seen when the budget ran out (`start` at worst)."""
    sums = [sum(column) for column in zip(*amounts, strict=True)]
    # The kernel adds two sums in 64 bits.
    if max(sums) >= _LARGEST_SUM or len(amounts) * len(start) > _LARGEST_TABLE:
        return start, False
    for size in range(_at_least(amounts, needs), len(start) + 1):
        if budget.spent:
            return start, False
        found, finished, steps = kernels.best_of_size(
            np.array(amounts, np.int64),
            np.array(priorities, np.int64),
            np.array(needs, np.int64),
            np.array(goals or (), np.int64),
            size,
            # Only a set of this size is a bound that the kernel can improve on.
            np.array(start if size == len(start) else (), np.int32),
            budget.seconds,
            budget.steps,
        )
        budget.steps -= steps
        if not finished:
            return (found.tolist() if len(found) else start), False
        if len(found):
            return found.tolist(), True
    return start, True


def _greedy(amounts: Sequence[tuple[int, ...]], needs: Sequence[int], budget: Budget) -> list[int]:
    """Return a first set: the most useful first, then drop those that are not needed.

    The usefulness is computed again after each choice while the budget lasts.
    """
    left = list(needs)
    chosen: list[int] = []
    others = list(range(len(amounts)))
    while any(need > 0 for need in left):
        if budget.spent:
            index = others[0]
        else:
            index = max(others, key=partial(_use_of, left, amounts))
            budget.steps -= len(others)
        others.remove(index)
        chosen.append(index)
        left = [need - amount for need, amount in zip(left, amounts[index], strict=True)]
    # The last choices often cover what earlier ones were chosen for.
    for index in list(chosen):
        spare = [need + amount for need, amount in zip(left, amounts[index], strict=True)]
        if all(need <= 0 for need in spare):
            chosen.remove(index)
            left = spare
    return sorted(chosen)


def _use(left: Sequence[int], amounts: Sequence[int]) -> float:
    return sum(min(amount / need, 1.0) for amount, need in zip(amounts, left, strict=True) if need > 0)


def _use_of(left: Sequence[int], amounts: Sequence[tuple[int, ...]], index: int) -> float:
    return _use(left, amounts[index])


def _at_least(amounts: Sequence[tuple[int, ...]], needs: Sequence[int]) -> int:
    """Return a lower bound: no smaller set meets every single requirement."""
    fewest = 1
    for column, need in zip(zip(*amounts, strict=True), needs, strict=True):
        count = 0
        for amount in sorted(column, reverse=True):
            if need <= 0:
                break
            need -= amount
            count += 1
        fewest = max(fewest, count)
    return fewest
