"""A node of a cluster on the hollow runtime, and what users do with the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.cluster.client import ApiError
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.cluster.control_plane import Object, Plane
from tests.devices.device_rig import DeviceRig
from tests.node_rig import container
from tests.waiting import PATIENCE, eventually

PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/n1"


class Scene(DeviceRig):
    """Run a node of a cluster on the hollow runtime, with plugins, and do what users do with the API."""

    def __init__(self, directory: Path, runtime: HollowRuntime, plane: Plane) -> None:
        super().__init__(directory, runtime)
        self.plane = plane
        self.kubeconfig = plane.node
        self.config.node_lease_duration_seconds = 1
        self.section.eviction.interval = 0.2

    async def run(self, name: str, **spec: Any) -> Object:
        """Create a pod of the node and return it. Create the default service account if the server asks
        for it."""
        wanted = {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container()],
            **spec,
        }
        value = {"metadata": {"name": name}, "spec": wanted}
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await self.plane.admin.create(PODS, value, Object)
                except ApiError as error:
                    if error.code != 403 or "service account" not in str(error):
                        raise
                await self._make_account()

    async def _make_account(self) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts"
        try:
            await self.plane.admin.create(path, {"metadata": {"name": "default"}}, Object)
        except ApiError as error:
            if error.code != 409:
                raise
        await asyncio.sleep(0.1)

    async def pods(self) -> dict[str, Object]:
        listed = await self.plane.admin.get(PODS, Object)
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    async def wait_for(self, name: str, holds: Callable[[Object], bool]) -> Object:
        """Wait until the server has the pod and `holds` accepts it, and return it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                pod = (await self.pods()).get(name)
                if pod is not None and holds(pod):
                    return pod
                await asyncio.sleep(0.05)

    async def all_ready(self, count: int) -> dict[str, Object]:
        async def ready() -> bool:
            return sum(map(is_ready, (await self.pods()).values())) == count

        await eventually(ready, every=0.1)
        return await self.pods()

    async def delete(self, name: str, grace: int = 1) -> None:
        await self.plane.admin.delete(f"{PODS}/{name}", {"gracePeriodSeconds": grace})

    async def delete_all(self) -> None:
        """Delete all pods, some of which the node may delete at the same moment, and wait until none is
        left."""
        for name in await self.pods():
            try:
                await self.delete(name, grace=0)
            except ApiError as error:
                if error.code != 404:
                    raise
        await self.none_left()

    async def gone(self, name: str) -> None:
        async def missing() -> bool:
            return name not in await self.pods()

        await eventually(missing)

    async def none_left(self) -> None:
        async def empty() -> bool:
            return not await self.pods()

        await eventually(empty)

    def running(self) -> set[str]:
        """Return the uids of pods of which at least one container runs."""
        containers = self.runtime.service.records.containers.values()
        return {c.sandbox.config.metadata.uid for c in containers if c.state == cri.CONTAINER_RUNNING}

    def starts(self) -> int:
        return self.runtime.counts()["StartContainer"]["calls"]


def is_ready(pod: Object) -> bool:
    return conditions(pod).get("Ready", {}).get("status") == "True"


def conditions(pod: Object) -> dict[str, Object]:
    return {each["type"]: each for each in pod.get("status", {}).get("conditions", ())}
