"""Stopping what has many parts: a part that fails to stop leaves no other running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from engine.api.errors import KubengineError, Refused

log = logging.getLogger("kubengine.stopping")

Stop = Callable[[], Awaitable[None]]


async def stop_all(stops: Iterable[Stop]) -> None:
    """Call each in order, whatever the ones before raised or whoever cancels, and raise at the end.

    One failure is raised as it is, several are said together in a `Refused`; a cancellation wins.
    """
    failures: list[Exception] = []
    cancelled: asyncio.CancelledError | None = None
    for stop in stops:
        try:
            await stop()
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:
            failures.append(error)
    if cancelled is not None or len(failures) > 1:
        for failure in failures:
            log.error("%s", _said(failure), exc_info=None if _expected(failure) else failure)
    if cancelled is not None:
        raise cancelled
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise Refused("; ".join(map(_said, failures))) from failures[0]


def _expected(failure: Exception) -> bool:
    return isinstance(failure, KubengineError)


def _said(failure: Exception) -> str:
    return str(failure) if _expected(failure) else f"{type(failure).__name__}: {failure}"
