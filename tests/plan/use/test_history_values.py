"""Recorded use from a real Prometheus: the values of containers, nodes and their slices."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api.errors import InvalidInput, Refused
from engine.plan import FaultLog
from tests.plan.use.made_up_use import HOURS, MI, SCRAPED, STEP, TIMES, collected, needs_prometheus, read


@needs_prometheus
def test_use_is_read_from_a_real_server(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    memory, cpu = read(history, "shop/plain-0", "memory"), read(history, "shop/plain-0", "cpu")
    assert len(memory) == HOURS * 12
    # The largest value of the five minutes up to the moment: the one that was scraped at the moment.
    scraped = {at: 100 * MI + number * 1024 for number, at in enumerate(SCRAPED)}
    expected = [scraped[TIMES.start + number * STEP] for number in range(TIMES.count)]
    np.testing.assert_allclose(memory, expected, rtol=3e-4)
    np.testing.assert_allclose(cpu, 250_000, rtol=1e-3)
    # Sandboxes and slices are no containers and no nodes.
    assert {row["container"] for row in history.index.to_pylist()} == {"", "app"}
    node = [row for row in history.index.to_pylist() if row["measure"] == "node-memory"]
    assert [row["node"] for row in node] == ["n1"]
    ooms = read(history, "shop/plain-0", "ooms")
    assert (ooms > 0).sum() == 1


@needs_prometheus
def test_the_slices_of_a_node_are_read_apart(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    for measure, amount in (("system-memory", MI), ("pods-memory", 2 * MI), ("node-memory", 4096 * MI)):
        (row,) = history.rows(measure)
        assert np.nanmax(history.values(np.array([row]))) == pytest.approx(amount, rel=0.001)
    # No CPU of slices was scraped, which is no fault: reserve says so.
    assert not [fault for fault in faults.kept if fault.field in ("pods-cpu", "system-cpu")]


@needs_prometheus
def test_matchers_select_and_a_selection_of_nothing_says_so(server: str) -> None:
    history = collected(server, FaultLog(), matchers='pod="plain-0"')
    assert {row["pod"] for row in history.index.to_pylist()} == {"plain-0"}
    with pytest.raises(InvalidInput, match=r"has no series of container_memory.* that match"):
        collected(server, FaultLog(), matchers='pod="nobody"')
    with pytest.raises(Refused, match="parse error"):
        collected(server, FaultLog(), matchers='pod="')
