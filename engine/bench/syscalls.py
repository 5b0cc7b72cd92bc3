"""Count system calls of a process tree in the kernel: perf_event_open(2) on raw_syscalls:sys_enter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.api.errors import Refused

EVENT = "events/raw_syscalls/sys_enter/id"
TRACING = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_CALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_TRACEPOINT, _ATTRIBUTES_SIZE, _INHERIT, _CLOSE_ON_EXEC = 2, 128, 1 << 1, 8
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class SyscallCounter:
    """Count from now on for a process and all threads and processes that it starts.

    Raise `Refused` with the reason if the kernel, or the process's rights, do not provide such a counter.
    """

    def __init__(self, pid: int) -> None:
        self._counters: list[int] = []
        try:
            event = _event()
            for task in Path(f"/proc/{pid}/task").iterdir():
                self._counters.append(_open(event, int(task.name)))
        except BaseException:
            self.close()
            raise

    def read(self) -> int:
        """Return the system calls so far; also after the process has ended."""
        return sum(int.from_bytes(os.read(counter, 8), "little") for counter in self._counters)

    def close(self) -> None:
        while self._counters:
            os.close(self._counters.pop())


def _open(event: int, task: int) -> int:
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None:
        raise Refused(f"not known on {platform.machine()}", subject="system calls")
    attributes = struct.pack("=IIQQQQQ", _TRACEPOINT, _ATTRIBUTES_SIZE, event, 0, 0, 0, _INHERIT)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_SIZE)
    any_cpu = no_group = ctypes.c_long(-1)
    counter: int = _libc.syscall(
        ctypes.c_long(number), buffer, ctypes.c_long(task), any_cpu, no_group, ctypes.c_ulong(_CLOSE_ON_EXEC)
    )
    if counter < 0:
        errno = ctypes.get_errno()
        raise Refused(f"perf_event_open: {os.strerror(errno)}", subject="system calls", errno=errno)
    return counter


def _event() -> int:
    with _tracing() as directory:
        try:
            return int((directory / EVENT).read_text())
        except OSError as error:
            raise Refused(
                f"{directory / EVENT}: {error.strerror}", subject="system calls", errno=error.errno
            ) from None


@contextlib.contextmanager
def _tracing() -> Iterator[Path]:
    """Return where tracefs is mounted; mount it temporarily if it is not."""
    for directory in TRACING:
        with contextlib.suppress(OSError):
            if (directory / EVENT).exists():
                yield directory
                return
    with tempfile.TemporaryDirectory(prefix="kubengine-tracing-") as name:
        if _libc.mount(b"none", os.fsencode(name), b"tracefs", 0, None) != 0:
            errno = ctypes.get_errno()
            raise Refused(f"tracefs: {os.strerror(errno)}", subject="system calls", errno=errno)
        try:
            yield Path(name)
        finally:
            _libc.umount2(os.fsencode(name), _MNT_DETACH)
