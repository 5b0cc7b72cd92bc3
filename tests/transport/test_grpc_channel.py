"""gRPC calls over a unix socket, to grpcio's server."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from engine.api import grpc_codes
from engine.transport.grpc_channel import CallFailed, Channel
from tests.waiting import eventually

LIMIT = 16 * 1024 * 1024
Context = grpc.aio.ServicerContext[bytes, bytes]


class Service:
    """Serve raw messages with grpcio; `calls` and `cancelled` count calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls = self.cancelled = 0
        self.remaining: float | None = None
        self.release = asyncio.Event()

    async def start(self) -> None:
        unary = grpc.unary_unary_rpc_method_handler
        handlers = {
            "Echo": unary(self.echo),
            "Fail": unary(self.fail),
            "Wait": unary(self.wait),
            "Size": unary(self.size),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
        }
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.server = grpc.aio.server(options=options)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()

    async def echo(self, message: bytes, context: Context) -> bytes:
        self.calls += 1
        self.remaining = context.time_remaining()
        return message

    async def fail(self, message: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, message.decode())

    async def wait(self, message: bytes, context: Context) -> bytes:
        self.calls += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return message

    async def size(self, message: bytes, context: Context) -> bytes:
        return b"x" * int(message)

    async def count(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            for number in range(int(message)):
                yield b"%d" % number
            if int(message) == 3:
                await context.abort(grpc.StatusCode.ABORTED, "three")
            if int(message) == 4:
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Service, Channel]]:
    service = Service(tmp_path / "s")
    await service.start()
    channel = Channel(str(service.path), limit=LIMIT)
    yield service, channel
    channel.close()
    await service.server.stop(None)


async def test_messages_of_any_size_both_ways(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        for size in (0, 1, 16379, 16384, 65535, 200_000, LIMIT):
            assert len(await channel.unary("/t/Echo", b"m" * size, 30)) == size
        assert service.remaining is not None
        assert 0 < service.remaining <= 30


async def test_many_calls_at_once_each_gets_its_own_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, channel):
        messages = [b"%d" % i * (1 + i % 3 * 40_000) for i in range(300)]
        assert await asyncio.gather(*(channel.unary("/t/Echo", m, 60) for m in messages)) == messages


@pytest.mark.parametrize("text", ["no such thing", "100 % of düsenjäger\n\ttab", "x" * 6000])
async def test_a_failure_carries_the_servers_message(tmp_path: Path, text: str) -> None:
    async with served(tmp_path) as (_, channel):
        with pytest.raises(CallFailed) as failure:
            await channel.unary("/t/Fail", text.encode(), 30)
        assert (failure.value.status, failure.value.details) == (grpc_codes.NOT_FOUND, text)
        with pytest.raises(CallFailed) as failure:
            await channel.unary("/t/None", b"", 30)
        assert failure.value.status == grpc_codes.UNIMPLEMENTED


async def test_an_abandoned_call_is_cancelled_on_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        with pytest.raises(CallFailed) as failure:
            await channel.unary("/t/Wait", b"", 0.2)
        assert failure.value.status == grpc_codes.DEADLINE_EXCEEDED
        await eventually(lambda: service.cancelled == 1)
        call = asyncio.create_task(channel.unary("/t/Wait", b"", 60))
        await eventually(lambda: service.calls == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: service.cancelled == 2)
        assert await channel.unary("/t/Echo", b"well", 30) == b"well"


async def test_each_call_has_its_own_deadline(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, channel):
        ended: list[float] = []

        async def wait(seconds: float) -> None:
            with pytest.raises(CallFailed) as failure:
                await channel.unary("/t/Wait", b"", seconds)
            assert failure.value.status == grpc_codes.DEADLINE_EXCEEDED
            ended.append(seconds)

        patient = asyncio.create_task(channel.unary("/t/Wait", b"", 600))
        await asyncio.gather(*(wait(seconds) for seconds in (0.4, 0.6, 0.05, 0.2)))
        assert sorted(ended) == [0.05, 0.2, 0.4, 0.6]
        await wait(0.1)
        assert not patient.done()
        patient.cancel()
        assert await channel.unary("/t/Echo", b"well", 30) == b"well"


async def test_messages_over_the_limit_are_refused_both_ways(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, _):
        small = Channel(str(service.path), limit=1000)
        for method, message in (("/t/Echo", b"x" * 1001), ("/t/Size", b"1001"), ("/t/Size", b"90000000")):
            with pytest.raises(CallFailed) as failure:
                await small.unary(method, message, 30)
            assert failure.value.status == grpc_codes.RESOURCE_EXHAUSTED
        assert len(await small.unary("/t/Size", b"1000", 30)) == 1000
        small.close()
        assert service.calls == 0


async def test_streams_end_fail_and_are_released(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        assert [int(m) async for m in channel.messages("/t/Count", b"1000")] == list(range(1000))
        stream = channel.messages("/t/Count", b"3")
        assert [await anext(stream) for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(CallFailed, match="three") as failure:
            await anext(stream)
        assert failure.value.status == 10
        stream = channel.messages("/t/Count", b"4")
        assert [await anext(stream) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        await stream.aclose()
        await eventually(lambda: service.cancelled == 1)


async def test_a_returning_server_is_found(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        assert await channel.unary("/t/Echo", b"a", 30) == b"a"
        stream = channel.messages("/t/Count", b"4")
        assert [await anext(stream) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        await service.server.stop(None)
        with pytest.raises(CallFailed) as failure:
            await anext(stream)
        assert failure.value.status == grpc_codes.UNAVAILABLE
        for _ in range(3):
            with pytest.raises(CallFailed, match=r"connect|closed|lost|away") as failure:
                await channel.unary("/t/Echo", b"b", 30)
            assert failure.value.status == grpc_codes.UNAVAILABLE
        await service.start()

        async def back() -> bool:
            try:
                return await channel.unary("/t/Echo", b"c", 30) == b"c"
            except CallFailed:
                return False

        await eventually(back)


async def test_a_call_in_progress_ends_while_the_server_shuts_down(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        call = asyncio.create_task(channel.unary("/t/Wait", b"last", 60))
        await eventually(lambda: service.calls == 1)
        stopping = asyncio.create_task(service.server.stop(30))
        await asyncio.sleep(0.05)
        service.release.set()
        assert await call == b"last"
        await stopping


async def test_closing_fails_calls_in_progress(tmp_path: Path) -> None:
    async with served(tmp_path) as (service, channel):
        call = asyncio.create_task(channel.unary("/t/Wait", b"", 60))
        await eventually(lambda: service.calls == 1)
        channel.close()
        for failing in (call, channel.unary("/t/Echo", b"", 1)):
            with pytest.raises(CallFailed, match="closed"):
                await failing


async def test_a_server_that_starts_later_is_awaited(tmp_path: Path) -> None:
    service = Service(tmp_path / "s")
    channel = Channel(str(service.path), limit=LIMIT)
    waiting = asyncio.create_task(channel.connected())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await service.start()
    await waiting
    assert await channel.unary("/t/Echo", b"well", 30) == b"well"
    await channel.connected()
    channel.close()
    with pytest.raises(CallFailed, match="closed"):
        await channel.connected()
    await service.server.stop(None)


async def test_a_server_that_does_not_greet_is_not_connected(tmp_path: Path) -> None:
    listening = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    channel = Channel(str(tmp_path / "s"), limit=LIMIT)
    waiting = asyncio.create_task(channel.connected())
    await listening.wait()
    assert not waiting.done()
    channel.close()
    with pytest.raises(CallFailed, match="closed"):
        await waiting
    server.close()
    await server.wait_closed()


async def test_a_process_out_of_descriptors_has_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with served(tmp_path) as (_, channel):
        with monkeypatch.context() as patch:
            patch.setattr("engine.transport.grpc_channel.socket.socket", none_left)
            with pytest.raises(CallFailed, match="Too many open files") as failure:
                await channel.unary("/t/Echo", b"", 30)
        assert failure.value.status == grpc_codes.UNAVAILABLE
        await channel.connected()
        assert await channel.unary("/t/Echo", b"well", 30) == b"well"
