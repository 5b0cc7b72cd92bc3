"""Agent, driver or pod is killed at any moment: no mount, directory or staging is left."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.csi import volume_data
from engine.csi.devices import Devices
from engine.csi.file_systems import FileSystems
from engine.csi.mounting import Mounting
from engine.csi.on_disk import Published, Staged
from engine.testing.csi_driver import HANGS
from tests.csi_rig import CLAIMED, DRIVER, CsiRig
from tests.waiting import eventually

pytestmark = pytest.mark.root

PODS = "/api/v1/namespaces/default/pods"
MAKING = ("NodeStageVolume", "NodePublishVolume")
TAKING_AWAY = ("NodeUnpublishVolume", "NodeUnstageVolume")


async def test_volumes_of_pods_deleted_while_no_agent_ran_are_removed(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(name="inline")
    await csi.run(CLAIMED, "claimed")
    await csi.joined.stop()
    for name in ("inline", "claimed"):
        csi.cluster.server.delete(f"{PODS}/{name}", grace=0)
    await csi.joined.start()
    await eventually(csi.is_cleaned_up)
    assert len(driver.called("NodeUnpublishVolume")) == 2
    assert len(driver.called("NodeUnstageVolume")) == 1


async def test_a_restarted_agent_keeps_volumes_of_pods(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    pod = await csi.run(CLAIMED)
    (csi.published(pod, "pv-claim") / "mount/f").write_text("")
    await csi.joined.stop()
    await csi.joined.start()
    await csi.taken_on(driver, times=2)
    await eventually(lambda: len(driver.called("NodePublishVolume")) == 2)
    assert driver.called("NodeUnpublishVolume") == driver.called("NodeUnstageVolume") == []
    assert (csi.published(pod, "pv-claim") / "mount/f").exists()
    await csi.delete()
    await eventually(csi.is_cleaned_up)


@pytest.mark.parametrize("method", [*MAKING, *TAKING_AWAY])
@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("block", [False, True], ids=["files", "block"])
async def test_an_agent_that_dies_in_the_middle_of_a_call_leaves_nothing(
    csi: CsiRig, method: str, done: bool, block: bool
) -> None:
    """Nothing is done between the call and the end of the agent, as if it had been killed."""
    csi.known()
    csi.claim(volumeMode="Block" if block else "Filesystem")
    driver = await csi.driver()
    hanging = driver.half_done if done else driver.faults
    if method in TAKING_AWAY:
        await csi.run(CLAIMED, block=block)
        hanging[method] = HANGS
        await csi.cluster.delete("p")
    else:
        hanging[method] = HANGS
        await csi.ask(CLAIMED, block=block)
    await eventually(lambda: len(driver.called(method)) == 1)
    await csi.joined.stop()
    hanging.clear()
    if await csi.cluster.pod("p") is not None:
        csi.cluster.server.delete(f"{PODS}/p", grace=0)
    await csi.joined.start()
    await eventually(csi.is_cleaned_up)


async def test_a_leftover_staging_is_removed_although_it_is_unreadable_at_first(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(CLAIMED)
    driver.faults["NodeUnstageVolume"] = HANGS
    await csi.delete()
    await eventually(lambda: len(driver.called("NodeUnstageVolume")) == 1)
    await csi.joined.stop()
    driver.faults.clear()
    read = FileSystems.all_staged
    failed: list[str] = []

    def fails_once(self: FileSystems, driver: str | None = None) -> list[Staged]:
        if driver is not None and not failed:
            failed.append(driver)
            raise OSError(errno.EIO, "Input/output error")
        return read(self, driver)

    monkeypatch.setattr(FileSystems, "all_staged", fails_once)
    await csi.joined.start()
    await eventually(csi.is_cleaned_up)
    assert failed == [DRIVER]


@pytest.mark.parametrize("block", [False, True], ids=["files", "block"])
async def test_a_partly_removed_volume_is_still_unstaged(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch, block: bool
) -> None:
    """Whose the volume was is forgotten, and the last step fails."""
    csi.known()
    csi.claim(volumeMode="Block" if block else "Filesystem")
    await csi.driver()
    await csi.run(CLAIMED, block=block)
    kind = Devices if block else FileSystems
    clear = kind.clear_published
    failed: list[Published] = []

    def fails_once(self: Any, published: Published) -> None:
        clear(self, published)
        if not failed:
            failed.append(published)
            raise Refused("cannot be removed: Input/output error", subject=str(published.target))

    monkeypatch.setattr(kind, "clear_published", fails_once)
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert len(failed) == 1


async def test_unstaging_that_is_asked_for_at_the_end_of_another_is_done(
    csi: CsiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One had found a user; before its task is over the user has gone."""
    csi.known()
    csi.claim()
    await csi.driver()
    await csi.run(CLAIMED)
    unstage = Mounting._unstage
    asked: list[Staged] = []

    async def asked_meanwhile(self: Mounting, staged: Staged) -> None:
        if asked:
            await unstage(self, staged)
        else:
            asked.append(staged)
            asyncio.get_running_loop().call_soon(self._unstage_soon, staged)

    monkeypatch.setattr(Mounting, "_unstage", asked_meanwhile)
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert len(asked) == 1


async def test_a_returning_driver_is_called_again(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver()
    await csi.run()
    await driver.stop()
    await eventually(lambda: csi.csi_node()["spec"]["drivers"] == [])
    await csi.cluster.delete("p")
    await driver.start()
    await csi.cluster.gone("p")
    assert csi.is_cleaned_up()


async def test_a_mount_without_a_record_is_removed_with_its_pod(csi: CsiRig) -> None:
    csi.known()
    driver = await csi.driver()
    pod = await csi.run()
    (csi.published(pod) / "vol_data.json").write_text("{")
    assert volume_data.read(csi.published(pod)) is None
    await csi.delete()
    assert csi.is_cleaned_up()
    assert driver.called("NodeUnpublishVolume") == []
