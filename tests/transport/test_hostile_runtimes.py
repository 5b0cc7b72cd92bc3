"""gRPC calls to servers that break the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from engine.api import grpc_codes
from engine.api.duration import RetryDelays
from engine.transport.grpc_channel import CallFailed, Channel
from tests.leaks import nothing_leaks
from tests.waiting import PATIENCE, eventually

__all__ = ["nothing_leaks"]

LIMIT = 16 * 1024 * 1024
Respond = Callable[["Scripted", int, list[tuple[bytes, bytes]]], None]


class Scripted:
    """Serve HTTP/2, and let `respond(self, stream, headers)` answer requests; `order` holds their paths."""

    def __init__(self, path: Path, respond: Respond, *, most: int = 100) -> None:
        self.path = path
        self.respond = respond
        self.most = most
        self.order: list[str] = []
        self.connections = 0
        self.windows: dict[int, int] = {}
        self.pongs: list[bytes] = []
        self.limit_is_known = False
        self.serving: list[asyncio.Task[Any] | None] = []

    async def __aenter__(self) -> Scripted:
        self.server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await asyncio.gather(*filter(None, self.serving))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.append(asyncio.current_task())
        self.writer = writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self.h2.local_settings = h2.settings.Settings(
            client=False, initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self.most}
        )
        self.h2.initiate_connection()
        self.flush()
        while data := await reader.read(65536):
            for event in self.h2.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    self.order.append(dict(event.headers)[b":path"].decode())
                    self.respond(self, event.stream_id, event.headers)
                elif isinstance(event, h2.events.SettingsAcknowledged):
                    self.limit_is_known = True
                elif isinstance(event, h2.events.PingAckReceived):
                    self.pongs.append(event.ping_data)
                elif isinstance(event, h2.events.WindowUpdated) and event.stream_id:
                    self.windows[event.stream_id] = self.windows.get(event.stream_id, 0) + event.delta
            self.flush()
        writer.close()
        await writer.wait_closed()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def answer(self, stream: int, message: bytes = b"", *, flag: bytes = b"\0", status: str = "0") -> None:
        self.h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        body = flag + len(message).to_bytes(4, "big") + message
        self.h2.send_data(stream, body)
        self.h2.send_headers(stream, [("grpc-status", status)], end_stream=True)


async def failed(channel: Channel, method: str = "/t/x", timeout: float = 30) -> int:
    with pytest.raises(CallFailed) as failure:
        await channel.unary(method, b"", timeout)
    return failure.value.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(":status", "404")], grpc_codes.UNIMPLEMENTED),
        ([(":status", "503")], grpc_codes.UNAVAILABLE),
        ([(":status", "418")], grpc_codes.UNKNOWN),
        ([(b":status", "²".encode("latin-1"))], grpc_codes.UNKNOWN),
        ([(":status", "9" * 5000)], grpc_codes.UNKNOWN),
        ([(":status", "200")], grpc_codes.INTERNAL),
        ([(":status", "200"), ("grpc-status", "0")], grpc_codes.INTERNAL),
        ([(":status", "200"), ("grpc-status", "9")], 9),
        ([(":status", "200"), ("grpc-status", "nine")], grpc_codes.UNKNOWN),
    ],
)
async def test_answers_without_a_message(tmp_path: Path, headers: Any, status: int) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        server.h2.send_headers(stream, headers, end_stream=True)

    async with Scripted(tmp_path / "s", respond):
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        assert await failed(channel) == status
        channel.close()


async def test_a_request_that_was_not_started_is_sent_again(tmp_path: Path) -> None:
    """A refused stream, and one above the last that a server going away will answer."""

    def respond(server: Scripted, stream: int, _: Any) -> None:
        if len(server.order) == 1:
            server.h2.reset_stream(stream, 7)
        elif len(server.order) == 2:
            server.answer(stream, b"refused once")
        elif len(server.order) == 3:
            server.h2.close_connection(last_stream_id=stream - 2)
        elif len(server.order) == 4:
            server.answer(stream, b"elsewhere")
        else:
            server.h2.reset_stream(stream, 7)

    async with Scripted(tmp_path / "s", respond) as server:
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        assert await channel.unary("/t/x", b"", 30) == b"refused once"
        assert await channel.unary("/t/x", b"", 30) == b"elsewhere"
        assert server.connections == 2
        assert await failed(channel) == grpc_codes.UNAVAILABLE
        assert len(server.order) == 6
        channel.close()


async def test_calls_beyond_the_servers_limit_wait_in_their_order(tmp_path: Path) -> None:
    held: list[int] = []

    def respond(server: Scripted, stream: int, _: Any) -> None:
        held.append(stream)

    async with Scripted(tmp_path / "s", respond, most=1) as server:
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        first = asyncio.create_task(channel.unary("/t/0", b"", 60))
        await eventually(lambda: bool(held) and server.limit_is_known)
        calls = [asyncio.create_task(channel.unary(f"/t/{n}", b"", 60)) for n in range(1, 5)]
        assert await failed(channel, "/t/late", 0.05) == grpc_codes.DEADLINE_EXCEEDED
        for _ in range(5):
            await eventually(lambda: bool(held))
            server.answer(held.pop(), b"done")
            server.flush()
        assert await asyncio.gather(first, *calls) == [b"done"] * 5
        assert server.order == [f"/t/{n}" for n in range(5)]
        channel.close()


async def test_a_call_waiting_for_a_lost_connection_starts_on_another(tmp_path: Path) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        if server.connections == 2:
            server.answer(stream, b"done")

    async with Scripted(tmp_path / "s", respond, most=1) as server:
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        first = asyncio.create_task(channel.unary("/t/0", b"", 60))
        await eventually(lambda: bool(server.order) and server.limit_is_known)
        second = asyncio.create_task(channel.unary("/t/1", b"", 60))
        await asyncio.sleep(0)
        server.writer.close()
        with pytest.raises(CallFailed, match="closed the connection"):
            await first
        async with asyncio.timeout(PATIENCE):
            assert await second == b"done"
        channel.close()


async def test_an_answer_longer_than_its_size_ends_the_call(tmp_path: Path) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        server.h2.send_headers(stream, [(":status", "200")])
        server.h2.send_data(stream, b"\0\0\0\0\2ab and more")

    async with Scripted(tmp_path / "s", respond):
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        assert await failed(channel) == grpc_codes.INTERNAL
        channel.close()


@pytest.mark.parametrize("flag", [b"\1", b"\0"], ids=["compressed", "cut"])
async def test_malformed_messages(tmp_path: Path, flag: bytes) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        server.h2.send_headers(stream, [(":status", "200")])
        server.h2.send_data(stream, flag + b"\0\0\0\3ab")
        server.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    async with Scripted(tmp_path / "s", respond):
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        assert await failed(channel) == grpc_codes.INTERNAL
        with pytest.raises(CallFailed) as failure:
            await anext(channel.messages("/t/x", b""))
        assert failure.value.status == grpc_codes.INTERNAL
        channel.close()


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "http1"])
async def test_a_peer_that_is_no_server_is_not_called_again_for_a_while(
    tmp_path: Path, reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.grpc_channel.RETRIES", RetryDelays(60.0, 60.0))
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    channel = Channel(str(tmp_path / "s"), limit=LIMIT)
    for _ in range(5):
        assert await failed(channel) == grpc_codes.UNAVAILABLE
    assert connections == 1
    channel.close()
    server.close()
    await server.wait_closed()


async def test_a_slow_reader_of_a_stream_holds_the_server_back(tmp_path: Path) -> None:
    event = b"\0\0\0\3\xe8" + b"e" * 1000
    sent = 0

    def respond(server: Scripted, stream: int, _: Any) -> None:
        nonlocal sent
        server.h2.send_headers(stream, [(":status", "200")])
        while server.h2.local_flow_control_window(stream) >= len(event):
            server.h2.send_data(stream, event)
            sent += 1

    async with Scripted(tmp_path / "s", respond) as server:
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        stream = channel.messages("/t/x", b"")
        assert len(await anext(stream)) == 1000
        assert server.windows == {}
        for _ in range(sent - 1):
            await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await eventually(lambda: server.windows.get(1, 0) > 0)
        server.h2.send_data(1, event)
        server.flush()
        assert len(await waiting) == 1000
        await stream.aclose()
        channel.close()


async def test_pings_are_answered_with_and_without_calls(tmp_path: Path) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        server.h2.ping(b"%8d" % stream)
        server.answer(stream, b"done")

    async with Scripted(tmp_path / "s", respond) as server:
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        for _ in range(3):
            assert await channel.unary("/t/x", b"", 30) == b"done"
        await eventually(lambda: len(server.pongs) == 3)
        server.h2.ping(b"keep  up")
        server.flush()
        await eventually(lambda: server.pongs == [b"%8d" % 1, b"%8d" % 3, b"%8d" % 5, b"keep  up"])
        channel.close()


async def test_closing_with_an_unanswered_ping_leaves_no_timer(tmp_path: Path) -> None:
    def respond(server: Scripted, stream: int, _: Any) -> None:
        server.h2.ping(b"unheard ")
        server.answer(stream, b"done")

    async with Scripted(tmp_path / "s", respond):
        channel = Channel(str(tmp_path / "s"), limit=LIMIT)
        await channel.unary("/t/x", b"", 30)
        connection = channel._connection
        assert connection is not None
        channel.close()
        assert connection._later is None or connection._later.cancelled()
