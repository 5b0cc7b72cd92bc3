"""A file is replaced whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.host import files
from engine.host.files import remove_unfinished, replace_file, replacing_file

STEPS = ("open", "fchmod", "fsync", "rename")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class FailingOs:
    """Stand in for `os`; its function `call` fails the `at`-th time with EIO."""

    def __init__(self, call: str, at: int) -> None:
        self._call, self._left = call, at

    def __getattr__(self, name: str) -> object:
        return self._failing if name == self._call else getattr(os, name)

    def _failing(self, *arguments: object, **named: object) -> object:
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        call: Callable[..., object] = getattr(os, self._call)
        return call(*arguments, **named)


def test_content_and_mode_are_new_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old, and longer than what comes")
    before = os.umask(0o077)
    try:
        replace_file(path, "n\N{LATIN SMALL LETTER E WITH ACUTE}w", mode=0o644)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"n\xc3\xa9w"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(tmp_path) == ["file"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_text("precious")
    path.symlink_to(precious)
    replace_file(path, b"new")
    assert not path.is_symlink()
    assert precious.read_text() == "precious"


def test_a_reader_of_the_old_file_keeps_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    with path.open("rb") as held:
        replace_file(path, b"new")
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(("call", "at"), [*((step, 1) for step in STEPS), ("open", 2)])
def test_each_failing_step_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, at: int
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    monkeypatch.setattr(files, "os", FailingOs(call, at))
    with pytest.raises(Refused, match=f"{path}: cannot write: Input/output error") as raised:
        replace_file(path, b"new")
    assert raised.value.errno == errno.EIO
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_directory_that_cannot_be_synced_is_an_error_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "os", FailingOs("fsync", 2))
    with pytest.raises(Refused):
        replace_file(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]


def test_a_full_device_is_named_with_the_path(tmp_path: Path) -> None:
    def write_to_a_full_device() -> None:
        with replacing_file(tmp_path / "file") as file:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, file.fileno())
            os.close(full)
            file.write(b"content")

    with pytest.raises(Refused, match="No space left on device") as raised:
        write_to_a_full_device()
    assert raised.value.subject == str(tmp_path / "file")
    assert names(tmp_path) == []


def test_a_writer_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    def give_up() -> None:
        with replacing_file(tmp_path / "file") as file:
            file.write(b"half")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        give_up()
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", ["missing/file", "file/file", "directory"])
def test_an_unwritable_path_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory" / "full").mkdir(parents=True)
    with pytest.raises(Refused) as raised:
        replace_file(tmp_path / target, b"new")
    assert raised.value.subject == str(tmp_path / target)
    assert names(tmp_path) == ["directory", "file"]


def test_only_the_remains_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    keep = [f".file.{os.getpid()}-00ff.new", ".hidden.new", "file", "file.1-00ff.new"]
    for name in (f".file.{dead.pid}-00ff.new", *keep):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted(keep)
    remove_unfinished(tmp_path / "missing")


def test_a_long_name_leaves_space_for_its_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / ("\N{LATIN SMALL LETTER E WITH ACUTE}" * 127)
    replace_file(path, b"new")
    assert names(tmp_path) == [path.name]
