"""Data on a device socket reaches grpcio's server, which cannot be reached in any other way."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from engine.devices import claimed_server
from engine.devices.claimed_server import ClaimedServer
from engine.devices.methods import Method
from engine.host.tasks import Tasks
from engine.transport.grpc_channel import CallFailed
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from tests.waiting import PATIENCE, eventually

UNLIMITED = ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)


class CountedAnswers:
    """Answer with `version` many ids; a request with the endpoint "wait" first waits for `release`."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = 0

    async def answer(self, request: wire.RegisterRequest) -> wire.PreStartContainerRequest:
        if request.endpoint == "wait":
            self.waiting += 1
            try:
                await self.release.wait()
            finally:
                self.waiting -= 1
        elif not request.version.isdigit():
            raise CallFailed(9, f"not {request.version}")
        return wire.PreStartContainerRequest(devices_ids=["x" * 1000] * int(request.version or 0))


@pytest.fixture
def answers() -> CountedAnswers:
    return CountedAnswers()


@pytest.fixture
async def server(tmp_path: Path, answers: CountedAnswers) -> AsyncIterator[ClaimedServer]:
    methods = {"t": {"Count": Method(wire.RegisterRequest, answers.answer)}}
    server = ClaimedServer(tmp_path / "s", methods, most_calls=3, tasks=Tasks())
    server.claim()
    await server.start()
    yield server
    await server.stop()
    assert list(tmp_path.iterdir()) == []


async def call_server(path: Path, version: str = "1", endpoint: str = "", method: str = "/t/Count") -> int:
    """Call the server over a connection of its own, and return the number of ids in the answer."""
    own = ("grpc.use_local_subchannel_pool", 1)
    async with grpc.aio.insecure_channel(f"unix:{path / 's'}", options=[*UNLIMITED, own]) as channel:
        call = channel.unary_unary(
            method,
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.PreStartContainerRequest.FromString,
        )
        answer = await call(wire.RegisterRequest(version=version, endpoint=endpoint), timeout=PATIENCE)
        return len(answer.devices_ids)


async def status(path: Path, **request: str) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call_server(path, **request)
    return failure.value.code(), failure.value.details()


async def test_calls_of_any_size_and_their_failures(server: ClaimedServer, tmp_path: Path) -> None:
    assert await asyncio.gather(*(call_server(tmp_path, str(size)) for size in (0, 1, 5000))) == [0, 1, 5000]
    assert await status(tmp_path, version="odd") == (grpc.StatusCode.FAILED_PRECONDITION, "not odd")
    assert (await status(tmp_path, method="/t/None"))[0] == grpc.StatusCode.UNIMPLEMENTED
    assert [path.name for path in tmp_path.iterdir()] == ["s"], "the way to grpcio's server has no name"


async def test_connections_before_the_start_are_answered(tmp_path: Path, answers: CountedAnswers) -> None:
    methods = {"t": {"Count": Method(wire.RegisterRequest, answers.answer)}}
    server = ClaimedServer(tmp_path / "s", methods, most_calls=3, tasks=Tasks())
    server.claim()
    early = asyncio.create_task(call_server(tmp_path))
    await asyncio.sleep(0.05)
    await server.start()
    assert await early == 1
    await server.stop()


async def test_concurrent_calls_stay_within_their_limit(
    server: ClaimedServer, tmp_path: Path, answers: CountedAnswers
) -> None:
    held = [asyncio.create_task(call_server(tmp_path, endpoint="wait")) for _ in range(3)]
    await eventually(lambda: answers.waiting == 3)
    assert (await status(tmp_path))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    answers.release.set()
    assert await asyncio.gather(*held) == [1, 1, 1]


async def test_a_peer_that_disconnects_ends_its_call(
    server: ClaimedServer, tmp_path: Path, answers: CountedAnswers
) -> None:
    call = asyncio.create_task(call_server(tmp_path, endpoint="wait"))
    await eventually(lambda: answers.waiting == 1)
    call.cancel()
    await eventually(lambda: answers.waiting == 0)
    assert await call_server(tmp_path) == 1


async def test_silent_peers_hold_only_their_slots(
    server: ClaimedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimed_server, "MOST_CONNECTIONS", 2)
    silent = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(3)]
    greeting = [await asyncio.wait_for(reader.read(9), 60) for reader, _ in silent]
    assert [bool(greeted) for greeted in greeting] == [True, True, False]
    silent[0][1].close()

    async def free() -> bool:
        try:
            return await call_server(tmp_path) == 1
        except grpc.aio.AioRpcError:
            return False

    await eventually(free)
    for _, writer in silent[1:]:
        writer.close()


async def test_stopping_ends_calls_and_connections(tmp_path: Path, answers: CountedAnswers) -> None:
    methods = {"t": {"Count": Method(wire.RegisterRequest, answers.answer)}}
    server = ClaimedServer(tmp_path / "s", methods, most_calls=3, tasks=Tasks())
    server.claim()
    await server.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    call = asyncio.create_task(status(tmp_path, endpoint="wait"))
    await eventually(lambda: answers.waiting == 1)
    await server.stop()
    assert (await call)[0] == grpc.StatusCode.UNAVAILABLE
    await eventually(lambda: answers.waiting == 0)
    assert await reader.read(100) is not None
    assert await reader.read(100) == b""
    writer.close()
    await server.stop()


async def test_a_server_that_cannot_be_made_is_tried_again(
    server: ClaimedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.devices import grpc_server

    def refused(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(grpc_server, "nameless", refused)
        assert (await status(tmp_path))[0] == grpc.StatusCode.UNAVAILABLE
    assert await call_server(tmp_path) == 1


@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_stopping_during_the_start_leaves_nothing(
    tmp_path: Path, answers: CountedAnswers, turns: int
) -> None:
    server = ClaimedServer(
        tmp_path / "s",
        {"t": {"Count": Method(wire.RegisterRequest, answers.answer)}},
        most_calls=3,
        tasks=Tasks(),
    )
    server.claim()
    await server.start()
    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
    for _ in range(turns):
        await asyncio.sleep(0.0002)
    await server.stop()
    writer.close()
    await eventually(lambda: not _open_beneath(tmp_path))
    assert list(tmp_path.iterdir()) == []


def _open_beneath(directory: Path) -> list[Path]:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(descriptor.readlink())
    return [link for link in links if link.is_relative_to(directory)]
