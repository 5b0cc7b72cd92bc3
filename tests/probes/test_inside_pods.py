"""A whole node on the embedded runtime probes a server that only its own pod can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.node_rig import Rig
from tests.probes.scenario_node import ScenarioNode
from tests.runtime.pods import embedded_runtime
from tests.waiting import eventually

pytestmark = pytest.mark.root
LOOPBACK_ONLY = (
    "mkdir -p /tmp/www; echo ok > /tmp/www/index.html; httpd -p 127.0.0.1:8080 -h /tmp/www; "
    "while true; do sleep 1; done"
)
SERVED = {"httpGet": {"port": 8080, "path": "/index.html"}}


async def test_a_server_on_the_loopback_of_its_pod(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
):
    """Ready through its own network, never through the node's; restarted, probed in it again."""
    async with embedded_runtime(tmp_path / "runtime", busybox_archive, private_cgroup_root) as pods:
        rig = Rig(tmp_path, pods.client.socket, cgroup_root=private_cgroup_root)
        await rig.start()
        node = ScenarioNode(rig)
        try:
            for name, network in (("inside", "pod"), ("outside", "node")):
                ms = {"network": network, "periodMilliseconds": 200, "startPeriodMilliseconds": 50}
                node.run(LOOPBACK_ONLY, name=name, readiness={**SERVED, "ms": ms})
            await eventually(lambda: node.ready("inside"))
            await eventually(lambda: node.outcomes("outside")["failure"] >= 3)
            assert not node.ready("outside")
            decisions = cast(Any, rig.node.components["decisions"]).describe(pod=node.pod("inside").uid)[
                "decisions"
            ]
            assert ("probes", "inside") in {(each.kind, each.outcome) for each in decisions}
            await rig.restart()
            good = node.outcomes("inside")["success"]
            await eventually(lambda: node.outcomes("inside")["success"] > good + 2)
        finally:
            await rig.close()
