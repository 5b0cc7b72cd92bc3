"""Log rotation: what is kept, compressed and deleted, and that the runtime is told."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.cri.records import RUNNING, ContainerRecord
from engine.node.logs.log_rotation import LogRotation, log_limits, surplus
from tests.contexts import node_context
from tests.waiting import eventually


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
    """Serve the only call of the runtime that log rotation makes."""

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
    rotation = LogRotation(
        node_context(config, clock=lambda: 1e9), runtime=runtime, running=lambda: [container]
    )
    await rotation.start()
    await eventually(lambda: runtime.calls and path.exists())
    await rotation.stop()
    assert path.read_text() == "new"
    assert len((tmp_path / "0.log.20010909-014640").read_text()) == 2000
    assert gzip.decompress((tmp_path / "0.log.20260101-000000.gz").read_bytes()) == b"old"
    assert not old.exists()


async def test_links_that_a_container_put_among_its_logs_are_not_followed(tmp_path: Path):
    """One that mounts the host's log directory: links for rotated files, and a link on the way."""
    (tmp_path / "host").write_text("the host's own")
    logs = tmp_path / "logs"
    (logs / "c").mkdir(parents=True)
    path = logs / "c" / "0.log"
    path.write_text("x" * 2000)
    (logs / "c" / "0.log.20260101-000000").symlink_to(tmp_path / "host")
    runtime = Reopened(path)
    config = KubeletConfiguration(
        pod_logs_dir=str(logs),
        container_log_max_size="1Ki",
        container_log_max_files=3,
        container_log_monitor_interval=Duration(0.02),
    )
    swapped = logs / "swapped"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0.log").write_text("x" * 2000)
    swapped.symlink_to(tmp_path / "outside")
    containers = [
        ContainerRecord("elsewhere", "d", "s", RUNNING, 0, 1.0, log_path=str(swapped / "0.log")),
        ContainerRecord("id", "c", "s", RUNNING, 0, 1.0, log_path=str(path)),
    ]
    rotation = LogRotation(
        node_context(config, clock=lambda: 1e9), runtime=runtime, running=lambda: containers
    )
    await rotation.start()
    await eventually(lambda: runtime.calls and path.exists())
    await rotation.stop()
    assert sorted(file.name for file in path.parent.iterdir()) == ["0.log", "0.log.20010909-014640"]
    assert [file.name for file in (tmp_path / "outside").iterdir()] == ["0.log"]
    assert (tmp_path / "host").read_text() == "the host's own"


async def test_so_many_logs_are_rotated_at_once_as_there_are_workers(tmp_path: Path):
    class Slow(Reopened):
        now = most = 0
        go_on = asyncio.Event()

        async def reopen_container_log(self, container_id: str) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await self.go_on.wait()
            self.now -= 1

    paths = [tmp_path / f"{number}.log" for number in range(5)]
    for path in paths:
        path.write_text("x" * 2000)
    runtime = Slow(paths[0])
    config = KubeletConfiguration(
        pod_logs_dir=str(tmp_path),
        container_log_max_size="1Ki",
        container_log_max_workers=3,
        container_log_monitor_interval=Duration(0.02),
    )
    containers = [
        ContainerRecord(f"id{path.name}", "c", "s", RUNNING, 0, 1.0, log_path=str(path)) for path in paths
    ]
    rotation = LogRotation(
        node_context(config, clock=lambda: 1e9), runtime=runtime, running=lambda: containers
    )
    await rotation.start()
    await eventually(lambda: runtime.now == 3)
    assert sum(path.exists() for path in paths) == 2
    runtime.go_on.set()
    await eventually(lambda: not any(path.exists() for path in paths))
    await rotation.stop()
    assert runtime.most == 3
