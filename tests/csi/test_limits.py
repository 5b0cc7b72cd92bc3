"""A driver's volume limit is kept current by its CSIDriver's period, and when no volume can be attached."""

from __future__ import annotations

import asyncio

import pytest

from engine.csi.paths import attachment_name
from engine.node.volumes import csi as csi_volumes
from tests.csi_rig import CLAIMED, DRIVER, STORAGE, CsiRig
from tests.waiting import eventually

RESOURCE_EXHAUSTED = 8


def limit(csi: CsiRig) -> int | None:
    (driver,) = csi.csi_node()["spec"]["drivers"]
    count: int | None = (driver.get("allocatable") or {}).get("count")
    return count


def set_period(csi: CsiRig, seconds: int | None) -> None:
    path = f"{STORAGE}/csidrivers/{DRIVER}"
    known = csi.cluster.server.get(path)
    spec = {**known["spec"], "nodeAllocatableUpdatePeriodSeconds": seconds}
    csi.cluster.server.update(path, {**known, "spec": spec})


async def test_a_changed_limit_is_reported_within_the_drivers_period(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver(most_volumes=17, topology={"zone": "z1"})
    before = csi.csi_node()["spec"]["drivers"][0]
    driver.most_volumes = 5
    assert limit(csi) == 17
    set_period(csi, 1)
    await eventually(lambda: limit(csi) == 5)
    assert csi.csi_node()["spec"]["drivers"] == [{**before, "allocatable": {"count": 5}}]
    driver.most_volumes = 0
    await eventually(lambda: limit(csi) is None)


async def test_the_limit_of_a_driver_without_a_period_stays(csi: CsiRig) -> None:
    csi.known(nodeAllocatableUpdatePeriodSeconds=1)
    driver = await csi.driver(most_volumes=17)
    driver.most_volumes = 5
    await eventually(lambda: limit(csi) == 5)
    set_period(csi, None)
    await asyncio.sleep(0.3)
    asked = len(driver.called("NodeGetInfo"))
    driver.most_volumes = 4
    await asyncio.sleep(1.5)
    assert (limit(csi), len(driver.called("NodeGetInfo"))) == (5, asked)


@pytest.mark.parametrize(("period", "phase"), [(3600, "Failed"), (None, "Pending")])
async def test_a_pod_beyond_the_volume_limit_is_rejected_where_the_limit_may_change(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch, period: int | None, phase: str
) -> None:
    monkeypatch.setattr(csi_volumes, "ATTACH_SECONDS", 0.5)
    csi.known(attachRequired=True, nodeAllocatableUpdatePeriodSeconds=period)
    driver = await csi.driver(most_volumes=17)
    csi.claim()
    error = {"message": "no more", "errorCode": RESOURCE_EXHAUSTED}
    attachment = {
        "metadata": {"name": attachment_name("h1", DRIVER, "n1")},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-claim"}},
        "status": {"attached": False, "attachError": error},
    }
    csi.cluster.server.create(f"{STORAGE}/volumeattachments", attachment)
    driver.most_volumes = 3
    await csi.ask(CLAIMED)
    await eventually(lambda: any("ttach" in event.message for event in csi.node.recorder))
    pod = await csi.cluster.until("p", phase)
    if phase == "Failed":
        assert pod["status"]["reason"] == "VolumeAttachmentLimitExceeded"
        assert pod["status"]["message"].startswith(
            "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. "
            "unmounted volumes=[v], unattached volumes=[v]"
        )
        await eventually(lambda: limit(csi) == 3)
        rejections = csi.node.registry.counter("kubelet_admission_rejections_total", "", ["reason"])
        assert rejections.values == {("VolumeAttachmentLimitExceeded",): 1}
    else:
        assert limit(csi) == 17
