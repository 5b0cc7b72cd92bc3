"""A cluster with a real scheduler and no kubelet, and the planner's repetition of what it bound."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.plan import FaultLog, Snapshot
from engine.plan.live.cluster_reader import read_cluster
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.snapshot.columns import NO_NODE
from tests.cluster.control_plane import ControlPlane, Object, binaries
from tests.plan.placement.made_cluster import HOST, PREFERRED, REQUIRED, ZONE
from tests.waiting import PATIENCE

NODES = "/api/v1/nodes"
NAMESPACE = "/api/v1/namespaces/default"
PODS = f"{NAMESPACE}/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
APPS = ("web", "cache", "db", "batch")
IMAGE = "registry.example/app:1"
GATE = "example.com/wait"
NODE_COUNT = 12


class Site:
    """Run a control plane with a scheduler and without a kubelet, and draw its random objects."""

    def __init__(self, plane: ControlPlane, admin: ApiClient, draw: random.Random) -> None:
        self.plane, self.admin, self.draw = plane, admin, draw
        self.sets: dict[str, str] = {}
        self.unplaced: list[Object] = []
        self.volumes: list[str] = []
        self.claims: list[str] = []

    async def prepare(self) -> None:
        with contextlib.suppress(ApiError):
            await self.admin.create(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}}, Object)
        await self.admin.create(CLASSES, {"metadata": {"name": "high"}, "value": 1000}, Object)
        for app in APPS:
            spec = {
                "replicas": 0,
                "selector": {"matchLabels": {"app": app}},
                "template": {
                    "metadata": {"labels": {"app": app}},
                    "spec": {"containers": [{"name": "c", "image": "x"}]},
                },
            }
            made = await self.admin.create(SETS, {"metadata": {"name": app}, "spec": spec}, Object)
            self.sets[app] = made["metadata"]["uid"]
        for number in range(NODE_COUNT):
            await self._node(number)

    async def _node(self, number: int) -> None:
        draw, name = self.draw, f"n{number:02}"
        taints: list[Object] = []
        if draw.random() < 0.2:
            taints.append({"key": "soft", "value": "x", "effect": "PreferNoSchedule"})
        if draw.random() < 0.15:
            taints.append({"key": "hard", "value": "x", "effect": "NoSchedule"})
        labels = {HOST: name, ZONE: f"z{number % 3}", "disk": draw.choice(["ssd", "hdd"])}
        made = await self.admin.create(NODES, {"metadata": {"name": name, "labels": labels}}, Object)
        # The server gives a new node the taint of one that is not ready.
        made["spec"]["taints"] = taints
        made = await self.admin.update(f"{NODES}/{name}", made, Object)
        amounts = {"cpu": draw.choice(["2", "4", "8"]), "memory": draw.choice(["4Gi", "16Gi"]), "pods": "20"}
        made["status"] |= {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": [IMAGE], "sizeBytes": 900_000_000}] if draw.random() < 0.4 else [],
        }
        await self.admin.update(f"{NODES}/{name}/status", made, Object)

    def pod(self, name: str, **spec: Any) -> Object:
        """Return a random pod with some of the rules that decide its node."""
        draw, app = self.draw, self.draw.choice(APPS)
        alike = {"labelSelector": {"matchLabels": {"app": app}}}
        near = {"labelSelector": {"matchLabels": {"app": draw.choice(APPS)}}}
        affinity: dict[str, Any] = {}
        if draw.random() < 0.2:
            expression = {"key": "disk", "operator": "In", "values": ["ssd"]}
            affinity["nodeAffinity"] = {
                PREFERRED: [{"weight": 50, "preference": {"matchExpressions": [expression]}}]
            }
        if draw.random() < 0.2:
            term = {"topologyKey": draw.choice([HOST, ZONE]), **near}
            affinity["podAffinity"] = {PREFERRED: [{"weight": 30, "podAffinityTerm": term}]}
        if draw.random() < 0.15:
            affinity["podAntiAffinity"] = {REQUIRED: [{"topologyKey": HOST, **alike}]}
        elif draw.random() < 0.2:
            term = {"topologyKey": ZONE, **near}
            affinity["podAntiAffinity"] = {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}
        if draw.random() < 0.3:
            soft = draw.choice(["ScheduleAnyway", "DoNotSchedule"])
            spread = {"topologyKey": draw.choice([HOST, ZONE]), "maxSkew": 1, "whenUnsatisfiable": soft}
            spec["topologySpreadConstraints"] = [spread | alike]
        if draw.random() < 0.15:
            spec["nodeSelector"] = {"disk": "ssd"}
        if draw.random() < 0.3:
            spec["tolerations"] = [{"key": draw.choice(["soft", "hard"]), "operator": "Exists"}]
        requests = {"cpu": f"{draw.randrange(1, 12)}00m", "memory": f"{draw.randrange(1, 20)}00Mi"}
        if draw.random() < 0.2:
            requests.pop(draw.choice(["cpu", "memory"]))
        image = IMAGE if draw.random() < 0.3 else "registry.example/other:1"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": self.sets[app]}
        return {
            "metadata": {
                "name": name,
                "labels": {"app": app},
                "ownerReferences": [owner | {"controller": True}],
            },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "affinity": affinity,
                "containers": [{"name": "c", "image": image, "resources": {"requests": requests}}],
                **spec,
            },
        }

    async def run(self, pod: Object) -> str:
        """Create a pod and return its node, empty if it gets none.

        A pod without a node is deleted: the scheduler would retry it after a later pod, unseen.
        """
        name = pod["metadata"]["name"]
        await self.admin.create(PODS, pod, Object)
        node = await self.node_of(name)
        if not node:
            await self.admin.delete(f"{PODS}/{name}", {})
            self.unplaced.append(pod)
        return node

    async def bring_back_unplaced(self) -> None:
        """Create the pods without a node again, behind a gate that keeps the scheduler from them."""
        for pod in self.unplaced:
            spec = pod["spec"] | {"schedulingGates": [{"name": GATE}]}
            await self.admin.create(PODS, pod | {"spec": spec}, Object)

    async def node_of(self, name: str, *, gated: bool = False) -> str:
        """Wait until the scheduler has decided. Of one that was `gated`, wait for a node."""
        async with asyncio.timeout(PATIENCE):
            while True:
                seen = await self.admin.get(f"{PODS}/{name}", Object)
                if seen["spec"].get("nodeName"):
                    return str(seen["spec"]["nodeName"])
                conditions = seen["status"].get("conditions") or []
                if conditions and not gated and not seen["status"].get("nominatedNodeName"):
                    return ""
                await asyncio.sleep(0.02)

    async def decided(self, name: str) -> str:
        """Wait until the scheduler has decided about a pod whose gate is open; return its node, or none."""
        async with asyncio.timeout(PATIENCE):
            while True:
                seen = await self.admin.get(f"{PODS}/{name}", Object)
                if seen["spec"].get("nodeName"):
                    return str(seen["spec"]["nodeName"])
                conditions = seen["status"].get("conditions") or []
                if any(one.get("reason") == "Unschedulable" for one in conditions):
                    return ""
                await asyncio.sleep(0.02)

    async def open_gate(self, name: str) -> None:
        pod = await self.admin.get(f"{PODS}/{name}", Object)
        pod["spec"].pop("schedulingGates")
        await self.admin.update(f"{PODS}/{name}", pod, Object)

    async def snapshot(self) -> Snapshot:
        config = load_kubeconfig(self.plane.admin)
        return await asyncio.to_thread(read_cluster, config, FaultLog(strict=True), node_documents=False)


@contextlib.asynccontextmanager
async def scheduler_site(directory: Path, seed: int) -> AsyncIterator[Site]:
    with ControlPlane(directory, binaries()) as plane:
        config = load_kubeconfig(plane.admin)
        admin = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
        made = Site(plane, admin, random.Random(seed))
        await made.prepare()
        plane.start_scheduler()
        yield made
        admin.close()


@dataclass
class RepeatedScheduling:
    """Repeat the scheduler's placements in the planner: pods go to their nodes one after another."""

    snapshot: Snapshot
    scheduler: PodScheduler
    requests: np.ndarray[Any, np.dtype[np.int64]]
    rows: dict[str, int]

    @classmethod
    def of(cls, snapshot: Snapshot) -> RepeatedScheduling:
        """Return the state in which all pods have left their nodes."""
        scheduler = PodScheduler.over_all_nodes(snapshot, "scheduler")
        rows = {name: row for row, name in enumerate(snapshot.pods["name"].to_pylist())}
        requests = request_matrix(snapshot, np.arange(len(rows)))
        for row in range(snapshot.placed):
            scheduler.remove_pod(row, int(snapshot.column("node")[row]), requests[row])
        return cls(snapshot, scheduler, requests, rows)

    def add_pod(self, name: str, node: str) -> None:
        if node:
            row = self.rows[name]
            self.scheduler.add_pod(row, self.snapshot.node_names.index(node), self.requests[row])

    def choices(self, name: str) -> set[str]:
        """Return the nodes that are equally good and best for a pod; the empty name if there is none."""
        row, capacity, found = self.rows[name], self.scheduler.capacity, set()
        more = 1
        while more:
            placed = self.scheduler.schedule(row, NO_NODE, self.requests[row])
            if placed.node == NO_NODE:
                break
            self.scheduler.undo(row, NO_NODE, placed.node, self.requests[row])
            capacity.open[placed.node] = False
            found.add(self.snapshot.node_names[placed.node])
            more = placed.equal
        capacity.open[:] = True
        return found or {""}
