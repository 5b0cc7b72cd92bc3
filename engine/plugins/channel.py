"""Calls one plugin's socket with the protocol's own messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from engine.api.errors import InvalidInput, Unavailable
from engine.api.grpc_codes import INTERNAL
from engine.transport.grpc_channel import CallFailed, Channel

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of a plugin's message; the kubelet's limit too, as it leaves gRPC's default."""
STREAM_BYTES_PER_SECOND = 1024 * 1024
"""Bytes of a stream that the agent reads. The most expensive lists take about 0.1 s of the event loop per
MiB, so a plugin that never stops sending gets a tenth of the loop.
"""
MAX_SOCKET_PATH = 107

Answer = TypeVar("Answer", bound=Message)


def check_socket_path(path: Path) -> None:
    """Raise `InvalidInput` if the kernel could not bind or connect to the path."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise InvalidInput(
            f"longer than the {MAX_SOCKET_PATH} bytes that a unix socket's path may have", subject=str(path)
        )


class PluginChannel:
    """Call the socket at `path`. Each call raises `CallFailed`, also if a message has more than MAX_MESSAGE
    bytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel = Channel(str(path), limit=MAX_MESSAGE)

    async def reach(self, seconds: float) -> None:
        """Connect repeatedly until the plugin answers. Raises `Unavailable` if it does not."""
        try:
            # A plugin creates its socket before it serves it, so the first attempts may fail.
            async with asyncio.timeout(seconds):
                await self._channel.connected()
        except TimeoutError:
            raise Unavailable(f"no answer at {self._path} within {seconds:g} s") from None

    async def connected(self) -> None:
        """Return once the plugin has accepted a connection. Raises `CallFailed` once the channel
        is closed.
        """
        await self._channel.connected()

    async def lost(self) -> None:
        """Return once the current connection has ended."""
        await self._channel.lost()

    async def call(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        data = await self._channel.unary(method, request.SerializeToString(), seconds)
        try:
            return answer.FromString(data)
        except (DecodeError, RecursionError, MemoryError):
            raise CallFailed(INTERNAL, "the response cannot be decoded") from None

    async def messages(self, method: str, request: Message) -> AsyncGenerator[bytes, None]:
        """Yield serialized messages until the plugin ends the call, STREAM_BYTES_PER_SECOND at most."""
        async with aclosing(self._channel.messages(method, request.SerializeToString())) as messages:
            async for message in messages:
                yield message
                await asyncio.sleep(len(message) / STREAM_BYTES_PER_SECOND)

    def close(self) -> None:
        """Close the channel; calls in progress fail."""
        self._channel.close()
