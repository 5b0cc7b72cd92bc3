"""The memory of OpenSSL goes with its connection, not with the next run of the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.server.port.server import SecurePort
from engine.testing.apiserver import Authority
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.waiting import eventually

CONNECTIONS = 25
GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
REQUEST = b"GET / HTTP/1.1\r\nHost: n\r\n\r\n"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.webhook.enabled = False
    view = SecuredView(config=config, logs=tmp_path)
    view.api = None
    config.authorization.mode = "AlwaysAllow"
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, authority)
    await own.stop()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("handshake", "sent"),
    [(False, b""), (False, GARBAGE), (False, HALF_A_HELLO), (True, b""), (True, REQUEST)],
    ids=["nothing", "garbage", "half-a-hello", "cut-after", "refused"],
)
async def test_nothing_waits_for_the_collector(port: Secured, handshake: bool, sent: bytes) -> None:
    for _ in range(CONNECTIONS):
        with contextlib.suppress(OSError):
            if handshake:
                reader, writer = await port.connect()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
            writer.write(sent)
            if sent in (GARBAGE, REQUEST):
                await reader.read()
            writer.transport.abort()
    await eventually(lambda: not port.port._connections)
    await eventually(lambda: _sessions() == 0, 10)


def _sessions() -> int:
    return sum(isinstance(each, ssl.SSLObject) and each.server_side for each in gc.get_objects())
