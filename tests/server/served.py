"""A server on real sockets, over a node that the test describes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.api.struct import to_json
from engine.host.cgroupfs.mounts import readable_mounts
from engine.metrics import Registry
from engine.node.stats.group import Groups
from engine.node.stats.runtime_use import RuntimeUse
from engine.node.stats.used import NodeUsage, UsedGroup
from engine.server import HttpServer
from tests.ports import free_port

DISABLED = (405, b"Debug endpoints are disabled.\n")
MISSING = (404, b"404 page not found\n")
WITHOUT_DEBUGGING = [
    *((f"/{tree}/a/b/c", DISABLED) for tree in ("run", "exec", "attach", "portForward", "containerLogs")),
    *(
        (path, DISABLED)
        for path in ("/runningpods/", "/debug/pprof/", "/debug/pprof/heap", "/logs/", "/logs/a")
    ),
    *((path, (307, b"")) for path in ("/run", "/runningpods", "/debug/pprof", "/logs")),
    *((path, MISSING) for path in ("/debug", "/debug/", "/debug/flags/v", "/configz", "/configz/")),
    *((path, MISSING) for path in ("/flagz", "/statusz", "/checkpoint/a/b/c")),
]
"""What a kubelet v1.36.2 answers there, recorded for GET, POST, PUT and DELETE alike."""


@dataclass
class View:
    """Represent a node whose pods and components a test sets."""

    config: KubeletConfiguration = field(
        default_factory=lambda: KubeletConfiguration(read_only_port=free_port(), healthz_port=free_port())
    )
    kubengine_config: KubengineConfiguration = field(default_factory=KubengineConfiguration)
    registry: Registry = field(default_factory=Registry)
    components: dict[str, object] = field(default_factory=dict)
    known: list[Pod] = field(default_factory=list)
    checks: list[tuple[str, str | None]] = field(default_factory=lambda: [("ping", None), ("syncloop", None)])
    summary: Any = field(default_factory=dict)
    claims: list[Any] = field(default_factory=list)
    of_runtime: list[RuntimeUse] = field(default_factory=list)

    def pods(self) -> Sequence[Pod]:
        return self.known

    async def running_pods(self) -> Sequence[Pod]:
        return self.known[:1]

    def healthz(self) -> Sequence[tuple[str, str | None]]:
        return self.checks

    async def stats_summary(self) -> Iterable[bytes]:
        return [to_json(self.summary)]

    async def cpu_and_memory_summary(self) -> Iterable[bytes]:
        return [to_json({"short": self.summary})]

    async def claims_usage(self) -> list[Any]:
        return self.claims

    async def usage(self, *, descriptors: bool = False) -> NodeUsage:
        groups = Groups()
        root = UsedGroup("/", groups.add(["/"]))
        return NodeUsage(0.0, groups.read(readable_mounts()), root, {}, [], [], (0, 0))

    async def runtime_use(self, usage: NodeUsage) -> list[RuntimeUse]:
        return self.of_runtime


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """Hold a running server, and send raw bytes and requests to it."""

    view: View
    server: HttpServer
    socket_path: Path

    async def raw(
        self, data: bytes, *, port: int | None = None, unix: bool = False, limit: float = 20
    ) -> bytes:
        """Send bytes, and return all that the server sends until it closes the connection."""
        async with asyncio.timeout(limit):
            reader, writer = await self.connect(port=port, unix=unix)
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                return await self._until_closed(reader, writer)
            return b""

    async def connect(
        self, *, port: int | None = None, unix: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if unix:
            return await asyncio.open_unix_connection(str(self.socket_path))
        return await asyncio.open_connection("127.0.0.1", port or self.view.config.read_only_port)

    async def ask(self, method: str, target: str, *, port: int | None = None, unix: bool = False) -> Answer:
        request = f"{method} {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode()
        return parse(await self.raw(request, port=port, unix=unix))

    async def get(self, target: str) -> Answer:
        return await self.ask("GET", target)

    @staticmethod
    async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            return await reader.read(-1)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def parse(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked" and body:
        whole = b""
        while (size := int(body.partition(b"\r\n")[0], 16)) > 0:
            start = body.index(b"\r\n") + 2
            whole += body[start : start + size]
            body = body[start + size + 2 :]
        body = whole
    return Answer(int(status.split()[1]), headers, body)
