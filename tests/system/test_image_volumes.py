"""Volumes that are images: real files in real containers, and a runtime that is too old for them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.embedded import EmbeddedRuntime
from engine.testing.containerd import Containerd
from engine.testing.images import ImageEntry, make_layer, write_image
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.root]

VOLUMES = {
    "volumes": [
        {"name": "model", "image": {"reference": "model:1", "pullPolicy": "IfNotPresent"}},
        {"name": "out", "emptyDir": {}},
    ]
}
MOUNTS = {"volumeMounts": [{"name": "model", "mountPath": "/model"}, {"name": "out", "mountPath": "/out"}]}
READ = "cat /model/sub/weights > /out/read; touch /model/x || echo denied >> /out/read; "


async def test_a_container_reads_an_image_that_was_pulled_as_its_volume(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
):
    archives = tmp_path / "archives"
    archives.mkdir()
    shutil.copy(busybox_archive, archives)
    files = make_layer([ImageEntry("sub"), ImageEntry("sub/weights", data=b"42\n", mode=0o644)])
    write_image(archives / "model.tar", ["model:1"], layers=[files])
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        runtime = EmbeddedRuntime(
            socket=Path(short) / "cri.sock",
            root=tmp_path / "runtime",
            state=Path(short) / "state",
            archives=archives,
        )
        await runtime.start()
        rig = Rig(
            tmp_path,
            runtime.socket,
            cgroups_per_qos=True,
            enforce_node_allocatable=["pods"],
            cgroup_root=private_cgroup_root,
        )
        try:
            await rig.start()
            main: dict[str, Any] = container("c", READ + WAIT, **MOUNTS) | {"imagePullPolicy": "IfNotPresent"}
            rig.write("model", {**VOLUMES, "containers": [main]})
            await eventually(lambda: rig.phase("model") == "Running")
            out = rig.root / "pods" / rig.pod("model").uid / "volumes/kubernetes.io~empty-dir/out/read"
            await eventually(lambda: out.exists() and out.read_text() == "42\ndenied\n")
        finally:
            await rig.close()
            await runtime.purge()


@pytest.mark.containerd
async def test_a_containerd_without_image_volumes_is_reported_and_other_pods_run(
    rig: Rig, containerd: Containerd, tmp_path: Path
):
    archive = write_image(tmp_path / "model.tar", ["docker.io/library/model:1"], layers=[make_layer([])])
    containerd.ctr("-n", "k8s.io", "images", "import", str(archive))
    await rig.start()
    rig.write("model", {**VOLUMES, "containers": [container("c", **MOUNTS)]})
    rig.write("other", {"containers": [container()]})
    await eventually(lambda: rig.phase("other") == "Running")

    def messages() -> list[str]:
        return [e.message for e in rig.node.recorder if e.reason == "Failed"]

    await eventually(messages)
    assert "containerd 2.1 or later is needed for image volumes" in messages()[0]
