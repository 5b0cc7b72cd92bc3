"""Volumes of CSI drivers that are block devices: published as a device, linked to the pod, and removed."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.csi.paths import attachment_name, device_data, pods_devices, published_devices, staged_device
from engine.host.disks.loop_devices import loop_devices
from engine.host.mounts import bind
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Object
from tests.csi_rig import CLAIMED, DRIVER, CsiRig
from tests.disks import disk
from tests.disks import run as run_program
from tests.waiting import eventually

pytestmark = pytest.mark.root

PV = "pv-claim"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/claim"


async def run(csi: CsiRig, name: str = "p", source: Object = CLAIMED) -> Object:
    return await csi.run(source, name, block=True)


def device(csi: CsiRig, pod: Object) -> Path:
    path: Path = published_devices(csi.root, PV) / pod["metadata"]["uid"]
    return path


async def test_a_volume_is_staged_once_and_published_as_a_device_for_each_pod(csi: CsiRig) -> None:
    csi.known(podInfoOnMount=True, tokenRequests=[{"audience": "a"}], volumeLifecycleModes=["Ephemeral"])
    csi.claim(volumeMode="Block", mountOptions=["noatime"], csi={"fsType": "xfs"})
    driver = await csi.driver()
    one, two = await run(csi, "one"), await run(csi, "two")
    (staged,) = driver.called("NodeStageVolume")
    assert staged.staging_target_path == str(staged_device(csi.root, PV))
    assert staged.volume_capability.WhichOneof("access_type") == "block"
    for pod, published in zip((one, two), driver.called("NodePublishVolume"), strict=True):
        assert published.target_path == str(device(csi, pod))
        assert published.staging_target_path == staged.staging_target_path
        assert published.volume_capability.WhichOneof("access_type") == "block"
        assert not published.readonly
        assert {key.rpartition("/")[2] for key in published.volume_context} == {
            "pod.name", "pod.namespace", "pod.uid", "serviceAccount.name", "ephemeral",
        }  # fmt: skip
        link = pods_devices(csi.root, pod["metadata"]["uid"]) / PV
        assert link.readlink() == device(csi, pod)
        assert stat.S_ISBLK(link.stat().st_mode)
    said = json.loads((device_data(csi.root, PV) / "vol_data.json").read_text())
    assert said == {
        "attachmentID": attachment_name("h1", DRIVER, "n1"),
        "driverName": DRIVER,
        "nodeName": "n1",
        "specVolID": PV,
        "volumeHandle": "h1",
    }
    await csi.delete("one")
    assert driver.called("NodeUnstageVolume") == []
    await csi.delete("two")
    await eventually(csi.is_cleaned_up)
    (unstaged,) = driver.called("NodeUnstageVolume")
    assert (unstaged.volume_id, unstaged.staging_target_path) == ("h1", staged.staging_target_path)
    assert driver.calls[-1].method == "NodeUnstageVolume"


@pytest.mark.parametrize(("read_only", "permissions"), [(False, "mrw"), (True, "r")])
async def test_a_container_gets_the_device(
    csi: CsiRig, hollow: HollowRuntime, read_only: bool, permissions: str
) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver()
    pod = await run(csi, source={"persistentVolumeClaim": {"claimName": "claim", "readOnly": read_only}})
    assert driver.called("NodePublishVolume")[0].readonly == read_only
    (asked,) = [container.config for container in hollow.service.records.containers.values()]
    (given,) = asked.devices
    assert given.container_path == "/v"
    assert given.host_path == str(device(csi, pod))
    assert given.permissions == permissions


async def test_a_driver_that_does_not_stage_publishes_only(csi: CsiRig) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver(capabilities=())
    await run(csi)
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert driver.called("NodeStageVolume") == driver.called("NodeUnstageVolume") == []


async def test_a_restarted_agent_keeps_devices_of_pods(csi: CsiRig) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver()
    pod = await run(csi)
    await csi.joined.stop()
    await csi.joined.start()
    await csi.taken_on(driver, times=2)
    await eventually(lambda: len(driver.called("NodePublishVolume")) == 2)
    assert driver.called("NodeUnpublishVolume") == driver.called("NodeUnstageVolume") == []
    assert stat.S_ISBLK(device(csi, pod).stat().st_mode)
    await csi.delete()
    await eventually(csi.is_cleaned_up)


async def test_an_expanded_device_is_reported_to_the_driver_by_path(csi: CsiRig) -> None:
    csi.known()
    csi.claim(volumeMode="Block", capacity={"storage": "2Gi"})
    driver = await csi.driver()
    pod = await run(csi)
    (asked,) = driver.called("NodeExpandVolume")
    assert asked.volume_path == str(device(csi, pod))
    assert asked.staging_target_path == str(staged_device(csi.root, PV))
    assert asked.capacity_range.required_bytes == 2 << 30
    assert asked.volume_capability.WhichOneof("access_type") == "block"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("NodeStageVolume", "MapVolume.SetUpDevice"),
        ("NodePublishVolume", "MapVolume.MapPodDevice"),
    ],
)
async def test_a_refusal_delays_the_pod_with_the_kubelets_message(
    csi: CsiRig, method: str, words: str
) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver()
    driver.faults[method] = 3
    await csi.ask(CLAIMED, block=True)
    said = (
        f'{words} failed for volume "{PV}" : rpc error: code = InvalidArgument desc = told to fail: {method}'
    )
    await eventually(lambda: said in csi.messages("FailedMapVolume"))
    await csi.delete()
    await eventually(csi.is_cleaned_up)


async def test_a_driver_that_publishes_no_device_is_not_believed(csi: CsiRig) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver(capabilities=())
    (driver.volumes / "h1").write_text("no device")
    await csi.ask(CLAIMED, block=True)
    await eventually(lambda: len(csi.messages("FailedMapVolume")) == 1)
    assert csi.messages("FailedMapVolume")[0].endswith(": not a block device")
    await csi.delete()
    await eventually(csi.is_cleaned_up)


async def test_a_volume_without_its_driver_waits(csi: CsiRig) -> None:
    csi.known()
    csi.claim(volumeMode="Block")
    await csi.ask(CLAIMED, block=True)
    doing = "kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client"
    said = f'MapVolume.SetUpDevice failed for volume "{PV}" : {doing}: driver name {DRIVER} not found'
    await eventually(lambda: any(m.startswith(said) for m in csi.messages("FailedMapVolume")))
    await csi.delete()
    await eventually(csi.is_cleaned_up)


@pytest.mark.parametrize("name", ["staging", "publish"])
async def test_a_volume_named_as_what_all_share_is_refused(csi: CsiRig, name: str) -> None:
    csi.known()
    csi.claim("claim", volumeMode="Block")
    server = csi.cluster.server
    volume = server.get(f"/api/v1/persistentvolumes/{PV}")
    server.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume["spec"]})
    claim = server.get(CLAIM)
    server.update(CLAIM, {**claim, "spec": {**claim["spec"], "volumeName": name}})
    driver = await csi.driver()
    await csi.ask(CLAIMED, block=True)
    await eventually(lambda: len(csi.messages("FailedMapVolume")) == 1)
    assert csi.messages("FailedMapVolume")[0].endswith(f"a block volume cannot be called '{name}'")
    assert driver.called("NodeStageVolume") == []


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk", 1 << 20) as device:
        yield device


async def test_links_that_a_kubelet_made_for_a_device_are_removed(csi: CsiRig, loop_device: Path) -> None:
    """A second mount, and a loop device that holds the device open."""
    csi.known()
    csi.claim(volumeMode="Block")
    driver = await csi.driver()
    os.mknod(driver.volumes / "h1", stat.S_IFBLK | 0o600, loop_device.stat().st_rdev)
    pod = await run(csi)
    second = device_data(csi.root, PV).parent / "dev" / pod["metadata"]["uid"]
    second.parent.mkdir()
    second.touch()
    held = os.open(device(csi, pod), os.O_PATH)
    bind(held, second)
    os.close(held)
    await asyncio.to_thread(run_program, "losetup", "-f", str(second))
    assert loop_devices(second)
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert not loop_devices(second)
