"""A node of one's own on the hollow runtime."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.runtime.hollow import HollowRuntime
from tests.node_bench import Bench


@pytest.fixture
async def hollow() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            yield runtime


@pytest.fixture
async def bench(tmp_path: Path, hollow: HollowRuntime) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, hollow.socket)
    yield bench
    await bench.close()
