"""Finds and kills the processes that a timed-out exec probe leaves in its container.

A runtime kills the command at its time-out, but not the processes that the command started: the container's
init adopts them, and they stay. An exec begins a session whose leader has a parent outside of the container.
Such sessions are noted shortly before the time-out. Those whose leader the runtime has then killed belong to
the probe, and what is left of them is killed. This needs a runtime whose processes are visible in /proc, in
cgroups that name the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_AT_ONCE = (0.0,)
_UNTIL_KILLED = (0.1, 0.4, 1.5)  # pauses: a runtime kills a cancelled command only some time later


class Leftovers:
    """Note per probe which sessions its slow command may have begun, and kill what is left of them."""

    def __init__(self) -> None:
        self._noted: dict[int, asyncio.Future[set[ExecSession]]] = {}

    def note(self, probe: int, container_id: str, elapsed: float) -> None:
        """Note the sessions of a command that began `elapsed` seconds ago and is near its time-out."""
        since = now_ticks() - round(elapsed * _TICKS) - 1  # both clocks are rounded
        looking = asyncio.to_thread(sessions_since, container_id, since)
        self._noted[probe] = asyncio.ensure_future(looking)

    async def kill(self, probe: int, container_id: str, *, cut_off: bool) -> None:
        """Kill the leftovers of a command that timed out. If it was cancelled here, the runtime will kill it
        soon.
        """
        noted = self._noted.pop(probe, None)
        if noted is None:
            return
        sessions = await noted
        for pause in _UNTIL_KILLED if cut_off else _AT_ONCE:
            await asyncio.sleep(pause)
            await asyncio.to_thread(kill_orphaned, container_id, sessions)

    def forget(self, probe: int) -> None:
        self._noted.pop(probe, None)


class ExecSession(NamedTuple):
    """Hold the leader's pid and its start time in clock ticks since boot: pids are used again."""

    leader: int
    start: int


def now_ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def sessions_since(container_id: str, since_ticks: int) -> set[ExecSession]:
    """Return the sessions that began in the container from outside of it, at `since_ticks` or later."""
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            parent, session, start = _stat(pid)
            if (
                session == pid
                and start >= since_ticks
                and _is_in(pid, container_id)
                and not _is_in(parent, container_id)
            ):
                found.add(ExecSession(pid, start))
    return found


def kill_orphaned(container_id: str, sessions: set[ExecSession]) -> list[int]:
    """Send SIGKILL to what is left in the container of sessions without a leader; return the process ids."""
    orphaned = {s.leader: s.start for s in sessions if not _runs(s)}
    killed = []
    for pid in _pids() if orphaned else ():
        with contextlib.suppress(OSError, ValueError):
            _, session, start = _stat(pid)
            # The pid of the leader may have come to another process since, which then leads a later session.
            if session in orphaned and start >= orphaned[session] and _is_in(pid, container_id):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):  # noqa: PTH208 - thousands of entries, and only names are wanted
        if name.isdecimal():
            yield int(name)


def _stat(pid: int) -> tuple[int, int, int]:
    """Return parent, session and start time (proc_pid_stat(5)).

    The command in parentheses may hold blanks and parentheses, so that fields are counted from the last one.
    """
    fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[3]), int(fields[19])


def _runs(session: ExecSession) -> bool:
    try:
        return _stat(session.leader)[2] == session.start
    except (OSError, ValueError):
        return False


def _is_in(pid: int, container_id: str) -> bool:
    return container_id.encode() in (PROC / str(pid) / "cgroup").read_bytes()
