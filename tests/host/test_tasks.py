"""A background task that fails is seen, counted, started again, and in trouble until it works."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.api.duration import RetryDelays
from engine.host import tasks as tasks_module
from engine.host.tasks import BackgroundTask, Completion, Tasks
from engine.metrics import Registry
from tests.turns import take_turns


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "PAUSES", RetryDelays(0.0, 0.0))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_it_runs_until_it_is_stopped():
    steps = []

    async def work() -> None:
        try:
            steps.append("begun")
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    tasks = Tasks()
    task = tasks.task("worker")
    await task.stop()
    assert tasks.health() == []
    task.start(work)
    await take_turns(20)
    assert steps == ["begun"]
    assert tasks.health() == [("worker", None)]
    await task.stop()
    await task.stop()
    assert steps == ["begun", "ended"]
    assert tasks.health() == []


class Faulty:
    """Work whose every step raises what is next, until nothing is."""

    def __init__(self, task: BackgroundTask, *failures: BaseException) -> None:
        self.task, self.failures, self.runs = task, list(failures), 0

    async def __call__(self) -> None:
        self.runs += 1
        with self.task.step(1.0):
            if self.failures:
                raise self.failures.pop(0)
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "failure",
    [ValueError("broken"), RecursionError("deep"), MemoryError(), asyncio.CancelledError(), TimeoutError()],
    ids=lambda failure: type(failure).__name__,
)
async def test_whatever_it_raises_it_is_started_again(failure: BaseException):
    tasks = Tasks(Registry())
    task = tasks.task("worker")
    work = Faulty(task, failure)
    task.start(work)
    await take_turns(20)
    assert work.runs == 2
    assert tasks.failures.values == {("worker",): 1}
    assert task.trouble() is None
    await task.stop()


async def test_a_repeated_failure_is_logged_once_and_named_by_health(
    caplog: pytest.LogCaptureFixture,
):
    tasks = Tasks()
    task = tasks.task("worker")
    go = asyncio.Event()

    async def work() -> None:
        if not go.is_set():
            raise ValueError("broken")
        with task.step(1.0):
            pass
        await asyncio.Event().wait()

    with caplog.at_level(logging.INFO):
        task.start(work)
        await take_turns(50)
        assert tasks.health() == [("worker", "ValueError: broken")]
        assert [r.message for r in caplog.records] == ["worker failed and will be retried"]
        assert "broken" in caplog.text
        go.set()
        await take_turns(20)
    assert tasks.health() == [("worker", None)]
    assert caplog.records[-1].message == "worker works again"
    await task.stop()


async def test_one_that_waits_is_well_and_one_that_stays_in_a_step_is_stuck():
    clock = Clock()
    tasks = Tasks(monotonic=clock)
    task = tasks.task("worker")
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        with task.step(10.0):
            await done.wait()
        await asyncio.Event().wait()

    task.start(work)
    await take_turns(20)
    clock.now = 1e6
    assert task.trouble() is None
    go.set()
    await take_turns(20)
    clock.now += 10.0
    assert task.trouble() is None
    clock.now += 5.0
    assert task.trouble() == "stuck: its step should have ended 5 s ago"
    done.set()
    await take_turns(20)
    assert task.trouble() is None
    await task.stop()


async def test_work_that_returns_is_done_and_well():
    async def work() -> None:
        pass

    task = Tasks().task("worker")
    task.start(work)
    await take_turns(20)
    assert task.trouble() is None
    await task.stop()


async def test_a_cancelled_task_is_unhealthy():
    async def work() -> None:
        await asyncio.Event().wait()

    task = Tasks().task("worker")
    task.start(work)
    await take_turns(20)
    running = next(each for each in asyncio.all_tasks() if each.get_name() == "worker")
    running.cancel()
    await take_turns(20)
    assert task.trouble() == "ended"
    await task.stop()


async def test_transient_tasks_are_awaited_cancelled_and_their_failures_reported(
    caplog: pytest.LogCaptureFixture,
):
    registry = Registry()
    passing = Tasks(registry).passing("errand")
    done = []

    async def work(outcome: str) -> None:
        if outcome == "fails":
            raise ValueError("no such door")
        if outcome == "waits":
            await asyncio.Event().wait()
        done.append(outcome)

    failing = passing.start(work("fails"), "first")
    passing.start(work("ends"), "second")
    await passing.wait()
    assert done == ["ends"]
    assert failing.exception() is None
    assert registry.counter("kubengine_task_failures_total", "", ["task"]).values == {("errand",): 1}
    assert "errand first failed" in caplog.text
    assert "no such door" in caplog.text
    waiting = passing.start(work("waits"))
    await take_turns(20)
    await passing.stop()
    assert waiting.cancelled()
    early = passing.start(work("waits"))
    await passing.stop()
    assert early.cancelled()


async def test_a_completion_ends_every_wait_once():
    completion = Completion()
    early = [asyncio.create_task(completion.wait()) for _ in range(2)]
    await take_turns(20)
    early[0].cancel()
    await take_turns(20)
    assert early[0].cancelled()
    assert not early[1].done()
    completion.set()
    completion.set()
    await asyncio.wait_for(early[1], 1)
    await asyncio.wait_for(completion.wait(), 1)
