"""Claims of dynamic resources in a plan: the scheduler's own allocations, taints, and refusals.

`claims.jsonl.gz` holds 600 random situations and the allocator's answers, recorded from Kubernetes v1.36.2
(`dynamic-resource-allocation/structured`, with the gates for admin access, prioritized lists, partitions,
shared capacity and taints): pools, counters, policies, selectors, constraints and tolerations of all kinds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engine.api.documents import as_written
from engine.api.errors import InvalidInput
from engine.plan import load_snapshot, write_snapshot
from engine.plan.claims.allocation import Demands, allocate
from engine.plan.claims.objects import DeviceClass, OfferedDevice, OfferedSlice, PlannedClaim, as_v1
from engine.plan.claims.pools import DeviceInventory
from engine.plan.claims.selectors import SelectorError, Selectors, expand_bind
from engine.plan.questions.claims import ClaimsParameters, claims
from engine.plan.questions.device_taint import DeviceTaintParameters, device_taint

RECORDED = Path(__file__).parent / "claims.jsonl.gz"
DIFFERENT = {
    217: "the scheduler's selectors fail for devices of other nodes if a slice names nodes by device",
    347: "the scheduler compares distinct attributes within one request by the request's name alone",
    411: "the scheduler keeps counters of devices that a constraint excluded after counting them",
}
"""Recorded answers that differ on purpose, with the reason."""
DRIVER = "gpu.example.com"
CLASS_EXPRESSION = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"

Item = dict[str, Any]


def recorded() -> Iterator[Item]:
    with gzip.open(RECORDED) as file:
        yield from map(json.loads, file)


def allocated(
    situation: Item, node: str = "n1", labels: Mapping[str, str] = MappingProxyType({"z": "a"})
) -> list[list[str]] | None:
    """Return request, driver, pool and device of each pick."""
    inventory = DeviceInventory(
        [as_written(each, OfferedSlice, "slice") for each in situation["slices"]],
        [as_written(each, PlannedClaim, "used") for each in situation["used"]],
    )
    classes = [as_written(each, DeviceClass, "class") for each in situation["classes"]]
    demands = Demands({each.metadata.name: each for each in classes})
    claim = as_written(situation["claim"], PlannedClaim, "claim")
    try:
        picks = allocate(claim.spec, inventory.of_node(node, labels), demands)
    except SelectorError:
        return None
    return None if picks is None else [[pick.request, *pick.device.key] for pick in picks]


def test_allocations_are_those_of_the_scheduler():
    wrong = []
    answered = 0
    for situation in recorded():
        wanted = situation.get("devices")
        answered += wanted is not None
        if (allocated(situation) == wanted) is (situation["number"] in DIFFERENT):
            wrong.append(situation["number"])
    assert wrong == []
    assert answered > 50


def node(name: str) -> Item:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    }


def gpu(number: int) -> Item:
    attributes = {
        "type": {"string": "gpu"},
        "numa": {"int": number // 4},
        "uuid": {"string": f"u-{number}"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes}


def slice_of(name: str, devices: list[Item], *, total: int = 1) -> Item:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{name}", "managedFields": [{"manager": "driver"}]},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": total},
            "devices": devices,
        },
    }


def device_class(expression: str = CLASS_EXPRESSION) -> Item:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def pod(name: str, on: str) -> Item:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}"},
        "spec": {"nodeName": on, "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Running"},
    }


def claim(name: str, on: str, *devices: int, tolerations: tuple[Item, ...] = ()) -> Item:
    result = {"request": "gpus", "driver": DRIVER, "pool": on, "tolerations": list(tolerations)}
    results = [result | {"device": f"gpu-{number}"} for number in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        },
    }


@pytest.fixture
def snapshot_of(tmp_path: Path) -> Callable[..., Any]:
    def made(*items: Item, name: str = "cluster.json") -> Any:
        path = tmp_path / name
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
        return load_snapshot([str(path)])

    return made


def rows(answer: Any) -> set[tuple[str, str, str, int]]:
    return {(row["node"], row["decision"], row["object"], row["amount"]) for row in answer.table.to_pylist()}


EIGHT = [gpu(number) for number in range(8)]


def test_fragmentation_is_named_by_the_attribute_that_devices_cannot_share(snapshot_of: Any, tmp_path: Path):
    snapshot = snapshot_of(
        node("n0"), node("n1"), slice_of("n0", EIGHT), device_class(),
        pod("a", "n0"), claim("a", "n0", 0, 1, 4, 5),
    )  # fmt: skip
    asked = ClaimsParameters(device_class=DRIVER, counts=[1, 4, 8], match_attribute=f"{DRIVER}/numa")
    answer = claims(snapshot, asked)
    assert rows(answer) == {
        ("n0", "free", DRIVER, 4),
        ("n0", "allocates", f"1 {DRIVER}", 4),
        ("n0", "fragmented", f"4 {DRIVER}", 4),
        ("n0", "full", f"8 {DRIVER}", 4),
    }
    (reason,) = (row["reason"] for row in answer.table.to_pylist() if row["decision"] == "fragmented")
    assert reason == f"no free devices that share {DRIVER}/numa"
    write_snapshot(snapshot, tmp_path / "cluster.kes")
    assert claims(load_snapshot([str(tmp_path / "cluster.kes")]), asked).table == answer.table


def test_a_manifest_with_a_template_is_asked_about(snapshot_of: Any, tmp_path: Path):
    snapshot = snapshot_of(node("n0"), slice_of("n0", EIGHT), device_class())
    manifest = tmp_path / "claims.yaml"
    manifest.write_text(
        f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: pair}}
spec:
  spec:
    devices:
      requests:
      - name: two
        exactly: {{deviceClassName: {DRIVER}, count: 2}}
      - name: one
        firstAvailable:
        - {{name: large, deviceClassName: {DRIVER}, count: 16}}
        - {{name: small, deviceClassName: {DRIVER}}}
"""
    )
    answer = claims(snapshot, ClaimsParameters(file=str(manifest)))
    assert rows(answer) == {("n0", "free", DRIVER, 8), ("n0", "allocates", "pair", 2)}


def test_a_pool_that_is_being_updated_gives_nothing(snapshot_of: Any):
    snapshot = snapshot_of(node("n0"), slice_of("n0", EIGHT, total=2), device_class())
    answer = claims(snapshot, ClaimsParameters(device_class=DRIVER, counts=[1]))
    assert rows(answer) == {("n0", "free", DRIVER, 0), ("n0", "full", f"1 {DRIVER}", 0)}
    assert any("missing slices" in note for note in answer.notes)


def test_a_selector_that_fails_is_unknown_rather_than_full(snapshot_of: Any):
    snapshot = snapshot_of(
        node("n0"), slice_of("n0", EIGHT), device_class(f"device.attributes['{DRIVER}'].speed > 3")
    )
    answer = claims(snapshot, ClaimsParameters(device_class=DRIVER, counts=[1]))
    (row,) = answer.table.to_pylist()
    assert row["decision"] == "unknown"
    assert "speed" in row["reason"]
    assert f"{DRIVER}/gpu-0" in row["reason"]


def test_a_taint_evicts_those_who_do_not_tolerate_it(snapshot_of: Any):
    forever = {"key": "repair", "operator": "Exists", "effect": "NoExecute"}
    snapshot = snapshot_of(
        node("n0"), node("n1"), slice_of("n0", EIGHT), slice_of("n1", EIGHT), device_class(),
        pod("a", "n0"), claim("a", "n0", 0),
        pod("b", "n0"), claim("b", "n0", 1, tolerations=(forever,)),
        pod("c", "n0"), claim("c", "n0", 2, tolerations=(forever | {"tolerationSeconds": 60},)),
        pod("d", "n0"), claim("d", "n0", 3, tolerations=(forever | {"effect": ""},)),
        pod("e", "n1"), claim("e", "n1", 0),
    )  # fmt: skip
    taint = DeviceTaintParameters(driver=DRIVER, pool="n0", key="repair")
    answer = device_taint(snapshot, taint)
    assert rows(answer) == {
        ("n0", "tainted", "", 8),
        ("n0", "taint-evicts", "shop/a", 1),
        ("n0", "stays", "shop/b", 1),
        ("n0", "taint-evicts", "shop/c", 1),
        ("n0", "taint-evicts", "shop/d", 1),
    }
    after = {row["object"]: row["reason"] for row in answer.table.to_pylist()}
    assert after["shop/c"].endswith("for 60 s")
    spared = device_taint(snapshot, DeviceTaintParameters(driver=DRIVER, effect="NoSchedule"))
    assert {decision for _, decision, _, _ in rows(spared)} == {"tainted", "stays"}


@pytest.mark.parametrize(
    ("items", "asked", "text"),
    [
        ((), ClaimsParameters(device_class=DRIVER), "add resourceslices,resourceclaims,deviceclasses"),
        ((slice_of("n0", EIGHT),), ClaimsParameters(device_class="gpu"), "there is no DeviceClass 'gpu'"),
        ((slice_of("n0", EIGHT),), ClaimsParameters(), "name a manifest with claims, or a device class"),
    ],
)
def test_an_unanswerable_question_names_what_is_missing(
    snapshot_of: Any, items: tuple[Item, ...], asked: ClaimsParameters, text: str
):
    with pytest.raises(InvalidInput, match=text):
        claims(snapshot_of(node("n0"), device_class(), *items), asked)


def test_a_taint_that_selects_no_device_is_refused(snapshot_of: Any):
    snapshot = snapshot_of(node("n0"), slice_of("n0", EIGHT), device_class())
    with pytest.raises(InvalidInput, match=f"selects none of 8 devices .drivers: {DRIVER}."):
        device_taint(snapshot, DeviceTaintParameters(driver="gpu"))


def test_objects_of_v1beta1_are_read(snapshot_of: Any):
    old = slice_of(
        "n0", [{"name": each["name"], "basic": {"attributes": each["attributes"]}} for each in EIGHT]
    )
    old["apiVersion"] = "resource.k8s.io/v1beta1"
    answer = claims(
        snapshot_of(node("n0"), old, device_class()), ClaimsParameters(device_class=DRIVER, counts=[4])
    )
    assert ("n0", "allocates", f"4 {DRIVER}", 2) in rows(answer)
    request = {"name": "r", "deviceClassName": DRIVER, "count": 2}
    claim = as_v1("ResourceClaim", {"spec": {"devices": {"requests": [request]}}})
    assert claim["spec"]["devices"]["requests"] == [
        {"name": "r", "exactly": {"deviceClassName": DRIVER, "count": 2}}
    ]


def test_a_faulty_slice_is_left_out_and_named(tmp_path: Path):
    broken = slice_of("n0", [{"name": "gpu-0", "capacity": {"memory": {"value": "much"}}}])
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [node("n0"), broken]}))
    with pytest.raises(InvalidInput, match="slice-n0"):
        load_snapshot([str(path)], strict=True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.capacity['d.example'].memory.compareTo(quantity('40Gi')) == 0", True),
        ("device.capacity['d.example'].memory == quantity('40960Mi')", True),
        ("device.capacity['d.example'].memory.sub(quantity('1Gi')).isLessThan(quantity('40Gi'))", True),
        ("device.attributes['d.example'].driverVersion.isGreaterThan(semver('1.9.0'))", True),
        ("device.attributes['d.example'].driverVersion.compareTo(semver('1.10.0-rc.1')) > 0", True),
        ("device.attributes['d.example'].driverVersion.minor() == 10", True),
        ("device.attributes['d.example'].model.lowerAscii().startsWith('a1')", True),
        ("device.attributes['other.example'].rack == 7", True),
        ("'model' in device.attributes['none.example']", False),
        ("has(device.attributes['d.example'].speed)", False),
        ("device.attributes['d.example'].exists(name, name == 'model')", True),
        ("cel.bind(dra, device.attributes['d.example'], dra.model == 'A100' && dra.ecc)", True),
        ("cel.bind(a, 1, cel.bind(b, 'x, )', a == 1 && b == 'x, )'))", True),
        ("device.allowMultipleAllocations", False),
    ],
)
def test_selectors_of_kubernetes(expression: str, expected: bool):
    device = as_written(
        {
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "A100"},
                "ecc": {"bool": True},
                "d.example/driverVersion": {"version": "1.10.0"},
                "other.example/rack": {"int": 7},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        },
        OfferedDevice,
        "device",
    )
    assert Selectors().matches(expression, "d.example", device) is expected


@pytest.mark.parametrize(
    "expression", ["device.driver ==", "cel.bind(x, 1)", "cel.bind(x, 1, x", "x" * 20_000]
)
def test_a_malformed_selector_is_named(expression: str):
    with pytest.raises(SelectorError, match="selector"):
        Selectors().matches(expression, "d.example", OfferedDevice(name="gpu-0"))


def test_bind_in_a_string_is_text():
    assert expand_bind("device.driver == 'cel.bind('") == "device.driver == 'cel.bind('"
