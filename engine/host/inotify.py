"""Watches directories through inotify on the asyncio loop, without a thread.

It calls the C library through ctypes: the kernel's interface is small and stable (inotify(7)).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from engine.api.errors import Refused

IN_MODIFY = 0x002
IN_CLOSE_WRITE = 0x008
IN_OPEN = 0x020
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000

FILES_CHANGED = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE

EVENTS_READ = 4096
"""Bytes of events in one turn of the event loop: at most 256 events, at least one with the longest name."""

_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class InotifyWatch:
    """Call `on_event(mask, directory, name)` for events in the directories that were added.

    An overflow of the kernel's queue arrives as `IN_Q_OVERFLOW` with empty names: events are lost, so that
    the owner has to examine everything.
    """

    def __init__(self, on_event: Callable[[int, Path, str], None]) -> None:
        self._on_event = on_event
        self._paths: dict[int, Path] = {}
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            number = ctypes.get_errno()
            # EMFILE means this limit of the user, or the process's limit of descriptors (inotify_init(2)).
            limit = "; sysctl fs.inotify.max_user_instances" if number == errno.EMFILE else ""
            raise Refused(f"{os.strerror(number)}{limit}", subject="inotify", errno=number)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def add(self, directory: Path, mask: int = FILES_CHANGED) -> None:
        """Watch a directory. Raises `Refused` naming it."""
        number = _libc.inotify_add_watch(self._fd, os.fsencode(directory), mask)
        if number < 0:
            code = ctypes.get_errno()
            raise Refused(f"cannot watch: {os.strerror(code)}", subject=str(directory), errno=code)
        self._paths[number] = directory

    def remove(self, directory: Path) -> None:
        """Stop watching a directory; do nothing if it is not watched."""
        for number in [number for number, path in self._paths.items() if path == directory]:
            del self._paths[number]
            _libc.inotify_rm_watch(self._fd, number)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, EVENTS_READ)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            # The kernel pads names with NULs to the alignment of the next event.
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            # Events of a removed watch may still be in the queue.
            directory = self._paths.get(number, Path())
            # The kernel removed the watch, because the directory is gone.
            if mask & IN_IGNORED:
                self._paths.pop(number, None)
            self._on_event(mask, directory, name)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
