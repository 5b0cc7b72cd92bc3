"""Checks or creates hostPath directories and files. The path is trusted, as in the kubelet."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import HostPathVolume

_KINDS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def set_up(volume: HostPathVolume) -> Path:
    """Create or check the path according to `type`; a relative path begins at `/`, as it does in a service.

    Raises `Refused`, `InvalidInput` or `OSError`.
    """
    path = Path("/", volume.path)
    if not volume.path or ".." in path.parts or "\0" in volume.path:
        raise InvalidInput(f"invalid HostPath {volume.path!r}: expected a path without '..'")
    if not volume.type:
        return path
    if volume.type not in _KINDS:
        raise InvalidInput(f"{volume.type} is an invalid volume type")
    is_kind, words = _KINDS[volume.type]
    found = _mode(path)
    if found is None and volume.type == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = _mode(path)
    elif found is None and volume.type == "FileOrCreate":
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0o644))
        found = _mode(path)
    if found is None or not is_kind(found):
        raise Refused(f"hostPath type check failed: {path} is not {words}")
    return path


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
