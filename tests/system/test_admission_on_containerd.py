"""A critical pod on a full node: who gives way, how they end, and who is turned away."""

from __future__ import annotations

from typing import Any

import pytest

from engine.testing.containerd import Containerd
from tests.node_rig import Rig
from tests.system.busybox import container
from tests.waiting import eventually

pytestmark = [pytest.mark.containerd, pytest.mark.root]

FROM_API = {"annotations": {"kubernetes.io/config.source": "api"}}


def pod(cpu: str, **amounts: Any) -> dict[str, Any]:
    return {"containers": [container(resources={"requests": {"cpu": cpu}, **amounts})]}


def api_phase(rig: Rig, name: str) -> str:
    return next((p.status.phase for p in rig.node.pods() if p.metadata.name == name), "")


async def test_a_critical_pod_preempts_as_few_pods_as_the_rule_allows(rig: Rig, containerd: Containerd):
    node = await rig.start()
    cores = node.node_object().allocatable["cpu"].milli
    third = cores // 3
    guaranteed = {"cpu": f"{third}m", "memory": "32Mi"}
    rig.write("burst", pod(f"{third}m"), **FROM_API)
    rig.write("guard", {"containers": [container(resources={"limits": guaranteed})]}, **FROM_API)
    rig.write("idle", {"containers": [container()]}, **FROM_API)
    names = ("burst", "guard", "idle")
    await eventually(lambda: all(api_phase(rig, name) == "Running" for name in names))

    rig.write("ordinary", pod(f"{cores - third}m"), **FROM_API)
    await eventually(lambda: api_phase(rig, "ordinary") == "Failed")
    refused = next(p for p in node.pods() if p.metadata.name == "ordinary")
    assert refused.status.reason == "OutOfcpu"
    assert api_phase(rig, "burst") == "Running"

    rig.write("critical", pod(f"{cores - third}m"))
    await eventually(lambda: rig.phase("critical") == "Running")
    assert [api_phase(rig, name) for name in names] == ["Succeeded", "Running", "Running"]
    victim = next(p for p in node.pods() if p.metadata.name == "burst").status
    assert not victim.reason, "the victim ended well after SIGTERM"
    disruption = next(c for c in victim.conditions if c.type == "DisruptionTarget")
    assert (disruption.status, disruption.reason) == ("True", "TerminationByKubelet")
    assert "preempted" in disruption.message
    assert victim.container_statuses[0].state.terminated is not None
    preempting = [e.pod for e in node.recorder if e.reason == "Preempting"]
    assert preempting == ["default/burst"]
    assert node.registry.counter("kubelet_preemptions", "", ["preemption_signal"]).values == {("cpu",): 1}
    rejections = node.registry.counter("kubelet_admission_rejections_total", "", ["reason"]).values
    assert rejections == {("OutOfcpu",): 1}


async def test_freed_space_is_allocated_again(rig: Rig, containerd: Containerd):
    node = await rig.start()
    most = f"{node.node_object().allocatable['cpu'].milli}m"
    path = rig.write("first", pod(most), **FROM_API)
    await eventually(lambda: api_phase(rig, "first") == "Running")
    path.unlink()
    await eventually(lambda: not node.pods())
    rig.write("second", pod(most), **FROM_API)
    await eventually(lambda: api_phase(rig, "second") == "Running")
