"""Run an event loop in a thread of its own, for tests and programs that are not asynchronous."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

SECONDS = 60.0


class LoopThread:
    """Run coroutines and callbacks of asynchronous objects from a different thread.

    A context manager. `call` and the methods of a `Synchronous` object run in the loop's thread, so the
    objects need no locks.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kubengine-test-loop", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self._cancel_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def call(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = SECONDS, **named: Any
    ) -> Any:
        """Call `function` in the loop's thread, await its result if it is awaitable, and return that.

        Raise what the function raises, and `TimeoutError` after `timeout` seconds.
        """

        async def run() -> Any:
            async with asyncio.timeout(timeout):
                result = function(*arguments, **named)
                return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class Synchronous:
    """Offer the attributes of an asynchronous object; every method runs in the loop's thread, and returns
    when it is done, without `await`.
    """

    def __init__(self, thread: LoopThread, target: Any) -> None:
        self._thread, self._target = thread, target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return value
        return lambda *arguments, **named: self._thread.call(value, *arguments, **named)

    def __dir__(self) -> list[str]:
        return dir(self._target)
