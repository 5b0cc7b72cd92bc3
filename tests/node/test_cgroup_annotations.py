"""Annotations for cgroups as a user meets them: taken, shown in the decisions, or refused by name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.node.pod_admission import INVALID_ANNOTATION
from tests.node_rig import Rig, container
from tests.waiting import eventually

pytestmark = pytest.mark.root

LIMITED = container(resources={"limits": {"cpu": "200m", "memory": "32Mi"}})


@pytest.fixture
def with_cgroups(rig: Rig, private_cgroup_root: str) -> Rig:
    rig.config.cgroups_per_qos = True
    rig.config.cgroup_root = private_cgroup_root
    rig.section.cgroups.pod_annotations = ["cpu-burst"]
    return rig


async def test_they_count_and_stand_in_the_decision(with_cgroups: Rig, hollow):
    rig = with_cgroups
    hollow.images.add("busybox:1")
    node = await rig.start()
    rig.write(
        "asks",
        {"containers": [LIMITED]},
        annotations={"kubengine.dev/cpu-burst": "50%", "kubengine.dev/swap": "no matter"},
    )
    rig.write("plain", {"containers": [LIMITED]})
    await eventually(lambda: {rig.phase("asks"), rig.phase("plain")} == {"Running"})
    admitted = {d.pod: d.inputs for d in node.decisions.after(0) if d.outcome == "admitted"}
    assert admitted["default/asks-n1"]["cgroupAnnotations"] == {"cpu-burst": "50%"}
    assert "cgroupAnnotations" not in admitted["default/plain-n1"]
    groups = {
        row["pod"]: row for row in cast(Any, node.components["cgroups"]).describe()["groups"] if row["uid"]
    }
    bursts = {
        pod: [file["actual"] for name, file in row["files"].items() if "burst" in name]
        for pod, row in groups.items()
    }
    assert bursts == {"default/asks-n1": ["10000"], "default/plain-n1": []}
    metric = node.registry.metrics["kubengine_cgroup_annotated_pods"]
    assert list(metric.collect()) == [(("cpu-burst",), 1.0)]


async def test_idle_pods_are_in_the_decision_and_counted(with_cgroups: Rig, hollow):
    rig = with_cgroups
    rig.section.cgroups.best_effort_idle = True
    hollow.images.add("busybox:1")
    node = await rig.start()
    rig.write("limited", {"containers": [LIMITED]})
    rig.write("idles", {"containers": [container()]})
    await eventually(lambda: {rig.phase("limited"), rig.phase("idles")} == {"Running"})
    admitted = {d.pod: d.inputs for d in node.decisions.after(0) if d.outcome == "admitted"}
    assert {pod: inputs.get("cpuIdle", False) for pod, inputs in admitted.items()} == {
        "default/limited-n1": False,
        "default/idles-n1": True,
    }
    assert list(node.registry.metrics["kubengine_best_effort_idle_pods"].collect()) == [((), 1.0)]


async def test_one_that_makes_no_sense_refuses_the_pod(with_cgroups: Rig):
    rig = with_cgroups
    node = await rig.start()
    rig.write("odd", {"containers": [LIMITED]}, annotations={"kubengine.dev/cpu-burst": "twice"})
    await eventually(lambda: rig.phase("odd") == "Failed")
    status = rig.pod("odd").status
    assert status.reason == INVALID_ANNOTATION
    assert "kubengine.dev/cpu-burst: expected 0% to 100%, got 'twice'" in status.message
    (refused,) = [d for d in node.decisions.after(0) if d.outcome == "refused"]
    assert refused.reason.startswith(INVALID_ANNOTATION)
    assert refused.inputs["cgroupAnnotations"] == {"cpu-burst": "twice"}
