"""A node of a cluster with DRA drivers, and what users and the scheduler make for claims of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from engine.testing.dra_driver import SampleDraDriver
from tests.cluster_rig import PODS, Cluster, Joined, Object
from tests.node_rig import container
from tests.waiting import eventually

DRIVER = "dra.example.com"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"


class ClaimsRig:
    """Run DRA drivers beside the node of `joined`, and stop them with `close`."""

    def __init__(self, joined: Joined, cluster: Cluster, hollow: HollowRuntime, directory: Path) -> None:
        self.joined, self.cluster, self.hollow, self._directory = joined, cluster, hollow, directory
        self.drivers: list[SampleDraDriver] = []
        directory.mkdir()

    @property
    def root(self) -> Path:
        return self.joined.root

    @property
    def node(self) -> Node:
        assert self.joined.node is not None
        return self.joined.node

    async def restart(self, policy: str) -> None:
        """Restart the node with a policy of the topology manager.

        A node that starts deletes its ResourceSlices. The node has done so when this returns, so it does not
        delete what the test creates next.
        """
        await self.joined.stop()
        self.joined.config.topology_manager_policy = policy
        deleted = self.cluster.asked("DELETE", "resourceslices")
        await self.joined.start()
        await eventually(lambda: self.cluster.asked("DELETE", "resourceslices") > deleted)

    async def driver(self, name: str = DRIVER, **options: Any) -> SampleDraDriver:
        """Start a driver and wait until the node has registered it."""
        directory = self._directory / str(len(self.drivers))
        driver = SampleDraDriver(directory, self.root / "plugins_registry", name, **options)
        self.drivers.append(driver)
        await driver.start()
        await self.taken_on(driver)
        return driver

    async def taken_on(self, driver: SampleDraDriver, times: int = 1) -> None:
        await eventually(lambda: sum(said.plugin_registered for said in driver.status) >= times)

    def claim(
        self, name: str, *, drivers: Iterable[str] = (DRIVER,), allocated: bool = True, **metadata: Any
    ) -> Object:
        """Create a claim with an allocation, which no pod has reserved."""
        results = [{"request": "r", "driver": d, "pool": "pool", "device": f"dev-{name}"} for d in drivers]
        status = {"allocation": {"devices": {"results": results}}} if allocated else {}
        return self.cluster.server.create(CLAIMS, {"metadata": {"name": name, **metadata}, "status": status})

    def reserve(self, claim: str, *pods: Object) -> None:
        """Reserve a claim for pods, as the scheduler does."""
        path = f"{CLAIMS}/{claim}"
        users = [
            {"resource": "pods", "name": p["metadata"]["name"], "uid": p["metadata"]["uid"]} for p in pods
        ]
        known = self.cluster.server.get(path)
        known = {**known, "status": {**known.get("status", {}), "reservedFor": users}}
        self.cluster.server.update(f"{path}/status", known)

    async def ask(self, name: str = "p", *claims: str, request: str = "", **spec: Any) -> Object:
        """Create a pod with claims, reserve them for it, and then bind it to the node."""
        asked = [{"name": claim, **({"request": request} if request else {})} for claim in claims]
        wanted = {
            "containers": [container(resources={"claims": asked})],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            **spec,
        }
        pod = await self.cluster.run(name, node="", **wanted)
        for claim in claims:
            self.reserve(claim, pod)
        await self.bind(name)
        return pod

    async def bind(self, name: str) -> None:
        value = {"target": {"name": "n1"}}
        await self.cluster.client.create(f"{PODS}/{name}/binding", value, Object)

    async def run(self, name: str = "p", *claims: str, **spec: Any) -> Object:
        """Create a pod with claims, as `ask` does, and wait until it is Ready."""
        await self.ask(name, *claims, **spec)
        return await self.cluster.ready(name)

    async def delete(self, name: str = "p", grace: int = 1) -> None:
        await self.cluster.delete(name, grace)
        await self.cluster.gone(name)

    def cdi(self) -> list[list[str]]:
        """Return the CDI device names of each created container, the newest container last."""
        made = sorted(
            self.hollow.service.records.containers.values(), key=lambda container: container.created_at
        )
        return [[device.name for device in container.config.CDI_devices] for container in made]

    def messages(self, reason: str = "FailedPrepareDynamicResources") -> list[str]:
        return [event.message for event in self.node.recorder if event.reason == reason]

    async def close(self) -> None:
        for driver in self.drivers:
            await driver.stop()
