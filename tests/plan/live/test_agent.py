"""admit and preempt answer as a live agent acts: a node runs random pods, the planner reads its socket and is
asked, and then the agent gets the same pods.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.plan import Snapshot, load_snapshot
from engine.plan.questions.admit import AdmitParameters, admit
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.runtime.hollow import HollowRuntime
from engine.server import HttpServer
from tests.node_rig import Rig, container
from tests.waiting import eventually

API = {"kubernetes.io/config.source": "api"}
CRITICAL = 2_000_001_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    runtime = HollowRuntime(tmp_path / "cri.sock")
    await runtime.start()
    rig = Rig(tmp_path, tmp_path / "cri.sock", max_pods=40, healthz_port=0, read_only_port=0)
    yield rig
    await rig.close()
    await runtime.stop()


def spec(cpu: int, memory: int, **fields: Any) -> dict[str, Any]:
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"} if cpu else {}
    return {"containers": [container(resources={"requests": requests})], **fields}


async def snapshot_of(rig: Rig) -> Snapshot:
    """Return the snapshot of the node that the planner reads from the agent's socket."""
    path = rig.root / "kubengine.sock"
    server = HttpServer(rig.node, socket_path=path)
    await server.start()
    try:
        return await asyncio.to_thread(load_snapshot, [str(path)])
    finally:
        await server.stop()


def phases(rig: Rig) -> dict[str, str]:
    assert rig.node is not None
    return {pod.metadata.name: pod.status.phase for pod in rig.node.pods()}


@pytest.mark.parametrize("seed", range(6))
async def test_the_agent_admits_and_preempts_as_the_planner_says(rig: Rig, seed: int) -> None:
    draw = random.Random(seed)
    await rig.start()
    for number in range(draw.randrange(3, 9)):
        cpu = draw.choice([0, 20, 50, 90, 150])
        pod = spec(cpu, draw.choice([16, 64, 256]), priority=draw.choice([0, 0, 100, 1000]))
        rig.write(f"p{number}", pod, annotations=API)
        await eventually(lambda name=f"p{number}": phases(rig).get(name) == "Running")

    size = draw.randrange(90, 200)
    asked = {"cpu": f"{size}m", "memory": "32Mi"}
    (row,) = admit(await snapshot_of(rig), AdmitParameters(requests=asked)).table.to_pylist()
    admitted = 0
    while True:
        name = f"more{admitted}"
        rig.write(name, spec(size, 32), annotations=API)
        await eventually(lambda name=name: phases(rig).get(name) in ("Running", "Failed"))
        if phases(rig)[name] == "Failed":
            (rig.manifests / f"{name}.yaml").unlink()
            await eventually(lambda name=name: name not in phases(rig))
            break
        admitted += 1
    assert (row["decision"], row["amount"]) == ("admits" if admitted else "refuses", admitted)

    before = {name for name, phase in phases(rig).items() if phase == "Running"}
    wanted = {"cpu": f"{draw.randrange(200, 600)}m", "memory": "64Mi"}
    asked_for = PreemptParameters(requests=wanted, critical=True)
    rows = preempt(await snapshot_of(rig), asked_for).table.to_pylist()
    victims = {row["object"].removeprefix("default/") for row in rows if row["decision"] == "victim"}
    critical = {"containers": [container(resources={"requests": wanted})], "priority": CRITICAL}
    rig.write("vital", critical, annotations=API)
    await eventually(lambda: phases(rig).get("vital") == "Running")
    assert {name for name in before if phases(rig).get(name) != "Running"} == victims
    assert victims
