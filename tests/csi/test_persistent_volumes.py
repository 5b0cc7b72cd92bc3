"""Volumes of claims: attached, staged once, published for each pod, and taken away after the last one."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest

from engine.csi.paths import attachment_name, unique_name
from engine.testing.csi_driver import RPC
from tests.cluster_rig import NODE, Object
from tests.csi_rig import CLAIMED, DRIVER, STORAGE, CsiRig
from tests.waiting import eventually

pytestmark = pytest.mark.root

NAME = unique_name(DRIVER, "h1")


async def test_a_volume_is_staged_once_and_until_its_last_pod_ends(csi: CsiRig) -> None:
    csi.known()
    csi.claim(mountOptions=["noatime"], csi={"fsType": "xfs", "volumeAttributes": {"a": "b"}})
    driver = await csi.driver()
    one, two = await csi.run(CLAIMED, "one"), await csi.run(CLAIMED, "two")
    (staged,) = driver.called("NodeStageVolume")
    assert staged.volume_id == "h1"
    assert staged.staging_target_path == str(csi.staged() / "globalmount")
    assert dict(staged.volume_context) == {"a": "b"}
    assert list(staged.volume_capability.mount.mount_flags) == ["noatime"]
    assert staged.volume_capability.mount.fs_type == "xfs"
    said = json.loads((csi.staged() / "vol_data.json").read_text())
    assert said == {"driverName": DRIVER, "volumeHandle": "h1"}
    published = driver.called("NodePublishVolume")
    assert {p.staging_target_path for p in published} == {staged.staging_target_path}
    assert {p.target_path for p in published} == {
        str(csi.published(pod, "pv-claim") / "mount") for pod in (one, two)
    }
    (csi.published(one, "pv-claim") / "mount/f").write_text("shared")
    assert (csi.published(two, "pv-claim") / "mount/f").read_text() == "shared"
    await csi.delete("one")
    assert driver.called("NodeUnstageVolume") == []
    await csi.delete("two")
    await eventually(csi.is_cleaned_up)
    (unstaged,) = driver.called("NodeUnstageVolume")
    assert (unstaged.volume_id, unstaged.staging_target_path) == ("h1", staged.staging_target_path)
    order = [call.method for call in driver.calls]
    last = max(at for at, method in enumerate(order) if method == "NodeUnpublishVolume")
    assert order.index("NodeUnstageVolume") > last


async def test_a_driver_that_does_not_stage_is_asked_to_publish_only(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver(capabilities=())
    await csi.run(CLAIMED)
    assert driver.called("NodePublishVolume")[0].staging_target_path == ""
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert driver.called("NodeStageVolume") == driver.called("NodeUnstageVolume") == []


async def test_an_attached_volume_is_waited_for_and_named_in_use(csi: CsiRig) -> None:
    """The attach-detach controller attaches after the node has reported the volume as in use."""
    csi.known(attachRequired=True)
    csi.claim()
    driver = await csi.driver()
    await csi.ask(CLAIMED)
    server = csi.cluster.server
    await eventually(lambda: csi.cluster.in_use() == [NAME])
    name = attachment_name("h1", DRIVER, "n1")
    attachment = {
        "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-claim"}},
        "status": {"attached": False},
    }
    server.create(f"{STORAGE}/volumeattachments", attachment)
    assert driver.called("NodeStageVolume") == []
    path = f"{STORAGE}/volumeattachments/{name}"
    attached = {"attached": True, "attachmentMetadata": {"device": "/dev/x"}}
    server.update(f"{path}/status", {**server.get(path), "status": attached})
    said = {"status": {"volumesAttached": [{"name": NAME, "devicePath": ""}]}}
    await csi.cluster.client.patch(f"{NODE}/status", said, Object)
    await csi.cluster.ready("p")
    assert dict(driver.called("NodeStageVolume")[0].publish_context) == {"device": "/dev/x"}
    assert dict(driver.called("NodePublishVolume")[0].publish_context) == {"device": "/dev/x"}
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    await eventually(lambda: csi.cluster.in_use() == [])


async def test_a_pod_that_waits_for_an_attachment_can_be_deleted(csi: CsiRig) -> None:
    csi.known(attachRequired=True)
    csi.claim()
    await csi.driver()
    await csi.ask(CLAIMED)
    await eventually(lambda: csi.cluster.in_use() == [NAME])
    await csi.delete()
    assert csi.is_cleaned_up()
    await eventually(lambda: csi.cluster.in_use() == [])


async def test_each_call_gets_its_secret(csi: CsiRig) -> None:
    csi.known()
    for name in ("stage", "publish"):
        data = {"for": base64.b64encode(name.encode()).decode()}
        secret = {"metadata": {"name": name}, "data": data}
        csi.cluster.server.create("/api/v1/namespaces/storage/secrets", secret)
    references = {
        f"node{which.title()}SecretRef": {"name": which, "namespace": "storage"}
        for which in ("stage", "publish")
    }
    csi.claim(csi=references)
    driver = await csi.driver()
    await csi.run(CLAIMED)
    assert dict(driver.called("NodeStageVolume")[0].secrets) == {"for": "stage"}
    assert dict(driver.called("NodePublishVolume")[0].secrets) == {"for": "publish"}
    assert all("publish" not in path.read_text() for path in csi.root.rglob("vol_data.json"))


async def test_a_secret_that_is_missing_holds_the_pod_up(csi: CsiRig) -> None:
    csi.known()
    csi.claim(csi={"nodeStageSecretRef": {"name": "s", "namespace": "storage"}})
    await csi.driver()
    await csi.ask(CLAIMED)
    await eventually(lambda: len(csi.messages()) == 1)
    assert csi.messages()[0].startswith(
        'MountVolume.MountDevice failed for volume "pv-claim" : fetching NodeStageSecretRef storage/s failed'
        ": kubernetes.io/csi: failed to find the secret s in the namespace storage with error: "
    )


@pytest.mark.parametrize("method", ["NodeStageVolume", "NodePublishVolume"])
@pytest.mark.parametrize("status", [3, 4], ids=["final", "unfinished"])
async def test_a_half_finished_setup_is_removed_with_its_pod(csi: CsiRig, method: str, status: int) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    driver.half_done[method] = status
    await csi.ask(CLAIMED)
    doing = "MountDevice" if method == "NodeStageVolume" else "SetUp"
    await eventually(lambda: len(driver.called(method)) > 1)
    assert csi.messages()[0].startswith(
        f'MountVolume.{doing} failed for volume "pv-claim" : rpc error: code ='
    )
    await csi.delete()
    await eventually(csi.is_cleaned_up)


@pytest.mark.parametrize("method", ["NodeUnpublishVolume", "NodeUnstageVolume"])
async def test_a_failed_teardown_is_retried(csi: CsiRig, method: str) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(CLAIMED)
    driver.faults[method] = 13
    await csi.cluster.delete("p")
    await eventually(lambda: len(driver.called(method)) > 1)
    assert (csi.staged() / "globalmount").exists()
    driver.faults.clear()
    await csi.cluster.gone("p")
    await eventually(csi.is_cleaned_up)


async def test_a_claim_may_be_for_reading(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    claimed = {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}
    await csi.run(claimed, securityContext={"fsGroup": 77})
    (asked,) = driver.called("NodePublishVolume")
    assert asked.readonly


# Groups


@pytest.mark.parametrize(
    ("policy", "fs_type", "modes", "given"),
    [
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOnce"], True),
        ("ReadWriteOnceWithFSType", "", ["ReadWriteOnce"], False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteMany"], False),
        ("File", "", ["ReadWriteMany"], True),
        ("None", "ext4", ["ReadWriteOnce"], False),
    ],
)
async def test_a_volume_is_given_to_the_pods_group_where_the_driver_leaves_that_to_the_node(
    csi: CsiRig, policy: str, fs_type: str, modes: list[str], given: bool
) -> None:
    csi.known(fsGroupPolicy=policy)
    csi.claim(accessModes=modes, csi={"fsType": fs_type})
    driver = await csi.driver()
    (driver.volume("h1") / "f").write_text("")
    await csi.run(CLAIMED, securityContext={"fsGroup": 77})
    owners = {path.stat().st_gid for path in (driver.volume("h1"), driver.volume("h1") / "f")}
    assert owners == ({77} if given else {0})
    assert stat.S_IMODE(driver.volume("h1").stat().st_mode) & 0o2070 == (0o2070 if given else 0o050)


async def test_a_driver_that_sets_groups_receives_the_fs_group(csi: CsiRig) -> None:
    csi.known(fsGroupPolicy="File")
    csi.claim()
    driver = await csi.driver(capabilities=(RPC.STAGE_UNSTAGE_VOLUME, RPC.VOLUME_MOUNT_GROUP))
    await csi.run(CLAIMED, securityContext={"fsGroup": 77})
    assert driver.called("NodeStageVolume")[0].volume_capability.mount.volume_mount_group == "77"
    assert driver.called("NodePublishVolume")[0].volume_capability.mount.volume_mount_group == "77"
    assert driver.volume("h1").stat().st_gid == 0


async def test_links_in_a_volume_lead_nowhere(csi: CsiRig) -> None:
    csi.known(fsGroupPolicy="File")
    csi.claim()
    outside = csi.root.parent / "outside"
    outside.mkdir(mode=0o700)
    (outside / "secret").write_text("")
    before = [(p.stat().st_gid, p.stat().st_mode) for p in (outside, outside / "secret")]
    driver = await csi.driver()
    (driver.volume("h1") / "directory").symlink_to(outside)
    (driver.volume("h1") / "file").symlink_to(outside / "secret")
    await csi.run(CLAIMED, securityContext={"fsGroup": 77})
    assert driver.volume("h1").stat().st_gid == 77
    assert [(p.stat().st_gid, p.stat().st_mode) for p in (outside, outside / "secret")] == before


async def test_a_link_at_a_mount_point_is_refused_and_not_followed(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    csi.known(fsGroupPolicy="File")
    outside = csi.root.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("")

    def show(source: Path, target: Path) -> None:
        target.rmdir()
        target.symlink_to(outside)

    monkeypatch.setattr("engine.testing.csi_driver._show", show)
    await csi.driver()
    await csi.ask(securityContext={"fsGroup": 77})
    await eventually(lambda: len(csi.messages()) > 0)
    assert "the driver did not create a directory there: " in csi.messages()[0]
    assert outside.stat().st_gid == (outside / "f").stat().st_gid == 0
    monkeypatch.undo()
    await csi.delete()
    assert (outside / "f").exists()
