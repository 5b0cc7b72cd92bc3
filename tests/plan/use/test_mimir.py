"""A history from Mimir: the same values as from Prometheus, tenants, and its own limits."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest

from engine.api.errors import InvalidInput, Refused
from engine.api.protobuf.pods import _sized, _varint
from engine.plan.history.history import History
from engine.plan.snapshot.faults import FaultLog
from tests.plan.use.made_up_use import (
    assert_same_values,
    by_series,
    collected,
    needs_prometheus,
    read,
    said,
)
from tests.plan.use.recorded import Recording, answers, free_address, running

MIMIR = os.environ.get("MIMIR") or "mimir"
TENANT = "team-a"

pytestmark = pytest.mark.skipif(
    shutil.which(MIMIR) is None, reason="needs mimir, on the PATH or named by the variable MIMIR"
)


@pytest.fixture(scope="module")
def tenants(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Mimir in which one tenant has the recording."""
    with mimir(tmp_path_factory.mktemp("mimir"), recording) as address:
        yield address


@contextmanager
def mimir(directory: Path, recording: Recording, *options: str) -> Iterator[str]:
    """Serve a recording of one tenant; yield the address of the query API."""
    address = free_address()
    command = [MIMIR, *_stored_in(directory), *_reached_at(address), *options]
    with running(command, directory / "log", f"http://{address}/ready"):
        for body in written(recording):
            headers = {"X-Scope-OrgID": TENANT, "Content-Encoding": "snappy"}
            push = f"http://{address}/api/v1/push"
            assert answers(Request(push, data=body, headers=headers, method="POST"))
        yield f"http://{address}/prometheus"


def _stored_in(directory: Path) -> list[str]:
    """Return the options that keep everything in a directory."""
    folders = (
        "common.storage.filesystem.dir",
        "blocks-storage.filesystem.dir",
        "blocks-storage.tsdb.dir",
        "blocks-storage.bucket-store.sync-dir",
        "compactor.data-dir",
        "activity-tracker.filepath",
        "ruler-storage.filesystem.dir",
        "ruler.rule-path",
        "alertmanager-storage.filesystem.dir",
        "alertmanager.storage.path",
    )
    stores = ("common.storage", "ruler-storage", "alertmanager-storage")
    return [
        *(f"-{store}.backend=filesystem" for store in stores),
        *(f"-{folder}={directory / folder}" for folder in folders),
    ]


def _reached_at(address: str) -> list[str]:
    """Return the options of one process that is all of Mimir and announces itself on loopback only."""
    ports = {
        "server.http-listen": address,
        "server.grpc-listen": free_address(),
        "memberlist.bind": free_address(),
    }
    announced = (
        "compactor.ring",
        "distributor.ring",
        "ingester.ring",
        "querier.ring",
        "query-frontend",
        "query-scheduler.ring",
        "store-gateway.sharding-ring",
    )
    return [
        "-target=all",
        "-usage-stats.enabled=false",
        "-ingester.ring.replication-factor=1",
        # Without it, ingesters do not answer for use as old as the recorded one.
        "-querier.query-ingesters-within=0",
        "-server.http-listen-address=127.0.0.1",
        "-server.grpc-listen-address=127.0.0.1",
        "-memberlist.bind-addr=127.0.0.1",
        *(f"-{name}-port={at.partition(':')[2]}" for name, at in ports.items()),
        *(f"-{part}.instance-addr=127.0.0.1" for part in announced),
    ]


def written(recording: Recording) -> Iterator[bytes]:
    """Yield bodies of remote writes, an hour of all series each, the oldest first."""
    times = sorted({at for samples in recording.samples.values() for at, _ in samples})
    for first in range(times[0], times[-1] + 1, 3600):
        series = b""
        for (metric, labels), samples in recording.samples.items():
            pairs = [one.partition("=") for one in labels.split(",") if one]
            named = sorted([("__name__", metric), *((name, value.strip('"')) for name, _, value in pairs)])
            fields = b"".join(_field(1, _field(1, n.encode()) + _field(2, v.encode())) for n, v in named)
            own = [(at, value) for at, value in samples if first <= at < first + 3600]
            for at, value in own:
                fields += _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(at * 1000))
            series += _field(1, fields) if own else b""
        yield _snappy(series)


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return bytes([number << 3 | 2]) + _sized(data)


def _snappy(data: bytes) -> bytes:
    """Return a snappy block that is one literal."""
    return _varint(len(data)) + b"\xfc" + struct.pack("<I", len(data) - 1) + data


def of_tenant(address: str, faults: FaultLog, tenant: str = TENANT, **options: Any) -> History:
    """Collect the history of a tenant; "" names none."""
    return collected(address, faults, headers={"X-Scope-OrgID": tenant} if tenant else None, **options)


@needs_prometheus
def test_it_gives_the_same_values_as_prometheus(tenants: str, server: str) -> None:
    faults = FaultLog()
    assert_same_values(by_series(collected(server, FaultLog())), by_series(of_tenant(tenants, faults)))
    assert said(faults, "has gaps") == {"container shop/gap-0/app"}
    assert said(faults, "series at once") == {"container shop/twice-0/app"}


def test_a_tenant_must_be_named_and_has_its_own_use(tenants: str) -> None:
    with pytest.raises(Refused, match=r"401.*no org id.*--header X-Scope-OrgID"):
        of_tenant(tenants, FaultLog(), "")
    with pytest.raises(InvalidInput, match="has no series of container_memory"):
        of_tenant(tenants, FaultLog(), "team-b")


def test_refusals_name_the_query_or_the_path(tenants: str) -> None:
    with pytest.raises(Refused, match=r"parse error|unexpected"):
        of_tenant(tenants, FaultLog(), matchers='pod="')
    with pytest.raises(Refused, match="the URL may have another path"):
        of_tenant(tenants.removesuffix("/prometheus"), FaultLog())


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        ("-querier.max-fetched-chunks-per-query=12", "max-chunks-per-query"),
        ("-query-frontend.max-total-query-length=2h", "max-total-query-length"),
    ],
)
def test_its_limits_are_met_by_smaller_pieces(
    option: str, refusal: str, recording: Recording, tmp_path: Path
) -> None:
    with mimir(tmp_path, recording, option) as address:
        faults = FaultLog()
        history = of_tenant(address, faults)
    assert f"err-mimir-{refusal}" in (tmp_path / "log").read_text(), "the limit must have been exceeded"
    assert "a piece is left out" not in faults.counts, [str(fault) for fault in faults.kept]
    assert not np.isnan(read(history, "shop/plain-0", "memory")).any()
