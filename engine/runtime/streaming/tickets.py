"""Issue one-time tickets, which map a URL of the streaming server to its purpose for a limited time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.runtime.objects.failures import Exhausted

T = TypeVar("T")


class Tickets(Generic[T]):
    """Hold at most `limit` unused tickets, each valid once and for `lifetime` seconds by `clock`."""

    def __init__(self, clock: Callable[[], float], *, lifetime: float = 60.0, limit: int = 1000) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._limit = limit
        self._open: dict[str, tuple[float, T]] = {}

    def issue(self, purpose: T) -> str:
        """Issue a ticket. Raise Exhausted if too many are unused."""
        now = self._clock()
        self._open = {token: ticket for token, ticket in self._open.items() if ticket[0] > now}
        if len(self._open) >= self._limit:
            raise Exhausted(f"{self._limit} requests wait for their clients", subject="streaming server")
        token = secrets.token_urlsafe(16)
        self._open[token] = (now + self._lifetime, purpose)
        return token

    def redeem(self, token: str) -> T | None:
        """Return the ticket's purpose; None if it is unknown, used or too old."""
        until, purpose = self._open.pop(token, (0.0, None))
        return purpose if until > self._clock() else None
