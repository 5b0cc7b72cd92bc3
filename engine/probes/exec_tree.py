"""What a timed-out exec probe leaves behind in its container, found and killed.

A runtime kills the command at its time-out but not what the command started: those processes are
adopted by the container's init and stay for good. An exec begins a session of its own, so while it
still runs its session is noted, and afterwards everything of that session in that container is killed.
Works where the runtime's processes are visible in /proc and run in cgroups that name the container.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def sessions_running(container_id: str, command: tuple[str, ...]) -> set[tuple[int, int]]:
    """Sessions in the container whose leader runs exactly this command: (pid, start time in ticks)."""
    wanted = b"\0".join(part.encode() for part in command) + b"\0"
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            session, start = _session_and_start(pid)
            if session == pid and _text(pid, "cmdline") == wanted and _is_in(pid, container_id):
                found.add((pid, start))
    return found


def kill_sessions(container_id: str, sessions: set[tuple[int, int]]) -> list[int]:
    """SIGKILL what is left of the sessions in the container; returns the process ids."""
    if not sessions:
        return []
    started = dict(sessions)
    killed = []
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            session, start = _session_and_start(pid)
            if session in started and start >= started[session] and _is_in(pid, container_id):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):  # noqa: PTH208 - thousands of entries, and only names are wanted
        if name.isdecimal():
            yield int(name)


def _text(pid: int, name: str) -> bytes:
    return (PROC / str(pid) / name).read_bytes()


def _session_and_start(pid: int) -> tuple[int, int]:
    fields = _text(pid, "stat").rpartition(b")")[2].split()
    return int(fields[3]), int(fields[19])


def _is_in(pid: int, container_id: str) -> bool:
    return container_id.encode() in _text(pid, "cgroup")
