"""A connection to a server that fails leaves no OpenSSL memory for the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.errors import Unavailable
from engine.probes.library import run
from engine.probes.spec import ProbeSpec
from engine.testing.apiserver import Authority
from engine.transport.pool import Http2Pool, Server
from engine.transport.tls import ClientTLS
from tests.hostile_tls import SERVERS, HostileServer, client_sessions
from tests.waiting import eventually

CONNECTIONS = 25


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("kind", [*SERVERS, "wrong-authority"])
async def test_an_api_server(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path / "authority")
    trusted = Authority(tmp_path / "other") if kind == "wrong-authority" else authority
    own = ClientTLS(authorities=trusted.certificate.read_bytes()).context("test")
    with HostileServer(kind if kind in SERVERS else "goes-away", authority) as server:
        pool = Http2Pool(Server("127.0.0.1", server.port), lambda: own)
        for _ in range(CONNECTIONS):
            with contextlib.suppress(Unavailable):
                async with asyncio.timeout(60), await pool.request("GET", "/", ()) as exchange:
                    await exchange.read(1000)
        pool.close()
        await eventually(lambda: client_sessions() == 0, 10)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("probe", ["https", "grpcs"])
async def test_a_probed_container(tmp_path: Path, probe: str, kind: str) -> None:
    spec = ProbeSpec("c", "liveness", probe, 1.0, 60.0, 0.0, 1, 1, None, path="/")
    with HostileServer(kind, Authority(tmp_path / "authority")) as server:
        for _ in range(CONNECTIONS):
            await run(spec, "127.0.0.1", server.port)
        await eventually(lambda: client_sessions() == 0, 10)
