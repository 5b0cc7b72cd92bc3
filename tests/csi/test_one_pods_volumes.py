"""Volumes of drivers that one pod may have at a time, and which access a driver is asked for."""

from __future__ import annotations

import pytest

from engine.testing.csi_driver import ALL, RPC
from engine.wire import csi_v1_pb2 as wire
from tests.csi_rig import CLAIMED, CsiRig
from tests.waiting import eventually

pytestmark = pytest.mark.root

ONE_POD = ["ReadWriteOncePod"]
TAKEN = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
MODE = wire.VolumeCapability.AccessMode


@pytest.mark.parametrize("block", [False, True], ids=["file-system", "block"])
async def test_another_pod_waits_until_the_first_has_ended(csi: CsiRig, block: bool) -> None:
    """After a restart only the disk tells which pod has the volume; the driver is called for one pod."""
    csi.known()
    csi.claim(accessModes=ONE_POD, volumeMode="Block" if block else "Filesystem")
    driver = await csi.driver()
    one = await csi.run(CLAIMED, "one", block=block)
    await csi.ask(CLAIMED, "two", block=block)
    doing, reason = (
        ("MapVolume.SetUpDevice", "FailedMapVolume") if block else ("MountVolume.SetUp", "FailedMount")
    )
    said = f'{doing} failed for volume "pv-claim" : {TAKEN}'
    await eventually(lambda: csi.messages(reason) == [said])
    await csi.joined.stop()
    await csi.joined.start()
    await eventually(lambda: said in csi.messages(reason))
    assert {one["metadata"]["uid"] in asked.target_path for asked in driver.called("NodePublishVolume")} == {
        True
    }
    await csi.delete("one")
    await csi.cluster.ready("two")
    await csi.delete("two")
    await eventually(csi.is_cleaned_up)


async def test_two_claims_of_one_handle_are_one_volume(csi: CsiRig) -> None:
    csi.known()
    csi.claim("claim", "h1", accessModes=ONE_POD)
    csi.claim("other", "h1", accessModes=ONE_POD)
    await csi.driver()
    await csi.run(CLAIMED, "one")
    await csi.ask({"persistentVolumeClaim": {"claimName": "other"}}, "two")
    said = f'MountVolume.SetUp failed for volume "pv-other" : {TAKEN}'
    await eventually(lambda: csi.messages() == [said])


async def test_pods_that_ask_at_once_do_not_both_get_it(csi: CsiRig) -> None:
    csi.known()
    csi.claim(accessModes=ONE_POD)
    driver = await csi.driver()
    names = [f"p{number}" for number in range(5)]
    for name in names:
        await csi.ask(CLAIMED, name)
    await eventually(lambda: sum(TAKEN in message for message in csi.messages()) == len(names) - 1)
    await eventually(lambda: len(driver.called("NodePublishVolume")) == 1)


@pytest.mark.parametrize(
    ("modes", "simple", "of_multi_writers"),
    [
        (["ReadWriteOnce"], MODE.SINGLE_NODE_WRITER, MODE.SINGLE_NODE_MULTI_WRITER),
        (ONE_POD, MODE.SINGLE_NODE_WRITER, MODE.SINGLE_NODE_SINGLE_WRITER),
        (["ReadOnlyMany"], MODE.MULTI_NODE_READER_ONLY, MODE.MULTI_NODE_READER_ONLY),
        (["ReadWriteMany"], MODE.MULTI_NODE_MULTI_WRITER, MODE.MULTI_NODE_MULTI_WRITER),
    ],
    ids=["once", "once-pod", "read-only-many", "many"],
)
@pytest.mark.parametrize("tells_writers_apart", [False, True])
async def test_a_driver_is_asked_for_the_access_of_the_volume(
    csi: CsiRig,
    modes: list[str],
    simple: MODE.Mode,
    of_multi_writers: MODE.Mode,
    tells_writers_apart: bool,
) -> None:
    csi.known()
    csi.claim(accessModes=modes)
    able = (*ALL, RPC.SINGLE_NODE_MULTI_WRITER) if tells_writers_apart else ALL
    driver = await csi.driver(capabilities=able)
    await csi.run(CLAIMED)
    (staged,), (published,) = driver.called("NodeStageVolume"), driver.called("NodePublishVolume")
    asked = {each.volume_capability.access_mode.mode for each in (staged, published)}
    assert asked == {of_multi_writers if tells_writers_apart else simple}
