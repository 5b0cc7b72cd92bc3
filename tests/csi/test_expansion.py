"""Volumes that become larger: asked of the driver at mount and later, and said of the claim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.api.objects.storage import PersistentVolumeClaim
from engine.api.quantity import Quantity
from engine.api.struct import decode_hook
from engine.csi.expansion import Growth, failed, grown, growth
from engine.testing.csi_driver import RPC
from tests.cluster_rig import Object
from tests.csi_rig import CLAIMED, CsiRig
from tests.waiting import eventually

PENDING: Object = {
    "allocatedResources": {"storage": "2Gi"},
    "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    "conditions": [
        {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": None},
        {"type": "ModifyingVolume", "status": "True"},
    ],
}
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/claim"
VOLUME = "/api/v1/persistentvolumes/pv-claim"
TWO = {"storage": "2Gi"}
root = pytest.mark.root


def claim(modes: list[str] | None = None, **status: Any) -> PersistentVolumeClaim:
    value = {"spec": {"accessModes": modes or ["ReadWriteOnce"]}, "status": status}
    return msgspec.convert(value, PersistentVolumeClaim, dec_hook=decode_hook)


def step(name: str, size: str = "2Gi", has: str = "1Gi") -> Object:
    told = {"allocatedResourceStatuses": {"storage": name}} if name else {}
    return {"capacity": {"storage": has}, "allocatedResources": {"storage": size}, **told}


SIZE = Quantity.parse("2Gi")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (claim(capacity={"storage": "1Gi"}), Growth(SIZE, recorded=False, tracked=False)),
        (claim(capacity={"storage": "2Gi"}), Growth(SIZE, recorded=True, tracked=False)),
        (claim(**step("NodeResizePending")), Growth(SIZE, recorded=False, tracked=True)),
        (claim(**step("NodeResizeInProgress")), Growth(SIZE, recorded=False, tracked=True)),
        (claim(**step("NodeResizeInfeasible")), None),
        (claim(**step("ControllerResizeInProgress")), None),
        (claim(**step("")), None),
        (claim(**step("", has="2Gi")), None),
        (claim(["ReadWriteMany"], **step("", has="2Gi")), Growth(SIZE, recorded=True, tracked=True)),
        (claim(["ReadWriteMany"], **step("")), None),
        (
            claim(**step("NodeResizePending", size="1536Mi")),
            Growth(Quantity.parse("1536Mi"), recorded=False, tracked=True),
        ),
    ],
)
def test_which_expansions_a_claim_requests(found: PersistentVolumeClaim, wanted: Growth | None) -> None:
    assert growth(found, SIZE) == wanted


def test_a_claim_that_grew_waits_for_nothing_and_keeps_what_is_no_resize() -> None:
    found = claim(**{**PENDING, "capacity": {"storage": "1Gi"}})
    found.metadata.resource_version = "7"
    assert grown(found, SIZE) == {
        "metadata": {"resourceVersion": "7"},
        "status": {
            "capacity": TWO,
            "allocatedResourceStatuses": {"storage": None},
            "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}],
        },
    }


def test_a_claim_with_an_infeasible_status_is_not_expanded() -> None:
    wrong = claim(conditions=[{"type": "NodeResizeError", "status": "True", "message": "before"}])
    assert failed(wrong, "why", 0.0, infeasible=False) is None
    assert failed(wrong, "why", 0.0, infeasible=True) == {
        "status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}
    }


def grow(csi: CsiRig, status: Object = PENDING) -> None:
    """Let the volume become larger, as its controller reports it."""
    server = csi.cluster.server
    volume, found = server.get(VOLUME), server.get(CLAIM)
    server.update(VOLUME, {**volume, "spec": {**volume["spec"], "capacity": TWO}})
    server.update(f"{CLAIM}/status", {**found, "status": {**found["status"], **status}})


def status(csi: CsiRig) -> Object:
    found: Object = csi.cluster.server.get(CLAIM)["status"]
    return found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the claims as often as possible."""
    monkeypatch.setattr("engine.node.volumes.volume_manager.EXPANSION_SECONDS", 0.0)


@root
async def test_a_volume_that_grew_is_made_larger_before_its_pod_starts(csi: CsiRig) -> None:
    csi.known()
    csi.claim(mountOptions=["noatime"], csi={"fsType": "xfs"})
    driver = await csi.driver()
    grow(csi)
    pod = await csi.run(CLAIMED)
    (asked,) = driver.called("NodeExpandVolume")
    assert asked.volume_id == "h1"
    assert asked.volume_path == str(csi.published(pod, "pv-claim") / "mount")
    assert asked.staging_target_path == str(csi.staged() / "globalmount")
    assert asked.capacity_range.required_bytes == 2 << 30
    assert asked.volume_capability.mount.fs_type == "xfs"
    assert list(asked.volume_capability.mount.mount_flags) == ["noatime"]
    said = status(csi)
    assert said["capacity"] == TWO
    assert said["conditions"] == [{"type": "ModifyingVolume", "status": "True"}]
    assert not said.get("allocatedResourceStatuses")
    text = 'MountVolume.NodeExpandVolume succeeded for volume "pv-claim" n1'
    assert csi.messages("FileSystemResizeSuccessful") == [text, text]

    def about() -> set[tuple[str, str]]:
        return {
            (e["involvedObject"]["kind"], e["involvedObject"]["name"])
            for e in csi.cluster.server.list("/api/v1/namespaces/default/events")
            if e["reason"] == "FileSystemResizeSuccessful"
        }

    await eventually(lambda: about() == {("Pod", "p"), ("PersistentVolumeClaim", "claim")})


@root
async def test_a_volume_grows_while_a_pod_has_it(csi: CsiRig, soon: None) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(CLAIMED)
    assert driver.called("NodeExpandVolume") == []
    grow(csi)
    await eventually(lambda: status(csi)["capacity"] == TWO)
    assert len(driver.called("NodeExpandVolume")) == 1


@root
async def test_an_older_controller_requests_expansion_by_size(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    grow(csi, {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]})
    await csi.run(CLAIMED)
    assert len(driver.called("NodeExpandVolume")) == 1
    assert status(csi)["capacity"] == TWO
    assert not status(csi).get("conditions")


@root
async def test_a_driver_that_does_not_grow_volumes_is_not_asked(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver(capabilities=(RPC.STAGE_UNSTAGE_VOLUME,))
    grow(csi, {})
    await csi.run(CLAIMED)
    assert driver.called("NodeExpandVolume") == []
    assert status(csi)["capacity"] == {"storage": "1Gi"}


@root
async def test_an_impossible_expansion_is_reported_on_the_claim_and_the_pod_starts(csi: CsiRig) -> None:
    """The node tries it once; after that the controller decides."""
    csi.known()
    csi.claim()
    driver = await csi.driver()
    driver.faults["NodeExpandVolume"] = 11
    grow(csi)
    await csi.run(CLAIMED)
    assert len(driver.called("NodeExpandVolume")) == 1
    said = status(csi)
    assert said["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    (error,) = [c for c in said["conditions"] if c["type"] == "NodeResizeError"]
    doing = "Expander.NodeExpand failed to expand the volume"
    rpc = "rpc error: code = OutOfRange desc = told to fail: NodeExpandVolume"
    assert error["message"] == f"failed to expand pvc with {doing} {rpc}"
    (message,) = csi.messages("FailedMount")
    assert message == (
        f'MountVolume.Setup failed while expanding volume for volume "pv-claim" : {doing} {rpc}'
    )


@root
async def test_a_volume_in_use_that_cannot_grow_keeps_its_pod(csi: CsiRig, soon: None) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    driver.faults["NodeExpandVolume"] = 9
    grow(csi)
    await csi.run(CLAIMED)
    assert csi.messages("FailedMount") == []
    assert [c["type"] for c in status(csi)["conditions"]].count("NodeResizeError") == 1
    assert len(driver.called("NodeExpandVolume")) == 1


@root
async def test_a_failed_online_expansion_is_reported_once_and_retried(csi: CsiRig, soon: None) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    await csi.run(CLAIMED)
    driver.faults["NodeExpandVolume"] = 14
    grow(csi)
    await eventually(lambda: len(driver.called("NodeExpandVolume")) > 1)
    assert status(csi)["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
    del driver.faults["NodeExpandVolume"]
    await eventually(lambda: status(csi)["capacity"] == TWO)
    (message,) = csi.messages("VolumeResizeFailed")
    assert message == (
        'NodeExpandVolume.NodeExpandVolume failed for volume "pv-claim" : Expander.NodeExpand failed to '
        "expand the volume : rpc error: code = Unavailable desc = told to fail: NodeExpandVolume"
    )


@root
async def test_a_read_only_claim_is_not_expanded(csi: CsiRig) -> None:
    csi.known()
    csi.claim()
    driver = await csi.driver()
    grow(csi)
    await csi.run({"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}})
    assert driver.called("NodeExpandVolume") == []
    text = 'MountVolume.NodeExpandVolume failed for volume "pv-claim" requested read-only file system'
    assert csi.messages("FileSystemResizeFailed") == [text, text]
