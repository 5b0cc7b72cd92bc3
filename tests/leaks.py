"""A watch on what a test leaves in its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

MORE_THREADS = 8
"""asyncio's pool of threads may grow during a test and stays; probe loops' own threads do not."""


def _held() -> tuple[int, int]:
    own = Path("/proc/self")
    return len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Descriptors and threads are as many after a test as before (gRPC keeps its own, once used)."""
    if request.node.get_closest_marker("containerd"):
        yield
        return
    before = _held()
    yield
    most = before[0], before[1] + MORE_THREADS
    wait_until(lambda: all(now <= limit for now, limit in zip(_held(), most, strict=True)), 20)
