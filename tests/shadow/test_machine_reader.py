"""A state file that is half written, or gone, while a shadow reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cpumanager.checkpoint import CpuCheckpoint, encode
from engine.shadow.machine_reader import (
    CLAIM_STATE,
    CPU_STATE,
    DEVICE_STATE,
    MEMORY_STATE,
    MachineReader,
)


def test_the_last_content_of_a_half_written_file_stays(tmp_path: Path) -> None:
    faults: list[str] = []
    reader = MachineReader(tmp_path, lambda source, text: faults.append(source))
    path, whole = tmp_path / CPU_STATE, CpuCheckpoint("static", "0", {"uid": {"c": "1"}})
    content = encode(whole)
    path.write_bytes(content)
    assert (reader.cpus(), faults) == (whole, [])
    for length in (0, 1, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:length])
        assert reader.cpus() == whole, length
    assert faults == [str(path)] * 4
    # A kubelet whose policy changes removes it.
    path.unlink()
    assert (reader.cpus(), len(faults)) == (CpuCheckpoint(), 4)


@pytest.mark.parametrize("name", [CPU_STATE, MEMORY_STATE, CLAIM_STATE, DEVICE_STATE], ids=str)
def test_each_damaged_file_is_named(tmp_path: Path, name: str | Path) -> None:
    faults: list[str] = []
    reader = MachineReader(tmp_path, lambda source, text: faults.append(source))
    without, path = reader.states(), tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"policyName": "sta')
    assert (reader.states(), faults) == (without, [str(path)])
