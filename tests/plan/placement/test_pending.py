"""pending: why pods wait, and which node groups would have to grow."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer
from engine.plan.questions.pending import PendingParameters, pending
from tests.plan.placement.made_cluster import HOST, REQUIRED, node, pod, read

TYPE = "node.kubernetes.io/instance-type"
PRICES = {"small": 70.0, "large": 140.0}


def group(name: str, kind: str, cpu: str, zone: str = "a", **fields: Any) -> dict[str, Any]:
    return node(name, zone, cpu=cpu, labels={TYPE: kind} | fields.pop("labels", {}), **fields)


def full(name: str, on: str, cpu: str) -> dict[str, Any]:
    return pod(name, on, app="full", requests={"cpu": cpu})


def cluster(tmp_path, *waiting: dict[str, Any]) -> Any:
    """Return a snapshot of a small and a large node, both full; a daemon takes 500m of each."""
    objects = [group("s", "small", "4"), group("l", "large", "8")]
    objects += [full("fs", "s", "3500m"), full("fl", "l", "7500m")]
    objects += [pod(f"d{on}", on, owner="DaemonSet", requests={"cpu": "500m"}) for on in ("s", "l")]
    return read(tmp_path, *objects, *waiting)


def found(answer: Answer, decision: str) -> list[tuple[str, str, int]]:
    listed = answer.table.to_pylist()
    return [(row["object"], row["reason"], row["amount"]) for row in listed if row["decision"] == decision]


def test_the_cheapest_group_that_takes_all_pods_grows(tmp_path):
    waiting = [pod(f"w{number}", "", requests={"cpu": "3"}) for number in range(2)]
    answer = pending(cluster(tmp_path, *waiting), PendingParameters(prices=PRICES))
    assert [(name, amount) for name, _, amount in found(answer, "pending")] == [
        ("shop/w0", 1),
        ("shop/w1", 1),
    ]
    assert "2 without enough cpu" in found(answer, "pending")[0][1]
    # One large node takes both for as much as two small ones; fewer nodes decide.
    assert found(answer, "grow") == [("large in a", "for shop/w0, shop/w1, 140.00", 1)]
    assert found(answer, "option") == [
        ("large in a", "for shop/w0, shop/w1, 140.00", 1),
        ("small in a", "for shop/w0, shop/w1, 140.00", 2),
    ]
    assert answer.headline == (
        "2 pods pending for want of a node; 2 would run with 1 node more of large in a (140.00)."
    )


def test_daemons_leave_less_of_a_new_node(tmp_path):
    answer = pending(cluster(tmp_path, pod("w", "", requests={"cpu": "3600m"})), PendingParameters())
    assert [(name, amount) for name, _, amount in found(answer, "grow")] == [("large in a", 1)]


def test_each_group_takes_what_others_cannot(tmp_path):
    waiting = [pod("w", "", requests={"cpu": "7"}), pod("n", "", nodeSelector={TYPE: "small"})]
    answer = pending(cluster(tmp_path, *waiting), PendingParameters())
    assert {(name, amount) for name, _, amount in found(answer, "grow")} == {
        ("large in a", 1),
        ("small in a", 1),
    }


def test_a_pod_that_no_group_takes_is_explained(tmp_path):
    waiting = [pod("w", "", requests={"cpu": "9"}), pod("g", "", nodeSelector={"gpu": "yes"})]
    answer = pending(cluster(tmp_path, *waiting), PendingParameters())
    assert found(answer, "no-group") == [
        ("shop/w", "2 groups without enough cpu", 1),
        ("shop/g", "2 groups excluded by node selector or affinity (gpu=yes)", 1),
    ]
    assert answer.headline == "2 pods pending for want of a node; no node group takes 2."


def test_replicas_that_repel_each_other_need_a_node_each(tmp_path):
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}
    alone = {"podAntiAffinity": {REQUIRED: [term]}}
    waiting = [pod(f"w{number}", "", affinity=alone) for number in range(3)]
    answer = pending(cluster(tmp_path, *waiting), PendingParameters())
    assert [amount for _, _, amount in found(answer, "grow")] == [3]


def test_a_new_node_has_the_taints_of_its_group_but_not_those_of_a_condition(tmp_path):
    pressure = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    own = {"key": "team", "value": "x", "effect": "NoSchedule"}
    objects = [group("p", "small", "4", taints=[pressure]), group("t", "large", "8", taints=[own])]
    answer = pending(read(tmp_path, *objects, pod("w", "")), PendingParameters())
    assert [name for name, *_ in found(answer, "grow")] == ["small in a"]


def test_a_pod_that_fits_now_is_not_pending_for_want_of_a_node(tmp_path):
    answer = pending(read(tmp_path, node("n1"), pod("w", "")), PendingParameters())
    assert [row["node"] for row in answer.table.to_pylist() if row["decision"] == "binds"] == ["n1"]
    assert answer.headline == "No pod is pending for want of a node."


def test_parts_that_the_snapshot_lacks_are_said_per_pod(tmp_path):
    claim = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
    answer = pending(
        cluster(tmp_path, pod("c", "", **claim), pod("w", "", requests={"cpu": "3"})), PendingParameters()
    )
    assert found(answer, "unknown") == [("shop/c", "claim data is not in the snapshot", 1)]
    assert [name for name, *_ in found(answer, "pending")] == ["shop/w"]


def test_groups_may_be_named_by_a_label(tmp_path):
    objects = [
        group("s", "small", "1", labels={"pool": "blue"}),
        pod("w", "", requests={"cpu": "1"}),
        full("f", "s", "1"),
    ]
    answer = pending(read(tmp_path, *objects), PendingParameters(group_by="pool", prices={"other": 1.0}))
    assert found(answer, "grow") == [("blue in a", "for shop/w", 1)]
    assert "instance types without a price: small" in answer.notes
    with pytest.raises(InvalidInput, match="no ready node has the label none"):
        pending(read(tmp_path, *objects), PendingParameters(group_by="none"))


def test_more_nodes_than_most_are_not_tried(tmp_path):
    waiting = [pod(f"w{number}", "", requests={"cpu": "7"}) for number in range(3)]
    answer = pending(cluster(tmp_path, *waiting), PendingParameters(most=2))
    assert [amount for _, _, amount in found(answer, "grow")] == [2]
    assert len(found(answer, "no-group")) == 1


def test_a_daemons_pod_waits_for_its_own_node(tmp_path):
    """A pending pod of a DaemonSet is pinned to one node: no other node and no new one takes it."""
    pin = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["s"]}]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": pin}}}
    waiting = pod("late", "", owner="DaemonSet", requests={"cpu": "1"}, affinity=affinity)
    spare = group("m", "large", "8")
    answer = pending(cluster(tmp_path, spare, waiting), PendingParameters())
    assert not found(answer, "binds")
    assert "1 without enough cpu" in found(answer, "pending")[0][1]
    assert not found(answer, "grow")
    assert [name for name, _, _ in found(answer, "no-group")] == ["shop/late"]
