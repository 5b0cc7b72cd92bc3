"""How often the bench looks at an agent's pods while they start."""

from __future__ import annotations

from itertools import takewhile

import pytest

from engine.bench.phases import LOOK_SECONDS, until_next_look


@pytest.mark.parametrize("seconds", [1.0, 12.0, 120.0])
@pytest.mark.parametrize("pods", [60, 2500])
def test_a_steady_start_is_polled_rarely_and_its_end_is_not_missed(seconds: float, pods: int) -> None:
    looks = [0.0]
    while looks[-1] < seconds:
        good = int(pods * looks[-1] / seconds)
        looks.append(looks[-1] + until_next_look(looks[-1], good, pods))
    assert len(looks) < 30
    assert looks[-1] - seconds <= LOOK_SECONDS + seconds / pods


def test_polling_becomes_rarer_while_no_pod_is_ready() -> None:
    looks = list(takewhile(lambda wait: wait < 30, (until_next_look(1.5**n, 0, 60) for n in range(20))))
    assert looks == sorted(looks)
    assert looks[-1] > 10


def test_polling_continues_while_the_last_pods_lag() -> None:
    assert until_next_look(10.0, 59, 60) == LOOK_SECONDS
    assert until_next_look(10.0, 60, 60) == LOOK_SECONDS
