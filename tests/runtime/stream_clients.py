"""Clients of a runtime's streaming URLs, written from the protocols and not from our own codecs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from engine.transport.spdy import DICTIONARY
from tests.waiting import PATIENCE


class Refusal(Exception):
    """Raised when a server answers an upgrade with another status than 101."""

    def __init__(self, status: int, head: str, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.head, self.body = status, head, body


async def upgraded(
    url: str, method: str, headers: list[tuple[str, str]], early: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, str]]:
    """Open a connection, upgrade it, and return its reader, writer and the answer's headers.

    Raises Refusal if the status is not 101.
    """
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers]
    writer.write("\r\n".join([*lines, "", ""]).encode() + early)
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = int(head.split()[1])
        split = (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        fields = {name.lower(): value for name, value in split}
        if status != 101:
            size = int(fields["content-length"])
            body = (await reader.readexactly(size)).decode()
            writer.close()
            await writer.wait_closed()
            raise Refusal(status, head, body)
    return reader, writer, fields


class Spdy:
    """Speak SPDY/3.1 as a client that, like moby's, neither honours nor opens windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: str) -> None:
        self.reader, self.writer, self.version = reader, writer, version
        self.received: dict[int, bytearray] = defaultdict(bytearray)
        self.finished: set[int] = set()
        self.replied: set[int] = set()
        self.reset: dict[int, int] = {}
        self.windows: dict[int, int] = defaultdict(int)
        self.pongs: set[int] = set()
        self.going_away = self.closed = False
        self.reading = asyncio.Event()
        self.reading.set()
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._next = 1
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, url: str, *protocols: str) -> Spdy:
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "0")]
        headers += [("X-Stream-Protocol-Version", protocol) for protocol in protocols]
        reader, writer, answer = await upgraded(url, "POST", headers)
        assert answer["upgrade"] == "SPDY/3.1"
        return cls(reader, writer, answer.get("x-stream-protocol-version", ""))

    async def open(self, **headers: str) -> int:
        """Open a stream with these headers, wait until it is accepted or reset, and return its number."""
        stream, self._next = self._next, self._next + 2
        block = struct.pack("!I", len(headers))
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                block += struct.pack("!I", len(text)) + text
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self.control(1, struct.pack("!IIBB", stream, 0, 0, 0) + packed)
        await self.until(lambda: stream in self.replied or stream in self.reset)
        return stream

    def control(self, kind: int, payload: bytes, flags: int = 0) -> None:
        self.writer.write(struct.pack("!HHI", 0x8003, kind, flags << 24 | len(payload)) + payload)

    def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        self.writer.write(struct.pack("!II", stream, (1 << 24 if last else 0) | len(data)) + data)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                assert not self.closed or condition(), "the server has closed the connection"
                self._changed.clear()
                await self._changed.wait()

    async def all_of(self, stream: int) -> bytes:
        """Return all data of a stream, up to its end or the connection's.

        Containerd closes the connection without ending the streams.
        """
        await self.until(lambda: stream in self.finished or self.closed)
        return bytes(self.received[stream])

    async def close(self) -> None:
        self._task.cancel()
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> Spdy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read(self) -> None:
        try:
            while True:
                await self.reading.wait()
                first, second, rest = struct.unpack("!HHI", await self.reader.readexactly(8))
                payload = await self.reader.readexactly(rest & 0xFFFFFF)
                if not first & 0x8000:
                    stream = first << 16 | second
                    self.received[stream] += payload
                    if rest >> 24 & 1:
                        self.finished.add(stream)
                elif second == 2:
                    self.replied.add(struct.unpack_from("!I", payload)[0])
                elif second == 3:
                    stream, status = struct.unpack("!II", payload)
                    self.reset[stream] = status
                elif second == 6:
                    self.pongs.add(struct.unpack("!I", payload)[0])
                elif second == 7:
                    self.going_away = True
                elif second == 9:
                    stream, delta = struct.unpack("!II", payload)
                    self.windows[stream] += delta
                self._changed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            self._changed.set()


class WebSocket:
    """Speak the WebSocket protocols of Kubernetes that number channels, as a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: str) -> None:
        self.reader, self.writer, self.version = reader, writer, version

    @classmethod
    async def connect(cls, url: str, *protocols: str, early: bytes = b"") -> WebSocket:
        key = base64.b64encode(os.urandom(16)).decode()
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", key),
        ]
        if protocols:
            headers.append(("Sec-WebSocket-Protocol", ", ".join(protocols)))
        reader, writer, answer = await upgraded(url, "GET", headers, early)
        return cls(reader, writer, answer.get("sec-websocket-protocol", ""))

    def send(self, data: bytes, kind: int = 2, *, final: bool = True) -> None:
        self.writer.write(masked(data, kind, final=final))

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        async with asyncio.timeout(PATIENCE):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first & 15, await self.reader.readexactly(size)

    async def channels(self) -> dict[int, bytes]:
        """Return all data until the server closes, by channel."""
        found: dict[int, bytes] = defaultdict(bytes)
        while True:
            kind, data = await self.frame()
            if kind == 8:
                self.send(data, 8)
                return found
            if kind == 2:
                found[data[0]] += data[1:]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def tunnelled(socket: WebSocket) -> AsyncIterator[Spdy]:
    """Yield a SPDY client whose bytes travel in the messages of a WebSocket."""
    incoming = asyncio.StreamReader()

    async def unwrap() -> None:
        while True:
            kind, data = await socket.frame()
            incoming.feed_data(data if kind == 2 else b"")

    class Wrapped:
        def write(self, data: bytes) -> None:
            socket.send(data)

        def close(self) -> None:
            socket.writer.close()

        async def wait_closed(self) -> None:
            await socket.writer.wait_closed()

    unwrapping = asyncio.create_task(unwrap())
    try:
        async with Spdy(incoming, Wrapped(), "") as client:  # type: ignore[arg-type]
            yield client
    finally:
        unwrapping.cancel()


def masked(data: bytes, kind: int = 2, *, final: bool = True) -> bytes:
    """Return the bytes of a masked frame, as a WebSocket client sends it."""
    mask = os.urandom(4)
    size = len(data)
    head = struct.pack("!B", (0x80 if final else 0) | kind)
    if size < 126:
        head += struct.pack("!B", 0x80 | size)
    elif size < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, size)
    else:
        head += struct.pack("!BQ", 0x80 | 127, size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def exit_code(status: bytes) -> int:
    """Return the status on a v4 error channel."""
    document = json.loads(status)
    if document["status"] == "Success":
        return 0
    assert document["reason"] == "NonZeroExitCode", document
    [cause] = document["details"]["causes"]
    assert cause["reason"] == "ExitCode"
    return int(cause["message"])
