"""`--lock-file` and `--exit-on-lock-contention`: agents that take turns."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.api.errors import InvalidInput, Refused
from engine.cli.agent.process import LockFile
from engine.cli.kubelet import command
from tests.cli.test_logging import KUBELET, UP
from tests.waiting import PATIENCE, wait_until


@contextmanager
def agent(root: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield a node agent without containers, and the file of its log."""
    log = root / "log"
    arguments = [*KUBELET, *flags, f"--root-dir={root}/r"]
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "engine.cli", "kubelet", *arguments], stderr=stderr)
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()


def test_an_agent_ends_when_another_process_opens_its_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with agent(tmp_path, f"--lock-file={lock}", "--exit-on-lock-contention") as (process, log):
        wait_until(lambda: UP in log.read_text())
        with lock.open("r+") as wanted:
            fcntl.flock(wanted, fcntl.LOCK_EX)  # waits until the agent has ended
            assert process.wait(PATIENCE) == 0
    assert f"another process opened or removed {lock}" in log.read_text()


def test_an_agent_waits_for_the_lock_and_then_starts(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with agent(tmp_path, "--lock-file", str(lock)) as (process, log):
            wait_until(lambda: "acquiring the lock" in log.read_text())
            assert not (tmp_path / "r").exists(), "it has not claimed its root directory"
            fcntl.flock(held, fcntl.LOCK_UN)
            wait_until(lambda: UP in log.read_text())
            os.close(os.open(lock, os.O_RDONLY))
            assert process.poll() is None, "without the other flag, contention does not end it"


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with agent(tmp_path, f"--lock-file={lock}") as (process, log):
            wait_until(lambda: "acquiring the lock" in log.read_text())
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert UP not in log.read_text()


def test_a_lock_is_held_once_until_it_is_released(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="lock: cannot lock: No such file or directory"):
        LockFile(tmp_path / "none" / "lock").acquire()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--exit-on-lock-contention"], "no lock file specified"),
        (["--exit-on-lock-contention=yes", "--lock-file=/x"], "expected true or false, got 'yes'"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], message: str) -> None:
    error = CliRunner().invoke(command, flags).exception
    assert isinstance(error, InvalidInput)
    assert message in str(error)
