"""Servers that stop with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.server import HttpServer
from tests.server.served import Served, View


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[[View], Any]]:
    """Yield a function that starts a server over a view; stop all of these servers at the end."""
    started: list[HttpServer] = []

    async def start(view: View) -> Served:
        path = tmp_path / "kubengine.sock"
        server = HttpServer(view, socket_path=path)
        await server.start()
        started.append(server)
        return Served(view, server, path)

    yield start
    for server in started:
        await server.stop()
