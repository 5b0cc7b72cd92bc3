"""Threads that find no memory for their first step stop neither the event loop nor other work."""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading

import pytest

from engine.host import threads
from engine.host.threads import in_own_thread, start_shared_threads, to_own_thread

WITHOUT_MEMORY = """
import asyncio, resource, threading
from engine.host.threads import start_shared_threads

async def main():
    START
    before = threading.active_count()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    # No thread gets a stack below the limit.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, unlimited[1]))
    try:
        found = await asyncio.gather(*(asyncio.to_thread(int, each) for each in range(4)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    print(found, threading.active_count() - before)

asyncio.run(main())
"""


def test_shared_work_needs_no_new_thread() -> None:
    text = WITHOUT_MEMORY.replace("START", "start_shared_threads()")
    assert subprocess.check_output([sys.executable, "-c", text], text=True, timeout=60) == "[0, 1, 2, 3] 0\n"


async def test_work_has_a_thread_of_its_own_and_its_context() -> None:
    release = threading.Event()
    blocked = [asyncio.create_task(to_own_thread(release.wait)) for _ in range(40)]
    assert await to_own_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await to_own_thread(divmod, 7, 0)
    release.set()
    assert all(await asyncio.gather(*blocked))


async def test_a_thread_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "START_SECONDS", 0.01)
    begun = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda run, _: begun.append(run))
    with pytest.raises(MemoryError, match="did not start"):
        await to_own_thread(begun.append, "worked")  # type: ignore[arg-type]
    # Should it start later, it does nothing.
    begun[0]()
    assert len(begun) == 1


async def test_work_that_takes_long_is_not_taken_for_a_thread_that_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "START_SECONDS", 0.01)
    release = threading.Event()
    future = in_own_thread(release.wait)
    waiting = asyncio.create_task(to_own_thread(release.wait))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    release.set()
    assert await waiting
    assert future.result(10)


async def test_the_shared_threads_replace_those_of_asyncio() -> None:
    start_shared_threads()
    named = await asyncio.to_thread(lambda: threading.current_thread().name)
    assert named.startswith("shared")
