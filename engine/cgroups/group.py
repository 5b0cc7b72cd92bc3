"""Accesses one cgroup: its directory in each hierarchy, and the last known text of each file.

Directories stay open, within a bound, so that a write uses `openat` on a descriptor that cannot mean another
cgroup of the same name. If a cgroup was removed or created again, the descriptor reveals it, and the known
texts are dropped.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict

import msgspec

from engine.cgroups.interface_files import kernel_form
from engine.host.cgroupfs.refusals import read_refused, write_refused

_GONE = (errno.ENOENT, errno.ENODEV)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class GroupGone(Exception):
    """Raised if the directory was removed, or is no longer the one that was opened."""


class Descriptors:
    """Keep directories open; beyond `limit` the least recently used is closed.

    The limit defaults to a quarter of the process's soft limit, and is at least 64.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = limit if limit is not None else max(64, min(soft // 4, 16_384))
        self._open: OrderedDict[Directory, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, directory: Directory) -> int | None:
        descriptor = self._open.get(directory)
        if descriptor is not None:
            self._open.move_to_end(directory)
        return descriptor

    def put(self, directory: Directory, descriptor: int) -> None:
        self.close(directory)
        self._open[directory] = descriptor
        while len(self._open) > self.limit:
            os.close(self._open.popitem(last=False)[1])

    def close(self, directory: Directory) -> None:
        descriptor = self._open.pop(directory, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class Directory(msgspec.Struct, eq=False, gc=False):
    """Read and write a cgroup's directory in one hierarchy, which is mounted at `root`; `below` is the
    cgroup's path in it.

    `known` holds the last text of each file as the kernel returns it, and is shared by the directories of a
    cgroup; `identity` is the device and inode that it belongs to.
    """

    root: str
    below: str
    known: dict[str, str]
    identity: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        return self.root + self.below

    def descriptor(self, pool: Descriptors) -> int:
        descriptor = pool.get(self)
        if descriptor is None:
            try:
                descriptor = os.open(self.path, _DIRECTORY)
            except OSError as error:
                if error.errno in _GONE:
                    self.forget(pool)
                    raise GroupGone(self.path) from None
                raise read_refused(error, self.path) from error
            pool.put(self, descriptor)
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            # Another inode under the same path is another cgroup, with the kernel's defaults in its files.
            if self.identity != identity:
                if self.identity is not None:
                    self.known.clear()
                self.identity = identity
        return descriptor

    def read(self, name: str, pool: Descriptors) -> str | None:
        """Return the current text of a file, or None if an existing cgroup has no such file."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor(pool))
            try:
                text = os.read(descriptor, 4096).decode().strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _GONE:
                self._check_alive(pool)
                return None
            raise read_refused(error, f"{self.path}/{name}") from error
        return kernel_form(name, text)

    def write(self, name: str, text: str, pool: Descriptors) -> None:
        """Write one file; the kernel wants each line in a write of its own. Raises `Refused` with the path,
        or `GroupGone`.
        """
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.descriptor(pool))
            try:
                # An empty value is written as a newline, as `echo` does.
                for line in text.splitlines() or ["\n"]:
                    os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            # A file with several lines may have been written in part.
            self.known.pop(name, None)
            if error.errno in _GONE:
                self._check_alive(pool)
            raise write_refused(error, f"{self.path}/{name}", text) from error
        self.known[name] = text

    def current(self, name: str, pool: Descriptors) -> str | None:
        """Return the last known text; reads the file once if nothing is known."""
        text = self.known.get(name)
        if text is None:
            text = self.read(name, pool)
            if text is not None:
                self.known[name] = text
        return text

    def is_alive(self) -> bool:
        """Tell whether the path still names the directory that was opened, or any directory if none was."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False
        return self.identity in (None, (status.st_dev, status.st_ino))

    def forget(self, pool: Descriptors) -> None:
        self.known.clear()
        self.identity = None
        pool.close(self)

    def _check_alive(self, pool: Descriptors) -> None:
        """Raise `GroupGone` unless the path still leads to the open directory."""
        if self.identity is None or not self.is_alive():
            self.forget(pool)
            raise GroupGone(self.path)
