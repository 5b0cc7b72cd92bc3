"""Caches what an API server answered about tokens and users.

Concurrent identical questions share one answer. Answers are kept for as long as they say; failures are not
kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from engine.api.duration import RetryDelays
from engine.api.errors import Unavailable

KEPT = 4096
# Tries and delays are those of DefaultAuthWebhookRetryBackoff, which the kubelet uses.
TRIES = 5
RETRIES = RetryDelays(0.5, 10.0, factor=1.5)
DEADLINE = 20.0

T = TypeVar("T")


class AccessReviews(Generic[T]):
    """Cache at most `KEPT` answers, dropping the oldest; `monotonic` returns seconds."""

    def __init__(self, *, lifetime: Callable[[T], float], monotonic: Callable[[], float]) -> None:
        self._lifetime = lifetime
        self._monotonic = monotonic
        self._kept: dict[Hashable, tuple[float, T]] = {}
        self._asking: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the cached answer, or that of `ask`. Raises what `ask` raises in the end."""
        kept = self._kept.get(key)
        if kept is not None and self._monotonic() < kept[0]:
            return kept[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(_retrieve_exception)
        # A client that hangs up must not cancel the question for others that wait for the same answer.
        return await asyncio.shield(task)

    def stop(self) -> None:
        """Fail all pending questions."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await _tried_again(ask)
        finally:
            del self._asking[key]
        # Removed first, so that the renewed answer becomes the newest; the loop below drops the oldest.
        self._kept.pop(key, None)
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (self._monotonic() + self._lifetime(answer), answer)
        return answer


async def _tried_again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and repeat a few times within the deadline if the server is unreachable."""
    pauses = iter(RETRIES)
    try:
        async with asyncio.timeout(DEADLINE):
            for _ in range(TRIES - 1):
                try:
                    return await ask()
                except Unavailable:
                    await asyncio.sleep(next(pauses))
            return await ask()
    except TimeoutError:
        raise Unavailable(f"no review within {DEADLINE:g} s") from None


def _retrieve_exception(task: asyncio.Task[T]) -> None:
    """Retrieve an exception that nobody waits for any longer."""
    if not task.cancelled():
        task.exception()
