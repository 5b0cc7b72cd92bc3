"""A test API server and a client of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.testing.apiserver import ApiServer

Connect = Callable[[Path], ApiClient]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A client for a kubeconfig, closed after the test."""
    clients = []

    def connected(kubeconfig: Path, timeout: float = 30.0) -> ApiClient:
        config = load_kubeconfig(kubeconfig)
        credentials = Credentials(config, clock=time.time)
        clients.append(ApiClient(config, credentials, user_agent="test", timeout=timeout))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
async def client(server: ApiServer, connect: Connect) -> ApiClient:
    return connect(server.kubeconfig("system:node:n1"))
