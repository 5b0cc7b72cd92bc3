"""Unpack image layers into directories that overlayfs can stack.

A layer's whiteouts become overlayfs whiteouts: a 0/0 character device for a removed path, an extended
attribute for a directory that hides the one below. They apply to the layers below, never to their own layer
(OCI image specification, layer.md). Names that lead out of the layer are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tarfile
from pathlib import Path
from typing import IO

from engine.api.errors import InvalidInput
from engine.host.trees import remove_tree
from engine.runtime.images import tars
from engine.runtime.shim.linux import OPAQUE_ATTRIBUTE, OVERLAY_ATTRIBUTES, change_owner

WHITEOUT = ".wh."
METADATA = ".wh..wh."
OPAQUE = ".wh..wh..opq"
XATTR_PREFIX = "SCHILY.xattr."
FORBIDDEN_XATTRS = ("trusted.", OVERLAY_ATTRIBUTES)
MAX_DEPTH = 256
LIMITS = tars.Limits(entries=1_000_000, size=64 << 30)


class _Hashing(tars.TarSource):
    """Compute a digest of the bytes that are read."""

    def __init__(self, stream: IO[bytes], size: int, subject: str) -> None:
        super().__init__(stream, size, subject)
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        self.hash.update(data)
        return data


def unpack(stream: IO[bytes], target: Path, diff_id: str, limits: tars.Limits = LIMITS) -> tuple[int, int]:
    """Unpack the layer tar `stream` below `target`; return bytes and inodes.

    Raise InvalidInput if its digest is not `diff_id`, a path leads outside or a limit is exceeded. The
    caller removes what was unpacked so far.
    """
    subject = f"layer {diff_id}"
    source = _Hashing(stream, limits.size, subject)
    directories: dict[Path, float] = {}
    size = inodes = 0
    try:
        for tar, member in tars.members(source, limits):
            place = _place(target, member.name)
            if place is None or (place.name.startswith(METADATA) and place.name != OPAQUE):
                continue  # the root itself, or a file of AUFS metadata
            inodes += 1
            if place.name == OPAQUE:
                _hide_below(place.parent)
            elif place.name.startswith(WHITEOUT):
                _white_out(place.with_name(place.name.removeprefix(WHITEOUT)))
            else:
                size += _make(tar, member, place, target)
                if member.isdir():
                    directories[place] = member.mtime
        for place, mtime in reversed(directories.items()):
            if place.is_dir() and not place.is_symlink():
                os.utime(place, (mtime, mtime))
        while source.read(tars.CHUNK):
            pass
    except tars.DAMAGE as error:
        raise InvalidInput(f"damaged: {error}", subject=subject) from None
    actual = "sha256:" + source.hash.hexdigest()
    if actual != diff_id:
        raise InvalidInput(f"damaged: the digest of its content is {actual}", subject=subject)
    return size, inodes


def _make(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> int:
    size = 0
    if member.isdir():
        _make_directory(place)
    elif member.islnk():
        source = _linked(root, member.linkname)
        if source != place:
            _make_way(place)
            os.link(source, place, follow_symlinks=False)
        return 0
    else:
        _make_way(place)
        if member.isreg():
            size = _copy(tar, member, place)
        elif member.issym():
            place.symlink_to(member.linkname)
        elif member.ischr() or member.isblk():
            kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
            os.mknod(place, kind | stat.S_IMODE(member.mode), os.makedev(member.devmajor, member.devminor))
        elif member.isfifo():
            os.mkfifo(place)
        else:
            return 0
    change_owner(place, member.uid, member.gid)
    if not member.issym():
        place.chmod(stat.S_IMODE(member.mode))
        os.utime(place, (member.mtime, member.mtime))
        for key, value in member.pax_headers.items():
            name = key.removeprefix(XATTR_PREFIX)
            if name != key and not name.startswith(FORBIDDEN_XATTRS):  # overlayfs has whiteouts of its own
                with contextlib.suppress(OSError):
                    os.setxattr(place, name, value.encode("utf-8", "surrogateescape"))
    return size


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> int:
    """Copy the file's bytes, keeping holes; return how many bytes were read."""
    content = tar.extractfile(member)
    assert content is not None
    sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
    size = 0
    with place.open("xb") as file:
        for offset, length in sparse if sparse is not None else [(0, member.size)]:
            file.seek(offset)
            content.seek(offset)
            while length > 0 and (data := content.read(min(tars.CHUNK, length))):
                file.write(data)
                size, length = size + len(data), length - len(data)
        file.truncate(member.size)
    return size


def _place(root: Path, name: str) -> Path | None:
    """Return the target path of a member and create its parents. None for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts:
        return None
    if ".." in parts:
        raise InvalidInput("leads out of the layer", subject=name)
    if len(parts) > MAX_DEPTH:
        raise InvalidInput(f"lies more than {MAX_DEPTH} levels deep", subject=f"{name[:80]}…")
    if any(part.startswith(WHITEOUT) and not part.startswith(METADATA) for part in parts[:-1]):
        raise InvalidInput("goes through a whiteout", subject=name)
    if parts[-1].removeprefix(WHITEOUT) in ("", ".", ".."):
        raise InvalidInput("is a whiteout of nothing in its directory", subject=name)
    place = root
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise InvalidInput("goes through a symbolic link", subject=name)
        _make_directory(place)
    return place / parts[-1]


def _linked(root: Path, name: str) -> Path:
    """Return the target of a hard link to `name`, an earlier member."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    place = root
    for part in parts:
        if part == ".." or place.is_symlink():
            raise InvalidInput("leads out of the layer", subject=f"link to {name!r}")
        place = place / part
    if not os.path.lexists(place) or (place.is_dir() and not place.is_symlink()):
        raise InvalidInput("no such file before it in the layer", subject=f"link to {name!r}")
    return place


def _white_out(hidden: Path) -> None:
    """Hide the path in lower layers; what this layer has there itself stays."""
    if not os.path.lexists(hidden):
        os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))
    elif hidden.is_dir() and not hidden.is_symlink():
        _hide_below(hidden)


def _hide_below(directory: Path) -> None:
    os.setxattr(directory, OPAQUE_ATTRIBUTE, b"y")


def _make_directory(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        return
    hidden = _is_whiteout(place)
    place.unlink(missing_ok=True)
    place.mkdir(mode=0o755)
    if hidden:
        _hide_below(place)


def _is_whiteout(place: Path) -> bool:
    try:
        status = place.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _make_way(place: Path) -> None:
    """Remove what is at the path, so that something other than a directory can be created there."""
    if place.is_dir() and not place.is_symlink():
        remove_tree(place)
    else:
        place.unlink(missing_ok=True)
