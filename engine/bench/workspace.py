"""Manage private directories, ports and cgroups of one measured agent, and remove them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from engine.api.errors import Unavailable
from engine.cri.paths import CONTAINER_LOGS
from engine.host.mountinfo import mounted
from engine.host.mounts import unmount_below

CGROUPS = Path("/sys/fs/cgroup")
FIRST_PORT = 12_000


class Workspace:
    """Hold a directory for all files of one agent and its parts, and a cgroup root of its own."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kubengine-bench-"))
        self.manifests = self.path / "manifests"
        self.staging = self.path / "staging"
        self.root = self.path / "root"
        self.logs = self.path / "pod-logs"
        self.runtime_socket = self.path / "runtime.sock"
        for directory in (self.manifests, self.staging, self.root, self.logs):
            directory.mkdir(mode=0o750)
        self.cgroup_root = f"/{self.path.name}" if os.geteuid() == 0 else ""
        self.ports: dict[str, int] = dict(zip(("port", "read_only", "healthz"), _free_ports(3), strict=True))

    def make_cgroups(self) -> None:
        """Create the cgroup root in each hierarchy, which a kubelet does not create."""
        for hierarchy in _hierarchies() if self.cgroup_root else ():
            group = hierarchy / self.cgroup_root.lstrip("/")
            group.mkdir(exist_ok=True)
            # On cgroup v1 no process can join a cpuset without CPUs and memory nodes.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (group / file).exists():
                    (group / file).write_text((hierarchy / file).read_text())

    def is_full(self) -> bool:
        """Tell whether its file system is full."""
        free = os.statvfs(self.path)
        return free.f_bavail == 0 or (free.f_files > 0 and free.f_favail == 0)

    def remove(self) -> list[str]:
        """Remove all of it; name what could not be removed."""
        left = []
        for hierarchy in _hierarchies() if self.cgroup_root else ():
            group = hierarchy / self.cgroup_root.lstrip("/")
            for directory, _, _ in os.walk(group, topdown=False):
                if not _rmdir(Path(directory)):
                    left.append(directory)
        with contextlib.suppress(OSError):
            unmount_below(self.path)
        self._remove_log_links()
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            left.append(str(self.path))
        return left

    def _remove_log_links(self) -> None:
        """Remove links to its logs from the directory in which every agent puts them."""
        for link in CONTAINER_LOGS.glob("*.log"):
            with contextlib.suppress(OSError):
                if link.readlink().is_relative_to(self.logs):
                    link.unlink()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts while a clean-up finishes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hierarchies() -> Iterator[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        yield CGROUPS
        return
    yield from (Path(mount.point) for mount in mounted() if mount.kind in ("cgroup", "cgroup2"))


def _rmdir(group: Path) -> bool:
    for _ in range(20):
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def _free_ports(count: int) -> list[int]:
    """Return free ports below those that the kernel assigns to outgoing connections."""
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(FIRST_PORT, max(handed_out, FIRST_PORT + 2000)), 2000):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise Unavailable(f"{count} free ports on loopback could not be found", subject="bench")
