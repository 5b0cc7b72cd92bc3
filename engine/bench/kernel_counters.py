"""Count what a process tree does in the kernel's counters: perf_event_open(2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.api.errors import Refused

EVENT = "events/raw_syscalls/sys_enter/id"
TRACING = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_CALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _TRACEPOINT, _INSTRUCTIONS = 0, 2, 1
_ATTRIBUTES_SIZE, _INHERIT, _CLOSE_ON_EXEC = 128, 1 << 1, 8
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class CountedEvent(NamedTuple):
    """Hold an event as perf_event_open(2) names it."""

    kind: int
    config: int


class KernelCounter:
    """Count an event from now on for a process and all threads and processes that it starts.

    Raise `Refused` with the reason if the kernel, the machine, or the process's rights do not provide such a
    counter.
    """

    def __init__(self, event: CountedEvent, pid: int) -> None:
        self._counters: list[int] = []
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                self._counters.append(_open(event, int(task.name)))
        except BaseException:
            self.close()
            raise

    def read(self) -> int:
        """Return the events so far; also after the process has ended."""
        return sum(int.from_bytes(os.read(counter, 8), "little") for counter in self._counters)

    def close(self) -> None:
        while self._counters:
            os.close(self._counters.pop())


def system_calls() -> CountedEvent:
    """Return the event of a system call. Raises `Refused`."""
    with _tracing() as directory:
        try:
            return CountedEvent(_TRACEPOINT, int((directory / EVENT).read_text()))
        except OSError as error:
            raise Refused(f"{directory / EVENT}: {error.strerror}", errno=error.errno) from None


def instructions() -> CountedEvent:
    """Return the event of an instruction; virtual machines often have no counter for it."""
    return CountedEvent(_HARDWARE, _INSTRUCTIONS)


EVENTS: dict[str, Callable[[], CountedEvent]] = {"system_calls": system_calls, "instructions": instructions}


def count_all(pid: int) -> tuple[dict[str, KernelCounter], list[str]]:
    """Count all events of a process; return the counters by name, and why the others do not count."""
    counters: dict[str, KernelCounter] = {}
    refused = []
    for name, event in EVENTS.items():
        try:
            counters[name] = KernelCounter(event(), pid)
        except (Refused, OSError) as error:
            refused.append(f"{name.replace('_', ' ')}: {error}")
    return counters, refused


def _open(event: CountedEvent, task: int) -> int:
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None:
        raise Refused(f"not known on {platform.machine()}")
    attributes = struct.pack("=IIQQQQQ", event.kind, _ATTRIBUTES_SIZE, event.config, 0, 0, 0, _INHERIT)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_SIZE)
    any_cpu = no_group = ctypes.c_long(-1)
    counter: int = _libc.syscall(
        ctypes.c_long(number), buffer, ctypes.c_long(task), any_cpu, no_group, ctypes.c_ulong(_CLOSE_ON_EXEC)
    )
    if counter < 0:
        errno = ctypes.get_errno()
        raise Refused(f"perf_event_open: {os.strerror(errno)}", errno=errno)
    return counter


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
            raise Refused(f"tracefs: {os.strerror(errno)}", errno=errno)
        try:
            yield Path(name)
        finally:
            _libc.umount2(os.fsencode(name), _MNT_DETACH)
