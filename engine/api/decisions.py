"""What the agent decided about pods and images, by what, and why: a bounded ring for whoever asks.

| kind | outcomes |
|---|---|
| admission | waiting, admitted, refused |
| preemption | preempted; failed |
| eviction | evicted, spared; failed |
| image-gc | collected, kept; failed |
| container-gc | collected; failed |
| restart | unhealthy, restarted, withheld |
| resize | started, deferred, infeasible, resized; failed |
| devices | allocated |
| cpus | allocated, reassigned, resized, pooled, excluded, clash |
| memory | allocated, reassigned, resized |
| best-effort-cpu | limited, released |
| pressure | raised, cleared |
| image-pull | pulled; failed |
| probes | inside, waiting; failed |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from engine.api.pod import Pod

CAPACITY = 1000

Kind = Literal[
    "admission",
    "preemption",
    "eviction",
    "image-gc",
    "container-gc",
    "restart",
    "resize",
    "devices",
    "cpus",
    "memory",
    "best-effort-cpu",
    "pressure",
    "image-pull",
    "probes",
]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold one decision.

    `number` counts the decisions of an agent from 1, so that a slow reader notices a gap. `time` is a Unix
    time. `pod` is `namespace/name` and `uid` its uid, empty if the decision is not about a pod. `inputs` are
    the examined values, ready for JSON; they do not change.
    """

    number: int
    time: float
    kind: Kind
    outcome: str
    reason: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    inputs: Mapping[str, Any] = {}


class BatchedDecision(NamedTuple):
    """Hold one of many decisions that are made together; the fields are those of `Decision`."""

    outcome: str
    reason: str
    inputs: Mapping[str, Any]


class _Series(NamedTuple):
    """Hold decisions that nobody has read yet, numbered from `first`."""

    first: int
    length: int
    time: float
    kind: Kind
    taken: Callable[[], Iterable[BatchedDecision]]

    def decisions(self) -> Iterator[Decision]:
        for number, (outcome, reason, inputs) in enumerate(self.taken(), self.first):
            yield Decision(
                number=number, time=self.time, kind=self.kind, outcome=outcome, reason=reason, inputs=inputs
            )


class Measured(NamedTuple):
    """Record a measurement that a decision was computed from, so that the decision can be repeated.

    `stream` and `name` say which measurement it is. `values` are integers, one or more for each of the keys.
    """

    stream: str
    name: str
    keys: str = ""
    values: Sequence[int] = ()
    pod: str = ""
    uid: str = ""
    inputs: Mapping[str, Any] = {}


class Decisions:
    """Record the decisions of all packages and hold the last `capacity`. Recording never waits nor fails.

    `record_measured`, if somebody keeps measurements, takes each of them in the order of the decisions.
    `remembered` are, by part of the agent, functions that return what its next decisions depend on besides
    measurements, ready for JSON; None while a decision is being carried out.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._clock = clock
        self.capacity = capacity
        self._ring: deque[Decision | _Series] = deque()
        self._held = 0
        self._number = 0
        self._news: asyncio.Event | None = None
        self.record_measured: Callable[[Measured], None] | None = None
        self.remembered: dict[str, Callable[[], Mapping[str, Any] | None]] = {}

    def pod(
        self,
        pod: Pod,
        kind: Kind,
        outcome: str,
        reason: str,
        inputs: Mapping[str, Any],
        *,
        container: str = "",
    ) -> None:
        """Record a decision about a pod or one of its containers."""
        self.record(kind, outcome, reason, inputs, pod=pod.full_name, uid=pod.uid, container=container)

    def record(
        self,
        kind: Kind,
        outcome: str,
        reason: str,
        inputs: Mapping[str, Any],
        *,
        pod: str = "",
        uid: str = "",
        container: str = "",
    ) -> None:
        """Record a decision about something known by name, or about the node."""
        self._number += 1
        self._hold(
            Decision(
                number=self._number,
                time=self._clock(),
                kind=kind,
                outcome=outcome,
                reason=reason,
                pod=pod,
                uid=uid,
                container=container,
                inputs=inputs,
            ),
            1,
        )

    def record_many(self, kind: Kind, count: int, taken: Callable[[], Iterable[BatchedDecision]]) -> None:
        """Record `count` decisions at this moment about things known by name.

        `taken` is called when somebody reads them; it returns the last `capacity`, or all if there are
        fewer.
        """
        if not count:
            return
        self._number += count
        kept = min(count, self.capacity)
        self._hold(_Series(self._number - kept + 1, kept, self._clock(), kind, taken), kept)

    def _hold(self, entry: Decision | _Series, count: int) -> None:
        self._ring.append(entry)
        self._held += count
        # Whole entries only: the oldest series stays until the ring is full without it.
        while self._held - _length(self._ring[0]) >= self.capacity:
            self._held -= _length(self._ring.popleft())
        if self._news is not None:
            # Waiters keep the event that they wait for; the next one is made when somebody waits again.
            self._news.set()
            self._news = None

    def after(self, number: int) -> list[Decision]:
        """Return the decisions after a number that are still held, in order; all of them after 0."""
        new = min(self._number - number, self._held, self.capacity)
        if new <= 0:
            return []
        written: list[Decision] = []
        for entry in self._ring:
            written.extend(entry.decisions() if isinstance(entry, _Series) else (entry,))
        # A series is written out once, and stays so: every follower reads the same decisions.
        written = written[-self.capacity :]
        self._ring, self._held = deque(written), len(written)
        return written[-new:]

    async def news(self, number: int) -> list[Decision]:
        """Return the same, as soon as there is one."""
        while self._number <= number:
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
        return self.after(number)


def _length(entry: Decision | _Series) -> int:
    return entry.length if isinstance(entry, _Series) else 1
