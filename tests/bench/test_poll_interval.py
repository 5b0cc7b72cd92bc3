"""How often the bench polls an agent's pods while they start."""

from __future__ import annotations

from itertools import takewhile

import pytest

from engine.bench.phases import POLL_SECONDS, seconds_to_next_poll


@pytest.mark.parametrize("seconds", [1.0, 12.0, 120.0])
@pytest.mark.parametrize("pods", [60, 2500])
def test_a_steady_start_is_polled_rarely_and_its_end_is_not_missed(seconds: float, pods: int) -> None:
    looks = [0.0]
    while looks[-1] < seconds:
        good = int(pods * looks[-1] / seconds)
        looks.append(looks[-1] + seconds_to_next_poll(looks[-1], good, pods))
    assert len(looks) < 30
    assert looks[-1] - seconds <= POLL_SECONDS + seconds / pods


def test_polling_becomes_rarer_while_no_pod_is_ready() -> None:
    looks = list(takewhile(lambda wait: wait < 30, (seconds_to_next_poll(1.5**n, 0, 60) for n in range(20))))
    assert looks == sorted(looks)
    assert looks[-1] > 10


def test_polling_continues_while_the_last_pods_lag() -> None:
    assert seconds_to_next_poll(10.0, 59, 60) == POLL_SECONDS
    assert seconds_to_next_poll(10.0, 60, 60) == POLL_SECONDS
