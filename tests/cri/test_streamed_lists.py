"""Tests lists that a runtime streams, from a server that plays the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.api.errors import Refused, Unavailable
from engine.cri import client
from engine.cri.client import RuntimeClient
from engine.wire import cri_v1_pb2 as cri

UNARY = {
    "ListPodSandbox": cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="unary")]),
    "ListContainers": cri.ListContainersResponse(containers=[cri.Container(id="unary")]),
    "ListContainerStats": cri.ListContainerStatsResponse(
        stats=[cri.ContainerStats(attributes=cri.ContainerAttributes(id="unary"))]
    ),
    "ListImages": cri.ListImagesResponse(images=[cri.Image(id="unary")]),
}
PARTS = {
    "StreamPodSandboxes": [cri.ListPodSandboxResponse(items=[cri.PodSandbox(id=id)]) for id in "abc"],
    "StreamContainers": [cri.ListContainersResponse(containers=[cri.Container(id=id)]) for id in "abc"],
    "StreamContainerStats": [
        cri.ListContainerStatsResponse(stats=[cri.ContainerStats(attributes=cri.ContainerAttributes(id=id))])
        for id in "abc"
    ],
    "StreamImages": [cri.ListImagesResponse(images=[cri.Image(id=id)]) for id in "abc"],
}
Parts = Callable[[bytes], AsyncIterator[bytes]]


class Lists(grpc.GenericRpcHandler):
    """Answer list calls, and the streaming ones that `streams` has by name; count the calls by name."""

    def __init__(self) -> None:
        self.streams: dict[str, Parts] = {name: _parts_of(parts) for name, parts in PARTS.items()}
        self.calls: list[str] = []

    def service(self, details: Any) -> Any:
        """Return the handler of a call, or None for a call that the runtime lacks."""
        name = details.method.rpartition("/")[2]
        self.calls.append(name)
        if name in self.streams:
            return grpc.unary_stream_rpc_method_handler(self._stream(name))
        if name in UNARY:
            return grpc.unary_unary_rpc_method_handler(_unary(name))
        return None

    def _stream(self, name: str) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
        async def answer(request: bytes, _: Any) -> AsyncIterator[bytes]:
            async for part in self.streams[name](request):
                yield part

        return answer


def _parts_of(parts: list[Any]) -> Parts:
    async def stream(_: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part.SerializeToString()

    return stream


def _unary(name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def answer(*_: Any) -> bytes:
        return UNARY[name].SerializeToString()

    return answer


@pytest.fixture
async def lists(tmp_path: Path) -> AsyncIterator[Lists]:
    handler = Lists()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([handler])
    server.add_insecure_port(f"unix:{tmp_path}/cri.sock")
    await server.start()
    yield handler
    await server.stop(0)


@pytest.fixture
async def runtime(lists: Lists, tmp_path: Path) -> AsyncIterator[RuntimeClient]:
    runtime = RuntimeClient(f"{tmp_path}/cri.sock", streams_lists=True, timeout=5.0)
    yield runtime
    await runtime.close()


async def _all_lists(runtime: RuntimeClient) -> list[list[str]]:
    """Return the ids in every list, also in those that come serialized."""
    return [
        [sandbox.id for sandbox in await runtime.list_pod_sandboxes()],
        [container.id for container in await runtime.list_containers()],
        [stats.attributes.id for stats in await runtime.list_container_stats()],
        [image.id for image in await runtime.list_images()],
        [
            each.id
            for each in (await runtime.read_containers(cri.ListContainersResponse.FromString)).containers
        ],
    ]


async def test_lists_are_the_concatenated_parts_of_their_streams(
    lists: Lists, runtime: RuntimeClient
) -> None:
    assert await _all_lists(runtime) == [["a", "b", "c"]] * 5
    assert not [name for name in lists.calls if name.startswith("List")]


async def test_a_runtime_without_streams_is_asked_for_them_once(lists: Lists, runtime: RuntimeClient) -> None:
    lists.streams.clear()
    assert await _all_lists(runtime) == [["unary"]] * 5
    assert [name for name in lists.calls if name.startswith("Stream")] == ["StreamPodSandboxes"]


async def test_without_the_gate_no_list_is_streamed(lists: Lists, tmp_path: Path) -> None:
    runtime = RuntimeClient(f"{tmp_path}/cri.sock")
    assert await _all_lists(runtime) == [["unary"]] * 5
    assert not [name for name in lists.calls if name.startswith("Stream")]
    await runtime.close()


async def _breaks(_: bytes) -> AsyncIterator[bytes]:
    yield PARTS["StreamContainers"][0].SerializeToString()
    raise RuntimeError


async def _never_ends(_: bytes) -> AsyncIterator[bytes]:
    yield PARTS["StreamContainers"][0].SerializeToString()
    await asyncio.sleep(60)


async def _is_endless(_: bytes) -> AsyncIterator[bytes]:
    while True:
        yield bytes(64 << 10)


@pytest.mark.parametrize(
    ("stream", "error", "words"),
    [
        (_breaks, Refused, "StreamContainers"),
        (_never_ends, Unavailable, "the list took longer than 0.5 s"),
        (_is_endless, Refused, "the list exceeds 1 MiB"),
    ],
    ids=["breaks", "never ends", "endless"],
)
async def test_half_a_list_is_an_error_and_no_reason_to_list_otherwise(
    lists: Lists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Parts, error: type, words: str
) -> None:
    monkeypatch.setattr(client, "MAX_STREAMED_LIST", 1 << 20)
    lists.streams["StreamContainers"] = stream
    runtime = RuntimeClient(f"{tmp_path}/cri.sock", streams_lists=True, timeout=0.5)
    with pytest.raises(error, match=words):
        await runtime.list_containers()
    assert lists.calls == ["StreamContainers"]
    lists.streams["StreamContainers"] = _parts_of(PARTS["StreamContainers"])
    assert [container.id for container in await runtime.list_containers()] == ["a", "b", "c"]
    await runtime.close()
