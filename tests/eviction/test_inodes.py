"""Inodes and local storage by priority, on a small file system of the node's own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.events import EventRecorder
from engine.api.pod import EmptyDirVolume, Volume
from engine.cri.client import RuntimeClient
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.host.trees import disk_usage
from engine.images.filesystem import read_filesystem
from tests.contexts import node_context
from tests.eviction.private_node import MIB, make_pod

pytestmark = [pytest.mark.containerd, pytest.mark.root]


@pytest.fixture
def nodefs(tmp_path):
    """Yield the mount point of a tmpfs of 64 MiB with 2000 inodes."""
    mounted = tmp_path / "nodefs"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=2000", "none", mounted], check=True)
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.fixture
async def manage(containerd, nodefs, node):
    client = RuntimeClient(str(containerd.socket))
    managers = []

    def make(**config):
        manager = EvictionManager(
            node_context(
                KubeletConfiguration(pod_logs_dir=str(nodefs / "logs"), **config),
                recorder=EventRecorder(time.time),
                root=nodefs,
            ),
            EvictablePods(active=node.active_pods, kill=node.kill_pod, cgroup=node.pod_cgroup),
            runtime=client,
            view=NodeView(node.cgroup, memory_capacity=1024 * MIB),
        )
        managers.append(manager)
        return manager

    yield make
    for manager in managers:
        await manager.stop()
    await client.close()


def pod_with_files(node, nodefs, name, *, files, size=0, priority=0):
    pod = make_pod(name, priority=priority, volumes=[Volume(name="scratch", empty_dir=EmptyDirVolume())])
    node.run(pod)
    directory = nodefs / "pods" / pod.uid / "volumes" / "kubernetes.io~empty-dir" / "scratch"
    directory.mkdir(parents=True)
    for number in range(files):
        (directory / str(number)).write_bytes(bytes(size))
    return pod


async def test_inode_pressure_ends_the_pod_with_the_most_files(manage, node, nodefs):
    pod_with_files(node, nodefs, "few", files=100, size=65536)
    most = pod_with_files(node, nodefs, "most", files=1000)
    manager = manage(eviction_hard={"nodefs.inodesFree": "50%"})
    assert await manager.synchronize() == [most]
    assert manager.under_pressure == ("DiskPressure",)
    end = node.ended[0][1]
    assert end.annotations["starved_resource"] == "inodes"
    assert end.message.startswith("The node was low on resource: inodes. ")


async def test_disk_pressure_ranks_by_priority_among_pods_above_their_request(manage, node, nodefs):
    pod_with_files(node, nodefs, "dear-and-large", files=20, size=MIB, priority=1000)
    cheap = pod_with_files(node, nodefs, "cheap-and-small", files=8, size=MIB, priority=0)
    manager = manage(eviction_hard={"nodefs.available": "40Mi"})
    ranked = await manager.ranking("nodefs.available", node.active_pods())
    assert [pod.metadata.name for pod, _bytes in ranked] == ["cheap-and-small", "dear-and-large"]
    assert await manager.synchronize() == [cheap]


def open_files():
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the directory's own descriptor
            found.add((entry.name, str(entry.readlink())))
    return found


async def test_nothing_of_the_manager_stays_open(manage, node, nodefs):
    manager = manage(eviction_hard={"memory.available": "10Mi"})
    before = open_files()
    await manager.start()
    await manager.synchronize()
    assert any(path.endswith("memory.stat") for _number, path in open_files() - before)
    await manager.stop()
    left = {path for _number, path in open_files() - before}
    assert not [path for path in left if "cgroup" in path or "/proc/" in path or "eventfd" in path]


def test_disk_usage_counts_a_hard_link_once_and_stays_on_its_file_system(nodefs):
    top = nodefs / "top"
    top.mkdir()
    (top / "file").write_bytes(bytes(MIB))
    (top / "link").hardlink_to(top / "file")
    (top / "symlink").symlink_to("/usr")
    other = top / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
    try:
        (other / "elsewhere").write_bytes(bytes(MIB))
        size, inodes = disk_usage(top)
    finally:
        subprocess.run(["umount", other], check=True)
    assert MIB <= size < MIB + 65536
    assert inodes == 3
    assert disk_usage(top / "missing") == (0, 0)


def test_inodes_are_read_as_statvfs_has_them(nodefs):
    reading = read_filesystem(nodefs)
    assert reading.inodes == 2000
    assert reading.capacity == 64 * MIB
    assert 1900 < reading.inodes_free < 2000
