"""Local persistent volumes that have become larger: what is on their devices is, and their claims say so."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_rig import Cluster, Joined, Object
from tests.disks import grow_disk, run
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/c"
VOLUME = "/api/v1/persistentvolumes/pv"
ONE, TWO = {"storage": "16Mi"}, {"storage": "32Mi"}
PENDING: Object = {
    "allocatedResources": TWO,
    "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
}


@pytest.fixture
def resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for resize2fs and record its arguments: a mounted ext4 grows only with CAP_SYS_RESOURCE."""
    programs, asked = tmp_path / "programs", tmp_path / "resized"
    programs.mkdir()
    (programs / "resize2fs").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    (programs / "resize2fs").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return asked


def claim(cluster: Cluster, path: Path, **spec: Any) -> None:
    made = cluster.server.create(
        CLAIM.rpartition("/")[0],
        {
            "metadata": {"name": "c"},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"], "resources": {"requests": ONE}},
            "status": {"phase": "Bound", "capacity": ONE},
        },
    )
    reference = {"namespace": "default", "name": "c", "uid": made["metadata"]["uid"]}
    volume = {"capacity": ONE, "claimRef": reference, "local": {"path": str(path)}, **spec}
    cluster.server.create("/api/v1/persistentvolumes", {"metadata": {"name": "pv"}, "spec": volume})


def grow(cluster: Cluster, status: Object) -> None:
    """Let the volume become larger, as its controller reports it."""
    volume, found = cluster.server.get(VOLUME), cluster.server.get(CLAIM)
    cluster.server.update(VOLUME, {**volume, "spec": {**volume["spec"], "capacity": TWO}})
    cluster.server.update(f"{CLAIM}/status", {**found, "status": {**found["status"], **status}})


def status(cluster: Cluster) -> Object:
    found: Object = cluster.server.get(CLAIM)["status"]
    return found


def is_grown(cluster: Cluster) -> bool:
    """Tell whether the claim has its new capacity and no pending condition."""
    found = status(cluster)
    waits = found.get("conditions") or found.get("allocatedResourceStatuses")
    return found["capacity"] == TWO and not waits


async def run_with_volume(cluster: Cluster) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    used = container(volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await cluster.run("p", containers=[used], volumes=[volume])


def room(joined: Joined) -> int:
    """Return the size in bytes of the file system on the device."""
    found = os.statvfs(joined.root / "plugins/kubernetes.io/local-volume/mounts/pv")
    return found.f_blocks * found.f_frsize


def messages(joined: Joined, reason: str) -> list[str]:
    assert joined.node is not None
    return [event.message for event in joined.node.recorder if event.reason == reason]


@pytest.mark.parametrize("told", [PENDING, {}], ids=["step by step", "by sizes alone"])
async def test_a_file_system_on_a_device_is_expanded_before_its_pod_starts(
    joined: Joined, cluster: Cluster, device: Path, resized: Path, told: Object
) -> None:
    claim(cluster, device)
    grow(cluster, told)
    await joined.start()
    await run_with_volume(cluster)
    await cluster.ready("p")
    assert resized.read_text() == f"{device}\n"
    assert is_grown(cluster)
    text = 'MountVolume.NodeExpandVolume succeeded for volume "pv" n1'
    assert messages(joined, "FileSystemResizeSuccessful") == [text, text]


async def test_a_file_system_on_a_device_is_expanded_while_a_pod_uses_it(
    joined: Joined, cluster: Cluster, device: Path, resized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.node.volumes.volume_manager.EXPANSION_SECONDS", 0.0)
    claim(cluster, device)
    await joined.start()
    await run_with_volume(cluster)
    await cluster.ready("p")
    assert not resized.exists()
    grow(cluster, PENDING)
    await eventually(lambda: is_grown(cluster))
    assert resized.read_text() == f"{device}\n"


@pytest.mark.skipif(shutil.which("mkfs.xfs") is None, reason="needs mkfs.xfs")
async def test_a_real_file_system_has_the_room_of_its_device(
    joined: Joined, cluster: Cluster, device: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(grow_disk, tmp_path / "disk", device, 320 << 20)
    await asyncio.to_thread(run, "mkfs.xfs", "-q", str(device))
    await asyncio.to_thread(grow_disk, tmp_path / "disk", device, 640 << 20)
    claim(cluster, device, local={"path": str(device), "fsType": "xfs"})
    grow(cluster, PENDING)
    await joined.start()
    await run_with_volume(cluster)
    await cluster.ready("p")
    assert room(joined) > 500 << 20
    assert is_grown(cluster)


@pytest.mark.parametrize("block", [False, True], ids=["directory", "block"])
async def test_a_claim_without_work_is_marked_as_expanded(
    joined: Joined, cluster: Cluster, device: Path, tmp_path: Path, block: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    claim(cluster, device if block else data, volumeMode="Block" if block else "Filesystem")
    grow(cluster, PENDING)
    await joined.start()
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    kind: Object = (
        {"volumeDevices": [{"name": "v", "devicePath": "/v"}]}
        if block
        else {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    )
    await cluster.run("p", containers=[container(**kind)], volumes=[volume])
    await cluster.ready("p")
    assert is_grown(cluster)


async def test_a_failed_expansion_is_reported_and_its_pod_waits(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    await asyncio.to_thread(run, "mkfs.ext2", "-q", str(device))
    claim(cluster, device, local={"path": str(device), "fsType": "ext2"})
    grow(cluster, PENDING)
    await joined.start()
    await run_with_volume(cluster)
    mount = joined.root / "plugins/kubernetes.io/local-volume/mounts/pv"
    why = f"resize of format ext2 is not supported for device {device} mounted at {mount}"
    said = f'MountVolume.Setup failed while expanding volume for volume "pv" : ResizeFS.Resize - {why}'
    await eventually(lambda: messages(joined, "FailedMount") == [said])
    (condition,) = [c for c in status(cluster)["conditions"] if c["type"] == "NodeResizeError"]
    assert condition["message"] == f"failed to expand pvc with ResizeFS.Resize - {why}"
    assert status(cluster)["capacity"] == ONE
