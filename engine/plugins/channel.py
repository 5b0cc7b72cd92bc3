"""Calls one plugin's socket with the protocol's own messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from engine.api.errors import InvalidInput, Unavailable
from engine.api.grpc_codes import INTERNAL
from engine.transport.grpc_channel import CallFailed, Channel

MAX_MESSAGE = 64 * 1024 * 1024
MAX_SOCKET_PATH = 107

Answer = TypeVar("Answer", bound=Message)


def check_socket_path(path: Path) -> None:
    """Raise `InvalidInput` if the kernel could not bind or connect to the path."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise InvalidInput(
            f"longer than the {MAX_SOCKET_PATH} bytes that a unix socket's path may have", subject=str(path)
        )


class PluginChannel:
    """Call the socket at `path`; each call raises `CallFailed`. `limit` is the maximum size of a message."""

    def __init__(self, path: Path, *, limit: int = MAX_MESSAGE) -> None:
        self._path = path
        self._channel = Channel(str(path), limit=limit)

    async def reach(self, seconds: float) -> None:
        """Connect repeatedly until the plugin answers. Raises `Unavailable` if it does not."""
        try:
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

    def messages(self, method: str, request: Message) -> AsyncGenerator[bytes, None]:
        """Yield serialized messages until the plugin ends the call."""
        return self._channel.messages(method, request.SerializeToString())

    def close(self) -> None:
        """Close the channel; calls in progress fail."""
        self._channel.close()
