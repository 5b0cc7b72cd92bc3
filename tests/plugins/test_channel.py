"""Streams of plugins, which are read at a bounded rate."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from engine.plugins.channel import MAX_MESSAGE, STREAM_BYTES_PER_SECOND, PluginChannel
from engine.transport.grpc_channel import CallFailed
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from tests.grpc_answers import answering

LIST = wire.ListAndWatchResponse(
    devices=[wire.Device(ID=f"d{n}", health="Healthy") for n in range(500)]
).SerializeToString()


async def test_a_plugin_that_never_stops_sending_is_read_at_a_bounded_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("engine.plugins.channel.asyncio", SimpleNamespace(sleep=sleep))
    read = 0
    with answering(tmp_path / "s", {"/t/Watch": [LIST] * 200}):
        channel = PluginChannel(tmp_path / "s")
        async with aclosing(channel.messages("/t/Watch", wire.Empty())) as messages:
            async for message in messages:
                read += len(message)
        channel.close()
    assert read == 200 * len(LIST)
    assert sum(paused) == pytest.approx(read / STREAM_BYTES_PER_SECOND)


async def test_a_message_that_is_too_large_ends_its_call_only(tmp_path: Path) -> None:
    """The kubelet has gRPC's default bound for what plugins send."""
    with answering(tmp_path / "s", {"/t/Large": [bytes(MAX_MESSAGE + 1)], "/t/Small": [LIST]}):
        channel = PluginChannel(tmp_path / "s")
        with pytest.raises(CallFailed) as failed:
            await channel.call("/t/Large", wire.Empty(), wire.ListAndWatchResponse, 60)
        assert failed.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        answer = await channel.call("/t/Small", wire.Empty(), wire.ListAndWatchResponse, 60)
        assert len(answer.devices) == 500
        channel.close()
    await asyncio.sleep(0)
