"""Whatever a part raises when it is stopped, the others are stopped too and nothing goes unsaid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.api.errors import Refused
from engine.host.stopping import Stop, stop_all


def part(name: str, stopped: list[str], error: BaseException | None = None) -> Stop:
    async def stop() -> None:
        stopped.append(name)
        if error is not None:
            raise error

    return stop


async def test_all_stop_in_order() -> None:
    stopped: list[str] = []
    await stop_all(part(name, stopped) for name in "abc")
    assert stopped == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [OSError, ValueError, lambda text: Refused(text, subject="/a/file")])
async def test_a_single_failure_is_raised_unchanged(kind: Callable[[str], Exception]) -> None:
    stopped: list[str] = []
    error = kind("no room")
    with pytest.raises(type(error)) as raised:
        await stop_all([part("a", stopped, error), part("b", stopped)])
    assert raised.value is error
    assert stopped == ["a", "b"]


async def test_several_failures_are_reported_together() -> None:
    stopped: list[str] = []
    with pytest.raises(Refused) as raised:
        await stop_all(
            [
                part("a", stopped, Refused("no room", subject="/a/file")),
                part("b", stopped),
                part("c", stopped, KeyError("x")),
                part("d", stopped),
            ]
        )
    assert str(raised.value) == "/a/file: no room; KeyError: 'x'"
    assert stopped == ["a", "b", "c", "d"]


async def test_a_cancellation_stops_the_rest_and_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[str] = []
    begun = asyncio.Event()

    async def slow() -> None:
        stopped.append("slow")
        begun.set()
        await asyncio.Event().wait()

    async def stop() -> None:
        await stop_all([part("a", stopped, Refused("no room", subject="/a/file")), slow, part("b", stopped)])

    task = asyncio.create_task(stop())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped == ["a", "slow", "b"]
    assert "/a/file: no room" in caplog.text
