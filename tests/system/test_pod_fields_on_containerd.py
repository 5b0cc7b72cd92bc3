"""Fields of a pod that change what its containers find: on a real containerd."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_rig import Cluster, Joined
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.containerd]

SHARED = {"volumes": [{"name": "cfg", "emptyDir": {}}]}
MOUNT: dict[str, Any] = {"volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}]}


def variable(name: str, key: str, path: str = "env", **more: Any) -> dict[str, Any]:
    reference = {"volumeName": "cfg", "path": path, "key": key, **more}
    return {"name": name, "valueFrom": {"fileKeyRef": reference}}


def messages(rig: Rig, reason: str) -> list[str]:
    assert rig.node is not None
    return [event.message for event in rig.node.recorder if event.reason == reason]


async def test_an_init_container_writes_what_its_successor_has_as_variables(rig: Rig) -> None:
    await rig.start()
    write = container("write", "printf \"A='one\\n two'\\nB='3' # three\\n\" > /cfg/env", **MOUNT)
    env = [variable("ONE", "A"), variable("TWO", "B"), variable("NONE", "C", optional=True)]
    show = 'printf "%s|%s|%s" "$ONE" "$TWO" "${NONE-unset}" > /cfg/shown; '
    spec = {"initContainers": [write], "containers": [container("c", show + WAIT, env=env, **MOUNT)]}
    rig.write("p", {**SHARED, **spec})
    await eventually(lambda: rig.phase("p") == "Running")
    shown = rig.root / "pods" / rig.pod("p").uid / "volumes/kubernetes.io~empty-dir/cfg/shown"
    await eventually(lambda: shown.exists() and shown.read_text() == "one\n two|3|unset")


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("ln -s /etc/passwd /cfg/env", "env"),
        ("ln -s ../../../../../../../../etc/passwd /cfg/env", "env"),
        ("mkdir /cfg/d; ln -s / /cfg/d/root", "d/root/etc/passwd"),
        ("mkfifo /cfg/env", "env"),
        ("ln -s env /cfg/env", "env"),
        ("dd if=/dev/zero of=/cfg/env bs=1M count=2", "env"),
    ],
)
async def test_a_file_of_variables_cannot_escape_its_volume(rig: Rig, script: str, path: str) -> None:
    """Each name and value of the host's would show in the container or in the message."""
    await rig.start()
    env = [variable("X", "root", path)]
    spec = {
        "initContainers": [container("plant", script, **MOUNT)],
        "containers": [container("c", env=env, **MOUNT)],
    }
    rig.write("p", {**SHARED, **spec})
    await eventually(lambda: "Error: couldn't parse env file" in messages(rig, "Failed"))
    assert rig.phase("p") == "Pending"


async def test_a_class_is_carried_out_by_its_handler(rig: Rig) -> None:
    rig.section.runtime_classes = {"usual": "runc", "odd": "nobody"}
    await rig.start()
    rig.write("a", {"containers": [container()], "runtimeClassName": "usual"})
    rig.write("b", {"containers": [container()], "runtimeClassName": "odd"})
    await eventually(lambda: rig.phase("a") == "Running")
    assert rig.node is not None
    await eventually(lambda: messages(rig, "FailedCreatePodSandBox"))
    assert 'no runtime for "nobody" is configured' in messages(rig, "FailedCreatePodSandBox")[0]
    assert rig.phase("b") == "Pending"


async def test_a_container_has_a_claims_block_device(
    joined: Joined, cluster: Cluster, tmp_path: Path
) -> None:
    """A device's node, which nobody opens: whether there is a disk behind it does not matter."""
    device = tmp_path / "disk"
    os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(7, 250))
    claim = cluster.server.create(
        "/api/v1/namespaces/default/persistentvolumeclaims",
        {"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}},
    )
    reference = {"namespace": "default", "name": "c", "uid": claim["metadata"]["uid"]}
    spec = {"claimRef": reference, "volumeMode": "Block", "local": {"path": str(device)}}
    cluster.server.create("/api/v1/persistentvolumes", {"metadata": {"name": "pv"}, "spec": spec})
    volumes = [
        {"name": "disk", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "cfg", "emptyDir": {}},
    ]
    devices = [{"name": "disk", "devicePath": "/dev/data"}]
    show = "stat -c '%F %t:%T' /dev/data > /cfg/shown; "
    await joined.start()
    await cluster.run(
        "p", containers=[container("c", show + WAIT, volumeDevices=devices, **MOUNT)], volumes=volumes
    )
    pod = await cluster.ready("p")
    shown = joined.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/cfg/shown"
    await eventually(lambda: shown.exists() and shown.read_text() == "block special file 7:fa\n")
