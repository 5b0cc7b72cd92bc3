"""The native loop has no twin of its own; what it decides is held to the state machine's, life by life.

Its ticks are triggered and its probes' outcomes handed to it, so that time and sockets play no part.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from engine._fast.probing import _state_py as twin
from engine._fast.probing._loop_c import ProbeLoop

LIBRARY, DUE, ENDED = 4, 8, 4
HOUR = 3600.0


@pytest.fixture(scope="module")
def loop() -> Iterator[ProbeLoop]:
    loop = ProbeLoop()
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.stop()
    thread.join()
    loop.close()


class Probe:
    """Hold one probe of the loop, whose attempts a test starts and finishes."""

    def __init__(self, loop: ProbeLoop, **rules: Any) -> None:
        self.loop = loop
        self.key = loop.add(kind=LIBRARY, period=HOUR, timeout=1.0, first_in=HOUR, **rules)
        self.generation = 0

    def tick(self, seen: twin.ProbeObservation, initial: int) -> None:
        self.loop.observe(self.key, seen, initial=initial)
        self.loop.trigger(self.key)
        self._until(lambda: self.info["ended"] or self.info["next"] > HOUR / 2)

    def due(self) -> None:
        """Wait until the loop asks for an attempt."""
        self._until(self._heard)

    def finish(self, outcome: int) -> None:
        assert self.loop.finish(self.key, self.generation, outcome)

    @property
    def info(self) -> Any:
        return self.loop.info(self.key)

    def _heard(self) -> bool:
        for key, generation, news, *_ in self.loop.drain():
            if key == self.key and news & DUE:
                self.generation = generation
                return True
        return False

    def _until(self, condition: Any) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0)


def test_a_start_in_the_future_delays_no_probe(loop: ProbeLoop) -> None:
    """As of a container that started before the wall clock was set back by an hour."""
    probe = Probe(
        loop,
        type=twin.LIVENESS,
        failure_threshold=1,
        success_threshold=1,
        never_restarts=False,
        initial_delay=0.0,
    )
    future = int(time.time() * 1000) + 3_600_000
    probe.tick(
        twin.ProbeObservation(container=1, state=twin.RUNNING, started=True, started_at_ms=future),
        twin.SUCCESS,
    )
    probe.due()
    loop.remove(probe.key)


@pytest.mark.parametrize("seed", range(40))
def test_a_life(loop: ProbeLoop, seed: int) -> None:
    chance = random.Random(seed)
    delay_ms = chance.choice([0, 3_600_000])
    before = twin.ProbeObservation()
    rules = {
        "type": seed % 3,
        "failure_threshold": chance.randint(1, 3),
        "success_threshold": chance.randint(1, 3),
        "never_restarts": chance.random() < 0.3,
    }
    probe = Probe(loop, initial_delay=delay_ms / 1000, **rules)
    rule = twin.ProbeState(rules.pop("type"), initial_delay_ms=delay_ms, **rules)
    for _ in range(25):
        seen = twin.ProbeObservation(
            phase_terminal=chance.random() < 0.02,
            container=chance.choice([1, 1, 1, 1, 2, 3, 0]),
            state=chance.choice([twin.RUNNING] * 6 + [twin.WAITING, twin.TERMINATED]),
            started=chance.random() < 0.6,
            started_at_ms=chance.choice([0, 0, 0, int(time.time() * 1000)]),
            deleted=chance.random() < 0.05,
        )
        if before.state == twin.RUNNING and before.container == seen.container:
            seen = seen._replace(started_at_ms=before.started_at_ms)
        before = seen
        initial = chance.choice([0, 0, 0, twin.SUCCESS])
        action, _ = rule.tick(seen, int(time.time() * 1000), initial=initial)
        probe.tick(seen, initial)
        verdict = twin.RETRY if action == twin.PROBE else twin.COUNTED
        while verdict == twin.RETRY:
            outcome = chance.choice([0, 0, 1, 1, 2, 3, 4])
            verdict, _ = rule.finish(outcome)
            probe.due()
            probe.finish(outcome)
        info = probe.info
        assert not info["running"]
        assert info["ended"] == (action == twin.END)
        for name in ("container", "published", "on_hold", "last", "run"):
            assert info[name] == getattr(rule, name), name
        if info["ended"]:
            break
    loop.remove(probe.key)
