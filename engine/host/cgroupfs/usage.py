"""Reads memory and process count of one cgroup from descriptors that stay open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from engine.api.errors import Refused
from engine.host.cgroupfs.mounts import Mounts

_PAGE = 4096
_UNLIMITED = 1 << 60


class HeldFile:
    """Open a small kernel file once, and read it again and again from the same descriptor.

    If the cgroup was removed and created again under the same name, the descriptor is dead (ENODEV) and the
    file is opened again, once.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def read(self) -> bytes:
        """Read the file. Raises `OSError`."""
        if self._descriptor >= 0:
            try:
                return os.pread(self._descriptor, _PAGE, 0)
            except OSError:
                self.close()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, _PAGE, 0)

    def number(self) -> int:
        """Read a number. Raises `OSError`; `max` is a number too large to matter."""
        text = self.read().strip()
        return _UNLIMITED if text == b"max" else int(text)

    def close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


class CgroupUsage:
    """Read the working set (bytes) and the number of processes of one cgroup, all cgroups below included.

    Call `close` when done.
    """

    def __init__(self, cgroup: str, mounts: Mounts) -> None:
        self.cgroup = cgroup
        self._v1 = mounts.version == 1
        memory, pids = mounts.directory("memory", cgroup), mounts.directory("pids", cgroup)
        self._usage = HeldFile(memory / ("memory.usage_in_bytes" if self._v1 else "memory.current"))
        self._limit = HeldFile(memory / ("memory.limit_in_bytes" if self._v1 else "memory.max"))
        self._stat = HeldFile(memory / "memory.stat")
        self._swap = HeldFile(memory / "memory.swap.current")
        self._pids = HeldFile(pids / "pids.current")

    def in_use(self) -> int:
        """Return the memory in use in bytes. Raises `OSError`: a v2 root has no such file."""
        return self._usage.number()

    def working_set(self) -> int:
        """Return the memory in use minus the inactive page cache. Raises `OSError`, `Refused`."""
        return working_set(self.in_use(), self.inactive_file())

    def usage_without_cache(self) -> int:
        """Return the memory in use minus all page cache of files."""
        stat = self._stat.read()
        cache = _field(stat, self._name(b"inactive_file")) + _field(stat, self._name(b"active_file"))
        return max(self._usage.number() - cache, 0)

    def inactive_file(self) -> int:
        return _field(self._stat.read(), self._name(b"inactive_file"))

    def memory_limit(self) -> int | None:
        """Return the memory limit, or None."""
        limit = self._limit.number()
        return None if limit >= _UNLIMITED else limit

    def swapped(self) -> int:
        """Return the bytes in swap; on v2 only."""
        return self._swap.number()

    def processes(self) -> int:
        """Return the number of tasks, as the kernel's limit counts them."""
        return self._pids.number()

    def close(self) -> None:
        for file in (self._usage, self._limit, self._stat, self._swap, self._pids):
            file.close()

    def _name(self, field: bytes) -> bytes:
        return b"total_" + field if self._v1 else field


def working_set(in_use: int, inactive_file: int) -> int:
    """Return the memory in use without the inactive page cache, in bytes, as cAdvisor counts it.

    The kernel updates both numbers separately, so the cache may be the larger one for a moment.
    """
    return max(in_use - inactive_file, 0)


def machine_memory(root: CgroupUsage, meminfo: HeldFile) -> tuple[int, int]:
    """Return the bytes in use on the whole machine and their working set, as cAdvisor does for the root
    cgroup.

    On v1 from the cgroup's own files; on v2, whose root has none, from /proc/meminfo. Raises `OSError`,
    `Refused`.
    """
    try:
        used = root.in_use()
    except FileNotFoundError:
        text = meminfo.read()
        used = meminfo_field(text, b"MemTotal:") - meminfo_field(text, b"MemFree:")
    return used, working_set(used, root.inactive_file())


def meminfo_field(text: bytes, name: bytes) -> int:
    """Return a field of /proc/meminfo (`MemTotal:`) in bytes. Raises `ValueError`."""
    start = text.index(name) + len(name)
    return int(text[start : text.index(b"kB", start)]) * 1024


def _field(stat: bytes, name: bytes) -> int:
    """Return one number of a `name value` file. The name is matched as a whole: `file` is not
    `inactive_file`.
    """
    at = 0 if stat.startswith(name + b" ") else stat.find(b"\n" + name + b" ") + 1
    if at == 0 and not stat.startswith(name + b" "):
        raise Refused(f"has no field {name.decode()}", subject="memory.stat")
    start = at + len(name) + 1
    end = stat.find(b"\n", start)
    return int(stat[start : end if end >= 0 else None])
