"""Restarts under another longest delay: runs last as long as they did, and the pauses between them change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.api.config import CrashLoopBackOffConfig, KubeletConfiguration
from engine.api.duration import Duration
from engine.plan.replay.restarts import RestartReplay
from engine.record.blocks import RecordRow

RUN = 5.0
DELAYS = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)


def at_most(seconds: float) -> KubeletConfiguration:
    period = CrashLoopBackOffConfig(max_container_restart_period=Duration(seconds))
    return KubeletConfiguration(crash_loop_back_off=period)


def measured(name: str, *times: float) -> RecordRow:
    values = [round(time * 1e6) for time in times]
    return RecordRow(time=times[-1], stream="restart", name=name, text="c", pod="d/p", uid="u", values=values)


def decided(at: float) -> RecordRow:
    return RecordRow(time=at, stream="decision", name="restart restarted", pod="d/p", uid="u", container="c")


def failing() -> list[RecordRow]:
    """Return the rows of a container that runs for five seconds each time, from 1000 s on."""
    rows, ended = [], 1000.0
    for delay in DELAYS:
        rows += (measured("ended", ended), measured("attempt", ended, ended + delay), decided(ended + delay))
        ended += delay + RUN
    return [*rows, measured("ended", ended)]


def played(
    rows: Sequence[RecordRow], following: KubeletConfiguration | None, until: float, left: float = 0.0
) -> list[float]:
    replay = RestartReplay(following)
    replay.configure(KubeletConfiguration(), 0.0, {})
    for row in rows:
        if left and row.time > left:
            replay.leave("u", left)
        (replay.measure if row.stream == "restart" else replay.restarted)(row)
    return [round(one.at - 1000.0, 3) for one in replay.decisions(until)]


RECORDED = [0.0, 15.0, 40.0, 85.0, 170.0, 335.0, 640.0]


def test_its_own_configuration_gives_the_recorded_times() -> None:
    assert played(failing(), None, 1700.0) == RECORDED
    assert played(failing(), at_most(300), 1700.0) == RECORDED


def test_a_shorter_delay_gives_more_restarts_after_runs_as_long_as_the_last() -> None:
    times = played(failing(), at_most(20), 1200.0)
    assert times == [0.0, 15.0, *(40.0 + 25.0 * number for number in range(7))]


def test_a_longer_delay_gives_fewer() -> None:
    assert played(failing(), at_most(320), 1700.0) == [*RECORDED[:-1], 335.0 + RUN + 320.0]
    assert played(failing(), at_most(320), 1650.0) == RECORDED[:-1]


def test_a_pod_that_ends_earlier_restarts_no_more_from_then_on() -> None:
    assert played(failing(), at_most(20), 1700.0, left=1050.0) == [0.0, 15.0, 40.0]


@pytest.mark.parametrize(("until", "goes_on"), [(1640.0 + RUN - 1, True), (1700.0, False)])
def test_a_container_that_runs_at_the_end_goes_on_failing_only_after_a_short_run(
    until: float, goes_on: bool
) -> None:
    running = failing()[:-1]
    times = played(running, at_most(20), until)
    assert (len(times) > len(RECORDED)) == goes_on


def test_a_restart_that_came_too_early_waits() -> None:
    rows = [measured("ended", 1.0), measured("attempt", 1.0, 1.0), decided(1.0)]
    rows += [measured("ended", 2.0), measured("attempt", 2.0, 3.0), decided(3.0)]
    replay = RestartReplay(None)
    replay.configure(KubeletConfiguration(), 0.0, {})
    for row in rows:
        (replay.measure if row.stream == "restart" else replay.restarted)(row)
    assert [one.outcome for one in replay.decisions(10.0)] == ["restarted, back-off 10 s", "waits 9 s"]
