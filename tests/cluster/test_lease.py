"""The node's lease: renewed, taken up again, and what it says of a server that has lost something."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.lease import LeaseController
from engine.testing.apiserver import ApiServer

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"


class Lessee:
    def __init__(self, client: ApiClient) -> None:
        self.losses = 0
        self.controller = LeaseController(
            client, "n1", node_uid=lambda: "u", seconds=40, clock=time.time, lost=self._lost
        )

    def _lost(self) -> None:
        self.losses += 1


@pytest.fixture
async def lessee(client: ApiClient) -> Lessee:
    made = Lessee(client)
    assert await made.controller.renew()
    return made


async def test_a_lease_written_by_another_agent_is_adopted(
    server: ApiServer, client: ApiClient, lessee: Lessee
):
    assert await Lessee(client).controller.renew()
    labels = {"metadata": {"labels": {"by": "others"}}}
    await client.patch(LEASE, labels, dict[str, Any])
    assert await lessee.controller.renew()
    assert server.get(LEASE)["metadata"]["labels"] == {"by": "others"}
    assert lessee.losses == 0


async def test_a_deleted_lease_is_created_again_and_may_mean_a_lost_store(server: ApiServer, lessee: Lessee):
    server.delete(LEASE)
    assert await lessee.controller.renew()
    assert server.get(LEASE)["spec"]["holderIdentity"] == "n1"
    assert await lessee.controller.renew()
    assert lessee.losses == 1


@pytest.mark.parametrize("further", [0, 9], ids=["versions-are-less", "versions-have-grown-past"])
async def test_a_lease_older_than_the_written_one_reveals_a_restored_server(
    server: ApiServer, lessee: Lessee, further: int
):
    snapshot = server.objects.snapshot()
    assert await lessee.controller.renew()
    server.objects.set_back(snapshot)
    for number in range(further):
        server.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": f"m{number}"}})
    assert await lessee.controller.renew()
    assert await lessee.controller.renew()
    assert lessee.losses == 1
