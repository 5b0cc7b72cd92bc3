"""Gives trees of files to a group, which may then write all of them (fsGroup). Links are not followed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from engine.host.safe_open import HANDLE, open_beneath, same_file
from engine.host.trees import walk

_FILE, _DIRECTORY = 0o660, 0o2770
ON_ROOT_MISMATCH: Final = "OnRootMismatch"


def share_tree(top: int, group: int, policy: str | None) -> None:
    """Give an open directory with its content to a group; with OnRootMismatch, only if the directory itself
    does not belong to it.

    The tree is changed from the bottom up, so that an interrupted change leaves the top as it was. Raises
    `OSError`.
    """
    if policy == ON_ROOT_MISMATCH and _is_right(top, group):
        return
    for visit in walk(top):
        os.chown(visit.name, -1, group, dir_fd=visit.directory, follow_symlinks=False)
        try:
            at = open_beneath(visit.directory, visit.name, HANDLE)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        else:
            _add_mode(at)
            os.close(at)
    os.chown(same_file(top), -1, group)
    _add_mode(top)


def _is_right(directory: int, group: int) -> bool:
    found = os.fstat(directory)
    return found.st_gid == group and found.st_mode & _DIRECTORY == _DIRECTORY


def _add_mode(at: int) -> None:
    mode = os.fstat(at).st_mode
    more = _DIRECTORY if stat.S_ISDIR(mode) else _FILE
    Path(same_file(at)).chmod(stat.S_IMODE(mode) | more)
