"""Two pods that want one port of the host: the second is turned away, also when both come at once."""

from __future__ import annotations

import pytest

from tests.node_bench import Bench, container
from tests.waiting import eventually


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_second_pod_with_a_host_port_is_turned_away(bench: Bench, at_once: bool):
    spec = {"containers": [container(ports=[{"containerPort": 80, "hostPort": 8080}])]}
    if at_once:
        bench.write("one", spec)
        bench.write("two", spec)
        await bench.start()
    else:
        await bench.start()
        bench.write("one", spec)
        await eventually(lambda: bench.phase("one") == "Running")
        bench.write("two", spec)
    await eventually(lambda: {bench.phase("one"), bench.phase("two")} == {"Running", "Failed"})
    refused = next(p for p in bench.node.pods() if p.status.phase == "Failed")
    assert refused.status.reason == "NodePorts"
    assert refused.status.message.startswith("Pod was rejected: ")


async def test_a_sidecars_host_port_counts_as_the_kubelet_counts_it(bench: Bench):
    sidecar = container("side", restartPolicy="Always", ports=[{"containerPort": 80, "hostPort": 8080}])
    await bench.start()
    bench.write("one", {"initContainers": [sidecar], "containers": [container()]})
    await eventually(lambda: bench.phase("one") == "Running")
    bench.write("two", {"containers": [container(ports=[{"containerPort": 80, "hostPort": 8080}])]})
    await eventually(lambda: bench.phase("two") == "Failed")
    assert bench.pod("two").status.reason == "NodePorts"
