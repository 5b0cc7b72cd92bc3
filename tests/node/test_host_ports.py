"""Two pods that want one port of the host: the second is turned away, also when both come at once."""

from __future__ import annotations

import pytest

from tests.node_rig import Rig, container
from tests.waiting import eventually


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_second_pod_with_a_host_port_is_rejected(rig: Rig, at_once: bool):
    spec = {"containers": [container(ports=[{"containerPort": 80, "hostPort": 8080}])]}
    if at_once:
        rig.write("one", spec)
        rig.write("two", spec)
        await rig.start()
    else:
        await rig.start()
        rig.write("one", spec)
        await eventually(lambda: rig.phase("one") == "Running")
        rig.write("two", spec)
    await eventually(lambda: {rig.phase("one"), rig.phase("two")} == {"Running", "Failed"})
    refused = next(p for p in rig.node.pods() if p.status.phase == "Failed")
    assert refused.status.reason == "NodePorts"
    assert refused.status.message.startswith("Pod was rejected: ")


async def test_host_ports_of_sidecars_count_as_in_the_kubelet(rig: Rig):
    sidecar = container("side", restartPolicy="Always", ports=[{"containerPort": 80, "hostPort": 8080}])
    await rig.start()
    rig.write("one", {"initContainers": [sidecar], "containers": [container()]})
    await eventually(lambda: rig.phase("one") == "Running")
    rig.write("two", {"containers": [container(ports=[{"containerPort": 80, "hostPort": 8080}])]})
    await eventually(lambda: rig.phase("two") == "Failed")
    assert rig.pod("two").status.reason == "NodePorts"
