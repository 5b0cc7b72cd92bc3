"""Limits concurrent requests, and reserves a slot for health checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.host.connection_limiter import ConnectionLimiter, ConnectionSlot
from engine.server.http.exchange import Answer, Request, Response

MAX_AT_WORK = 64


async def in_turn(
    limiter: ConnectionLimiter,
    slot: ConnectionSlot,
    request: Request,
    answer: Callable[[Request], Awaitable[Answer]],
    refusal: Callable[[int, str], Response],
) -> Answer:
    """Return the result of `answer`, or `refusal` beyond the limit."""
    slot.work()
    if limiter.at_work > MAX_AT_WORK and not request.asks_health:
        return refusal(503, f"{MAX_AT_WORK} requests are being processed; try again")
    return await answer(request)
