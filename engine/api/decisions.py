"""What the agent decided about pods and images, by what, and why: a bounded ring for whoever asks.

| kind | outcomes |
|---|---|
| admission | waiting, admitted, refused |
| preemption | preempted; failed |
| eviction | evicted, spared; failed |
| image-gc | collected, kept; failed |
| container-gc | collected; failed |
| restart | restarted, withheld |
| resize | started, deferred, infeasible, resized; failed |
| devices | given |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from engine.api.pod import Pod

CAPACITY = 1000

Kind = Literal[
    "admission", "preemption", "eviction", "image-gc", "container-gc", "restart", "resize", "devices"
]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`number` counts from 1 as long as an agent runs: where one is left out, somebody read too slowly.

    `time` is a Unix time. `pod` is `namespace/name` and `uid` its uid, empty where it is about no pod.
    `inputs` is what was looked at: JSON-able, and nobody changes it any more.
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


class Decisions:
    """Takes decisions from every room and holds the last `capacity`. Taking one never waits nor fails."""

    def __init__(self, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._clock = clock
        self.capacity = capacity
        self._ring: deque[Decision] = deque(maxlen=capacity)
        self._number = 0
        self._news: asyncio.Event | None = None

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
        """Record a decision about what is known by name, or about the node."""
        self._number += 1
        self._ring.append(
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
            )
        )
        if self._news is not None:
            self._news.set()
            self._news = None

    def pass_over(self, count: int) -> None:
        """So many come at once that these would not be held when the last has come: they are only counted."""
        self._number += count

    def after(self, number: int) -> list[Decision]:
        """Those after a number that are still held, in order; all of them after 0."""
        new = min(self._number - number, len(self._ring))
        return list(islice(self._ring, len(self._ring) - new, None)) if new > 0 else []

    async def news(self, number: int) -> list[Decision]:
        """The same, as soon as there is one."""
        while self._number <= number:
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
        return self.after(number)
