"""Find the descriptors and threads that a test leaves in its process."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

FAILED = pytest.StashKey[bool]()
"""Set for a test that has failed."""
MORE_THREADS = 8
"""asyncio's pool of threads may grow during a test and stays; probe loops' own threads do not."""


def _descriptors() -> dict[str, str]:
    """Return the number and target of each open descriptor."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[entry.name] = str(entry.readlink())
    return found


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test leaves no more descriptors or threads than it found.

    A failed test is not checked: it had no chance to close what it opened. gRPC keeps threads of its own.
    """
    if request.node.get_closest_marker("containerd"):
        yield
        return
    descriptors, threads = _descriptors(), _threads()
    yield
    if request.node.stash.get(FAILED, False):
        return

    def too_much() -> str:
        now = _descriptors()
        if len(now) > len(descriptors):
            new = {number: target for number, target in now.items() if descriptors.get(number) != target}
            return f"descriptors are still open: {new}"
        if _threads() > threads + MORE_THREADS:
            return f"threads still run: {threads} before, now {[t.name for t in threading.enumerate()]}"
        return ""

    if too_much():
        gc.collect()
    deadline = time.monotonic() + PATIENCE
    while left := too_much():
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
