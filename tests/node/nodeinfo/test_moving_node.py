"""A node whose addresses change while its agent runs, and whose pods' range comes from the cluster."""

from __future__ import annotations

import msgspec
import pytest

from engine.api.duration import Duration
from engine.api.errors import Refused
from engine.cri.client import RuntimeClient
from engine.node.nodeinfo import addresses, pod_cidr
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import NODE, Cluster, Joined, Object
from tests.node_rig import Rig, container
from tests.waiting import eventually


class Route:
    """Serve the source address of the default route, and count the reads of it."""

    def __init__(self) -> None:
        self.sends_from = "192.0.2.7"
        self.reads = 0

    def default(self, family: int) -> str:
        self.reads += 1
        return self.sends_from


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Route:
    """Replace name resolution and the default route, so that the node's address is that of the route."""
    route = Route()

    async def nobody(name: str) -> list[str]:
        return []

    monkeypatch.setattr(addresses, "_resolved", nobody)
    monkeypatch.setattr(addresses, "default_route", route.default)
    return route


def polls_often(rig: Rig) -> None:
    rig.config = msgspec.structs.replace(rig.config, node_status_update_frequency=Duration(0.05))


async def test_the_nodes_status_and_its_pods_follow_its_address(
    joined: Joined, cluster: Cluster, route: Route
) -> None:
    polls_often(joined)
    await joined.start()
    await cluster.run("web", containers=[container()])
    await cluster.run("host", containers=[container()], hostNetwork=True)
    assert (await cluster.ready("web"))["status"]["hostIP"] == "192.0.2.7"
    host = await cluster.ready("host")
    route.sends_from = "198.51.100.9"

    def shown() -> list[Object]:
        found: list[Object] = cluster.server.get(NODE)["status"]["addresses"]
        return found

    moved = [
        {"type": "InternalIP", "address": "198.51.100.9"},
        {"type": "Hostname", "address": "n1"},
    ]
    await eventually(lambda: shown() == moved)
    for name in ("web", "host"):
        pod = await cluster.wait_for(
            name, lambda pod: bool(pod and pod["status"]["hostIP"] == "198.51.100.9")
        )
        assert pod is not None
        assert pod["status"]["hostIPs"] == [{"ip": "198.51.100.9"}]
    assert pod["status"]["podIP"] == host["status"]["podIP"] == "192.0.2.7", "it keeps its first one"
    route.sends_from = ""
    reads = route.reads
    await eventually(lambda: route.reads > reads + 1)
    assert shown() == moved, "it is where it was last"


@pytest.mark.parametrize(("name", "given"), [("n1", ["203.0.113.5"]), ("203.0.113.5", [])])
async def test_an_address_that_was_given_stays(name: str, given: list[str], route: Route) -> None:
    found = addresses.HostAddresses(name, given, await addresses.node_ips(name, given), pytest.fail)
    await found.refresh()
    assert (found.ips, route.reads) == (("203.0.113.5",), 0)


async def test_the_runtime_receives_the_pod_cidr_once_the_cluster_assigns_one(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_cidr, "RETRY_SECONDS", 0.05)
    update, heard = RuntimeClient.update_pod_cidr, list[str]()

    async def refused_once(self: RuntimeClient, cidr: str) -> None:
        heard.append(cidr)
        if len(heard) == 1:
            raise Refused("not yet")
        await update(self, cidr)

    monkeypatch.setattr(RuntimeClient, "update_pod_cidr", refused_once)
    await joined.start()
    await cluster.run("web")
    await cluster.ready("web")
    assert heard == []
    ranges = {"podCIDR": "10.9.1.0/24", "podCIDRs": ["10.9.1.0/24", "fd00:9::/64"]}
    node = cluster.server.get(NODE)
    cluster.server.update(NODE, {**node, "spec": {**node.get("spec", {}), **ranges}})
    await eventually(lambda: hollow.service._pod_cidr == "10.9.1.0/24,fd00:9::/64")
    await cluster.client.patch(NODE, {"metadata": {"labels": {"a": "b"}}}, Object)
    await eventually(lambda: joined.node.node_object().metadata.labels.get("a") == "b")  # type: ignore[union-attr]
    assert heard == ["10.9.1.0/24,fd00:9::/64"] * 2


async def test_a_node_of_no_cluster_has_the_range_of_its_configuration(
    rig: Rig, hollow: HollowRuntime
) -> None:
    rig.config = msgspec.structs.replace(rig.config, pod_cidr="10.8.0.0/24")
    await rig.start()
    await eventually(lambda: hollow.service._pod_cidr == "10.8.0.0/24")
