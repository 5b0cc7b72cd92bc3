"""Repeat the delays of a recorded node's restarts, also under another longest delay.

Under the recorded configuration every restart has its recorded times. Under another one the runs of a
container last as long as they did, and the times between them change. A container that was waiting for its
restart when the record ends, or whose last run is not longer than its longest one, goes on failing after runs
as long as the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.containers.backoff import Backoff, restart_backoff, restart_delays
from engine.plan.replay.decided import RESTART, Replayed, restart_part, restarted
from engine.record.blocks import RecordRow

_MICROSECONDS: Final = 1e6
_ROUNDING: Final = 2 / _MICROSECONDS


@dataclass(slots=True)
class _Start:
    """Hold a start that followed an end: both times in seconds of the agent's clock.

    `ended` is None for a container that the agent itself ended, which waits for nothing; `began` tells that
    the start succeeded.
    """

    ended: float | None
    at: float
    began: bool = False


@dataclass(slots=True)
class _Restarts:
    """Hold the restarts of a container while one agent runs, until `until`, under its configuration; `ended`
    is its last end, and `before` the failures and the last attempt that its back-off remembers from earlier.
    """

    pod: str
    uid: str
    container: str
    own: KubeletConfiguration
    before: tuple[int, float] | None = None
    starts: list[_Start] = field(default_factory=list)
    ended: float = 0.0
    until: float = 0.0

    def backoff(self, config: KubeletConfiguration) -> Backoff:
        """Return its back-off at the beginning, under a configuration."""
        backoff = restart_backoff(config)
        if self.before is not None:
            backoff.restore("", *self.before)
        return backoff

    def next_run(self) -> float | None:
        """Return how long the run after the last recorded one is assumed to last; None: for good."""
        if not self.starts:
            return None
        last = self.starts[-1].at
        if self.ended > last:
            return self.ended - last
        runs = [(following.ended or following.at) - start.at for start, following in pairwise(self.starts)]
        longest = max(runs, default=0.0)
        return longest if longest and self.until - last <= longest else None


class RestartReplay:
    """Follow the ends and starts of containers; `following` None is the recorded configuration."""

    def __init__(self, following: KubeletConfiguration | None) -> None:
        self._following = following
        self._own = KubeletConfiguration()
        self._remembered: Mapping[str, tuple[int, float]] = {}
        self._open: dict[tuple[str, str], _Restarts] = {}
        self._closed: list[_Restarts] = []
        self._left: set[str] = set()

    def configure(
        self, own: KubeletConfiguration, at: float, remembered: Mapping[str, tuple[int, float]]
    ) -> None:
        """Begin with an agent's start, which knows of no earlier restart, or with what it `remembered` of
        them: `Backoff.entries`.
        """
        self._own, self._remembered = own, remembered
        self._close_all(at)
        self._left.clear()

    def measure(self, row: RecordRow) -> None:
        """Take an end or an attempt to start."""
        if row.uid in self._left:
            return
        one = self._of(row, row.text)
        one.ended, *at = (value / _MICROSECONDS for value in row.values)
        one.starts += (_Start(one.ended, time) for time in at)

    def restarted(self, row: RecordRow) -> None:
        """Take the agent's own decision, after what it was computed from."""
        if row.uid in self._left:
            return
        one = self._of(row, row.container)
        if one.starts and not one.starts[-1].began:
            one.starts[-1].began = True
        else:
            one.starts.append(_Start(None, row.time, began=True))

    def leave(self, uid: str, at: float) -> None:
        """Let the containers of a pod end for good, whatever the record says about them afterwards."""
        self._left.add(uid)
        for key in [key for key in self._open if key[0] == uid]:
            self._close(self._open.pop(key), at)

    def decisions(self, end: float) -> Iterator[Replayed]:
        """Yield all restarts of a record that ends at `end`."""
        self._close_all(end)
        numbers: Counter[tuple[str, str]] = Counter()
        for one in self._closed:
            for at, outcome in self._outcomes(one):
                numbers[one.uid, one.container] += 1
                part = restart_part(one.container, numbers[one.uid, one.container])
                yield Replayed(at, RESTART, one.uid, one.pod, outcome, part=part)

    def _of(self, row: RecordRow, container: str) -> _Restarts:
        known = self._open.get((row.uid, container))
        if known is None:
            before = self._remembered.get(f"{row.uid}/{container}")
            known = self._open[row.uid, container] = _Restarts(row.pod, row.uid, container, self._own, before)
        return known

    def _close_all(self, at: float) -> None:
        for one in self._open.values():
            self._close(one, at)
        self._open.clear()

    def _close(self, one: _Restarts, at: float) -> None:
        one.until = at
        self._closed.append(one)

    def _outcomes(self, one: _Restarts) -> Iterator[tuple[float, str]]:
        following = self._following
        if following is None or restart_delays(following) == restart_delays(one.own):
            return _as_recorded(one)
        return _otherwise(one, one.backoff(following))


def _as_recorded(one: _Restarts) -> Iterator[tuple[float, str]]:
    """Yield the restarts at their recorded times; one that came too early waits."""
    backoff = one.backoff(one.own)
    for start in one.starts:
        wait = 0.0
        if start.ended is not None:
            wait = backoff.remaining("", start.ended, start.at)
            backoff.attempt("", start.ended, start.at)
        if start.began:
            yield start.at, restarted(backoff.delay("")) if wait <= _ROUNDING else f"waits {wait:g} s"


def _otherwise(one: _Restarts, following: Backoff) -> Iterator[tuple[float, str]]:
    """Yield the restarts with another back-off: each run lasts as long as it did."""
    own, before, at = one.backoff(one.own), None, 0.0
    for start in one.starts:
        # The time since the start before, which is another one now.
        shift = at - before.at if before is not None else 0.0
        at = start.at + shift
        if start.ended is not None:
            ended = start.ended + shift
            lag = start.at - start.ended - own.remaining("", start.ended, start.ended)
            own.attempt("", start.ended, start.at)
            at = ended + following.remaining("", ended, ended) + max(lag, 0.0)
            following.attempt("", ended, at)
        if at > one.until:
            return
        before = start
        if start.began:
            yield at, restarted(following.delay(""))
    run = one.next_run()
    while run is not None:
        ended = at + run
        at = ended + following.remaining("", ended, ended)
        if at > one.until:
            return
        following.attempt("", ended, at)
        yield at, restarted(following.delay(""))
