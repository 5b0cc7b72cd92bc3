"""What is written of the Node and its lease: pure decisions."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from engine.api.meta import ObjectMeta, OwnerReference
from engine.api.node import PROVIDED_IP, Node, NodeCondition, NodeStatus
from engine.api.objects.lease import Lease
from engine.api.quantity import Quantity
from engine.cluster.lease import renewed
from engine.cluster.merge import strategic_patch
from engine.cluster.node_object import (
    CONTROLLER_ATTACHES,
    former_resources,
    full_patch,
    metadata_patch,
    reconciliation,
    registration,
    report_after,
    status_patch,
    without_heartbeats,
)

READY = {
    "type": "Ready",
    "status": "True",
    "lastHeartbeatTime": "2026-01-01T00:00:10Z",
    "reason": "KubeletReady",
}
EARLIER = {**READY, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
OTHERS = {"type": "NetworkUnavailable", "status": "False"}


def test_a_patch_holds_only_the_differences():
    old = {"a": 1, "b": {"x": 1, "y": 2}, "gone": 3, "list": [1], "conditions": [READY, OTHERS]}
    new = {
        "a": 1,
        "b": {"x": 1, "y": 3},
        "list": [1, 2],
        "conditions": [{**READY, "status": "False"}, OTHERS],
    }
    assert strategic_patch(old, new) == {
        "b": {"y": 3},
        "gone": None,
        "list": [1, 2],
        "conditions": [{"type": "Ready", "status": "False"}],
        "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "NetworkUnavailable"}],
    }
    assert strategic_patch(new, new) == {}


def test_removed_items_are_deleted_by_key_and_addresses_replaced_as_a_whole():
    assert strategic_patch({"podIPs": [{"ip": "a"}, {"ip": "b"}]}, {"podIPs": [{"ip": "b"}]}) == {
        "podIPs": [{"$patch": "delete", "ip": "a"}],
        "$setElementOrder/podIPs": [{"ip": "b"}],
    }
    moved = {"addresses": [{"type": "InternalIP", "address": "b"}]}
    assert strategic_patch({"addresses": [{"type": "InternalIP", "address": "a"}]}, moved) == {
        "addresses": [*moved["addresses"], {"$patch": "replace"}]
    }


def test_heartbeats_alone_are_no_news_but_go_with_a_report():
    known, wanted = {"conditions": [EARLIER]}, {"conditions": [READY]}
    assert status_patch(known, wanted) == {}
    assert full_patch(known, wanted)["status"]["conditions"] == [
        {"type": "Ready", "lastHeartbeatTime": READY["lastHeartbeatTime"]}
    ]


def test_a_status_patch_leaves_the_conditions_of_others():
    known = {"conditions": [OTHERS, EARLIER], "volumesAttached": [{"name": "v"}]}
    patch = status_patch(known, {"conditions": [{**READY, "status": "False"}]})["status"]
    assert [condition["type"] for condition in patch["conditions"]] == ["Ready"]
    assert "volumesAttached" not in patch


def test_volumes_in_use_are_reported_until_their_last_pod_ends():
    known = {"volumesInUse": ["a"], "volumesAttached": [{"name": "a"}], "conditions": []}
    assert status_patch(known, {}) == {}
    assert status_patch(known, {"volumesInUse": ["a", "b"]}) == {"status": {"volumesInUse": ["a", "b"]}}
    assert status_patch(known, {"volumesInUse": []}) == {"status": {"volumesInUse": None}}
    assert status_patch({"conditions": []}, {"volumesInUse": []}) == {}


def test_a_resource_without_its_plugin_stays_at_zero():
    known = {"capacity": {"cpu": "2", "example.com/gpu": "4", "pods": "110"}}
    assert status_patch(known, {"capacity": {"cpu": "2"}}, {"example.com/gpu"})["status"]["capacity"] == {
        "example.com/gpu": "0",
        "pods": None,
    }


def test_resources_that_others_add_to_the_node_stay_and_can_be_requested():
    known = {
        "capacity": {"cpu": "2", "example.com/dongle": "4"},
        "allocatable": {"cpu": "2", "example.com/gpu": "1"},
    }
    patch = status_patch(known, {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}})["status"]
    assert patch["allocatable"] == {"example.com/dongle": "4", "example.com/gpu": None}
    assert "capacity" not in patch


def test_where_no_plugin_has_ever_been_the_resources_of_an_older_node_are_gone():
    def node(*names: str) -> Node:
        return Node(status=NodeStatus(capacity=dict.fromkeys(names, Quantity.parse("1"))))

    assert former_resources(node("cpu", "example.com/gpu", "hugepages-2Mi"), node("cpu")) == {
        "example.com/gpu"
    }
    assert former_resources(node("example.com/gpu"), node("cpu", "example.com/fpga")) == set()


def test_registration_and_reconciliation():
    wanted = Node(metadata=ObjectMeta(name="n", labels={"kubernetes.io/os": "linux", "mine": "1"}))
    created = registration(wanted)
    assert created["metadata"]["annotations"] == {CONTROLLER_ATTACHES: "true"}
    assert created["kind"] == "Node"
    there = Node(metadata=ObjectMeta(name="n", labels={"kubernetes.io/os": "plan9", "theirs": "2"}))
    assert reconciliation(there, wanted) == {
        "metadata": {"labels": {"kubernetes.io/os": "linux"}, "annotations": {CONTROLLER_ATTACHES: "true"}}
    }
    same = Node(
        metadata=ObjectMeta(labels={"kubernetes.io/os": "linux"}, annotations={CONTROLLER_ATTACHES: "true"})
    )
    assert reconciliation(same, wanted) == {}
    assert CONTROLLER_ATTACHES not in str(registration(wanted, controller_attaches=False))
    assert reconciliation(same, wanted, controller_attaches=False) == {
        "metadata": {"annotations": {CONTROLLER_ATTACHES: None}}
    }


def test_changed_os_and_arch_labels_are_restored_and_no_others():
    ours = ObjectMeta(labels={"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "mine": "1"})
    theirs = ObjectMeta(labels={"kubernetes.io/os": "dummyOS", "mine": "2"})
    right = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    assert metadata_patch(theirs, ours) == {"labels": right}
    assert metadata_patch(ObjectMeta(labels={**(ours.labels or {}), "mine": "3"}), ours) == {}


def test_addresses_for_a_cloud_are_annotated_and_stale_ones_removed():
    ours = ObjectMeta(annotations={PROVIDED_IP: "10.0.0.1"})
    assert metadata_patch(ObjectMeta(), ours) == {"annotations": {PROVIDED_IP: "10.0.0.1"}}
    assert metadata_patch(ours, ours) == {}
    assert metadata_patch(ours, ObjectMeta()) == {"annotations": {PROVIDED_IP: None}}


def test_heartbeats_are_no_news():
    def status(second: int) -> NodeStatus:
        at = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        return NodeStatus(conditions=[NodeCondition(type="Ready", status="True", last_heartbeat_time=at)])

    assert without_heartbeats(status(1)) == without_heartbeats(status(2)) != status(2)


def test_reports_are_spread():
    chance = random.Random(1)
    waits = [report_after(300, chance) for _ in range(1000)]
    assert 150 <= min(waits) < 170
    assert 430 < max(waits) <= 450


def test_a_lease_has_one_owner_and_six_digits():
    first = renewed(None, "n", "", 40, 1_000_000.0)
    assert first.spec.renew_time == "1970-01-12T13:46:40.000000Z"
    assert first.metadata.owner_references is None
    owned = renewed(first, "n", "u", 40, 1_000_000.5)
    assert owned.metadata.owner_references == [
        OwnerReference(api_version="v1", kind="Node", name="n", uid="u")
    ]
    others = Lease(metadata=ObjectMeta(owner_references=[OwnerReference(name="x")]))
    assert renewed(others, "n", "u", 40, 0).metadata.owner_references == [OwnerReference(name="x")]
