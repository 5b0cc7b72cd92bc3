"""Run a node whose pods come from the test API server, and change them as users do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.testing.apiserver import ApiServer
from tests.node_rig import Rig, container
from tests.waiting import PATIENCE, eventually

PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/n1"
Object = dict[str, Any]


class Joined(Rig):
    """Run a node that joins a cluster."""

    kubeconfig: Path


class Cluster:
    """Create, watch and delete pods through the API, as a user does."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.server, self.client = server, client

    async def registered(self) -> None:
        """Wait until the server has the Node, which a started agent registers a moment later."""
        await eventually(lambda: self.server.list("/api/v1/nodes") != [])

    def in_use(self) -> list[str]:
        """Return the volumes that the Node's status reports in use."""
        said: list[str] = self.server.get(NODE)["status"].get("volumesInUse") or []
        return said

    async def run(
        self, name: str, node: str = "n1", *, annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Object:
        wanted = {
            "nodeName": node,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 1,
            "containers": [container()],
            **spec,
        }
        metadata = {"name": name, "annotations": dict(annotations or {})}
        value = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": wanted}
        return await self.client.create(PODS, value, Object)

    async def pod(self, name: str) -> Object | None:
        try:
            return await self.client.get(f"{PODS}/{name}", Object)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    async def wait_for(self, name: str, holds: Callable[[Object | None], bool]) -> Object | None:
        """Wait until `holds` accepts a pod, and return the pod; None stands for a pod that does not exist."""
        async with asyncio.timeout(PATIENCE):
            while True:
                pod = await self.pod(name)
                if holds(pod):
                    return pod
                await asyncio.sleep(0.05)

    async def until(self, name: str, phase: str) -> Object:
        found = await self.wait_for(name, lambda pod: pod is not None and pod["status"].get("phase") == phase)
        assert found is not None
        return found

    async def gone(self, name: str) -> None:
        await self.wait_for(name, lambda pod: pod is None)

    async def ready(self, name: str, other_than: str = "") -> Object:
        found = await self.wait_for(
            name,
            lambda pod: (
                pod is not None
                and pod["metadata"]["uid"] != other_than
                and condition(pod, "Ready").get("status") == "True"
            ),
        )
        assert found is not None
        return found

    async def delete(self, name: str, grace: int = 1) -> None:
        await self.client.delete(f"{PODS}/{name}", {"gracePeriodSeconds": grace})

    def asked(self, method: str, part: str) -> int:
        return sum(r.method == method and part in r.path for r in self.server.requests)


def condition(pod: Object, kind: str) -> Object:
    found = [c for c in pod["status"].get("conditions", ()) if c["type"] == kind]
    return found[0] if found else {}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run an API server, as its administrator. Directories of tests import this into their conftest."""
    async with ApiServer(tmp_path / "api") as server:
        config = load_kubeconfig(server.kubeconfig("admin"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        yield Cluster(server, client)
        client.close()
