"""What a runtime can no longer stop is killed in the cgroup that it made for the container."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cgroup_scenes import burstable, managed

from engine.cgroups.manager import CgroupManager

ID, OTHER = "ab12" * 16, "cd34" * 16


@contextmanager
def running(manager: CgroupManager, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a cgroup of the pod `b`, as a runtime does."""
    path = manager.pod_path("b")
    directories = [Path(f"{each.path}{path}/{group}") for each in manager.mounts.hierarchies]
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            for directory in directories:
                directory.mkdir()
                for cpus in ("cpuset.cpus", "cpuset.mems"):
                    if (directory / cpus).exists():
                        (directory / cpus).write_text((directory.parent / cpus).read_text())
                (directory / "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()


@pytest.mark.root
@pytest.mark.parametrize("form", ["{}", "cri-containerd-{}.scope", "crio-{}.scope"])
def test_what_is_left_of_a_container_is_killed_whatever_its_cgroup_is_called(private_root, form):
    with managed(private_root) as manager, ExitStack() as processes:
        manager.create_pod(burstable("b", "100m", "16Mi"))
        left = processes.enter_context(running(manager, form.format(ID)))
        other = processes.enter_context(running(manager, form.format(OTHER)))
        assert manager.kill_container("b", ID) == 1
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        assert manager.kill_container("b", "ef56" * 16) == 0
        assert manager.kill_container("gone", ID) == 0
