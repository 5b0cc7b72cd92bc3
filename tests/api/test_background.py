"""Background tasks end when told, and a failure is said at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.api.background import BackgroundTask


async def test_it_runs_until_it_is_stopped():
    steps = []

    async def work() -> None:
        try:
            steps.append("begun")
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    task = BackgroundTask("worker")
    await task.stop()
    task.start(work())
    await asyncio.sleep(0)
    assert steps == ["begun"]
    await task.stop()
    await task.stop()
    assert steps == ["begun", "ended"]


async def test_one_that_fails_says_so_when_it_happens(caplog: pytest.LogCaptureFixture):
    async def work() -> None:
        raise ValueError("broken")

    task = BackgroundTask("worker")
    with caplog.at_level(logging.ERROR):
        task.start(work())
        for _turn_of_the_loop in range(3):
            await asyncio.sleep(0)
    assert "worker ended" in caplog.text
    assert "broken" in caplog.text
    await task.stop()
