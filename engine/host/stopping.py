"""Stops many parts; a part that fails to stop does not keep others running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from engine.api.errors import KubengineError, Refused

log = logging.getLogger("kubengine.stopping")

Stop = Callable[[], Awaitable[None]]


async def stop_all(stops: Iterable[Stop]) -> None:
    """Call each in order, whether or not earlier ones raised or somebody cancels; raise at the end.

    One failure is raised as it is, several are combined in a `Refused`; a cancellation takes precedence.
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
            log.error("%s", _text(failure), exc_info=None if _expected(failure) else failure)
    if cancelled is not None:
        raise cancelled
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise Refused("; ".join(map(_text, failures))) from failures[0]


def _expected(failure: Exception) -> bool:
    return isinstance(failure, KubengineError)


def _text(failure: Exception) -> str:
    return str(failure) if _expected(failure) else f"{type(failure).__name__}: {failure}"
