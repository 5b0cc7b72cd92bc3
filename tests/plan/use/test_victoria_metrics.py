"""A history from VictoriaMetrics: the same values as from Prometheus, and its own limits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request

import numpy as np
import pytest

from engine.api.errors import InvalidInput, Refused
from engine.plan.snapshot.faults import FaultLog
from tests.plan.use.made_up_use import (
    assert_same_values,
    by_series,
    collected,
    needs_prometheus,
    read,
    said,
)
from tests.plan.use.recorded import Recording, answers, free_address, prometheus, running

needs_victoria_metrics = pytest.mark.skipif(
    shutil.which("victoria-metrics") is None, reason="needs victoria-metrics"
)


@contextmanager
def victoria_metrics(directory: Path, recording: Recording, *options: str) -> Iterator[str]:
    """Serve a recording; yield the address of the server."""
    address = free_address()
    command = [
        "victoria-metrics",
        f"-storageDataPath={directory / 'data'}",
        f"-httpListenAddr={address}",
        "-retentionPeriod=100y",
        *options,
    ]
    with running(command, directory / "log", f"http://{address}/health"):
        lines = []
        for line in recording.text():
            if not line.startswith("#"):
                sample, _, seconds = line.rstrip().rpartition(" ")
                lines.append(f"{sample} {int(seconds) * 1000}\n")
        data = "".join(lines).encode()
        answers(Request(f"http://{address}/api/v1/import/prometheus", data=data, method="POST"))
        answers(f"http://{address}/internal/force_flush")
        yield f"http://{address}"


@needs_victoria_metrics
@needs_prometheus
def test_both_servers_give_the_same_values(recording: Recording, tmp_path: Path) -> None:
    with prometheus(tmp_path, recording) as address:
        first = by_series(collected(address, FaultLog()))
    faults, directory = FaultLog(), tmp_path / "victoria"
    directory.mkdir()
    with victoria_metrics(directory, recording) as address:
        other = by_series(collected(address, faults))
        assert by_series(collected(f"{address}/prometheus", FaultLog())).keys() == other.keys()
    assert_same_values(first, other)
    assert said(faults, "has gaps") == {"container shop/gap-0/app"}
    assert said(faults, "series at once") == {"container shop/twice-0/app"}


@needs_victoria_metrics
def test_its_limit_of_points_is_met_by_smaller_pieces(recording: Recording, tmp_path: Path) -> None:
    with victoria_metrics(tmp_path, recording, "-search.maxPointsPerTimeseries=10") as address:
        faults = FaultLog()
        history = collected(address, faults)
    assert not np.isnan(read(history, "shop/plain-0", "memory")).any()
    assert "a piece is left out" not in faults.counts


@needs_victoria_metrics
def test_a_limit_that_no_query_meets_is_said_in_its_own_words(recording: Recording, tmp_path: Path) -> None:
    with (
        victoria_metrics(tmp_path, recording, "-search.maxSamplesPerQuery=20") as address,
        pytest.raises(Refused, match="maxSamplesPerQuery"),
    ):
        collected(address, FaultLog())


@needs_victoria_metrics
def test_refusals_name_the_query_or_the_path(recording: Recording, tmp_path: Path) -> None:
    with victoria_metrics(tmp_path, recording) as address:
        with pytest.raises(Refused, match="cannot find closing quote"):
            collected(address, FaultLog(), matchers='pod="')
        with pytest.raises(InvalidInput, match="that match pod"):
            collected(address, FaultLog(), matchers='pod="nobody"')
        with pytest.raises(Refused, match="the URL may have another path"):
            collected(f"{address}/select/0/prometheus", FaultLog())
