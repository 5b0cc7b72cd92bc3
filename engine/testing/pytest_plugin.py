"""Provide pytest fixtures: `containerd`, `containerd2`, `busybox_archive`, `private_cgroup_root`.

Enable them with `pytest_plugins = ["engine.testing.pytest_plugin"]` in the top `conftest.py`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine.testing.containerd import Containerd

CGROUP_MOUNT = Path("/sys/fs/cgroup")


@pytest.fixture(scope="session")
def busybox_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a `docker save` archive of `docker.io/library/busybox:latest`."""
    from engine.testing.images import write_busybox

    return write_busybox(tmp_path_factory.mktemp("images") / "busybox.tar")


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory, busybox_archive: Path) -> Iterator[Containerd]:
    """Run one private containerd for the session, with busybox; remove each test's pods after it."""
    from engine.testing.containerd import Containerd

    with Containerd(tmp_path_factory.mktemp("containerd")) as running:
        running.import_image(busybox_archive)
        yield running


@pytest.fixture(scope="session", params=["runc", "crun"])
def containerd2(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, busybox_archive: Path
) -> Iterator[Containerd]:
    """Run a private containerd 2, once with each OCI runtime, as `running_containerd2` does."""
    with running_containerd2(
        tmp_path_factory.mktemp("containerd2"), busybox_archive, oci_runtime=request.param
    ) as running:
        yield running


@contextlib.contextmanager
def running_containerd2(directory: Path, archive: Path, *, oci_runtime: str = "runc") -> Iterator[Containerd]:
    """Run a containerd 2 below `directory` with the images of `archive`.

    Skip without a containerd 2 on the PATH or in the directory that CONTAINERD2_BIN names; a runc or crun in
    that directory takes precedence over the machine's.
    """
    from engine.testing.containerd import Containerd, containerd_version
    from engine.testing.images import BUSYBOX_TAG

    named = os.environ.get("CONTAINERD2_BIN")
    binaries = Path(named) if named else None
    if containerd_version(binaries) < (2, 0):
        pytest.skip("needs containerd 2 on the PATH, or CONTAINERD2_BIN, a directory with one")
    if not shutil.which(oci_runtime, path=f"{named or ''}:{os.environ.get('PATH', '')}"):
        pytest.skip(f"needs {oci_runtime}")
    with Containerd(directory, binaries=binaries, oci_runtime=oci_runtime) as running:
        running.import_image(archive)
        try:
            running.ctr("run", "--rm", "--runc-binary", oci_runtime, BUSYBOX_TAG, "probe", "/bin/true")
        except RuntimeError as error:
            if "unknown version specified" not in str(error):
                raise
            pytest.skip(f"this {oci_runtime} is too old for the containers of containerd 2")
        yield running


@pytest.fixture
def private_cgroup_root() -> Iterator[str]:
    """Return a cgroup path (`/kubengine-test-…`) for this test only.

    The test, or the code under test, creates it in the hierarchies it uses; afterwards everything below it
    in any hierarchy is removed, its processes killed.
    """
    name = f"/kubengine-test-{secrets.token_hex(4)}"
    yield name
    remove_cgroup(name)


def remove_cgroup(name: str) -> None:
    """Kill the processes in cgroup `name` and below, and remove it from every mounted hierarchy."""
    hierarchies = [CGROUP_MOUNT, *(p for p in CGROUP_MOUNT.iterdir() if p.is_dir())]
    tops = [top for top in (h / name.lstrip("/") for h in hierarchies) if top.is_dir()]
    for top in tops:
        groups = sorted((p for p in [top, *top.rglob("*")] if p.is_dir()), key=lambda p: -len(p.parts))
        for group in groups:
            for _ in range(200):
                _kill_members(group)
                with contextlib.suppress(OSError):
                    group.rmdir()
                if not group.exists():
                    break
                time.sleep(0.02)


def _kill_members(group: Path) -> None:
    with contextlib.suppress(OSError):
        for line in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)
