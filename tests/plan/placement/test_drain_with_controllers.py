"""A drain takes as many rounds as disruption budgets allow: compared with a real API server's evictions.

The disruption controller sets how many pods each budget lets go, the API server counts evictions down, the
deployment controller and the scheduler replace the pods. Nodes are objects: the test makes pods ready.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.plan.questions.drain import DrainParameters, drain
from tests.cluster.control_plane import ControlPlane, Object, binaries
from tests.plan.placement.scheduler_site import NODES, PODS, Site
from tests.waiting import PATIENCE

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
DRAINED = "drained"


@pytest.fixture(params=[1, 2, 3])
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    if not (binaries() / "kube-controller-manager").is_file():
        pytest.skip("needs kube-scheduler and kube-controller-manager in KUBE_BIN")
    # An eviction that a budget forbids is not tried again within its round.
    monkeypatch.setattr("engine.cluster.client.TRIES_WHEN_BUSY", 0)
    with ControlPlane(tmp_path, binaries()) as plane:
        config = load_kubeconfig(plane.admin)
        admin = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
        plane.start_controllers("--controllers=*,-node-lifecycle-controller")
        yield Site(plane, admin, random.Random(request.param))
        admin.close()


async def test_a_drain_takes_the_rounds_that_evictions_take(site: Site) -> None:
    admin, draw = site.admin, site.draw
    await add_node(admin, DRAINED)
    replicas = {f"app{number}": draw.randrange(2, 8) for number in range(6)}
    for app, count in replicas.items():
        await deploy(admin, app, count)
        if app != "app0":
            await admin.create(BUDGETS, budget(app, draw, count), Object)
    await settled(admin, replicas)
    for number in range(3):
        await add_node(admin, f"n{number}")

    planned: Counter[tuple[str, int]] = Counter()
    for row in drain(await site.snapshot(), DrainParameters(nodes=[DRAINED])).table.to_pylist():
        if row["decision"] == "move":
            app = row["object"].removeprefix("default/").partition("-")[0]
            planned[app, int(row["reason"].rpartition("in round ")[2])] += 1

    await change(admin, f"{NODES}/{DRAINED}", spec={"unschedulable": True})
    evicted: Counter[tuple[str, int]] = Counter()
    for round_number in range(1, 10):
        gone = [app for app, name in await pods_on(admin, DRAINED) if await evict(admin, name)]
        if not gone:
            break
        evicted.update((app, round_number) for app in gone)
        await settled(admin, replicas)
    assert planned == evicted
    assert max(round_number for _, round_number in evicted) > 1


async def add_node(admin: ApiClient, name: str) -> None:
    await admin.create(NODES, {"metadata": {"name": name}}, Object)
    await change(admin, f"{NODES}/{name}", spec={"taints": []})
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    await change(admin, f"{NODES}/{name}/status", status=status)


async def change(admin: ApiClient, path: str, **parts: Object) -> None:
    """Set fields of an object that controllers change, too."""
    while True:
        made = await admin.get(path, Object)
        for name, fields in parts.items():
            made[name] |= fields
        try:
            await admin.update(path, made, Object)
            return
        except ApiError as error:
            if error.code != 409:
                raise


async def deploy(admin: ApiClient, app: str, count: int) -> None:
    requests = {"cpu": "100m", "memory": "100Mi"}
    containers = [{"name": "c", "image": "x", "resources": {"requests": requests}}]
    template = {
        "metadata": {"labels": {"app": app}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers},
    }
    spec = {"replicas": count, "selector": {"matchLabels": {"app": app}}, "template": template}
    await admin.create(DEPLOYMENTS, {"metadata": {"name": app}, "spec": spec}, Object)


def budget(app: str, draw: random.Random, count: int) -> Object:
    field = draw.choice(["minAvailable", "maxUnavailable"])
    amount: Any = draw.choice([f"{draw.randrange(10, 95)}%", draw.randrange(1, count)])
    return {"metadata": {"name": app}, "spec": {field: amount, "selector": {"matchLabels": {"app": app}}}}


async def settled(admin: ApiClient, replicas: dict[str, int]) -> None:
    """Make bound pods ready until every replica is, and every budget counts them all."""
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    async with asyncio.timeout(PATIENCE):
        while True:
            pods = (await admin.get(PODS, Object))["items"]
            for pod in pods:
                if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                    await change(admin, f"{PODS}/{pod['metadata']['name']}/status", status=ready)
            running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
            budgets = (await admin.get(BUDGETS, Object))["items"]
            counted = all(
                one.get("status", {}).get("currentHealthy") == replicas[one["metadata"]["name"]]
                and not one["status"].get("disruptedPods")
                for one in budgets
            )
            if Counter(pod["metadata"]["labels"]["app"] for pod in running) == replicas and counted:
                return
            await asyncio.sleep(0.1)


async def pods_on(admin: ApiClient, node: str) -> list[tuple[str, str]]:
    """Return the app and the name of each pod on a node."""
    pods = (await admin.get(PODS, Object))["items"]
    mine = [pod["metadata"] for pod in pods if pod["spec"].get("nodeName") == node]
    return [(meta["labels"]["app"], meta["name"]) for meta in mine]


async def evict(admin: ApiClient, name: str) -> bool:
    """Evict a pod; tell whether its budget allowed it."""
    try:
        await admin.create(f"{PODS}/{name}/eviction", {"metadata": {"name": name}}, Object)
    except ApiError as error:
        if error.code != 429:
            raise
        return False
    return True
