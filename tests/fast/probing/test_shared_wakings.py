"""When the loop wakes for its probes. It does not run here: the tests read the times that it has armed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from engine._fast.probing._loop_c import ProbeLoop

TCP, EXEC = 0, 3


@pytest.fixture
def loop() -> Iterator[ProbeLoop]:
    loop = ProbeLoop()
    yield loop
    loop.close()


def wakings(loop: ProbeLoop, number: int, period: float, kind: int = TCP) -> set[int]:
    """Add `number` probes of random phase; return the milliseconds at which they will begin."""
    chance, found = random.Random(1), set()
    for _ in range(number):
        key = loop.add(
            type=0,
            kind=kind,
            period=period,
            timeout=1.0,
            failure_threshold=3,
            success_threshold=1,
            initial_delay=0.0,
            never_restarts=False,
            first_in=10 + chance.random() * period,
        )
        found.add(round((time.monotonic() + loop.info(key)["next"]) * 1000))
    return found


@pytest.mark.parametrize(
    ("number", "period", "grid"),
    [
        (64, 1.0, 200),
        (320, 1.0, 40),
        (10_000, 1.0, 20),
        (3_200, 10.0, 200),
        (6_400, 10.0, 100),
        (50, 1.5, 100),
    ],
)
def test_probes_begin_together_and_not_too_many(loop, number, period, grid):
    wakings(loop, number - 1, period)
    assert {waking % grid for waking in wakings(loop, 1, period)} == {0}
    assert any(waking % (2 * grid) for waking in wakings(loop, 30, period)) or grid == 200


@pytest.mark.parametrize(
    ("period", "kind", "grid"), [(0.5, TCP, 1), (1.003, TCP, 1), (1.0, EXEC, 20), (10.0, EXEC, 20)]
)
def test_probes_that_share_no_wakeup(loop, period, kind, grid):
    found = wakings(loop, 50, period, kind)
    assert {waking % grid for waking in found} == {0}
    assert any(waking % 40 for waking in found)
