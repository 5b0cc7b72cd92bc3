"""A damaged file with a checksum is noticed, named and set aside, and its owner starts without it."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.errors import Unavailable
from engine.host import checksummed_file
from engine.host.checksummed_file import MAX_SET_ASIDE, add_checksum, read_checksummed, write_checksummed
from tests.no_files import NO_FILES, make_no_file

CONTENT = json.dumps({"kept": [1, 2, 3]}).encode()


def read(path: Path) -> object:
    return read_checksummed(path, json.loads, without="starting again")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(flipped)
    for length in range(len(whole)):
        yield f"cut to {length} bytes", whole[:length]
    yield "longer", whole + b"\n"
    yield "not UTF-8", add_checksum(b"\xff\xfe")
    yield "deep", add_checksum(b"[" * 100_000 + b"]" * 100_000)
    yield "another kind", add_checksum(b"]")


def test_a_written_record_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read(path) is None
    write_checksummed(path, CONTENT)
    assert read(path) == {"kept": [1, 2, 3]}
    assert names(tmp_path) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_damage_is_named_and_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file"
    for what, content in damaged(add_checksum(CONTENT)):
        path.write_bytes(content)
        caplog.clear()
        assert read(path) is None, what
        [record] = caplog.records
        assert record.levelno == logging.ERROR
        assert str(path) in record.message, what
        assert "starting again" in record.message
        assert not path.exists(), what
        assert len(names(tmp_path)) <= MAX_SET_ASIDE
        newest = max(tmp_path.iterdir(), key=lambda each: each.stat().st_ctime_ns)
        assert newest.name.startswith("file.bad-")


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_record_that_is_no_file_is_set_aside_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = tmp_path / "file"
    make_no_file(path, kind)
    assert read(path) is None
    assert kind == "dangling link" or str(path) in caplog.text
    write_checksummed(path, CONTENT)
    assert read(path) == {"kept": [1, 2, 3]}


def test_a_name_with_the_signs_of_a_pattern_is_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "[ab]*"
    for _ in range(MAX_SET_ASIDE + 2):
        path.write_bytes(b"bad")
        assert read(path) is None
    other = [f"a.bad-{number}" for number in range(5)]
    for name in other:
        (tmp_path / name).touch()
    path.write_bytes(b"bad")
    assert read(path) is None
    found = names(tmp_path)
    assert set(other) < set(found)
    assert len(found) == len(other) + MAX_SET_ASIDE


def test_a_file_that_cannot_be_set_aside_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    path = directory / ("n" * 255)
    path.write_bytes(b"bad")
    assert read(path) is None
    assert "cannot be set aside (File name too long)" in caplog.text


class FailingDisk:
    """Fail the first `times` reads with an error."""

    def __init__(self, patch: pytest.MonkeyPatch, times: int, number: int) -> None:
        self.times = times
        read = checksummed_file._read

        def failing(path: Path) -> bytes:
            if self.times:
                self.times -= 1
                raise OSError(number, os.strerror(number), path)
            return read(path)

        patch.setattr(checksummed_file, "_read", failing)


def test_one_fault_of_the_disk_is_not_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_checksummed(path, b"said")
    FailingDisk(monkeypatch, 1, errno.EIO)
    assert read_checksummed(path, bytes, without="") == b"said"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_unreadable_file_is_neither_damaged_nor_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "f"
    write_checksummed(path, b"said")
    FailingDisk(monkeypatch, 2, number)
    with pytest.raises(Unavailable, match=str(path)):
        read_checksummed(path, bytes, without="")
    assert read_checksummed(path, bytes, without="") == b"said"
