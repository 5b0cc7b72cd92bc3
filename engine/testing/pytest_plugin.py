"""Provide pytest fixtures: nodes, an API server, a device plugin, a CSI driver, a real containerd.

The distribution pytest-kubengine enables them; `pytest_plugins = ["engine.testing.pytest_plugin"]` in the top
`conftest.py` does so, too. Importing this module loads only pytest: each fixture imports what it needs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from engine.testing.containerd import Containerd
    from engine.testing.hollow_node import HollowNode
    from engine.testing.threaded_server import ThreadedApiServer

CGROUP_MOUNT = Path("/sys/fs/cgroup")
# Messages of crun, and what they say about it.
CRUN_REFUSALS = {
    "unknown version specified": "is too old for the containers of containerd 2",
    "cgroups in hybrid mode not supported": "needs all cgroup controllers in v1 or all in v2",
}


@pytest.fixture
def hollow_node() -> Iterator[HollowNode]:
    """Run a node agent on the hollow runtime, with static pods."""
    from engine.testing.hollow_node import HollowNode

    with HollowNode() as node:
        yield node


@pytest.fixture
def api_server() -> Iterator[ThreadedApiServer]:
    """Run a small API server with TLS and watches, whose faults the test plans. Skip without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl on the PATH")
    from engine.testing.threaded_server import ThreadedApiServer

    with ThreadedApiServer() as server:
        yield server


@pytest.fixture
def cluster_node(api_server: ThreadedApiServer) -> Iterator[HollowNode]:
    """Run a node agent on the hollow runtime that has joined the cluster of `api_server`."""
    from engine.testing.hollow_node import HollowNode

    with HollowNode(server=api_server) as node:
        yield node


@pytest.fixture
def device_plugin(hollow_node: HollowNode) -> Callable[..., Any]:
    """Return `HollowNode.device_plugin` of `hollow_node`, which starts and registers a device plugin."""
    return hollow_node.device_plugin


@pytest.fixture
def csi_driver(cluster_node: HollowNode) -> Callable[..., Any]:
    """Return `HollowNode.csi_driver` of `cluster_node`. Skip without root, which mounts need."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a CSI driver mounts")
    return cluster_node.csi_driver


@pytest.fixture(scope="session")
def busybox_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a `docker save` archive of `docker.io/library/busybox:latest`."""
    from engine.testing.images import write_busybox

    return write_busybox(tmp_path_factory.mktemp("images") / "busybox.tar")


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory, busybox_archive: Path) -> Iterator[Containerd]:
    """Run one private containerd for the session, with busybox. Skip without root or containerd."""
    if os.geteuid() != 0 or shutil.which("containerd") is None:
        pytest.skip("needs root and containerd on the PATH (Debian: containerd, runc)")
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
            for message, reason in CRUN_REFUSALS.items():
                if message in str(error):
                    pytest.skip(f"this {oci_runtime} {reason}")
            raise
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
