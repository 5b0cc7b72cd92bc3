"""NFS and iSCSI volumes of pods, with stand-ins for the machine's commands and a loop device for a LUN."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from engine.host.mountinfo import is_mount_point, mounted
from tests.cluster_rig import NODE, Cluster, Joined, Object
from tests.disks import disk
from tests.intree_rig import IQN, HostTools
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

NAMESPACE = "/api/v1/namespaces/default"
NFS: Object = {"nfs": {"server": "files.example.com", "path": "/export"}}
ISCSI: Object = {"iscsi": {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0}}
LISTED = f"kubernetes.io/iscsi/10.0.0.1:{IQN}:0"
CLAIMED: Object = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTools:
    return HostTools(tmp_path / "tools", monkeypatch)


def claim(cluster: Cluster, **spec: Any) -> None:
    made = cluster.server.create(
        f"{NAMESPACE}/persistentvolumeclaims",
        {"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}},
    )
    reference = {"namespace": "default", "name": "c", "uid": made["metadata"]["uid"]}
    volume = {"metadata": {"name": "pv"}, "spec": {"claimRef": reference, **spec}}
    cluster.server.create("/api/v1/persistentvolumes", volume)


async def run_with_volume(
    cluster: Cluster, source: Object, name: str = "p", *, block: bool = False
) -> Object:
    used = (
        container(volumeDevices=[{"name": "v", "devicePath": "/v"}])
        if block
        else container(volumeMounts=[{"name": "v", "mountPath": "/v"}])
    )
    return await cluster.run(name, containers=[used], volumes=[{"name": "v", **source}])


def messages(joined: Joined, reason: str = "FailedMount") -> list[str]:
    assert joined.node is not None
    return [event.message for event in joined.node.recorder if event.reason == reason]


def published(joined: Joined, pod: Object, plugin: str, name: str = "v") -> Path:
    uid: str = pod["metadata"]["uid"]
    return joined.root / "pods" / uid / "volumes" / f"kubernetes.io~{plugin}" / name


async def attach(cluster: Cluster, name: str = LISTED) -> None:
    """Write what the attach-detach controller does of an iSCSI or Fibre Channel volume."""
    said = {"status": {"volumesAttached": [{"name": name, "devicePath": ""}]}}
    await cluster.registered()
    await cluster.client.patch(f"{NODE}/status", said, dict[str, Any])


async def remove(cluster: Cluster, name: str = "p") -> None:
    await cluster.delete(name)
    await cluster.gone(name)


async def test_an_export_in_a_pods_own_spec(joined: Joined, cluster: Cluster, tools: HostTools) -> None:
    await joined.start()
    await run_with_volume(cluster, NFS)
    pod = await cluster.ready("p")
    target = published(joined, pod, "nfs")
    assert tools.commands("mount") == [f"mount -t nfs -- files.example.com:/export {target}"]
    (target / "file").write_text("kept")
    assert (tools.export / "file").read_text() == "kept"
    await remove(cluster)
    assert tools.commands("umount") == [f"umount -- {target}"]
    assert (tools.export / "file").read_text() == "kept"


async def test_options_of_a_claims_volume(joined: Joined, cluster: Cluster, tools: HostTools) -> None:
    source = {"server": "fd00::1", "path": "/export"}
    claim(cluster, nfs=source, mountOptions=["nfsvers=4.2", "hard"], accessModes=["ReadWriteMany"])
    await joined.start()
    await run_with_volume(cluster, {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}})
    pod = await cluster.ready("p")
    target = published(joined, pod, "nfs", "pv")
    assert tools.commands("mount") == [f"mount -t nfs -o hard,nfsvers=4.2,ro -- [fd00::1]:/export {target}"]


async def test_a_failed_mount_is_retried_and_names_the_missing_package(
    joined: Joined, cluster: Cluster, tools: HostTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.intree.nfs.has_helper", lambda kind: False)
    (tools.here / "refuse-mount").write_text("mount: bad option; you might need a helper program\n")
    await joined.start()
    pod = await run_with_volume(cluster, NFS)
    await eventually(lambda: messages(joined))
    target = published(joined, pod, "nfs")
    assert messages(joined)[0] == (
        'MountVolume.SetUp failed for volume "v" : mount failed: exit status 32 Mounting command: mount '
        f"Mounting arguments: -t nfs files.example.com:/export {target} "
        "Output: mount: bad option; you might need a helper program; this machine has no mount.nfs, "
        "which the volume needs: install nfs-common (Debian, Ubuntu), nfs-utils (Red Hat, Fedora) or "
        "nfs-client (SUSE)"
    )
    assert not target.exists()
    (tools.here / "refuse-mount").unlink()
    await cluster.ready("p")


async def test_a_server_that_stops_answering_holds_up_no_removal(
    joined: Joined, cluster: Cluster, tools: HostTools
) -> None:
    await joined.start()
    await run_with_volume(cluster, NFS)
    pod = await cluster.ready("p")
    (tools.here / "busy").touch()
    await remove(cluster)
    target = published(joined, pod, "nfs")
    assert tools.commands("umount") == [f"umount -- {target}", f"umount -f -- {target}"]


async def test_mounts_stay_while_the_agent_restarts(
    joined: Joined, cluster: Cluster, tools: HostTools
) -> None:
    await joined.start()
    await run_with_volume(cluster, NFS)
    pod = await cluster.ready("p")
    await joined.restart()
    await cluster.ready("p")
    assert is_mount_point(published(joined, pod, "nfs"))
    assert len(tools.commands("mount")) == 1
    await remove(cluster)
    assert len(tools.commands("umount")) == 1


async def test_a_lun_is_used_once_it_is_listed_as_attached(
    joined: Joined, cluster: Cluster, tools: HostTools, tmp_path: Path
) -> None:
    with disk(tmp_path / "disk") as device:
        tools.lun(0, device)
        secret = {"node.session.auth.username": "user", "node.session.auth.password": "hidden"}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
        cluster.server.create(f"{NAMESPACE}/secrets", {"metadata": {"name": "chap"}, "data": data})
        source = {**ISCSI["iscsi"], "chapAuthSession": True, "secretRef": {"name": "chap"}}
        await joined.start()
        await cluster.registered()
        await run_with_volume(cluster, {"iscsi": source})
        await eventually(lambda: cluster.in_use() == [LISTED])
        assert tools.commands("iscsiadm") == []
        await attach(cluster)
        pod = await cluster.ready("p")
        assert any("auth.password -v hidden" in line for line in tools.commands("iscsiadm"))
        target = published(joined, pod, "iscsi")
        assert next(mount for mount in mounted() if mount.point == str(target)).kind == "ext4"
        assert not any("hidden" in text for text in messages(joined))
        await remove(cluster)
        await eventually(lambda: cluster.in_use() == [])
        await eventually(lambda: any("--logout" in line for line in tools.commands()))
        await eventually(lambda: not list((joined.root / "plugins/kubernetes.io/iscsi").glob("*/*")))


async def test_a_lun_as_a_device(joined: Joined, cluster: Cluster, tools: HostTools, tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as device:
        tools.lun(0, device)
        claim(cluster, volumeMode="Block", accessModes=["ReadWriteOnce"], **ISCSI)
        await joined.start()
        await attach(cluster)
        await run_with_volume(cluster, CLAIMED, block=True)
        pod = await cluster.ready("p")
        uid = pod["metadata"]["uid"]
        link = joined.root / "pods" / uid / "volumeDevices/kubernetes.io~iscsi/pv"
        assert link.resolve() == device
        await remove(cluster)
        await eventually(lambda: any("--logout" in line for line in tools.commands()))


@pytest.mark.parametrize("block", [False, True])
async def test_a_fibre_channel_disk(
    joined: Joined, cluster: Cluster, tools: HostTools, tmp_path: Path, block: bool
) -> None:
    with disk(tmp_path / "disk") as device:
        tools.lun(0, device)
        (tools.dev / "disk/by-path/fc-0x50060e801049cfd1-lun-0").symlink_to(device)
        mode = {"volumeMode": "Block"} if block else {}
        claim(cluster, fc={"targetWWNs": ["50060e801049cfd1"], "lun": 0}, **mode)
        await joined.start()
        await run_with_volume(cluster, CLAIMED, block=block)
        await attach(cluster, "kubernetes.io/fc/[50060e801049cfd1]:0")
        pod = await cluster.ready("p")
        if block:
            directory = joined.root / "pods" / pod["metadata"]["uid"] / "volumeDevices/kubernetes.io~fc"
            assert (directory / "pv").resolve() == device
        else:
            target = published(joined, pod, "fc", "pv")
            assert next(mount for mount in mounted() if mount.point == str(target)).kind == "ext4"
        await remove(cluster)
        await eventually(lambda: tools.deleted(device))


async def test_a_missing_secret_is_reported(joined: Joined, cluster: Cluster, tools: HostTools) -> None:
    source = {**ISCSI["iscsi"], "chapAuthSession": True, "secretRef": {"name": "chap"}}
    await joined.start()
    await attach(cluster)
    await run_with_volume(cluster, {"iscsi": source})
    await eventually(lambda: messages(joined))
    begin = 'MountVolume.WaitForAttach failed for volume "v" : couldn\'t get secret default/chap error: '
    assert messages(joined)[0].startswith(begin)
