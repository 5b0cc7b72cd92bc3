"""How much of an endless peer's bytes each reader takes in one turn of the event loop.

`test_endless_peers.py` tests the agent's health beside such peers. Here each budget is tested alone: the
bytes wait already, so only the reader limits how many it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine._fast.http2._client_c import ClientConnection
from engine.api.pod import Pod
from engine.cluster import client as api_client
from engine.cluster.watching import BYTES_IN_A_TURN, ResourceWatch, WatchedResource, WatchHandler
from engine.devices import claimed_server
from engine.devices.claimed_server import ClaimedServer
from engine.host.connection_limiter import ConnectionLimiter
from engine.host.inotify import InotifyWatch
from engine.host.loop_share import LoopShare
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.node.logs.container_access import ContainerStreams
from engine.server.http.connection import READ, Connection
from engine.server.http.exchange import Answer, Request, plain
from engine.server.port.streams import PIECE as SESSION_PIECE
from engine.server.port.streams import _Session
from engine.server.port.websocket_streams import PIECE as MESSAGES_PIECE
from engine.server.port.websocket_streams import Translation
from engine.testing.apiserver import ApiServer
from engine.transport import grpc_channel, spdy, websocket
from engine.transport.grpc_channel import CallFailed, Channel
from engine.transport.http2 import Exchange, Http2Connection
from engine.transport.stream_protocols import CHANNELS, V4
from tests.cluster.conftest import Connect, connect
from tests.endless import EndlessPeer, from_listener, listening_at
from tests.server.test_endless_peers import HTTP, HTTP2
from tests.turns import TurnMeter
from tests.waiting import eventually

__all__ = ["connect"]

PEERS, STEPS = 8, 4
MEGABYTE = 1 << 20
PIECE, LINES = 32 << 10, 64


@pytest.fixture
async def meter() -> AsyncIterator[TurnMeter]:
    with TurnMeter() as made:
        yield made


class Metered:
    """Wrap a core of HTTP/2, and count the bytes that it receives."""

    def __init__(self, core: ClientConnection, meter: TurnMeter) -> None:
        self._core, self._meter = core, meter

    def receive(self, data: Any) -> Any:
        self._meter.add(len(data))
        return self._core.receive(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class Sink:
    """Stand in for a writer whose peer accepts everything at once."""

    def __init__(self, meter: TurnMeter | None = None) -> None:
        self._meter = meter
        self.transport = self

    def write(self, data: bytes) -> None:
        if self._meter is not None:
            self._meter.add(len(data))

    async def drain(self) -> None:
        """Return at once: no bytes wait."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Do nothing: all input has already arrived."""

    resume_reading = abort = pause_reading


def full(data: bytes, size: int = MEGABYTE) -> asyncio.StreamReader:
    """Return a reader in which `size` bytes of repeated `data` wait."""
    reader = asyncio.StreamReader()
    reader.feed_data(data * (size // len(data or b"x")))
    reader.feed_eof()
    return reader


@pytest.mark.parametrize("kind", ["pipelined", "health", "heads"])
async def test_a_listener(meter: TurnMeter, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that h11 is given, of all connections of one listener: the first read of each does not wait."""
    begin, data = HTTP[kind]
    share, limiter = LoopShare(STEPS), ConnectionLimiter(PEERS)

    async def answer(_: Request) -> Answer:
        return plain(200, "ok")

    connections = []
    for _ in range(PEERS):
        reader = full(begin + data, MEGABYTE // 32)
        take = reader.read

        async def read(most: int, take: Any = take) -> bytes:
            piece: bytes = await take(most)
            meter.add(len(piece))
            return piece

        monkeypatch.setattr(reader, "read", read)
        slot = limiter.enter(lambda: None)
        assert slot is not None
        connections.append(
            Connection(
                reader, cast("Any", Sink()), handler=answer, trusted=True, slot=slot, share=share
            ).serve()
        )
    await asyncio.gather(*connections)
    assert meter.most <= (PEERS + STEPS) * READ


async def test_requests_of_one_listener(meter: TurnMeter) -> None:
    """Requests that are answered; the first one of each connection does not wait."""
    share, limiter = LoopShare(STEPS), ConnectionLimiter(PEERS)

    async def answer(_: Request) -> Answer:
        meter.add()
        return plain(200, "ok")

    connections = []
    for _ in range(PEERS):
        slot = limiter.enter(lambda: None)
        assert slot is not None
        reader = full(b"GET / HTTP/1.1\r\nHost:n\r\nA: " + b"b" * 1000 + b"\r\n\r\n", MEGABYTE // 4)
        connections.append(
            Connection(reader, cast("Any", Sink()), handler=answer, trusted=True, slot=slot, share=share)
        )
    await asyncio.gather(*(each.serve() for each in connections))
    assert meter.total > 1000
    assert meter.most <= PEERS + STEPS


async def test_the_sockets_of_device_plugins_and_pod_resources(meter: TurnMeter, tmp_path: Path) -> None:
    server = ClaimedServer(tmp_path / "s", cast("Any", None), most_calls=1, tasks=Tasks(Registry()))
    sink = cast("Any", Sink(meter))
    await asyncio.gather(*(server._carry(full(b"x"), sink) for _ in range(PEERS)))
    assert meter.total == PEERS * MEGABYTE
    assert meter.most <= claimed_server.PIECES_IN_A_TURN * claimed_server._PIECE


async def test_a_session(meter: TurnMeter) -> None:
    """Exec, attach and port-forward copy one piece each way in a turn."""
    session = _Session(full(b"x"), cast("Any", Sink()), 60.0)
    async with asyncio.timeout(60) as patience:
        sink = cast("Any", Sink(meter))
        await asyncio.gather(*(session._pass_on(full(b"x"), sink, patience) for _ in range(2)))
    assert meter.total == 2 * MEGABYTE
    assert meter.most <= 2 * SESSION_PIECE


MASKED = b"\x80\0\0\0\0"
"""An empty frame's length, and its mask."""
FRAMES = {"pings": b"\x89", "unknown channel": b"\x82", "one message without end": b"\x00"}


@pytest.mark.parametrize("kind", FRAMES)
async def test_messages_of_a_websocket(meter: TurnMeter, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of six bytes, of which a client of exec or attach may send any number.

    None may stop the session either: a message for no stream was once waited for until the end.
    """
    take = websocket.Framing._take

    def metered(self: websocket.Framing, frame: Any) -> Any:
        meter.add()
        return take(self, frame)

    monkeypatch.setattr(websocket.Framing, "_take", metered)
    begun = b"\x02" + MASKED if kind == "one message without end" else b""
    reader = full(FRAMES[kind] + MASKED, 6 * 5_000)
    wanted = ContainerStreams(stdin=True, stdout=True, stderr=True, tty=False)
    translation = Translation(begun, reader, cast("Any", Sink()), wanted, V4)
    while await translation.read(MESSAGES_PIECE):
        """The runtime takes everything at once."""
    await translation.finish()
    assert meter.total == 5_000 + bool(begun)
    assert meter.most <= MESSAGES_PIECE // 6 + 2


async def test_bytes_that_a_container_writes_one_by_one() -> None:
    """They are one message of a WebSocket, and so one TLS record, not one each."""
    written: list[bytes] = []
    sink: Any = Sink()
    sink.write = written.append
    wanted = ContainerStreams(stdin=False, stdout=True, stderr=False, tty=False)
    translation = Translation(b"", full(b"", 0), sink, wanted, V4)
    frames = spdy.FrameWriter()
    (stdout,) = (stream for stream, channel in translation._channels.items() if channel == CHANNELS["stdout"])
    translation.write(b"".join(frames.encode(spdy.Data(stdout, b"x", False)) for _ in range(1000)))
    assert len(written) == 1
    assert written[0].endswith(b"x" * 1000)
    translation.write(frames.encode(spdy.Data(stdout, b"y", True)))
    assert written[1].endswith(b"y")
    await translation.finish()


@pytest.mark.parametrize("kind", HTTP2)
async def test_an_api_server(meter: TurnMeter, kind: str) -> None:
    begin, data = HTTP2[kind]
    connection = Http2Connection("server", lambda _: None)
    connection._core = cast("Any", Metered(connection._core, meter))
    connection.connection_made(cast("Any", Sink()))
    connection.data_received(begin + data * (MEGABYTE // len(data)))
    await eventually(lambda: not connection._unread or not connection.usable)
    connection.close()
    assert meter.most <= PIECE


async def test_a_watch(meter: TurnMeter) -> None:
    exchange = Exchange("server")
    for _ in range(100):
        exchange.data(b"{}\n" * 5000)
    exchange.end()
    async for _ in api_client._split(exchange):
        meter.add()
    assert meter.total == 500_000
    assert meter.most <= LINES


async def test_a_body(meter: TurnMeter) -> None:
    exchange = Exchange("server")
    for _ in range(1000):
        exchange.data(bytes(1024))
    exchange.end()
    async for data in exchange.chunks():
        meter.add(len(data))
    assert meter.most <= PIECE


async def test_a_list(meter: TurnMeter, tmp_path: Path, connect: Connect) -> None:
    """Thousands of objects in one answer are decoded in slices."""
    async with ApiServer(tmp_path) as server:
        server.streaming_lists = False
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i" * 1000}]}
        for number in range(500):
            server.create(
                "/api/v1/namespaces/default/pods", {"metadata": {"name": f"p{number}"}, "spec": spec}
            )
        client = connect(server.kubeconfig("system:node:n1"))
        decode = client.decode

        def counted(data: Any, kind: Any) -> Any:
            if kind is Pod:
                meter.add(memoryview(data).nbytes)
            return decode(data, kind)

        client.decode = counted  # type: ignore[method-assign]
        sizes: list[int] = []
        resource = WatchedResource("/api/v1/pods", Pod, "spec.nodeName=n1")
        handler: WatchHandler[Pod] = WatchHandler(lambda pods: sizes.append(len(pods)), print, print)
        await ResourceWatch(client, resource, handler)._list()
    assert sizes == [500]
    assert meter.total > 4 * BYTES_IN_A_TURN
    assert meter.most < 2 * BYTES_IN_A_TURN


@pytest.mark.parametrize("kind", HTTP2)
async def test_plugins_and_the_runtime(
    meter: TurnMeter, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, data = HTTP2[kind]
    monkeypatch.setattr(grpc_channel, "ClientConnection", lambda: Metered(ClientConnection(), meter))
    channel = Channel(str(tmp_path / "s"), limit=16 << 20)

    async def follow() -> None:
        while True:
            with contextlib.suppress(CallFailed):
                await channel.unary("/t/x", b"", 60)
            await asyncio.sleep(0.01)

    with listening_at(tmp_path / "s") as listener:
        async with EndlessPeer(from_listener(listener), data, begin=begin):
            following = asyncio.create_task(follow())
            await eventually(lambda: meter.total > MEGABYTE)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        channel.close()
    assert meter.most <= PIECE


async def test_messages_of_a_plugin(meter: TurnMeter, tmp_path: Path) -> None:
    """Of ListAndWatch, of a driver's health, of the runtime's events: one message in a turn."""
    begin, data = HTTP2["messages"]
    channel = Channel(str(tmp_path / "s"), limit=16 << 20)

    async def follow() -> None:
        while True:
            with contextlib.suppress(CallFailed):
                async for _ in channel.messages("/t/x", b""):
                    meter.add()
            await asyncio.sleep(0.01)

    with listening_at(tmp_path / "s") as listener:
        async with EndlessPeer(from_listener(listener), data, begin=begin):
            following = asyncio.create_task(follow())
            await eventually(lambda: meter.total > 5000)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        channel.close()
    assert meter.most <= 1


@pytest.fixture
async def watched(meter: TurnMeter, tmp_path: Path) -> AsyncIterator[InotifyWatch]:
    watch = InotifyWatch(lambda mask, directory, name: meter.add())
    watch.add(tmp_path)
    yield watch
    watch.close()


@pytest.mark.usefixtures("watched")
async def test_a_busy_directory(meter: TurnMeter, tmp_path: Path) -> None:
    """Events of a directory in which others create and rename without end."""
    for number in range(3000):
        (tmp_path / "a").touch()
        os.replace(tmp_path / "a", tmp_path / f"{number}")  # noqa: PTH105
    await eventually(lambda: meter.total >= 6000)
    assert meter.most <= 4096 // 16
