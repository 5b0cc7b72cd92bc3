"""A state file on a disk that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.host import state_file
from engine.host.state_file import StateFile
from tests.waiting import eventually


async def test_a_failing_disk_is_tried_once_in_each_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the state changes meanwhile; the state is on disk soon after the disk works again."""
    monkeypatch.setattr(state_file, "RETRY_SECONDS", 0.5)
    tried, failing = 0, True

    def fault(step: str) -> None:
        nonlocal tried
        tried += step == "checkpoint written"
        if failing:
            raise Refused("the disk fails")

    path = tmp_path / "state"
    path.touch()
    file = StateFile(path, lambda: b"state", name="state", fault=fault)
    await file.start()
    try:
        for _ in range(30):
            with pytest.raises(Refused):
                await file.flush()
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        tried = 0
        await asyncio.sleep(1.6)
        assert 1 <= tried <= 4
        failing = False
        await eventually(lambda: path.read_bytes() == b"state")
    finally:
        await file.stop()
