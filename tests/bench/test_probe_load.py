"""Kinds and rates of probes in the probing phase."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.api.errors import InvalidInput
from engine.bench.phases import cost_of_probes
from engine.bench.probe_load import ProbeLoad


def test_without_a_rate_each_pod_has_two_probes_a_second() -> None:
    load = ProbeLoad.parse("http,tcp", None)
    assert load.kinds(3) == [["http", "tcp"]] * 3
    assert load.period(3) == 1
    assert load.rate(60, "http") == 60


def test_the_mix_is_kept_by_every_run_of_probes() -> None:
    load = ProbeLoad.parse("http=9, tcp=10, exec=1", None)
    flat = [kind for kinds in load.kinds(100) for kind in kinds]
    for start in range(0, 200, 20):
        assert Counter(flat[start : start + 20]) == {"http": 9, "tcp": 10, "exec": 1}


@pytest.mark.parametrize(
    ("pods", "per_second", "period", "probes"),
    [(60, 120, 1, 120), (60, 30, 4, 120), (60, 50, 2, 100), (3, 0.1, 60, 6)],
)
def test_a_rate_is_made_of_whole_periods(pods: int, per_second: float, period: int, probes: int) -> None:
    load = ProbeLoad.parse("http=1,tcp=1", per_second)
    assert load.period(pods) == period
    assert sum(map(len, load.kinds(pods))) == probes
    assert load.rate(pods, "http") + load.rate(pods, "tcp") == pytest.approx(per_second, rel=0.05)


def test_probes_are_liveness_then_readiness() -> None:
    pods = ProbeLoad.parse("exec,tcp", None).pods(2, [1111, 2222])
    container = pods[1]["spec"]["containers"][0]
    assert container["livenessProbe"]["exec"]["command"] == ["/bin/true"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == 2222


@pytest.mark.parametrize("mix", ["", "udp=1", "http=x", "http=0", "http=-1,tcp=2"])
def test_an_impossible_mix_is_refused(mix: str) -> None:
    with pytest.raises(InvalidInput, match="http=9,tcp=10,exec=1"):
        ProbeLoad.parse(mix, None)


def test_more_probes_than_pods_can_have_are_refused() -> None:
    with pytest.raises(InvalidInput, match="more than two a second on each of 10 pods"):
        ProbeLoad.parse("http", 21).check(10)
    ProbeLoad.parse("http", 20).check(10)


def test_a_cost_below_nothing_is_not_known() -> None:
    assert cost_of_probes(0.003, 60) == {"cpu_us_per_probe": pytest.approx(50)}
    assert cost_of_probes(-0.001, 60) == {}
