"""Runs blocking work in threads that do not stop the event loop when memory runs out.

`threading.Thread.start` waits until the new thread reports that it runs. A thread that finds no memory for
its first step ends without that report, and the caller waits forever (seen with CPython 3.11). So the threads
of `asyncio.to_thread` start with the agent, and the agent does not wait for a thread that it starts later.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

START_SECONDS = 10.0
"""Time in which a thread of its own must start; a busy machine needs milliseconds."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def started_pool(size: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run; `ThreadPoolExecutor` starts each when there is work for it."""
    pool = ThreadPoolExecutor(size, name)
    everyone = threading.Barrier(size + 1)
    for _ in range(size):
        pool.submit(everyone.wait)
    everyone.wait()
    return pool


def start_shared_threads() -> None:
    """Start the threads of `asyncio.to_thread`, as many as asyncio itself would start at most."""
    size = min(32, (os.cpu_count() or 1) + 4)
    asyncio.get_running_loop().set_default_executor(started_pool(size, "shared"))


async def to_own_thread(
    work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Do as `asyncio.to_thread` does, in a thread that no other work waits for.

    The threads of `asyncio.to_thread` are few, and all of the agent's file operations share them. Work that
    may never return, on files of a server that is gone, or that takes hours, would stop the whole node.
    Raises `MemoryError` if the thread does not start.
    """
    run = partial(copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_OWN_THREADS, run)


def in_own_thread(
    work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> Future[_Result]:
    """Begin work in a new thread: a daemon, so that the agent can end while the work does not."""
    future: Future[_Result] = Future()

    def run() -> None:
        if future.done() or not future.set_running_or_notify_cancel():
            return
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    _thread.start_new_thread(run, ())
    return future


class _OwnThreads(Executor):
    """Start a thread for each call, and check that it runs."""

    def submit(
        self, work: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        future = in_own_thread(work, *args, **kwargs)
        asyncio.get_running_loop().call_later(START_SECONDS, _check_started, future)
        return future


_OWN_THREADS = _OwnThreads()


def _check_started(future: Future[_Result]) -> None:
    if not future.running() and not future.done():
        future.set_exception(MemoryError("a thread did not start"))
