"""The NUMA nodes of claimed devices: from slices through sysfs to hints, and to pods that are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.api.objects.dynamic_resources import (
    DeviceAttribute,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from engine.dra.locator import SysfsPci
from engine.dra.numa_nodes import DeviceLocation, claim_hints, in_words, locate_devices, unlisted
from engine.topologymanager.policy import Hint, Hints, Numa, TopologyPolicy
from tests.cluster_rig import condition
from tests.dra.rig import DRIVER, DraRig
from tests.dra_rig import RESOURCE, ClaimsRig
from tests.waiting import eventually

TWO = Numa((0, 1), ((10, 20), (20, 10)))
STANDARD = "resource.kubernetes.io/"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Return a tree like /sys: two devices at node 1 behind one root, one of unknown location, and a root
    of two nodes."""
    for bus_id, root, node in (
        ("0000:3b:00.0", "pci0000:3a", 1),
        ("0000:3b:00.1", "pci0000:3a", 1),
        ("0000:00:02.0", "pci0000:00", -1),
        ("0000:80:01.0", "pci0000:80", 0),
        ("0000:80:02.0", "pci0000:80", 1),
    ):
        device = tmp_path / "devices" / root / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        link = tmp_path / "bus/pci/devices" / bus_id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    (tmp_path / "secret/numa_node").parent.mkdir()
    (tmp_path / "secret/numa_node").write_text("1")
    return tmp_path


def slice_of(*devices: SliceDevice, generation: int = 1) -> ResourceSlice:
    pool = ResourcePool(name="pool", generation=generation)
    return ResourceSlice(spec=ResourceSliceSpec(driver=DRIVER, pool=pool, devices=list(devices)))


def device(name: str, **attributes: str | int) -> SliceDevice:
    return SliceDevice(
        name=name,
        attributes={
            key.replace("__", "/").replace("STANDARD", STANDARD.rstrip("/")): DeviceAttribute(number=value)
            if isinstance(value, int)
            else DeviceAttribute(string=value)
            for key, value in attributes.items()
        },
    )


def claim_of(tmp: Path, name: str = "gpu") -> Any:
    return DraRig(tmp).claim(name, "p")


@pytest.mark.parametrize(
    ("attributes", "numa", "by"),
    [
        ({"STANDARD__pciBusID": "0000:3B:00.0"}, 1, "pciBusID"),
        ({"STANDARD__pcieRoot": "pci0000:3a"}, 1, "pcieRoot"),
        ({"STANDARD__numaNode": 0}, 0, "numaNode"),
        ({"numaNode": 1}, 1, "numaNode"),
        ({"STANDARD__pciBusID": "0000:3b:00.0", "STANDARD__numaNode": 0}, 1, "pciBusID"),
        ({"STANDARD__pciBusID": "0000:00:02.0"}, None, ""),
        ({"STANDARD__pciBusID": "0000:00:02.0", "STANDARD__numaNode": 1}, 1, "numaNode"),
        ({"STANDARD__pcieRoot": "pci0000:80"}, None, ""),
        ({"STANDARD__pciBusID": "../../../secret"}, None, ""),
        ({"STANDARD__pcieRoot": "../secret"}, None, ""),
        ({"STANDARD__pciBusID": "0000:ff:00.0"}, None, ""),
        ({"STANDARD__numaNode": -1}, None, ""),
        ({"STANDARD__numaNode": "1"}, None, ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_attributes_lead_to_a_numa_node(
    sysfs: Path, attributes: dict[str, str | int], numa: int | None, by: str
) -> None:
    (location,) = locate_devices(
        [claim_of(sysfs)], [slice_of(device("dev-gpu", **attributes))], SysfsPci(sysfs)
    )
    assert location.numa == numa
    assert location.by.rpartition("/")[2] == by


def test_only_the_newest_generation_of_a_pool_counts(sysfs: Path) -> None:
    slices = [slice_of(device("dev-gpu", numaNode=n), generation=n) for n in (1, 0)]
    (location,) = locate_devices([claim_of(sysfs)], slices, SysfsPci(sysfs))
    assert location.numa == 1
    assert unlisted([claim_of(sysfs)], slices) == set()
    assert unlisted([claim_of(sysfs)], []) == {(DRIVER, "pool", "dev-gpu")}


def test_a_device_used_for_monitoring_aligns_no_pod(sysfs: Path) -> None:
    claim = claim_of(sysfs)
    claim.allocated[0].admin_access = True
    assert locate_devices([claim], [slice_of(device("dev-gpu", numaNode=1))], SysfsPci(sysfs)) == []


def location(claim: str, node: int | None, request: str = "r") -> DeviceLocation:
    return DeviceLocation(claim, request, (DRIVER, "pool", f"{claim}-{node}"), node)


def decided(name: str, *providers: dict[str, Hints] | None) -> tuple[int | None, bool]:
    decision = TopologyPolicy(name, "container", TWO).decide(providers)
    return decision.hint.mask, decision.admit


CPUS_OF_EITHER = {"cpu": [Hint(0b01, True), Hint(0b10, True), Hint(0b11, False)]}
CPUS_OF_NODE_0 = {"cpu": [Hint(0b01, True), Hint(0b11, False)]}


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_cpus_follow_the_device_of_a_claim(policy: str) -> None:
    hints = claim_hints([location("gpu", 1)], TWO)
    assert decided(policy, CPUS_OF_EITHER, hints) == (0b10, True)


def test_a_pod_with_cpus_that_cannot_align_is_rejected_by_policy() -> None:
    hints = claim_hints([location("gpu", 1)], TWO)
    assert decided("best-effort", CPUS_OF_NODE_0, hints)[1]
    assert not decided("restricted", CPUS_OF_NODE_0, hints)[1]
    assert not decided("single-numa-node", CPUS_OF_NODE_0, hints)[1]


def test_claims_at_different_nodes_are_not_aligned_and_one_claim_at_two_nodes_is_wide() -> None:
    apart = claim_hints([location("gpu", 0), location("nic", 1)], TWO)
    assert not decided("single-numa-node", apart)[1]
    assert not decided("restricted", apart)[1]
    wide = claim_hints([location("gpu", 0), location("gpu", 1)], TWO)
    assert decided("restricted", wide) == (0b11, True)
    assert not decided("single-numa-node", wide)[1]


def test_a_device_of_unknown_node_has_no_preference() -> None:
    assert claim_hints([location("gpu", None), location("gpu", 7)], TWO) == {}
    assert decided("single-numa-node", CPUS_OF_EITHER, claim_hints([location("gpu", None)], TWO))[1]


def test_a_container_follows_the_requests_that_it_uses() -> None:
    locations = [location("gpu", 0, "a"), location("gpu", 1, "b"), location("nic", 1)]
    assert decided("single-numa-node", claim_hints(locations, TWO, [("gpu", "a")])) == (0b01, True)
    assert decided("single-numa-node", claim_hints(locations, TWO, [("gpu", "b"), ("nic", "")])) == (
        0b10,
        True,
    )
    assert not decided("single-numa-node", claim_hints(locations, TWO, [("gpu", "")]))[1]
    assert claim_hints(locations, TWO, []) == {}


def test_locations_are_described() -> None:
    locations = [location("gpu", 1), location("gpu", 0), location("nic", 1), location("odd", None)]
    assert in_words(locations) == "ResourceClaim gpu at NUMA nodes 0, 1, ResourceClaim nic at NUMA node 1"


# A whole node


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numa, "of_machine", classmethod(lambda cls: TWO))


def publish(claims: ClaimsRig, **nodes: int) -> None:
    spec = {
        "nodeName": "n1",
        "driver": DRIVER,
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": f"dev-{name}", "attributes": {f"{STANDARD}numaNode": {"int": node}}}
            for name, node in nodes.items()
        ],
    }
    claims.cluster.server.create(f"{RESOURCE}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})


@pytest.mark.usefixtures("two_nodes")
async def test_a_pod_with_claims_on_different_nodes_is_rejected_with_their_locations(
    claims: ClaimsRig,
) -> None:
    await claims.restart("single-numa-node")
    await claims.driver()
    publish(claims, gpu=0, nic=1, other=1)
    for name in ("gpu", "nic", "other"):
        claims.claim(name)
    await claims.ask("apart", "gpu", "nic")
    pod = await claims.cluster.until("apart", "Failed")
    assert pod["status"]["reason"] == "TopologyAffinityError"
    assert pod["status"]["message"] == (
        "Pod was rejected: Resources cannot be allocated with Topology locality "
        "(ResourceClaim gpu at NUMA node 0, ResourceClaim nic at NUMA node 1)"
    )
    await claims.run("together", "nic", "other")


@pytest.mark.usefixtures("two_nodes")
async def test_a_pod_waits_for_slices_that_are_published_again(claims: ClaimsRig) -> None:
    await claims.restart("restricted")
    await claims.driver()
    for name in ("gpu", "nic"):
        claims.claim(name)
    await claims.ask("p", "gpu", "nic")
    await eventually(lambda: claims.cluster.asked("GET", "resourceslices") > 0)
    pod = await claims.cluster.pod("p")
    assert pod is not None
    assert condition(pod, "Ready").get("status") != "True"
    publish(claims, gpu=0, nic=1)
    assert (await claims.cluster.until("p", "Failed"))["status"]["reason"] == "TopologyAffinityError"
