"""Reading recorded use in pieces: the limits of a server, and those of the planner itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.api.errors import InvalidInput
from engine.plan import FaultLog
from engine.plan.history import collect
from engine.plan.history.collect import ReadingBudget
from tests.plan.use.fake_prometheus import fake
from tests.plan.use.made_up_use import END, collected, needs_prometheus, read
from tests.plan.use.recorded import Recording, prometheus


@needs_prometheus
def test_pieces_give_what_one_query_gives(server: str) -> None:
    whole = collected(server, FaultLog())
    pieces = collected(server, FaultLog(), budget=ReadingBudget(samples=5))
    assert whole.index.equals(pieces.index)
    rows = np.arange(len(whole))
    assert np.array_equal(whole.codes(rows), pieces.codes(rows))


@needs_prometheus
def test_a_server_that_allows_few_samples_is_asked_for_less(
    recording: Recording, server: str, tmp_path: Path
) -> None:
    with prometheus(tmp_path, recording, "--query.max-samples=200") as strict:
        faults = FaultLog()
        history = collected(strict, faults)
        whole = collected(server, FaultLog())
    assert np.array_equal(history.codes(np.arange(len(history))), whole.codes(np.arange(len(whole))))
    assert "a piece is left out" not in faults.counts


@needs_prometheus
def test_when_the_time_is_up_the_newest_values_are_there(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "TURN", 3600)
    moments = iter(range(1000))
    faults = FaultLog()
    budget = ReadingBudget(samples=48, seconds=12.0)
    history = collected(server, faults, budget=budget, clock=lambda: float(next(moments)))
    memory = read(history, "shop/plain-0", "memory")
    assert not np.isnan(memory[-1])
    assert np.isnan(memory[0])
    assert not np.isnan(read(history, "shop/plain-0", "cpu")[-1])
    assert any("memory" in str(fault) and "the time was up" in str(fault) for fault in faults.kept)
    assert history.meta["incomplete"]["memory"] > 0


def test_more_series_than_allowed_are_refused_before_they_are_read() -> None:
    body = json.dumps(
        {
            "status": "success",
            "data": {"resultType": "vector", "result": [{"metric": {}, "value": [END, "900"]}]},
        }
    ).encode()
    with (
        fake(lambda path, headers: (200, {}, body)) as address,
        pytest.raises(InvalidInput, match="900 series of container_memory"),
    ):
        collected(address, FaultLog(), budget=ReadingBudget(series=100))
