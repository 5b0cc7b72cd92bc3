"""A history from Thanos: the copies of two Prometheus replicas become one series."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.plan.snapshot.faults import FaultLog
from tests.plan.use.made_up_use import by_series, collected, needs_prometheus, read, said
from tests.plan.use.recorded import Recording, free_address, prometheus, running

THANOS = os.environ.get("THANOS") or "thanos"
REPLICA = "prometheus_replica"

pytestmark = [
    needs_prometheus,
    pytest.mark.skipif(
        shutil.which(THANOS) is None, reason="needs thanos, on the PATH or named by the variable THANOS"
    ),
]


@pytest.fixture(scope="module")
def stores(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Run two replicas of a Prometheus, each with a sidecar; yield the addresses of the sidecars.

    The second replica was down for an hour.
    """
    directory = tmp_path_factory.mktemp("thanos")
    with ExitStack() as stack:
        yield [
            stack.enter_context(_replica(directory / name, name, scraped))
            for name, scraped in (("a", recording), ("b", _with_a_pause(recording)))
        ]


def _with_a_pause(use: Recording) -> Recording:
    paused = Recording()
    for series, samples in use.samples.items():
        paused.samples[series] = [*samples[: len(samples) // 2], *samples[len(samples) // 2 + 60 :]]
    return paused


@contextmanager
def _replica(directory: Path, name: str, recording: Recording) -> Iterator[str]:
    """Serve a recording by a Prometheus with a sidecar; yield the address of the sidecar."""
    directory.mkdir()
    # A sidecar refuses a Prometheus without labels of its own.
    labels = f"global: {{external_labels: {{{REPLICA}: {name}}}}}\n"
    with prometheus(directory, recording, settings=labels) as address:
        store = free_address()
        arguments = [
            f"--prometheus.url={address}",
            f"--tsdb.path={directory / 'data'}",
            f"--grpc-address={store}",
        ]
        with _thanos(directory, "sidecar", *arguments):
            yield store


@contextmanager
def _thanos(directory: Path, *arguments: str) -> Iterator[str]:
    """Run a part of Thanos until it is ready; yield the address of its HTTP API."""
    address = free_address()
    command = [THANOS, *arguments, f"--http-address={address}"]
    with running(command, directory / f"{arguments[0]}.log", f"http://{address}/-/ready"):
        yield f"http://{address}"


@contextmanager
def query(directory: Path, stores: list[str], *options: str) -> Iterator[str]:
    """Run a querier over some stores; yield its address once it knows all of them."""
    endpoints = [f"--endpoint={store}" for store in stores]
    grpc = f"--grpc-address={free_address()}"
    with _thanos(directory, "query", grpc, *endpoints, *options) as address:
        yield address


MERGED = f"--query.replica-label={REPLICA}"


def test_replicas_become_one_series_without_the_pause_of_one(
    recording: Recording, stores: list[str], tmp_path: Path
) -> None:
    with prometheus(tmp_path, recording) as address:
        alone = by_series(collected(address, FaultLog()))
    faults = FaultLog()
    with query(tmp_path, stores, MERGED) as address:
        merged = by_series(collected(address, faults))
    assert merged.keys() == alone.keys()
    for key, values in alone.items():
        both = ~np.isnan(values) & ~np.isnan(merged[key])
        # Whether a sample exactly at the beginning of a window belongs to it is not the same for both.
        assert len(values) - int(both.sum()) <= int(np.isnan(values).sum()) + 1
        near = np.isclose(merged[key][both], values[both], rtol=1e-3)
        # When Thanos goes on with the samples of the other replica, it leaves out some: a rate may be lower.
        assert (~near).sum() <= (2 if key[0] == "cpu" else 0), (key, merged[key], values)
    assert said(faults, "series at once") == {"container shop/twice-0/app"}
    assert said(faults, "has gaps") == {"container shop/gap-0/app"}


def test_replicas_that_are_not_merged_are_reported_as_copies(stores: list[str], tmp_path: Path) -> None:
    faults = FaultLog()
    with query(tmp_path, stores) as address:
        history = collected(address, faults)
    assert "container shop/plain-0/app" in said(faults, "series at once")
    assert any(f'{REPLICA}="a"' in str(fault) for fault in faults.kept)
    assert not np.isnan(read(history, "shop/plain-0", "memory")).any()


def test_a_store_that_is_down_is_a_warning(stores: list[str], tmp_path: Path) -> None:
    faults, down = FaultLog(), free_address()
    # A strict endpoint stays in the list while it does not answer.
    with query(tmp_path, stores, MERGED, f"--endpoint-strict={down}") as address:
        history = collected(address, faults)
    assert not np.isnan(read(history, "shop/plain-0", "memory")).any()
    assert any(down in str(fault) for fault in faults.kept), [str(fault) for fault in faults.kept]
