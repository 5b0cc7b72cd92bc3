"""Directories below `plugins_registry` that are deep, wide, or gone before they are looked at."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.plugins import watcher
from engine.plugins.watcher import PluginWatcher
from tests.waiting import eventually


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[PluginWatcher]:
    watching = PluginWatcher(tmp_path / "r", {}, Tasks(Registry()))
    yield watching
    await watching.stop()


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


async def test_a_deep_directory_is_ignored(
    watched: PluginWatcher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    top = tmp_path / "r"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    with caplog.at_level(logging.ERROR):
        await watched.start()
    assert "more than 32 levels" in caplog.text
    bind(top / "s.sock")
    await eventually(lambda: top / "s.sock" in watched._tasks)


async def test_a_directory_that_is_made_again_is_watched_again(
    watched: PluginWatcher, tmp_path: Path
) -> None:
    top = tmp_path / "r"
    (top / "driver").mkdir(parents=True)
    await watched.start()
    shutil.rmtree(top / "driver")
    (top / "driver").mkdir()
    await eventually(lambda: top / "driver" in watched._watch._paths.values())  # type: ignore[union-attr]
    for _ in range(20):
        (top / "gone").mkdir()
        (top / "gone").rmdir()
    marker = top / "marker.sock"
    bind(marker)
    await eventually(lambda: marker in watched._tasks)
    bind(top / "driver" / "s.sock")
    await eventually(lambda: top / "driver" / "s.sock" in watched._tasks)


async def test_a_directory_that_goes_while_it_is_read_costs_no_other_event(
    watched: PluginWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of inotify has the events of both: what is wrong with the first must not lose the second."""
    top = tmp_path / "r"
    top.mkdir()
    await watched.start()
    watch: Any = watched._watch
    add = watch.add

    def gone_before(path: Path, mask: int) -> None:
        if path.name == "gone":
            path.rmdir()
        add(path, mask)

    monkeypatch.setattr(watch, "add", gone_before)
    (top / "gone").mkdir()
    bind(top / "s.sock")
    await eventually(lambda: top / "s.sock" in watched._tasks)
    assert not (top / "gone").exists()


async def test_a_directory_that_cannot_be_read_for_a_moment_is_read_later(
    watched: PluginWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "r"
    top.mkdir()
    bind(top / "s.sock")
    listed = Path.iterdir
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 2)

    def lacking(path: Path) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", lacking)
    await watched.start()
    assert watched._tasks == {}
    await eventually(lambda: top / "s.sock" in watched._tasks)


async def test_a_wide_directory_is_read_to_its_bound(
    watched: PluginWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "MAX_ENTRIES", 10)
    (tmp_path / "r").mkdir()
    for number in range(20):
        (tmp_path / "r" / str(number)).touch()
    await watched.start()
    assert "more than 10 entries" in caplog.text
