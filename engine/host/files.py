"""Replaces a file completely or not at all; the new content is on disk when the call returns.

The content goes to a temporary file in the same directory, which is synced and renamed over the old one;
then the directory is synced. All operations use the directory's descriptor, so that a directory that is
moved or replaced meanwhile is not written to in part. A killed process leaves a file `.NAME.PID-….new`;
`remove_unfinished` removes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engine.api.errors import Refused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = re.compile(r"\..+\.(\d+)-[0-9a-f]+\.new")


def replace_file(path: Path, content: bytes | str, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write `content` (text as UTF-8). Raises `Refused` with the path, and leaves the old file untouched
    then.

    A file that is not `durable` is not synced: its users must be able to write it again after a power cut.
    """
    left = memoryview(content.encode() if isinstance(content, str) else content)
    with _replacing(path, mode=mode, durable=durable) as descriptor:
        while left:
            left = left[os.write(descriptor, left) :]


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block ends, and vanishes if it raises; mode 0600.

    Raises `Refused` with the path for what the kernel refuses, including any `OSError` of the block.
    """
    with (
        _replacing(path, mode=0o600, durable=True) as descriptor,
        os.fdopen(descriptor, "wb", closefd=False) as file,
    ):
        yield file


@contextmanager
def _replacing(path: Path, *, mode: int, durable: bool) -> Iterator[int]:
    try:
        directory = os.open(path.parent, _DIRECTORY)
        try:
            with _new_file(path.name, directory, mode, durable) as descriptor:
                yield descriptor
            if durable:
                os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        text = f"cannot write: {error.strerror or error}"
        raise Refused(text, subject=str(path), errno=error.errno) from error


def sync_directory(path: Path) -> None:
    """Return when the names in the directory are on disk. Raises OSError."""
    directory = os.open(path, _DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def _new_file(name: str, directory: int, mode: int, durable: bool) -> Iterator[int]:
    # A name has at most 255 bytes, and the process id tells `remove_unfinished` whether its writer still
    # lives.
    unfinished = f".{os.fsdecode(os.fsencode(name)[:200])}.{os.getpid()}-{os.urandom(4).hex()}.new"
    descriptor = os.open(unfinished, _NEW_FILE, mode, dir_fd=directory)
    try:
        try:
            # The mode given to open(2) is reduced by the umask.
            os.fchmod(descriptor, mode)
            yield descriptor
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # After the sync: a file system may write the rename to disk before the data that it names.
        os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=directory)
        raise


def remove_unfinished(directory: Path) -> None:
    """Remove what processes that no longer exist left half written in the directory, if there is one."""
    with suppress(OSError):
        for entry in list(os.scandir(directory)):
            match = _UNFINISHED.fullmatch(entry.name)
            if match is not None and not _lives(int(match[1])):
                with suppress(OSError):
                    Path(entry.path).unlink()


def _lives(pid: int) -> bool:
    return pid == os.getpid() or Path("/proc", str(pid)).exists()
