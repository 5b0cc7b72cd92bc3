"""What is missing or odd in recorded use is a fault of its series, and the rest is kept."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api.errors import InvalidInput
from engine.plan import FaultLog
from engine.plan.history.collect import Collector, aligned
from engine.plan.history.prometheus import Prometheus, ServerAccess
from tests.plan.use.fake_prometheus import fake, one_container, result
from tests.plan.use.made_up_use import END, HOURS, MI, STEP, TIMES, collected, needs_prometheus, read


@needs_prometheus
def test_a_server_without_the_older_values_is_reported(server: str) -> None:
    faults, times = FaultLog(), aligned(END, 2 * HOURS / 24, STEP)
    Collector(Prometheus(ServerAccess(server), timeout=60), times, faults).collect()
    late = [str(fault) for fault in faults.kept if "late" in str(fault)]
    assert {line.split(": ")[1] for line in late} >= {"memory", "cpu"}
    assert "memory: begins 71 of 144 moments late, at" in late[0]
    faults = FaultLog()
    collected(server, faults)
    assert not [fault for fault in faults.kept if "late" in str(fault)]


@needs_prometheus
def test_gaps_and_copies_are_reported_for_their_container_only(server: str) -> None:
    faults = FaultLog()
    history = collected(server, faults)
    said = [str(fault) for fault in faults.kept]
    gap = [line for line in said if "gaps" in line]
    assert {line.split(": ")[1] for line in gap} == {"container shop/gap-0/app"}
    assert "of 72 moments" in gap[0]
    copies = [line for line in said if "series at once" in line]
    assert {line.split(": ")[1] for line in copies} == {"container shop/twice-0/app"}
    assert 'job="a"' in copies[0]
    assert 'job="b"' in copies[0]
    np.testing.assert_allclose(read(history, "shop/twice-0", "memory"), 20 * MI, rtol=3e-4)
    missing = np.isnan(read(history, "shop/gap-0", "memory"))
    assert 20 <= missing.sum() <= 24


def test_odd_values_and_a_far_clock_are_reported_and_the_rest_is_kept() -> None:
    values = [[TIMES.start, "5"], [TIMES.start + STEP, "NaN"], [TIMES.start + 2 * STEP, "+Inf"],
              [TIMES.start + 3 * STEP, "-1"], [TIMES.start + 4 * STEP, "1e6"]]  # fmt: skip
    with fake(lambda path, headers: (200, {}, one_container(values))) as address:
        faults = FaultLog()
        history = collected(address, faults)
    found = history.values(history.rows("memory"))[0]
    np.testing.assert_allclose(found[[0, 4]], [5, 1e6], rtol=3e-4)
    assert np.isnan(np.delete(found, [0, 4])).all()
    said = [str(fault) for fault in faults.kept]
    assert any("container a/b/c: memory: has values that are not amounts" in line for line in said)
    assert any("its clock is" in line and "behind" in line for line in said)
    # One answer serves all queries here; for those of nodes it names no node.
    assert any("names no pod or node" in line for line in said)


ODD_TIMES = [1e300, -1e300, 2**63, 0]


def test_odd_moments_are_left_out() -> None:
    values = [[at, "1"] for at in ODD_TIMES] + [[TIMES.start, "5"]]
    with fake(lambda path, headers: (200, {}, one_container(values))) as address:
        history = collected(address, FaultLog())
    found = history.values(history.rows("memory"))[0]
    assert found[0] == pytest.approx(5, rel=3e-4)
    assert np.isnan(found[1:]).all()


def test_a_series_without_its_container_is_a_fault() -> None:
    series = [{"metric": {"namespace": "a", "pod": "b"}, "values": [[TIMES.start, "5"]]}]
    faults = FaultLog()
    with (
        fake(lambda path, headers: (200, {}, result(series))) as address,
        pytest.raises(InvalidInput, match="has no series of"),
    ):
        collected(address, faults)
    assert any("names no pod or node" in str(fault) for fault in faults.kept)


@pytest.mark.parametrize("count", ["NaN", "+Inf", "-Inf", "-5"])
def test_a_count_of_series_that_is_no_amount_is_none(count: str) -> None:
    body = result([{"metric": {}, "value": [END, count]}])
    with fake(lambda path, headers: (200, {}, body)) as address:
        server = Prometheus(ServerAccess(address), timeout=10)
        assert server.number("up", END) == 0


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +9999999", "x"]
)
def test_an_odd_date_is_no_clock(date: str) -> None:
    server = Prometheus(ServerAccess("http://h"), timeout=10)
    server._note_clock(date)
    assert server.clock_offset == 0
