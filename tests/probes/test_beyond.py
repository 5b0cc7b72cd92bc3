"""Features of probes beyond the kubelet's appear in metrics and in the decision that admits the pod."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.kubengine_config import ProbesSection
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.probes.probed_pods import pod_with
from tests.waiting import eventually

GET = {"httpGet": {"port": 80}}
ASKS = {"exec": {"command": ["nc", "-z", "localhost", "80"]}}


@pytest.mark.parametrize(
    ("probe", "annotated", "section", "expected"),
    [
        (GET, {}, {}, None),
        (GET, {"network": "pod"}, {}, ["pod-network"]),
        (GET, {}, {"network": "pod"}, ["pod-network"]),
        (GET, {"startPeriodMilliseconds": 50}, {}, ["start-period"]),
        (GET, {"timeoutMilliseconds": 1500}, {}, ["milliseconds"]),
        (GET, {"http2": True}, {}, ["h2c"]),
        ({"grpc": {"port": 80}}, {"tls": True, "network": "pod"}, {}, ["pod-network", "grpc-tls"]),
        (ASKS, {}, {}, ['replaceable-command: tcpSocket, port 80, "network": "pod"']),
        ({"exec": {"command": ["true"]}}, {}, {"network": "pod"}, None),
    ],
)
def test_in_words(rig, probe: Any, annotated: Any, section: dict[str, Any], expected: list[str] | None):
    whole = {"periodMilliseconds": 1000, **annotated}
    rig.manager._section = ProbesSection(**section)
    pod = pod_with(readiness={**probe, "ms": whole})
    assert rig.manager.beyond(pod) == ({"app readiness": expected} if expected else {})
    rig.manager.add_pod(pod)
    counted = dict(rig.registry.metrics["kubengine_probes_beyond"].collect())
    assert counted == {(word.partition(":")[0],): 1.0 for word in expected or []}


async def test_the_decision_that_takes_a_pod_in_names_them():
    annotations = {"c": {"readiness": {"network": "pod", "startPeriodMilliseconds": 20}}}
    note = msgspec.json.encode(annotations).decode()
    with tempfile.TemporaryDirectory(prefix="ks-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = Rig(Path(short), runtime.socket)
            node = await rig.start()
            rig.write(
                "a",
                {"containers": [container(readinessProbe=GET)]},
                annotations={"kubengine.dev/probes": note},
            )
            rig.write("b", {"containers": [container(readinessProbe=GET)]})
            await eventually(lambda: rig.phase("a") == rig.phase("b") == "Running")
            admitted = {each.pod: each for each in node.decisions.after(0) if each.outcome == "admitted"}
            assert admitted["default/a-n1"].inputs["probes"] == {
                "c readiness": ["pod-network", "start-period"]
            }
            assert "probes" not in admitted["default/b-n1"].inputs
            await rig.close()
