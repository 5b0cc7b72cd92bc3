"""SELinux labels of volumes, on a machine whose policy is pretended: no kernel here has one."""

from __future__ import annotations

import json

import pytest

from engine.host.selinux import SELinux
from engine.node import running_node
from engine.node.volumes import volume_manager
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Joined, Object
from tests.csi_rig import CLAIMED, INLINE, CsiRig
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

ONE_POD: Object = {"accessModes": ["ReadWriteOncePod"], "mountOptions": ["noatime"]}
LABEL = "system_u:object_r:container_file_t:s0:c1,c2"
CONTEXT = f'context="{LABEL}"'


@pytest.fixture(autouse=True)
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent find a policy; all of its file systems take labels."""
    found = SELinux(True, "system_u:object_r:container_file_t:s0")
    monkeypatch.setattr(running_node, "read_selinux", lambda: found)
    monkeypatch.setattr(volume_manager, "takes_labels", lambda path: True)


def labelled(level: str = "s0:c1,c2", **context: str) -> Object:
    return {"securityContext": {"seLinuxOptions": {"level": level}, **context}}


def relabelled(hollow: HollowRuntime) -> dict[str, bool]:
    """Return which mounts of the newest container the runtime may relabel."""
    *_, newest = (each.config for each in hollow.service.records.containers.values())
    return {mount.container_path: mount.selinux_relabel for mount in newest.mounts}


async def test_volume_of_one_pod_is_mounted_with_its_label(csi: CsiRig, hollow: HollowRuntime) -> None:
    csi.known(seLinuxMount=True)
    csi.claim(**ONE_POD)
    driver = await csi.driver()
    pod = await csi.run(CLAIMED, **labelled())
    for method in ("NodeStageVolume", "NodePublishVolume"):
        (call,) = driver.called(method)
        assert list(call.volume_capability.mount.mount_flags) == ["noatime", CONTEXT]
    for directory in (csi.staged(), csi.published(pod, "pv-claim")):
        assert json.loads((directory / "vol_data.json").read_text())["seLinuxMountContext"] == LABEL
    assert relabelled(hollow) == {"/v": False, "/etc/hosts": True}


@pytest.mark.parametrize(
    ("driver", "volume", "pod"),
    [
        ({}, ONE_POD, labelled()),
        ({"seLinuxMount": False}, ONE_POD, labelled()),
        ({"seLinuxMount": True}, {"accessModes": ["ReadWriteOnce"]}, labelled()),
        ({"seLinuxMount": True}, {"accessModes": ["ReadWriteOncePod", "ReadOnlyMany"]}, labelled()),
        ({"seLinuxMount": True}, ONE_POD, labelled(seLinuxChangePolicy="Recursive")),
        ({"seLinuxMount": True}, ONE_POD, labelled(level="")),
        ({"seLinuxMount": True}, ONE_POD, {}),
    ],
    ids=["unknown", "unable", "many-pods", "two-modes", "recursive", "no-level", "no-options"],
)
async def test_runtime_relabels_other_volumes(
    csi: CsiRig, hollow: HollowRuntime, driver: Object, volume: Object, pod: Object
) -> None:
    csi.known(**driver)
    csi.claim(**volume)
    sample = await csi.driver()
    await csi.run(CLAIMED, **pod)
    (call,) = sample.called("NodePublishVolume")
    assert not any("context=" in flag for flag in call.volume_capability.mount.mount_flags)
    assert "seLinuxMountContext" not in (csi.staged() / "vol_data.json").read_text()
    assert relabelled(hollow)["/v"]


async def test_a_file_system_without_labels_is_not_relabelled(
    csi: CsiRig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_manager, "takes_labels", lambda path: False)
    csi.known()
    await csi.driver()
    await csi.run(INLINE)
    assert not relabelled(hollow)["/v"]


async def test_next_pod_with_another_label_gets_another_mount(csi: CsiRig) -> None:
    """The driver keeps the first pod's mount at first; the next pod must not start on it."""
    csi.known(seLinuxMount=True)
    csi.claim(**ONE_POD)
    driver = await csi.driver()
    await csi.run(CLAIMED, "one", **labelled())
    driver.faults["NodeUnstageVolume"] = 14
    await csi.delete("one")
    await csi.ask(CLAIMED, "two", **labelled("s0:c3"))
    await eventually(csi.messages)
    assert csi.messages()[0].startswith('MountVolume.MountDevice failed for volume "pv-claim" : ')
    del driver.faults["NodeUnstageVolume"]
    await csi.cluster.ready("two")
    staged = driver.called("NodeStageVolume")[-1]
    assert list(staged.volume_capability.mount.mount_flags) == ["noatime", CONTEXT.replace("c1,c2", "c3")]


async def test_different_labels_for_one_volume_are_refused(csi: CsiRig) -> None:
    csi.known(seLinuxMount=True)
    csi.claim(**ONE_POD)
    await csi.driver()
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    await csi.cluster.run(
        "p",
        containers=[container("a", **mount, **labelled()), container("b", **mount, **labelled("s0:c3"))],
        volumes=[{"name": "v", **CLAIMED}],
    )
    await eventually(csi.messages)
    assert csi.messages()[0] == (
        "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process "
        f"volumes=[v]: multiple SELinux labels found: {LABEL},{LABEL.replace('c1,c2', 'c3')}"
    )


@pytest.fixture
def labels_shared_volumes(joined: Joined) -> None:
    joined.config.feature_gates = {"SELinuxMount": True}


@pytest.mark.usefixtures("labels_shared_volumes")
async def test_pods_that_share_a_volume_need_the_same_label(csi: CsiRig) -> None:
    csi.known(seLinuxMount=True)
    csi.claim(mountOptions=["noatime"])
    driver = await csi.driver()
    for name in ("one", "two"):
        await csi.run(CLAIMED, name, **labelled())
    (call,) = driver.called("NodeStageVolume")
    assert list(call.volume_capability.mount.mount_flags) == ["noatime", CONTEXT]
    await csi.ask(CLAIMED, "three", **labelled("s0:c3"))
    await eventually(csi.messages)
    assert "it is mounted with another SELinux label for another pod" in csi.messages()[0]
    for name in ("one", "two"):
        await csi.delete(name)
    await csi.cluster.ready("three")


@pytest.mark.parametrize(
    ("volume", "relabels"),
    [
        ({"emptyDir": {}}, True),
        ({"downwardAPI": {"items": []}}, True),
        ({"hostPath": {"path": "/usr"}}, False),
    ],
)
async def test_only_files_of_the_pod_are_relabelled(
    csi: CsiRig, hollow: HollowRuntime, volume: Object, relabels: bool
) -> None:
    await csi.run(volume)
    assert relabelled(hollow)["/v"] is relabels
