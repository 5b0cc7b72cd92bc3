"""Pods that a kubelet left on a real containerd: an agent that comes after it goes on with them."""

from __future__ import annotations

import pytest

from engine.api.pod import Container
from engine.cri.client import RuntimeClient
from engine.node.spec.cri_config import container_hash
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from engine.wire import cri_v1_pb2 as cri
from tests.node.kubelets_pods import UID, container_config, leave_pod
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]

EVERY_SECOND = {"exec": {"command": ["test", "-e", "/data/alive"]}, "periodSeconds": 1, "failureThreshold": 1}


async def test_a_running_pod_keeps_its_volume_and_is_probed(rig: Rig, containerd: Containerd):
    data = {"name": "data", "mountPath": "/data"}
    spec = container(volumeMounts=[data], livenessProbe=EVERY_SECOND)
    volume = rig.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "data"
    volume.mkdir(parents=True)
    (volume / "alive").write_text("kept")
    left = container_config(image=BUSYBOX_TAG, hash=container_hash(Container(name="c", image=BUSYBOX_TAG)))
    left.command.extend(["sh", "-c", WAIT])
    left.mounts.append(cri.Mount(container_path="/data", host_path=str(volume)))
    client = RuntimeClient(str(containerd.socket), timeout=30)
    try:
        sandbox, (identity,) = await leave_pod(
            client,
            "web-n1",
            [left],
            logs=rig.root.parent / "logs",
            cgroup_parent=f"{rig.config.cgroup_root}/kubepods/besteffort/pod{UID}",
        )
        started = (await client.container_status(identity)).status.started_at
        rig.write("web", {"containers": [spec], "volumes": [{"name": "data", "emptyDir": {}}]})
        await rig.start()
        await eventually(lambda: rig.phase("web") == "Running")
        assert rig.pod("web").uid == UID
        status = (await client.container_status(identity)).status
        assert (status.state, status.started_at) == (cri.CONTAINER_RUNNING, started)
        assert [s.id for s in await client.list_pod_sandboxes()] == [sandbox]
        assert (volume / "alive").read_text() == "kept"
        (volume / "alive").unlink()
        await eventually(lambda: rig.pod("web").status.container_statuses[0].restart_count == 1)
        assert rig.pod("web").uid == UID
    finally:
        await client.close()
