"""Local persistent volumes on block devices: as they are, and as the file systems on them."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.host.disks.loop_devices import loop_devices
from engine.host.mountinfo import mounted, mounts_below
from engine.host.mounts import bind
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined, Object
from tests.disks import run
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def claim(cluster: Cluster, device: Path, fs_type: str | None = None, **spec: Any) -> None:
    made = cluster.server.create(
        CLAIMS, {"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    )
    reference = {"namespace": "default", "name": "c", "uid": made["metadata"]["uid"]}
    local = {"path": str(device)} | ({} if fs_type is None else {"fsType": fs_type})
    volume = {"metadata": {"name": "pv"}, "spec": {"claimRef": reference, "local": local, **spec}}
    cluster.server.create("/api/v1/persistentvolumes", volume)


async def run_with_volume(
    cluster: Cluster, name: str = "p", *, read_only: bool = False, block: bool = False, **spec: Any
) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": read_only}}
    used = (
        container(volumeDevices=[{"name": "v", "devicePath": "/v"}])
        if block
        else container(volumeMounts=[{"name": "v", "mountPath": "/v"}])
    )
    await cluster.run(name, containers=[used], volumes=[volume], **spec)


async def start(cluster: Cluster, name: str = "p", **options: Any) -> Object:
    await run_with_volume(cluster, name, **options)
    return await cluster.ready(name)


async def delete(cluster: Cluster, name: str = "p") -> None:
    await cluster.delete(name)
    await cluster.gone(name)


def shown(joined: Joined, pod: Object) -> Path:
    uid: str = pod["metadata"]["uid"]
    return joined.root / "pods" / uid / "volumes/kubernetes.io~local-volume/pv"


def for_all(joined: Joined) -> Path:
    return joined.root / "plugins/kubernetes.io/local-volume/mounts/pv"


def messages(joined: Joined, reason: str = "FailedMount") -> list[str]:
    assert joined.node is not None
    return [event.message for event in joined.node.recorder if event.reason == reason]


def volume_events(cluster: Cluster) -> list[str]:
    """Return the messages of the persistent volume's events on the server."""
    events = cluster.server.list("/api/v1/namespaces/default/events")
    about = {"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv"}
    return [each["message"] for each in events if about.items() <= each["involvedObject"].items()]


def options(path: Path) -> frozenset[str]:
    return next(mount.options for mount in mounted() if mount.point == str(path))


async def test_a_device_with_nothing_on_it_gets_a_file_system_that_pods_share(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    claim(cluster, device)
    await joined.start()
    one = await start(cluster, "one", securityContext={"fsGroup": 77})
    (shown(joined, one) / "f").write_text("kept")
    assert shown(joined, one).stat().st_gid == 77
    two = await start(cluster, "two")
    assert (shown(joined, two) / "f").read_text() == "kept"
    assert next(mount.kind for mount in mounted() if mount.point == str(for_all(joined))) == "ext4"
    await delete(cluster, "one")
    assert (shown(joined, two) / "f").read_text() == "kept"
    await delete(cluster, "two")
    assert mounts_below(joined.root) == []
    assert not for_all(joined).exists()
    again = await start(cluster, "again")
    assert (shown(joined, again) / "f").read_text() == "kept"


async def test_a_claim_for_reading_gives_a_mount_for_reading(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    await asyncio.to_thread(run, "mkfs.ext4", "-q", str(device))
    claim(cluster, device, "ext4", mountOptions=["noatime", "nosuid"])
    await joined.start()
    pod = await start(cluster, read_only=True, securityContext={"fsGroup": 77})
    assert {"ro", "noatime", "nosuid"} <= options(shown(joined, pod))
    assert shown(joined, pod).stat().st_gid == 0


async def test_a_directory_is_mounted_with_the_options_of_its_volume(
    joined: Joined, cluster: Cluster, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    claim(cluster, data, mountOptions=["noexec"])
    await joined.start()
    pod = await start(cluster)
    assert "noexec" in options(shown(joined, pod))
    assert "ro" not in options(shown(joined, pod))
    assert not for_all(joined).exists()


async def test_a_device_with_nothing_on_it_is_not_for_reading(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    claim(cluster, device)
    await joined.start()
    await run_with_volume(cluster, read_only=True)
    about = f"local: failed to mount device {device} at {for_all(joined)} (fstype: ext4), error"
    why = f"{about} cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
    said = f'MountVolume.MountDevice failed for volume "pv" : {why}'
    await eventually(lambda: messages(joined) == [said])
    assert not for_all(joined).exists()


@pytest.mark.parametrize("holds", ["ext4", "partitions"])
async def test_data_on_a_device_is_never_overwritten(
    joined: Joined, cluster: Cluster, device: Path, holds: str
) -> None:
    if holds == "ext4":
        await asyncio.to_thread(run, "mkfs.ext4", "-q", str(device))
    else:
        table = bytearray(512)
        table[446:462] = bytes([0, 0, 2, 0, 0x83, 0, 2, 0, 1, 0, 0, 0, 16, 0, 0, 0])
        table[510:] = b"\x55\xaa"
        await asyncio.to_thread(device.write_bytes, table)
    before = await asyncio.to_thread(run, "blkid", "-p", "-o", "export", str(device))
    claim(cluster, device, "vfat" if holds == "ext4" else None)
    await joined.start()
    await run_with_volume(cluster)
    await eventually(lambda: len(messages(joined)) == 1)
    about = f"local: failed to mount device {device} at {for_all(joined)} (fstype: "
    assert messages(joined)[0].startswith(f'MountVolume.MountDevice failed for volume "pv" : {about}')
    mismatch = f'MountVolume failed for volume "pv" {about}'
    await eventually(lambda: len(volume_events(cluster)) == 1)
    assert volume_events(cluster)[0].startswith(mismatch)
    assert messages(joined, "FailedMountOnFilesystemMismatch") == volume_events(cluster)
    assert await asyncio.to_thread(run, "blkid", "-p", "-o", "export", str(device)) == before


@pytest.mark.parametrize("kind", ["../ext4", "", "-x", "a b"])
async def test_a_kind_that_is_no_kind_starts_no_program(
    joined: Joined, cluster: Cluster, device: Path, kind: str
) -> None:
    claim(cluster, device, kind)
    await joined.start()
    await run_with_volume(cluster)
    if kind:
        await eventually(lambda: len(messages(joined)) == 1)
        assert messages(joined)[0].endswith(f"{kind!r} is not a known file system type")
    else:
        await cluster.ready("p")


async def test_a_path_that_is_neither_directory_nor_device_is_refused(
    joined: Joined, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    claim(cluster, tmp_path / "file")
    await joined.start()
    await run_with_volume(cluster)
    doing = 'MountVolume.NewMounter initialization failed for volume "pv" : '
    said = f"{doing}only directory and block device are supported"
    await eventually(lambda: messages(joined) == [said])


async def test_a_restarted_agent_keeps_volumes_of_pods_and_removes_the_others(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    claim(cluster, device)
    await joined.start()
    pod = await start(cluster)
    (shown(joined, pod) / "f").write_text("kept")
    left = for_all(joined).parent / "left"
    await joined.stop()
    left.mkdir()
    held = os.open(for_all(joined), os.O_PATH)
    bind(held, left)
    os.close(held)
    await joined.start()
    assert not left.exists()
    assert (shown(joined, pod) / "f").read_text() == "kept"
    await joined.stop()
    cluster.server.delete("/api/v1/namespaces/default/pods/p", grace=0)
    await joined.start()
    await eventually(lambda: mounts_below(joined.root) == [] and not for_all(joined).exists())


@pytest.mark.parametrize(("read_only", "permissions"), [(False, "mrw"), (True, "r")])
async def test_a_container_receives_a_raw_device(
    joined: Joined,
    cluster: Cluster,
    hollow: HollowRuntime,
    device: Path,
    read_only: bool,
    permissions: str,
) -> None:
    """A kubelet also makes a second mount and a loop device; both are removed together with the link."""
    claim(cluster, device, volumeMode="Block")
    await joined.start()
    pod = await start(cluster, block=True, read_only=read_only)
    (config,) = [c.config for c in hollow.service.records.containers.values()]
    (given,) = config.devices
    assert (given.host_path, given.container_path, given.permissions) == (str(device), "/v", permissions)
    uid = pod["metadata"]["uid"]
    link = joined.root / "pods" / uid / "volumeDevices/kubernetes.io~local-volume/pv"
    assert stat.S_ISBLK(link.stat().st_mode)
    second = joined.root / "plugins/kubernetes.io~local-volume/volumeDevices/pv" / uid
    second.parent.mkdir(parents=True)
    second.touch()
    held = os.open(device, os.O_PATH)
    bind(held, second)
    os.close(held)
    await asyncio.to_thread(run, "losetup", "-f", str(second))
    await delete(cluster)
    assert not second.exists()
    assert mounts_below(joined.root) == []
    assert loop_devices(second) == []


async def test_a_path_that_is_no_device_is_not_passed_as_one(
    joined: Joined, cluster: Cluster, tmp_path: Path
) -> None:
    claim(cluster, tmp_path, volumeMode="Block")
    await joined.start()
    await run_with_volume(cluster, block=True)
    said = f'MapVolume.SetUpDevice failed for volume "pv" : {tmp_path}: not a block device'
    await eventually(lambda: messages(joined, "FailedMapVolume") == [said])


@pytest.mark.parametrize("kind", ["file system", "directory", "block"])
async def test_an_exclusive_volume_waits_until_the_other_pod_has_ended(
    joined: Joined, cluster: Cluster, device: Path, tmp_path: Path, kind: str
) -> None:
    """After a restart only the disk tells which pods have the device."""
    block, data = kind == "block", tmp_path / "data"
    data.mkdir()
    mode = {"volumeMode": "Block" if block else "Filesystem"}
    claim(cluster, data if kind == "directory" else device, accessModes=["ReadWriteOncePod"], **mode)
    await joined.start()
    await start(cluster, "one", block=block)
    await run_with_volume(cluster, "two", block=block)
    doing, reason = (
        ("MapVolume.SetUpDevice", "FailedMapVolume") if block else ("MountVolume.SetUp", "FailedMount")
    )
    why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    said = f'{doing} failed for volume "pv" : {why}'
    await eventually(lambda: messages(joined, reason) == [said])
    await joined.stop()
    await joined.start()
    await eventually(lambda: messages(joined, reason) == [said])
    await cluster.ready("one")
    await delete(cluster, "one")
    await cluster.ready("two")


async def test_a_pod_that_has_ended_lets_go_of_its_device(
    joined: Joined, cluster: Cluster, device: Path
) -> None:
    """Which another may have then, though it is for one pod only."""
    claim(cluster, device, volumeMode="Block", accessModes=["ReadWriteOncePod"])
    await joined.start()
    await run_with_volume(cluster, "one", block=True, restartPolicy="Never", activeDeadlineSeconds=1)
    ended = await cluster.until("one", "Failed")
    directory = joined.root / "pods" / ended["metadata"]["uid"] / "volumeDevices"
    await eventually(lambda: not directory.exists())
    await start(cluster, "two", block=True)
    assert await cluster.pod("one") is not None
