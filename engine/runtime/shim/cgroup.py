"""Operate on a container's own cgroups from its shim: join, kill, count out-of-memory kills, remove.

Paths are absolute directories, one per hierarchy (v1) or one (v2).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence


def join(groups: Sequence[str]) -> None:
    """Move this process into each group."""
    for group in groups:
        # 0 means the writing process, whatever its number is in the namespace of the hierarchy.
        write(f"{group}/cgroup.procs", "0")


def members(groups: Sequence[str]) -> list[int]:
    """Return the readable processes of the first group and of the groups below it."""
    for group in groups:
        found: list[int] = []
        for directory, _, files in os.walk(group):
            if "cgroup.procs" in files:
                try:
                    with open(f"{directory}/cgroup.procs", "rb") as file:
                        found.extend(int(line) for line in file)
                except OSError:
                    continue
        if os.path.isdir(group):
            # Processes of another namespace are shown as 0.
            return [pid for pid in found if pid > 0]
    return []


def kill_all(groups: Sequence[str]) -> None:
    """Send SIGKILL until no process is left, for at most ten seconds."""
    for _ in range(500):
        pids = [pid for pid in members(groups) if pid != os.getpid()]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def remove(groups: Sequence[str]) -> None:
    """Remove the groups and those below them. Groups that are still busy stay."""
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            for _ in range(50):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    break
                except OSError as error:
                    # A process that was killed may still be a zombie that its parent has not waited for.
                    if error.errno != errno.EBUSY:
                        break
                    time.sleep(0.01)
                else:
                    break


def oom_kills(groups: Sequence[str]) -> int:
    """Return how many of its processes the kernel killed for memory."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{group}/{name}", "rb") as file:
                    for line in file:
                        if line.startswith(b"oom_kill "):
                            return int(line.split()[1])
            except OSError:
                continue
    return 0


def set_oom_score_adj(wanted: int) -> None:
    """Set the score, or leave it as low as it is if the kernel forbids lowering it (no CAP_SYS_RESOURCE)."""
    try:
        write("/proc/self/oom_score_adj", str(wanted))
    except PermissionError:
        return


def write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
    finally:
        os.close(fd)
