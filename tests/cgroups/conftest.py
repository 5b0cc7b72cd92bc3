"""Run scenes on this machine's hierarchies or, by name, inside a cgroup v2 kernel."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def private_root() -> Iterator[str]:
    """Yield a cgroup root of the test's own. Groups left in it are removed, and fail the test."""
    name = f"kubengine-test-{uuid.uuid4().hex[:8]}"
    yield "/" + name
    left = [path for path in Path("/sys/fs/cgroup").glob(f"*/{name}") if path.is_dir()]
    left += [path for path in Path("/sys/fs/cgroup").glob(name) if path.is_dir()]
    for path in left:
        for group in sorted(path.rglob("*"), key=lambda p: -len(p.parts)):
            if group.is_dir():
                group.rmdir()
        path.rmdir()
    assert not left, f"groups left behind: {left}"
