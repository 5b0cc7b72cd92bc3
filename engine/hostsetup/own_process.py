"""Sets the agent's OOM score, limit of open files and cgroup, and moves system processes.

Source: kubelet v1.36 (`ensureProcessInContainerWithOOMScore`, `ensureSystemCgroups`, `rlimit.SetNumFiles`).
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import Refused

PROCS: Final = "cgroup.procs"
CONTROL: Final = "cgroup.subtree_control"
CPUSET_FILES: Final = ("cpuset.cpus", "cpuset.mems")
ROUNDS: Final = 10
"""How often the processes of the root cgroup are listed again, to find those that were forked in
the meantime.
"""

log = logging.getLogger("kubengine.hostsetup")


def set_oom_score(file: Path, score: int) -> None:
    """Set the OOM score. Raises `Refused` naming the file (/proc/self/oom_score_adj)."""
    try:
        file.write_text(str(score))
    except OSError as error:
        text = f"oomScoreAdj {score} could not be set: {error.strerror}"
        raise Refused(text, subject=str(file), errno=error.errno) from error


def set_open_files(most: int) -> None:
    """Set the limit of open files. Raises `Refused` if the kernel does not allow it."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError) as error:
        raise Refused(f"maxOpenFiles {most} could not be set: {error}", subject="RLIMIT_NOFILE") from error


class Cgroups(msgspec.Struct, frozen=True):
    """Hold the directories of the mounted hierarchies, or of the cgroups that act as their roots.

    The first one lists the processes that are in no cgroup.
    """

    roots: Sequence[Path]

    def put(self, name: str, pid: int) -> None:
        """Move a process into the cgroup `name` in every hierarchy; create the cgroup if it is missing.

        Raises `Refused` naming the file.
        """
        for root in self.roots:
            directory = root / name.strip("/")
            try:
                _make(directory, root)
                (directory / PROCS).write_text(str(pid))
            except OSError as error:
                text = f"process {pid} could not be moved: {error.strerror}"
                if error.errno == errno.EBUSY and _lines(directory / CONTROL):
                    text += "; cgroup v2 keeps processes out of a cgroup that has cgroups with controllers"
                    text += " below it: name one without"
                raise Refused(text, subject=str(directory), errno=error.errno) from error

    def holds(self, name: str, pid: int) -> bool:
        """Return whether the process is in the cgroup in every hierarchy."""
        return all(str(pid) in _lines(root / name.strip("/") / PROCS) for root in self.roots)

    def put_system_processes(self, name: str) -> None:
        """Move every process of the root cgroup into `name`, except process 1 and kernel threads.

        Raises `Refused` with the last failure if some could not be moved.
        """
        failure: Refused | None = None
        # A process that forks while its group is emptied leaves the child behind.
        for _ in range(ROUNDS):
            pids = self._movable()
            if not pids:
                return
            failure = None
            for pid in pids:
                try:
                    self.put(name, pid)
                except Refused as error:
                    failure = error
        if failure is not None:
            raise failure

    def _movable(self) -> list[int]:
        listed = map(int, _lines(self.roots[0] / PROCS))
        return [pid for pid in listed if pid > 1 and not _is_kernels(pid)]


def _make(directory: Path, root: Path) -> None:
    """Create the cgroup. A new v1 cpuset accepts no processes until it has its parent's CPUs and
    memory nodes.
    """
    missing = []
    while directory != root and not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(mode=0o755, exist_ok=True)
        for file in CPUSET_FILES:
            if (each / file).exists() and not (each / "cgroup.controllers").exists():
                (each / file).write_text((each.parent / file).read_text())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _is_kernels(pid: int) -> bool:
    """Return whether the process is a kernel thread: it has no executable."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
