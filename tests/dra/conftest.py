from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dra.rig import DraRig


@pytest.fixture
async def dra() -> AsyncIterator[DraRig]:
    """A manager that runs, without drivers, in a directory that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kd-") as directory:
        rig = DraRig(Path(directory))
        await rig.start()
        yield rig
        await rig.close()
