"""What an API server said of tokens and of users, kept for a while.

Who asks what another is asking already waits for the same answer. Answers are kept for as long as they say;
what could not be found out is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from engine.api.errors import Unavailable

KEPT = 4096
TRIES = 5
FIRST_PAUSE = 0.5
DEADLINE = 20.0

T = TypeVar("T")


class AccessReviews(Generic[T]):
    """At most `KEPT` answers; the oldest go first. `monotonic` is in seconds."""

    def __init__(self, *, lifetime: Callable[[T], float], monotonic: Callable[[], float]) -> None:
        self._lifetime = lifetime
        self._monotonic = monotonic
        self._kept: dict[Hashable, tuple[float, T]] = {}
        self._asking: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer that is known, or `ask`'s. Raises what `ask` raises in the end."""
        kept = self._kept.get(key)
        if kept is not None and self._monotonic() < kept[0]:
            return kept[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(_heeded)
        return await asyncio.shield(task)

    def stop(self) -> None:
        """Whoever waits is told that there is no answer."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await _tried_again(ask)
        finally:
            del self._asking[key]
        self._kept.pop(key, None)
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (self._monotonic() + self._lifetime(answer), answer)
        return answer


async def _tried_again(ask: Callable[[], Awaitable[T]]) -> T:
    """Where nobody answers, a few times more within the deadline."""
    pause = FIRST_PAUSE
    try:
        async with asyncio.timeout(DEADLINE):
            for _ in range(TRIES - 1):
                try:
                    return await ask()
                except Unavailable:
                    await asyncio.sleep(pause)
                    pause *= 1.5
            return await ask()
    except TimeoutError:
        raise Unavailable(f"no review within {DEADLINE:g} s") from None


def _heeded(task: asyncio.Task[T]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
