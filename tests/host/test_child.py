"""Programs run for what they print, with real ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.api.errors import Refused, Unavailable
from engine.host.child import Printed, run_child, which
from tests.waiting import eventually


async def test_output_and_exit_status_are_returned():
    printed = await run_child(
        ["sh", "-c", "cat; echo $WORD >&2; exit 3"],
        stdin=b"in",
        environment={"WORD": "last", "PATH": os.environ["PATH"]},
        seconds=30,
        most=10,
        subject="it",
    )
    assert printed == Printed(3, b"in", "last")


async def test_one_that_prints_without_end_is_killed(tmp_path: Path):
    pid = tmp_path / "pid"
    with pytest.raises(Refused, match="it: its output exceeds 1000 bytes"):
        await run_child(["sh", "-c", f"echo $$ > {pid}; yes & yes"], seconds=60, most=1000, subject="it")
    await eventually(lambda: not _runs(int(pid.read_text())))


async def test_a_late_child_is_killed_with_its_children(tmp_path: Path):
    pid = tmp_path / "pid"
    with pytest.raises(Unavailable, match=r"it: no answer within 0\.5 s"):
        await run_child(
            ["sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"], seconds=0.5, most=10, subject="it"
        )
    await eventually(lambda: not _runs(int(pid.read_text())))


async def test_one_that_is_not_there():
    with pytest.raises(Unavailable, match="it: No such file") as caught:
        await run_child(["/nowhere/x"], seconds=1, most=1, subject="it")
    assert caught.value.errno == 2


async def test_one_that_does_not_listen():
    printed = await run_child(["true"], stdin=b"x" * (1 << 20), seconds=30, most=1, subject="it")
    assert printed.code == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("program", ["sh", "/bin/sh", "missing", "data", "./data", "directory", "", "tool"])
def test_a_program_is_found_as_the_shell_finds_it(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "data").write_text("")
    (tmp_path / "tool").write_text("")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    assert which(program) == shutil.which(program)
