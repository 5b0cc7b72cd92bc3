"""A pod on a real containerd that tries to reach the host through its volumes and its last words."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host.mountinfo import mounts_below
from engine.testing.containerd import Containerd
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]

SECRET = "the host's own"


async def test_a_container_gets_nothing_of_the_host(rig: Rig, containerd: Containerd, tmp_path: Path):
    """Planted links, FIFOs for last words, files for the group alone, and a volume deeper than the stack."""
    await rig.start()
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text(SECRET)
    data = {"name": "data", "mountPath": "/data"}
    plant = f"cd /data && ln -s {tmp_path}/host evil && mkdir part && mkfifo part/words && echo in > part/f"
    deep = "cd /data && i=0; while [ $i -lt 1500 ]; do mkdir d && cd d; i=$((i+1)); done"
    look = "cat /info/name > /out/name; echo x > /info/new; echo $? > /out/written; cat /part/f > /out/part; "
    rig.write(
        "attacker",
        {
            "securityContext": {"fsGroup": 4321},
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "out", "emptyDir": {}},
                {
                    "name": "info",
                    "downwardAPI": {
                        "defaultMode": 0o440,
                        "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}],
                    },
                },
            ],
            "initContainers": [container("plant", f"{plant}; {deep}", volumeMounts=[data])],
            "containers": [
                container(
                    "looks",
                    look + WAIT,
                    securityContext={"runAsUser": 1000},
                    volumeMounts=[
                        {"name": "data", "mountPath": "/part", "subPath": "part"},
                        {"name": "info", "mountPath": "/info"},
                        {"name": "out", "mountPath": "/out"},
                    ],
                ),
                container("escapes", volumeMounts=[{"name": "data", "mountPath": "/x", "subPath": "evil"}]),
                container(
                    "hangs",
                    "exit 1",
                    terminationMessagePath="/words",
                    volumeMounts=[{"name": "data", "mountPath": "/words", "subPath": "part/words"}],
                ),
            ],
        },
    )

    def statuses() -> dict[str, object]:
        pod = rig.pod("attacker")
        return {s.name: s for s in pod.status.container_statuses or []} if pod is not None else {}

    def refused() -> bool:
        waiting = getattr(statuses().get("escapes"), "state", None)
        return waiting is not None and waiting.waiting is not None and "subPath" in waiting.waiting.message

    def messages() -> str:
        status = statuses().get("hangs")
        ended = status and (status.last_state.terminated or status.state.terminated)  # type: ignore[attr-defined]
        return ended.message if ended else ""

    await eventually(lambda: "Error on reading termination log" in messages())
    await eventually(refused)
    pod = rig.pod("attacker")
    assert pod is not None
    directory = rig.root / "pods" / pod.uid
    out = directory / "volumes/kubernetes.io~empty-dir/out"
    await eventually(lambda: (out / "part").exists() and (out / "part").read_text())
    assert (out / "name").read_text() == "attacker-n1"
    assert (out / "written").read_text() == "1\n"
    assert (out / "part").read_text() == "in\n"
    assert mounts_below(directory)
    (rig.manifests / "attacker.yaml").unlink()
    await eventually(lambda: not directory.exists())
    assert mounts_below(rig.root) == []
    assert [(file.name, file.read_text()) for file in (tmp_path / "host").iterdir()] == [("file", SECRET)]
