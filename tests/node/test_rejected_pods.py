"""A rejected pod counts nowhere: not in sums, devices, directories, statistics or probes."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.hollow import HollowRuntime
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.summaries import summary_of
from tests.waiting import eventually


@pytest.fixture
async def rig() -> AsyncIterator[DeviceRig]:
    with tempfile.TemporaryDirectory(prefix="kr-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = DeviceRig(Path(short), runtime)
            await rig.start()
            yield rig
            await rig.close()


async def counted(rig: DeviceRig) -> dict[str, Any]:
    """Return everything in which a pod could still be counted."""
    node = rig.node
    assert node is not None
    admission: Any = node.components["admission"]
    probes: Any = node.components["probes"]
    devices: Any = node.components["devices"]
    summary = await summary_of(node)
    return {
        "active": sorted(pod.metadata.name for pod in node.active_pods()),
        "admission": (admission.describe()["pods"], admission.describe()["used"]),
        "devices": devices.state.allocated(),
        "pod resources": await rig.listed(),
        "probes": len(probes.describe()["probes"]),
        "directories": sorted(path.name for path in (rig.root / "pods").glob("*")),
        "sandboxes": len(rig.runtime.service.records.sandboxes),
        "statistics": sorted(pod["podRef"]["name"] for pod in summary["pods"]),
    }


@pytest.mark.parametrize(
    ("gpus", "selector", "reason", "label"),
    [
        (3, {}, "UnexpectedAdmissionError", "UnexpectedAdmissionError"),
        (1, {"no": "such"}, "NodeAffinity", "Other"),
    ],
    ids=["by its devices", "by its node"],
)
async def test_a_rejected_pod_uses_no_resources(rig, gpus, selector, reason, label):
    await rig.plugin(2)
    rig.wants("taken")
    await eventually(lambda: rig.running("taken"))
    before = await counted(rig)
    assert before["active"] == ["taken-n1"]
    app = container("app", resources={"limits": {GPU: gpus}}, livenessProbe={"tcpSocket": {"port": 1}})
    volumes = [{"name": "v", "emptyDir": {}}]
    rig.write("refused", {"containers": [app], "nodeSelector": selector, "volumes": volumes})
    await eventually(lambda: rig.reason("refused") == reason)
    assert await counted(rig) == before
    rejections = rig.node.registry.counter("kubelet_admission_rejections_total", "", ["reason"])
    assert rejections.values == {(label,): 1}
