"""CSI drivers register through the plugin watcher, and the cluster hears of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.csi.drivers import CsiDrivers, highest_version
from engine.csi.records import NoRecords
from engine.metrics import Registry
from tests.cluster_rig import NODE
from tests.csi_rig import DRIVER, STORAGE, CsiRig
from tests.waiting import eventually

CSI_NODES = f"{STORAGE}/csinodes"
ZONE = "topology.sample.csi.example.com/zone"


async def test_a_driver_is_known_while_its_socket_exists(csi: CsiRig) -> None:
    driver = await csi.driver(most_volumes=17, topology={ZONE: "z1"})
    assert csi.csi_node()["spec"]["drivers"] == [
        {"name": DRIVER, "nodeID": "node-1", "topologyKeys": [ZONE], "allocatable": {"count": 17}}
    ]
    node = csi.cluster.server.get(NODE)
    (owner,) = csi.csi_node()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", node["metadata"]["uid"])
    assert csi.node_ids() == {DRIVER: "node-1"}
    assert node["metadata"]["labels"][ZONE] == "z1"
    other = await csi.driver(name="other.example.com", node_id="other-1")
    assert csi.node_ids() == {DRIVER: "node-1", "other.example.com": "other-1"}
    await driver.stop()
    await eventually(lambda: [d["name"] for d in csi.csi_node()["spec"]["drivers"]] == ["other.example.com"])
    await eventually(lambda: csi.node_ids() == {"other.example.com": "other-1"})
    await other.stop()
    await eventually(lambda: csi.node_ids() == {})


async def test_a_csi_node_without_drivers_may_say_null(csi: CsiRig) -> None:
    """As kube-apiserver does."""
    await eventually(lambda: csi.cluster.server.list(CSI_NODES) != [])
    csi.cluster.server.update(f"{CSI_NODES}/n1", {**csi.csi_node(), "spec": {"drivers": None}})
    driver = await csi.driver()
    assert [each["name"] for each in csi.csi_node()["spec"]["drivers"]] == [driver.name]


async def test_a_driver_with_too_many_topology_segments_is_refused(csi: CsiRig) -> None:
    driver = csi.new_driver(topology={f"{ZONE}-{i}": "z" for i in range(65)})
    await driver.start()
    await eventually(lambda: len(driver.status) > 0)
    assert "reports 65 topology segments, more than 64" in driver.status[0].error
    assert csi.node_ids() == {}


async def test_a_replaced_driver_is_reported_again(csi: CsiRig) -> None:
    driver = await csi.driver()
    await csi.joined.stop()
    driver.node_id, driver.most_volumes = "node-2", 3
    await csi.joined.start()
    await csi.taken_on(driver, times=2)
    assert csi.csi_node()["spec"]["drivers"] == [
        {"name": DRIVER, "nodeID": "node-2", "allocatable": {"count": 3}}
    ]
    assert csi.node_ids() == {DRIVER: "node-2"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"versions": ()}, "Plugin returned an empty list for supported versions"),
        ({"versions": ("2.0.0", "x")}, 'None of the versions specified ["2.0.0" "x"] are supported'),
        ({"name": "a..", "versions": ("1.0.0",)}, "expected the name of a driver, got 'a..'"),
        ({"node_id": ""}, "driverNodeID must not be empty"),
        ({"topology": {"kubernetes.io/hostname": "other"}}, "detected topology value collision: "),
    ],
)
async def test_a_refused_driver_receives_the_reason(csi: CsiRig, options: dict[str, Any], words: str) -> None:
    driver = csi.new_driver(**options)
    await driver.start()
    await eventually(lambda: len(driver.status) > 0)
    assert not driver.status[0].plugin_registered
    assert driver.status[0].error.startswith("RegisterPlugin error -- plugin ")
    assert words in driver.status[0].error
    assert csi.node_ids() == {}


async def test_a_driver_that_no_longer_registers_is_taken_out_of_the_csi_node(csi: CsiRig) -> None:
    """As with a kubelet: the scheduler would send pods that wait for it."""
    driver = await csi.driver()
    await csi.joined.stop()
    driver.node_id = ""
    assert [each["name"] for each in csi.csi_node()["spec"]["drivers"]] == [DRIVER]
    await csi.joined.start()
    await eventually(lambda: not csi.csi_node()["spec"]["drivers"])
    await eventually(lambda: csi.node_ids() == {})
    await eventually(lambda: not driver.status[-1].plugin_registered)


class Known(CsiDrivers):
    """Hold one driver that is already registered with `versions`."""

    def __init__(self, versions: Sequence[str]) -> None:
        super().__init__(NoRecords(), Registry())
        self._known[DRIVER] = type("R", (), {"version": highest_version(versions)})()


def test_a_second_plugin_of_a_name_needs_a_higher_version() -> None:
    known = Known(["1.2.0"])
    known.check(DRIVER, Path("/s"), ["1.3.0"])
    with pytest.raises(Refused, match="already registered with a higher supported version"):
        known.check(DRIVER, Path("/s"), ["1.2.0"])


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a" * 64, "a\0"])
def test_a_drivers_name_leads_nowhere(name: str) -> None:
    with pytest.raises(InvalidInput, match="expected the name of a driver"):
        CsiDrivers(NoRecords(), Registry()).check(name, Path("/s"), ["1.0.0"])


def test_versions_are_ordered_by_their_numbers() -> None:
    assert highest_version(["1.9.0", "1.10.0", "0.3.0", "2.0.0"]) == (1, 10, 0)
    assert highest_version(["v1.0"]) == (1, 0, 0)
    assert highest_version(["2.0.0", "one"]) is None
