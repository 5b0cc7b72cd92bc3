"""A claim manager with real drivers at real sockets, and a cluster that is a dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.api.errors import NotFound, Refused
from engine.api.meta import ObjectMeta, OwnerReference
from engine.api.objects.dynamic_resources import (
    Allocation,
    ClaimConsumer,
    DeviceAllocation,
    DeviceAllocations,
    ResourceClaim,
    ResourceClaimStatus,
)
from engine.api.pod import Container, Pod, PodResourceClaim, PodSpec, ResourceClaimRef, ResourceRequirements
from engine.dra.driver_client import DraDriverClient
from engine.dra.manager import ClaimManager
from engine.host.state_file import FaultPoint, no_fault
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.testing.dra_driver import SampleDraDriver
from tests.contexts import node_context
from tests.waiting import eventually

DRIVER = "dra.example.com"


class DraRig:
    """Run a claim manager without a node. `claims` are those of the cluster, by name; `running` are the
    uids of pods that may run."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.claims: dict[str, ResourceClaim] = {}
        self.running: set[str] = set()
        self.known = True
        self.now = 1000.0
        self.changed: list[str] = []
        self.wiped: list[str] = []
        self.wipe_fails = 0
        self.registry = Registry()
        self.call_seconds = 45.0
        self.fault: FaultPoint = no_fault
        self.drivers: list[SampleDraDriver] = []
        self.manager: ClaimManager

    async def start(self) -> ClaimManager:
        self.manager = ClaimManager(
            node_context(
                root=self.root, registry=self.registry, tasks=Tasks(self.registry), clock=lambda: self.now
            ),
            claims=self,
            slices=self,
            connect=lambda name, socket, service: DraDriverClient(
                name, socket, service, self.registry, self.call_seconds
            ),
            may_run=lambda uid: uid in self.running,
            ready=lambda: self.known,
            changed=self.changed.append,
            fault=self.fault,
        )
        await self.manager.start()
        for driver in self.drivers:
            await self.register(driver)
        return self.manager

    async def restart(self) -> ClaimManager:
        await self.manager.stop()
        return await self.start()

    async def close(self) -> None:
        await self.manager.stop()
        for driver in self.drivers:
            await driver.stop()

    async def driver(self, name: str = DRIVER, **options: Any) -> SampleDraDriver:
        directory = self.root / f"{name}-{len(self.drivers)}"
        driver = SampleDraDriver(directory, self.root / "registry", name, **options)
        await driver.serve()
        self.drivers.append(driver)
        await self.register(driver)
        return driver

    async def register(self, driver: SampleDraDriver) -> None:
        self.manager.drivers.check(driver.name, driver.socket, driver.services)
        await self.manager.drivers.register(driver.name, driver.socket, driver.services)
        await eventually(lambda: self.manager.drivers.is_connected(driver.name))

    # The cluster

    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        if name not in self.claims:
            raise NotFound(f'resourceclaims.resource.k8s.io "{name}" not found')
        return self.claims[name]

    async def delete(self, driver: str) -> None:
        if self.wipe_fails:
            self.wipe_fails -= 1
            raise Refused("told to fail")
        self.wiped.append(driver)

    def claim(
        self, name: str, *pods: str, drivers: Iterable[str] = (DRIVER,), uid: str = "", owner: str = ""
    ) -> ResourceClaim:
        """Add a claim that is allocated one device of each driver and reserved for `pods`, by their uids."""
        results = [
            DeviceAllocation(request="r", driver=d, pool="pool", device=f"dev-{name}") for d in drivers
        ]
        claim = ResourceClaim(
            metadata=ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}"),
            status=ResourceClaimStatus(
                allocation=Allocation(devices=DeviceAllocations(results=results)),
                reserved_for=[ClaimConsumer(resource="pods", name=pod, uid=pod) for pod in pods],
            ),
        )
        if owner:
            claim.metadata.owner_references = [OwnerReference(kind="Pod", uid=owner, controller=True)]
        self.claims[name] = claim
        return claim

    def pod(self, uid: str, *claims: str, request: str = "") -> Pod:
        """Return a pod that may run, with one container that uses every claim."""
        self.running.add(uid)
        uses = [ResourceClaimRef(name=claim, request=request) for claim in claims]
        return Pod(
            metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
            spec=PodSpec(
                containers=[
                    Container(name="c", image="i", resources=ResourceRequirements(claims=uses or None))
                ],
                resource_claims=[PodResourceClaim(name=c, resource_claim_name=c) for c in claims] or None,
            ),
        )
