"""Run `python -m engine.bench.probe_target PORT_FILE PERIOD`: eight listeners that answer and count probes.

There are eight, because each loopback port pair is unusable for a minute after a connection. `GET /count`
returns the counts; any other request is a probe, a connection without data is a TCP probe.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from engine.host.files import replace_file

LISTENERS = 8
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


class Counts:
    def __init__(self, period: float) -> None:
        self.period = period
        self.http = self.tcp = self.late = 0
        self.worst = 0.0
        self._last: dict[bytes, float] = {}

    def request(self, path: bytes) -> None:
        now = time.monotonic()
        self.http += 1
        last = self._last.get(path)
        self._last[path] = now
        if last is not None:
            gap = now - last - self.period
            self.worst = max(self.worst, gap)
            self.late += gap > self.period / 2

    def forget(self) -> None:
        self._last.clear()
        self.late, self.worst = 0, 0.0

    def body(self) -> bytes:
        counts = {"http": self.http, "tcp": self.tcp, "late": self.late, "worst": self.worst}
        return json.dumps({**counts, "paths": len(self._last)}).encode()


class Target(asyncio.Protocol):
    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._silent = False
        path = data.split(b" ", 2)[1] if data.count(b" ") > 1 else b""
        if path == b"/count":
            body = self._counts.body()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif path == b"/forget":
            self._counts.forget()
            self._transport.write(_OK)
        else:
            self._counts.request(path)
            self._transport.write(_OK)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counts.tcp += self._silent


async def _serve(port_file: Path, period: float) -> None:
    loop = asyncio.get_running_loop()
    counts = Counts(period)
    servers = [
        await loop.create_server(lambda: Target(counts), "127.0.0.1", 0, backlog=1024)
        for _ in range(LISTENERS)
    ]
    replace_file(port_file, json.dumps([server.sockets[0].getsockname()[1] for server in servers]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
