"""Log rotation: what is kept, compressed and deleted, and that the runtime is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.cri.records import RUNNING, ContainerRecord
from engine.node.log_rotation import LogRotation, log_limits, surplus

from .conftest import eventually


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_the_oldest_go_and_the_rest_is_compressed():
    logs = [Path(f"0.log.2026010{day}-000000{end}") for day, end in enumerate((".gz", ".gz", "", ""), 1)]
    delete, compress = surplus([*logs, Path("0.log.20260103-000000.tmp")], 5)
    assert names(delete) == ["0.log.20260103-000000.tmp", "0.log.20260101-000000.gz"]
    assert names(compress) == ["0.log.20260103-000000", "0.log.20260104-000000"]
    assert surplus([], 2) == ([], [])


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInput, match="containerLogMaxFiles"):
        log_limits(KubeletConfiguration(container_log_max_files=1))
    with pytest.raises(InvalidInput, match="quantity"):
        log_limits(KubeletConfiguration(container_log_max_size="ten"))


class Reopened:
    """Only the one call of the runtime that rotation makes."""

    def __init__(self, path: Path) -> None:
        self.path, self.calls = path, 0

    async def reopen_container_log(self, container_id: str) -> None:
        assert container_id == "id"
        assert not self.path.exists()
        self.calls += 1
        self.path.write_text("new")


async def test_a_large_log_is_moved_and_the_runtime_opens_another(tmp_path: Path):
    path = tmp_path / "0.log"
    path.write_text("x" * 2000)
    old = tmp_path / "0.log.20260101-000000"
    old.write_text("old")
    runtime = Reopened(path)
    config = KubeletConfiguration(
        container_log_max_size="1Ki", container_log_max_files=3, container_log_monitor_interval=Duration(0.02)
    )
    container = ContainerRecord("id", "c", "s", RUNNING, 0, 1.0, log_path=str(path))
    rotation = LogRotation(config=config, runtime=runtime, running=lambda: [container], clock=lambda: 1e9)
    await rotation.start()
    await eventually(lambda: runtime.calls and path.exists())
    await rotation.stop()
    assert path.read_text() == "new"
    assert len((tmp_path / "0.log.20010909-014640").read_text()) == 2000
    assert gzip.decompress((tmp_path / "0.log.20260101-000000.gz").read_bytes()) == b"old"
    assert not old.exists()
