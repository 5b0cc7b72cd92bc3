"""Unpacks image layers into directories that overlayfs can stack.

A layer's whiteouts become overlayfs' own: a 0/0 character device for a removed path, an extended
attribute for a directory that hides the one below. Paths that lead out of the layer are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO

from engine.api.errors import InvalidInput

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
OPAQUE_ATTRIBUTE = "trusted.overlay.opaque"
XATTR_PREFIX = "SCHILY.xattr."
COPY = 1 << 20


class _Hashing:
    """A readable that digests what passes through."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.hash.update(data)
        return data


def unpack(stream: IO[bytes], target: Path, diff_id: str) -> tuple[int, int]:
    """Unpack the layer tar `stream` below `target`; answers bytes and inodes.

    Raises InvalidInput where its digest is not `diff_id` or a path leads outside. The caller removes
    what was unpacked so far.
    """
    source = _Hashing(stream)
    directories: list[tuple[Path, tarfile.TarInfo]] = []
    size = inodes = 0
    with tarfile.open(fileobj=source, mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            place = _place(target, member.name)
            if place is None:
                continue
            inodes += 1
            if place.name == OPAQUE:
                os.setxattr(place.parent, OPAQUE_ATTRIBUTE, b"y")
            elif place.name.startswith(WHITEOUT):
                hidden = place.with_name(place.name[len(WHITEOUT) :])
                _make_way(hidden, for_directory=False)
                os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))
            else:
                size += _make(tar, member, place, target)
                if member.isdir():
                    directories.append((place, member))
    for place, member in reversed(directories):
        os.utime(place, (member.mtime, member.mtime))
    while source.read(COPY):
        pass
    actual = "sha256:" + source.hash.hexdigest()
    if actual != diff_id:
        raise InvalidInput(f"its content is {actual}", subject=f"layer {diff_id}")
    return size, inodes


def _make(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> int:
    _make_way(place, for_directory=member.isdir())
    size = 0
    if member.isdir():
        place.mkdir(exist_ok=True)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        with place.open("xb") as file:
            shutil.copyfileobj(content, file, COPY)
        size = member.size
    elif member.issym():
        place.symlink_to(member.linkname)
    elif member.islnk():
        source = _place(root, member.linkname)
        if source is None:
            raise InvalidInput(f"links to {member.linkname!r}", subject=member.name)
        os.link(source, place, follow_symlinks=False)
        return 0
    elif member.ischr() or member.isblk():
        kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
        os.mknod(place, kind | member.mode, os.makedev(member.devmajor, member.devminor))
    elif member.isfifo():
        os.mkfifo(place)
    else:
        return 0
    os.chown(place, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        place.chmod(stat.S_IMODE(member.mode))
        os.utime(place, (member.mtime, member.mtime))
        for key, value in member.pax_headers.items():
            if key.startswith(XATTR_PREFIX):
                with contextlib.suppress(OSError):
                    os.setxattr(place, key[len(XATTR_PREFIX) :], value.encode("utf-8", "surrogateescape"))
    return size


def _place(root: Path, name: str) -> Path | None:
    """Where a member goes; parents are made. None for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts:
        return None
    if ".." in parts:
        raise InvalidInput("leads out of the layer", subject=name)
    place = root
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise InvalidInput("goes through a symbolic link", subject=name)
        if not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir(mode=0o755)
    return place / parts[-1]


def _make_way(place: Path, *, for_directory: bool) -> None:
    if not os.path.lexists(place):
        return
    if place.is_dir() and not place.is_symlink():
        if not for_directory:
            shutil.rmtree(place)
    else:
        place.unlink()
