"""Replaces a set of files atomically: readers see all of the old ones or all of the new.

The layout is that of the kubelet's AtomicWriter, so that each agent can continue with the other's. The files
are in a directory `..<time>.<random>`, the link `..data` leads to it, and each visible name is a link into
`..data`. A new set is written next to the old one, gets its modes and owners, and is swapped in by one
rename. A container may have put anything in the directory: it is replaced, never followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from engine.api.errors import InvalidInput
from engine.host.safe_open import (
    HANDLE,
    create_regular,
    make_directories,
    open_beneath,
    read_regular,
    same_file,
)
from engine.host.trees import remove_beneath, walk

DATA = "..data"
_NEW_DATA = "..data_tmp"
_READABLE = os.O_RDONLY | os.O_DIRECTORY
_LONGEST_NAME, _LONGEST_PATH = 255, 4096
_GROUP_READS_FILE = 0o440
_GROUP_READS_DIRECTORY = 0o2550


class PublishedFile(msgspec.Struct, frozen=True):
    """Hold a file to publish. `uid` is its owner if that is not the agent's user, as for a token of one
    container.
    """

    data: bytes
    mode: int
    uid: int = -1


def publish(
    directory: int, files: Mapping[str, PublishedFile], *, group: int | None = None, now: float
) -> bool:
    """Make an open directory show exactly these files, by relative paths; return whether that changed
    anything.

    With a `group` (fsGroup), everything belongs to it, and it may read all. `now`, in Unix seconds, names
    the set. Raises `InvalidInput` for a path that leads outside, begins with `..`, or is another's
    directory, and `OSError` naming the path. A failure leaves the old set as it was.
    """
    cleaned = {_clean(path): file for path, file in files.items()}
    _check_nesting(cleaned)
    current = _current(directory)
    changed = current is None or not _holds(directory, current, cleaned, group)
    if changed:
        current = _write_set(directory, cleaned, group, now)
        _replace_link(directory, DATA, current)
    names = {path.split("/")[0] for path in cleaned}
    for name in sorted(names):
        _replace_link(directory, name, f"{DATA}/{name}")
    _sweep(directory, names, current or "")
    return changed


def share_with_group(directory: int, group: int) -> None:
    """Give an open directory that the agent writes to a group, whose members may read it."""
    path = same_file(directory)
    os.chown(path, -1, group)
    os.chmod(path, stat.S_IMODE(os.fstat(directory).st_mode) | _GROUP_READS_DIRECTORY)


def _clean(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    # Names that begin with `..` belong to the layout (`..data`, `..<time>`), in the kubelet's writer too.
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith("..") or "\0" in path:
        raise InvalidInput(f"expected a path below the volume that does not begin with '..', got {path!r}")
    if len(os.fsencode(path)) > _LONGEST_PATH or any(len(os.fsencode(p)) > _LONGEST_NAME for p in parts):
        raise InvalidInput(f"path {path[:64]!r}… is too long")
    return "/".join(parts)


def _check_nesting(paths: Iterable[str]) -> None:
    files = set(paths)
    for path in files:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in files:
                raise InvalidInput(f"path {path!r} lies below a file")


def _current(directory: int) -> str | None:
    """Return the directory of `..data`, or None if it is not the agent's."""
    try:
        target = os.readlink(DATA, dir_fd=directory)
    except OSError:
        return None
    # A container may have put any link there. Only a set in the same directory may be read or removed.
    return target if target.startswith("..") and "/" not in target and target not in ("..", DATA) else None


def _holds(directory: int, current: str, files: Mapping[str, PublishedFile], group: int | None) -> bool:
    """Tell whether a set consists of exactly these files, with content, modes and owners."""
    try:
        top = open_beneath(directory, current, _READABLE)
    except OSError:
        return False
    try:
        for path, file in files.items():
            handle = open_beneath(top, path, HANDLE)
            try:
                found = os.fstat(handle)
            finally:
                os.close(handle)
            if (
                found.st_size != len(file.data)
                or stat.S_IMODE(found.st_mode) != _mode(file, group)
                or (group is not None and found.st_gid != group)
                or (file.uid >= 0 and found.st_uid != file.uid)
                or read_regular(top, path, len(file.data) + 1) != file.data
            ):
                return False
        # The loop has found every wanted file; a different number means that there are others, too.
        return sum(not visit.is_directory for visit in walk(top)) == len(files)
    except OSError:
        return False
    finally:
        os.close(top)


def _mode(file: PublishedFile, group: int | None) -> int:
    return file.mode | (_GROUP_READS_FILE if group is not None else 0)


def _write_set(directory: int, files: Mapping[str, PublishedFile], group: int | None, now: float) -> str:
    """Write the files to a new directory and return its name; a failure leaves nothing."""
    name = time.strftime("..%Y_%m_%d_%H_%M_%S.", time.gmtime(now)) + str(int.from_bytes(os.urandom(4)))
    # Nobody else may enter before all files have their modes and owners.
    os.mkdir(name, 0o700, dir_fd=directory)
    try:
        top = open_beneath(directory, name, _READABLE)
        try:
            for path, file in files.items():
                parent, _, last = path.rpartition("/")
                at = make_directories(top, parent, 0o755)
                try:
                    gid = -1 if group is None else group
                    create_regular(at, last, file.data, _mode(file, group), uid=file.uid, gid=gid)
                finally:
                    os.close(at)
            os.chmod(same_file(top), 0o755)  # noqa: S103 - modes of the files say who may read
            if group is not None:
                _share_directories(top, group)
        finally:
            os.close(top)
    except BaseException:
        with suppress(OSError):
            remove_beneath(directory, name)
        raise
    return name


def _share_directories(top: int, group: int) -> None:
    for visit in walk(top):
        if visit.is_directory:
            at = open_beneath(visit.directory, visit.name, HANDLE | os.O_DIRECTORY)
            try:
                share_with_group(at, group)
            finally:
                os.close(at)
    share_with_group(top, group)


def _replace_link(directory: int, name: str, target: str) -> None:
    """Replace a link by one rename, unless it is right or a directory has its name."""
    try:
        if os.readlink(name, dir_fd=directory) == target:
            return
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.symlink(target, name, dir_fd=directory)
            return
    except OSError:
        pass  # it is no link
    # A crash between the next two calls leaves it behind.
    remove_beneath(directory, _NEW_DATA)
    os.symlink(target, _NEW_DATA, dir_fd=directory)
    try:
        os.rename(_NEW_DATA, name, src_dir_fd=directory, dst_dir_fd=directory)
    # rename(2) never replaces a directory with a link.
    except IsADirectoryError:
        remove_beneath(directory, name)
        os.rename(_NEW_DATA, name, src_dir_fd=directory, dst_dir_fd=directory)


def _sweep(directory: int, names: set[str], current: str) -> None:
    """Remove links to missing files, sets that are not shown, and leftovers of a crash."""
    listed = os.open(".", _READABLE | os.O_CLOEXEC, dir_fd=directory)
    try:
        for name in os.listdir(listed):
            if name.startswith(".."):
                stale = name not in (DATA, current)
            else:
                stale = name not in names and _leads_into_data(directory, name)
            if stale:
                remove_beneath(directory, name)
    finally:
        os.close(listed)


def _leads_into_data(directory: int, name: str) -> bool:
    try:
        return os.readlink(name, dir_fd=directory).startswith(f"{DATA}/")
    except OSError:
        return False
