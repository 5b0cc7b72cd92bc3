"""Stores small files that a later process reads; damage is noticed, reported, and the file set aside.

The first line is the BLAKE2b of everything after it. A file with another checksum, that cannot be read
(twice) or decoded, or that is not a regular file, is renamed to `NAME.bad-…`, of which the newest few stay.
A shortage of memory or descriptors does not count as damage.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from engine.api.encoding.digest import blake2b
from engine.api.errors import KubengineError, Unavailable
from engine.host.files import replace_file

MAX_BYTES = 256 * 1024 * 1024
MAX_SET_ASIDE = 3
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

log = logging.getLogger("kubengine.files")
T = TypeVar("T")


def write_checksummed(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the file (`replace_file`). Raises `Refused` with the path."""
    replace_file(path, add_checksum(content), durable=durable)


def read_checksummed(path: Path, decode: Callable[[bytes], T], *, without: str) -> T | None:
    """Return what `decode` makes of the content; None if there is no file, or none that can be trusted.

    Anything that `decode` raises means damage, which is logged with the path, the fault, and what happens
    `without` the file, and the file is set aside. Raises `Unavailable` with the path if it cannot be read
    now.
    """
    try:
        return decode(strip_checksum(read_again(path)))
    except FileNotFoundError:
        return None
    except Exception as error:
        # The file may be good: setting it aside would lose state because the machine is short of something.
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            raise Unavailable(_fault(error), subject=str(path)) from error
        log.error("%s: %s; %s; %s", path, _fault(error), set_aside(path), without)
        return None


def add_checksum(content: bytes) -> bytes:
    """Return the content under its checksum."""
    return blake2b(content, digest_size=32).hexdigest().encode() + b"\n" + content


def strip_checksum(data: bytes) -> bytes:
    """Return the content. Raises `ValueError` if the checksum does not match."""
    content = data[65:]
    if data != add_checksum(content):
        raise ValueError("damaged: its checksum does not match")
    return content


def set_aside(path: Path, *, move: bool = True) -> str:
    """Rename the file, or whatever has its name; return in words where it went.

    Without `move` the file also stays, for a caller that replaces it next.
    """
    try:
        stamp = f"{path.lstat().st_mtime_ns:x}-{os.urandom(2).hex()}"
        aside = path.with_name(f"{path.name}.bad-{stamp}")
        path.rename(aside) if move else aside.hardlink_to(path)
        earlier = sorted(
            path.parent.glob(f"{_literally(path.name)}.bad-*"), key=lambda p: p.lstat().st_ctime_ns
        )
        for old in earlier[:-MAX_SET_ASIDE]:
            with suppress(OSError):
                old.rmdir() if old.is_dir() else old.unlink()
    except OSError as error:
        return f"it cannot be set aside ({error.strerror or error})"
    return f"set aside as {aside.name}"


def read_again(path: Path) -> bytes:
    """Read a file of the agent's own once more after a read error.

    Raises `OSError`, and `ValueError` if it is not a regular file, or too large.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        raise
    except OSError:
        return _read(path)


def _read(path: Path) -> bytes:
    # O_NONBLOCK, because opening a FIFO that somebody put there would wait for a writer without end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)


def _fault(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, KubengineError | ValueError):
        return str(error)
    return f"cannot be decoded: {type(error).__name__}: {error}"


def _literally(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
