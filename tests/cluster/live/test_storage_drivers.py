"""A storage driver's volumes, inline and of an attached claim, on the test server, and on a real one where
KUBE_BIN says so."""

from __future__ import annotations

import pytest

from engine.cluster.client import ApiError
from engine.csi.paths import attachment_name, unique_name
from engine.host.mountinfo import mounts_below
from engine.testing.csi_driver import SampleCsiDriver
from tests.cluster.control_plane import Object, shown
from tests.cluster.scenes import NODE, Scene, is_ready
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

DRIVER = "sample.csi.example.com"
STORAGE = "/apis/storage.k8s.io/v1"
CORE = "/api/v1"
CLAIMS = f"{CORE}/namespaces/default/persistentvolumeclaims"
ZONE = "topology.sample.csi.example.com/zone"


async def make(scene: Scene, path: str, value: Object) -> Object:
    """Create an object and, if `value` has one, set its status. Return the object."""
    made = await scene.plane.admin.create(path, value, Object)
    if "status" in value:
        status = {"status": value["status"]}
        made = await scene.plane.admin.patch(f"{path}/{value['metadata']['name']}/status", status, Object)
    return made


async def make_claim(scene: Scene) -> None:
    """Create a claim that is bound to the volume `pv`, as a control plane binds it."""
    amount, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    wanted = {"accessModes": modes, "resources": {"requests": amount}, "storageClassName": ""}
    wanted |= {"volumeName": "pv"}
    claim = {"metadata": {"name": "claim"}, "spec": wanted, "status": {"phase": "Bound", "capacity": amount}}
    made = await make(scene, CLAIMS, claim)
    reference = {"namespace": "default", "name": "claim", "uid": made["metadata"]["uid"]}
    spec = {"accessModes": modes, "capacity": amount, "claimRef": reference, "storageClassName": ""}
    source = {"driver": DRIVER, "volumeHandle": "h1"}
    volume = {"metadata": {"name": "pv"}, "spec": {**spec, "csi": source}}
    await make(scene, f"{CORE}/persistentvolumes", volume)


async def attach(scene: Scene) -> None:
    """Attach the volume to the node as the attach-detach controller and the driver's attacher do."""
    name = attachment_name("h1", DRIVER, "n1")
    source = {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}
    status = {"attached": True, "attachmentMetadata": {"device": "/dev/x"}}
    await make(
        scene, f"{STORAGE}/volumeattachments", {"metadata": {"name": name}, "spec": source, "status": status}
    )
    attached = {"status": {"volumesAttached": [{"name": unique_name(DRIVER, "h1"), "devicePath": ""}]}}
    await scene.plane.admin.patch(f"{NODE}/status", attached, Object)


async def grow(scene: Scene) -> None:
    """Expand the volume as the resizer does, and leave the expansion of its file system to the node."""
    admin, amount = scene.plane.admin, {"storage": "2Gi"}
    await admin.patch(f"{CORE}/persistentvolumes/pv", {"spec": {"capacity": amount}}, Object)
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {
        "allocatedResources": amount,
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [pending],
    }
    await admin.patch(f"{CLAIMS}/claim/status", {"status": status}, Object)


async def clean(scene: Scene) -> None:
    for path in (
        f"{CLAIMS}/claim",
        f"{CORE}/persistentvolumes/pv",
        f"{STORAGE}/volumeattachments/{attachment_name('h1', DRIVER, 'n1')}",
        f"{STORAGE}/csidrivers/{DRIVER}",
    ):
        try:
            await scene.plane.admin.delete(path, {"gracePeriodSeconds": 0})
            await scene.plane.admin.patch(path, {"metadata": {"finalizers": None}}, Object)
        except ApiError as error:
            if error.code != 404:
                raise


async def test_pods_get_volumes_of_a_driver(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.volumes.volume_manager.EXPANSION_SECONDS", 0.0)
    admin = scene.plane.admin
    await shown(admin, NODE, is_ready)
    await clean(scene)
    spec = {
        "attachRequired": True,
        "podInfoOnMount": True,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "fsGroupPolicy": "File",
    }
    await make(scene, f"{STORAGE}/csidrivers", {"metadata": {"name": DRIVER}, "spec": spec})
    driver = SampleCsiDriver(
        scene.root.parent / "d", scene.root / "plugins_registry", topology={ZONE: "z"}, most_volumes=5
    )
    await driver.start()
    try:
        await eventually(lambda: len(driver.status) > 0)
        assert driver.status[-1].plugin_registered, driver.status[-1].error
        (said,) = (await admin.get(f"{STORAGE}/csinodes/n1", Object))["spec"]["drivers"]
        assert said == {
            "name": DRIVER,
            "nodeID": "node-1",
            "topologyKeys": [ZONE],
            "allocatable": {"count": 5},
        }
        await make_claim(scene)
        mounts = [{"name": "inline", "mountPath": "/i"}, {"name": "claimed", "mountPath": "/c"}]
        volumes = [
            {"name": "inline", "csi": {"driver": DRIVER}},
            {"name": "claimed", "persistentVolumeClaim": {"claimName": "claim"}},
        ]
        await scene.run(
            "p", containers=[container(volumeMounts=mounts)], volumes=volumes, securityContext={"fsGroup": 77}
        )

        async def in_use() -> bool:
            status = (await admin.get(NODE, Object))["status"]
            return status.get("volumesInUse") == [unique_name(DRIVER, "h1")]

        await eventually(in_use)
        assert driver.called("NodeStageVolume") == []
        await attach(scene)
        pod = await scene.wait_for("p", is_ready)
        (staged,) = driver.called("NodeStageVolume")
        assert dict(staged.publish_context) == {"device": "/dev/x"}
        assert driver.volume("h1").stat().st_gid == 77
        uids = {p.volume_context["csi.storage.k8s.io/pod.uid"] for p in driver.called("NodePublishVolume")}
        assert uids == {pod["metadata"]["uid"]}
        await grow(scene)

        async def grown() -> bool:
            status = (await admin.get(f"{CLAIMS}/claim", Object))["status"]
            return status["capacity"] == {"storage": "2Gi"} and not status.get("conditions")

        await eventually(grown)
        assert len(driver.called("NodeExpandVolume")) == 1
        await scene.delete("p")
        await scene.gone("p")
        await eventually(lambda: len(driver.called("NodeUnstageVolume")) == 1)
        await eventually(lambda: mounts_below(scene.root) == [])

        async def unused() -> bool:
            return not (await admin.get(NODE, Object))["status"].get("volumesInUse")

        await eventually(unused)
    finally:
        await driver.stop()
        await clean(scene)
