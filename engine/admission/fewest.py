"""Exact searches for few victims: branch and bound with a deadline. Pure.

A set of m candidates is built one by one in a fixed order. A branch is cut when even the largest amounts
among the candidates still to come cannot meet what is left, or when it cannot beat the best set so far.
Sizes are tried from the smallest that is not ruled out, so the first size that works is the fewest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest

Rank = tuple[int, float]
_CHECK_EVERY = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may go: its row, what it frees of each requirement, its priority (0 without one)."""

    row: int
    amounts: tuple[int, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`chosen` in the order of the candidates; `proven` is False if the deadline cut the search off."""

    chosen: tuple[Candidate, ...]
    proven: bool


class _TimeIsUpError(Exception):
    """The deadline has passed."""


def fewest_victims(
    candidates: Sequence[Candidate],
    needs: Sequence[int],
    *,
    deadline: float,
    clock: Callable[[], float],
    goals: Sequence[int] | None = None,
) -> Answer:
    """The fewest candidates that meet `needs`, then the least total priority, then the least freed beyond
    need (sum over requirements of the excess share); with `goals` rather the most freed of those.
    All candidates together must be enough."""
    active = [index for index, need in enumerate(needs) if need > 0]
    if not active:
        return Answer((), True)
    needs = [needs[index] for index in active]
    goals = [goals[index] for index in active] if goals is not None else None
    order = sorted(
        ((candidate, tuple(candidate.amounts[i] for i in active)) for candidate in candidates),
        key=lambda pair: -sum(min(amount / need, 1.0) for amount, need in zip(pair[1], needs, strict=True)),
    )
    useful = [(candidate, amounts) for candidate, amounts in order if any(amounts)]
    search = _Search([amounts for _, amounts in useful], [c.priority for c, _ in useful], needs, goals)
    search.watch(deadline, clock)
    start = search.greedy()
    proven = True
    best = start
    try:
        search.prepare(len(start))
        for size in range(search.at_least(), len(start) + 1):
            found = search.best_of_size(size, start if size == len(start) else None)
            if found is not None:
                best = found
                break
    except _TimeIsUpError:
        proven = False
        best = search.best if search.best is not None else start
    place = {candidate.row: index for index, candidate in enumerate(candidates)}
    chosen = sorted((useful[index][0] for index in best), key=lambda candidate: place[candidate.row])
    return Answer(tuple(chosen), proven)


def fewest_by_priority(
    candidates: Sequence[Candidate],
    needs: Sequence[int],
    *,
    deadline: float,
    clock: Callable[[], float],
) -> Answer:
    """As few as possible of the highest priority that must be touched, then of the next one down, and so
    on: each priority is chosen from as if everything below it were gone, and among equally few those that
    free the most."""
    chosen: list[Candidate] = []
    proven = True
    for priority in sorted({candidate.priority for candidate in candidates}, reverse=True):
        gone = [*chosen, *(candidate for candidate in candidates if candidate.priority < priority)]
        mine = [candidate for candidate in candidates if candidate.priority == priority]
        left = [need - sum(c.amounts[index] for c in gone) for index, need in enumerate(needs)]
        answer = fewest_victims(mine, left, deadline=deadline, clock=clock, goals=needs)
        chosen += answer.chosen
        proven &= answer.proven
    return Answer(tuple(reversed(chosen)), proven)


class _Search:
    """Candidates by index, most useful first."""

    def __init__(
        self,
        amounts: Sequence[tuple[int, ...]],
        priorities: Sequence[int],
        needs: Sequence[int],
        goals: Sequence[int] | None,
    ) -> None:
        self._amounts = amounts
        self._priorities = priorities
        self._needs = tuple(needs)
        self._goals = goals
        self._visits = 0
        self._deadline = float("inf")
        self._clock: Callable[[], float] = lambda: 0.0
        self.best: tuple[int, ...] | None = None
        self._best_rank: Rank = (0, 0.0)
        self._tops: list[list[tuple[int, ...]]] = []
        self._cheapest: list[list[int]] = []

    def watch(self, deadline: float, clock: Callable[[], float]) -> None:
        self._deadline, self._clock = deadline, clock

    def prepare(self, largest: int) -> None:
        """Bounds for sets of up to `largest`."""
        self._tops = self._suffix_tops(largest)
        self._cheapest = self._suffix_cheapest(largest)

    def greedy(self) -> tuple[int, ...]:
        """A set to begin with: most useful first, then whoever turned out not to be needed is let off.
        Usefulness is measured anew after each one until time is up."""
        left = list(self._needs)
        chosen: list[int] = []
        others = list(range(len(self._amounts)))
        while any(need > 0 for need in left):
            index = (
                others[0] if self._clock() >= self._deadline else max(others, key=partial(self._use, left))
            )
            others.remove(index)
            chosen.append(index)
            left = [need - amount for need, amount in zip(left, self._amounts[index], strict=True)]
        for index in list(chosen):
            spare = [need + amount for need, amount in zip(left, self._amounts[index], strict=True)]
            if all(need <= 0 for need in spare):
                chosen.remove(index)
                left = spare
        return tuple(sorted(chosen))

    def _use(self, left: Sequence[int], index: int) -> float:
        shares = (min(a / need, 1.0) for a, need in zip(self._amounts[index], left, strict=True) if need > 0)
        return sum(shares)

    def at_least(self) -> int:
        """No set smaller than this is enough for every single requirement."""
        fewest = 1
        for index, need in enumerate(self._needs):
            count = 0
            for amount in sorted((amounts[index] for amounts in self._amounts), reverse=True):
                if need <= 0:
                    break
                need -= amount
                count += 1
            fewest = max(fewest, count)
        return fewest

    def best_of_size(self, size: int, start: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The best set of exactly this size, None if there is none. `start` is one that is known."""
        self.best = start
        if start is not None:
            self._best_rank = self._rank(start)
        self._extend((), self._needs, 0, size, 0)
        return self.best

    def _suffix_tops(self, size: int) -> list[list[tuple[int, ...]]]:
        """`[i][r]`: the most that r candidates from index i on can free, per requirement."""
        lowest: list[list[int]] = [[] for _ in self._needs]
        tops = [[(0,) * len(self._needs)] * (size + 1)]
        for amounts in reversed(self._amounts):
            self._watch_time()
            for negated, amount in zip(lowest, amounts, strict=True):
                insort(negated, -amount)
                del negated[size:]
            sums = [accumulate(negated, initial=0) for negated in lowest]
            rows = [tuple(-total for total in one) for one in zip_longest(*sums)]
            tops.append(rows + [rows[-1]] * (size + 1 - len(rows)))
        tops.reverse()
        return tops

    def _suffix_cheapest(self, size: int) -> list[list[int]]:
        """`[i][r]`: the least total priority of r candidates from index i on."""
        lowest: list[int] = []
        cheapest = [[0] * (size + 1)]
        for priority in reversed(self._priorities):
            self._watch_time()
            insort(lowest, priority)
            del lowest[size:]
            sums = list(accumulate(lowest, initial=0))
            cheapest.append(sums + [sums[-1]] * (size + 1 - len(sums)))
        cheapest.reverse()
        return cheapest

    def _watch_time(self) -> None:
        self._visits += 1
        if self._visits % _CHECK_EVERY == 0 and self._clock() >= self._deadline:
            raise _TimeIsUpError

    def _extend(
        self, chosen: tuple[int, ...], left: tuple[int, ...], first: int, more: int, priority: int
    ) -> None:
        self._watch_time()
        if more == 0:
            if all(need <= 0 for need in left):
                rank = self._rank(chosen)
                if self.best is None or rank < self._best_rank:
                    self.best, self._best_rank = chosen, rank
            return
        for index in range(first, len(self._amounts) - more + 1):
            top = self._tops[index][more]
            if any(need > most for need, most in zip(left, top, strict=True)):
                return
            if self.best is not None and priority + self._cheapest[index][more] > self._best_rank[0]:
                return
            rest = tuple(need - amount for need, amount in zip(left, self._amounts[index], strict=True))
            self._extend((*chosen, index), rest, index + 1, more - 1, priority + self._priorities[index])

    def _rank(self, chosen: Sequence[int]) -> Rank:
        beyond = 0.0
        for position, need in enumerate(self._needs):
            freed = sum(self._amounts[index][position] for index in chosen)
            if self._goals is None:
                beyond += (freed - need) / need
            else:
                beyond -= min(freed / self._goals[position], 1.0)
        return sum(self._priorities[index] for index in chosen), beyond
