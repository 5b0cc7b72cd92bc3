"""Runs background tasks under one policy, so that none dies unnoticed.

A failed task is started again after a pause that doubles; its failure is counted, and logged once while it
stays the same. `Tasks.failing` names each task that has failed and not worked since, and each that is in a
step for longer than the step's deadline. A task that waits for work is healthy, so nothing needs a heartbeat
while nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError
from engine.metrics import Registry

PAUSES = RetryDelays(0.1, 30.0)
PATIENCE = 1.0
COALESCE_SECONDS = 0.05
"""Seconds for which a change that nobody waits for may wait for others."""

log = logging.getLogger("kubengine.tasks")

Work = Callable[[], Coroutine[Any, Any, None]]


class Completion:
    """Tell any number of waiters that something has happened, which it does once.

    It holds a future only while somebody waits: an event of asyncio takes 760 bytes, which count if each pod
    has some.
    """

    __slots__ = ("_future", "done")

    def __init__(self) -> None:
        self.done = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        """End all waits, now and later; a second call changes nothing."""
        self.done = True
        future, self._future = self._future, None
        if future is not None:
            future.set_result(None)

    async def wait(self) -> None:
        """Return when it has happened."""
        await self.future()

    def future(self) -> asyncio.Future[None]:
        """Return a future of the caller's own, which ends when it has happened."""
        future = self._future
        if future is None:
            future = asyncio.get_running_loop().create_future()
            if self.done:
                future.set_result(None)
            else:
                self._future = future
        # A caller that gives up must not cancel the wait of the others.
        return asyncio.shield(future)


class Tasks:
    """Run the background tasks of one agent. `monotonic` returns seconds."""

    def __init__(
        self, registry: Registry | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monotonic = monotonic
        self.failures = (registry or Registry()).counter(
            "kubengine_task_failures_total", "Failures of background tasks, each restarted.", ["task"]
        )
        self._tasks: dict[str, BackgroundTask] = {}

    def task(self, name: str) -> BackgroundTask:
        """Create a task; it replaces an earlier one of the same name."""
        task = self._tasks[name] = BackgroundTask(name, self)
        return task

    def passing(self, name: str) -> TransientTasks:
        """Create a group of short-lived tasks of one kind."""
        return TransientTasks(name, self)

    def health(self) -> list[tuple[str, str | None]]:
        """Return each running task with its problem, or None if it is healthy."""
        return [(name, task.trouble()) for name, task in self._tasks.items() if task.wanted]


class TransientTasks:
    """Run short-lived tasks of one kind; log and count their failures."""

    def __init__(self, kind: str, tasks: Tasks) -> None:
        self._kind = kind
        self._failures = tasks.failures
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        """Start work that is not repeated if it fails; `name` distinguishes it from others of its kind."""
        task = asyncio.create_task(self._run(work, name), name=f"{self._kind} {name}".rstrip())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before it began
        return task

    def start_retrying(self, work: Work, name: str = "") -> asyncio.Task[None]:
        """Start work that is repeated after a failure, with a pause that doubles."""
        return self.start(self._retry_until_done(work, name), name)

    async def wait(self) -> None:
        """Return when all started tasks have ended."""
        while self._running:
            await asyncio.wait(self._running)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their ends."""
        for task in self._running:
            task.cancel()
        await self.wait()

    async def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        await self._run_once(work, name)

    async def _retry_until_done(self, work: Work, name: str) -> None:
        for pause in PAUSES:
            if await self._run_once(work(), name):
                return
            await asyncio.sleep(pause)

    async def _run_once(self, work: Coroutine[Any, Any, None], name: str) -> bool:
        """Run the work to its end; return whether it succeeded."""
        try:
            await work
        except Exception as error:
            self._failures.inc(self._kind)
            log.error("%s %s failed", self._kind, name, exc_info=error)
            return False
        return True


class RetryTimer:
    """Call `again` after a delay. There is one timer at most: each one that fires may lead to another."""

    def __init__(self, seconds: float, again: Callable[[], None]) -> None:
        self._seconds, self._again = seconds, again
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, unless it runs."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def cancel(self) -> None:
        """Stop the timer, if it runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._again()


class BackgroundTask:
    """Run `work` from `start` to `stop`, again if it fails; work that returns is done.

    `step` marks a piece of work. Its end shows that the task is healthy again after a failure.
    """

    __slots__ = ("_deadline", "_done", "_failure", "_fresh", "_name", "_task", "_tasks", "wanted")

    def __init__(self, name: str, tasks: Tasks) -> None:
        self._name = name
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._failure = ""
        self._fresh = True
        self._done = False
        self._deadline = float("inf")
        self.wanted = False

    def start(self, work: Work) -> None:
        self._failure, self._done, self.wanted = "", False, True
        self._task = asyncio.create_task(self._keep_running(work), name=self._name)

    async def stop(self) -> None:
        """Cancel the task and wait for its end; may be called twice, and before `start`."""
        task, self._task = self._task, None
        self.wanted = False
        while task is not None and not task.done():
            task.cancel()  # cancel again, because the work may have swallowed a cancellation
            await asyncio.wait({task}, timeout=PATIENCE)

    @contextmanager
    def step(self, seconds: float) -> Iterator[None]:
        """Mark a piece of work with a deadline. It is not interrupted, but reported as stuck."""
        self._deadline = self._tasks.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = float("inf")
        self.works()

    def works(self) -> None:
        """Note that the task has done its work."""
        self._fresh = True
        if self._failure:
            self._failure = ""
            log.info("%s works again", self._name)

    def failed(self, error: BaseException) -> None:
        """Log and count a failure that the work survives; the task counts as failing until it `works`."""
        self._tasks.failures.inc(self._name)
        failure = f"{type(error).__name__}: {error}"
        if failure != self._failure:
            self._failure = failure
            log.error("%s failed and will be retried", self._name, exc_info=error)

    def trouble(self) -> str | None:
        """Describe the task's problem."""
        if self._task is not None and self._task.done() and not self._done:
            return "ended"
        if self._failure:
            return self._failure
        late = self._tasks.monotonic() - self._deadline
        return f"stuck: its step should have ended {late:.0f} s ago" if late > 0 else None

    async def _keep_running(self, work: Work) -> None:
        failures = 0
        while True:
            self._fresh = False
            try:
                await work()
                self._done = True
                return
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                # A cancellation that nobody requested of this task came from inside of the work (a future
                # that somebody else cancelled): it is a failure like any other.
                if task is None or task.cancelling():
                    raise
                self.failed(error)
            except Exception as error:
                self.failed(error)
            # Work that did something useful before it failed begins with the shortest pause again.
            failures = 1 if self._fresh else failures + 1
            await asyncio.sleep(PAUSES.after(failures))


class WriteSchedule:
    """Decide when a background writer writes.

    A write that somebody waits for is due at once; another one may wait `COALESCE_SECONDS` for more changes.
    """

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()

    def want(self) -> None:
        """Ask for a write that nobody waits for."""
        self._wanted.set()

    def hurry(self) -> None:
        """Ask for a write that somebody waits for."""
        self._hurry.set()
        self._wanted.set()

    async def due(self) -> None:
        """Return when a write is due, and begin with the next one."""
        await self._wanted.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(COALESCE_SECONDS):
                await self._hurry.wait()
        # Before the write, so that what is asked for during it becomes another write.
        self._wanted.clear()
        self._hurry.clear()


def resolve(waiter: asyncio.Future[None], failure: KubengineError | None) -> None:
    """End the wait of a caller, unless it was cancelled."""
    # A caller that was cancelled meanwhile has a future that cannot take a result.
    if waiter.done():
        return
    if failure is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(failure)
