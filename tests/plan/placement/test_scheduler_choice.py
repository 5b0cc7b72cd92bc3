"""drain: pods go where the scheduler's scores send them, in rounds that budgets allow, by priority."""

from __future__ import annotations

from typing import Any

import pytest

from engine.plan import Snapshot
from engine.plan.questions.drain import DrainParameters, drain
from tests.plan.placement.made_cluster import HOST, PREFERRED, REQUIRED, ZONE, budget, node, pod, read

WEB = {"labelSelector": {"matchLabels": {"app": "web"}}}
NEAR_CACHE = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "cache"}}}
SOFT = {"key": "x", "value": "y", "effect": "PreferNoSchedule"}
BIG = "registry.k8s.io/big:1"


def rows(snapshot: Snapshot, name: str = "n1", **parameters: Any) -> list[tuple[str, str, str]]:
    answer = drain(snapshot, DrainParameters(nodes=[name], **parameters))
    return [(row["decision"], row["object"], row["reason"]) for row in answer.table.to_pylist()]


def moves(snapshot: Snapshot, **parameters: Any) -> dict[str, str]:
    found = rows(snapshot, **parameters)
    return {label: reason for decision, label, reason in found if decision == "move"}


def preferred(kind: str, *terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    weighted = [{"weight": weight, "podAffinityTerm": term} for weight, term in terms]
    return {"affinity": {kind: {PREFERRED: weighted}}}


def in_zone(zone: str, weight: int = 1) -> dict[str, Any]:
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    term = {"weight": weight, "preference": {"matchExpressions": [expression]}}
    return {"affinity": {"nodeAffinity": {PREFERRED: [term]}}}


def spread(key: str, **more: Any) -> dict[str, Any]:
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", **WEB, **more}
    return {"topologySpreadConstraints": [constraint]}


def other(name: str, on: str, app: str = "other", **spec: Any) -> dict[str, Any]:
    return pod(name, on, app=app, owner="Job", **spec)


CHOSEN = [
    ("the least allocated", [node("n2"), other("a", "n2"), node("n3")], {}, "n3"),
    (
        "assumed requests count",
        [node("n2"), other("a", "n2", requests={}), node("n3")],
        {"owner": "Job"},
        "n3",
    ),
    (
        "a larger share stays free",
        [node("n2"), node("n3", cpu="8")],
        {"owner": "Job", "requests": {"cpu": "1"}},
        "n3",
    ),
    # The pod asks for CPU only, so the node where memory is in use becomes more balanced.
    (
        "balance",
        [
            *(node("n2"), other("a", "n2", requests={"cpu": "1", "memory": "1Mi"})),
            *(node("n3"), other("b", "n3", requests={"cpu": "1m", "memory": "2Gi"})),
        ],
        {"owner": "Job", "requests": {"cpu": "1", "memory": "1Mi"}},
        "n3",
    ),
    ("no soft taint", [node("n2", taints=[SOFT]), node("n3"), other("a", "n3")], {}, "n3"),
    (
        "a tolerated soft taint",
        [node("n2", taints=[SOFT]), node("n3"), other("a", "n3")],
        {"tolerations": [{"key": "x", "operator": "Exists"}]},
        "n2",
    ),
    ("preferred nodes", [node("n2"), node("n3", "b"), other("a", "n3")], in_zone("b"), "n3"),
    (
        "replicas of a controller spread",
        [node("n2"), pod("a", "n2"), node("n3"), other("o", "n3"), other("p", "n3")],
        {},
        "n3",
    ),
    (
        "soft spread by zone",
        [node("n2"), pod("a", "n2"), node("n3", "b"), other("o", "n3"), other("p", "n3")],
        spread(ZONE),
        "n3",
    ),
    (
        "soft spread counts no pod of another version",
        [node("n2"), pod("a", "n2"), node("n3", "b"), other("o", "n3"), other("p", "n3")],
        spread(ZONE, matchLabelKeys=["app"], labelSelector={"matchLabels": {"app": "none"}}),
        "n2",
    ),
    (
        "near a cache",
        [node("n2"), node("n3"), other("c", "n3", "cache")],
        preferred("podAffinity", (10, NEAR_CACHE)),
        "n3",
    ),
    (
        "away from a cache",
        [node("n2"), other("o", "n2"), node("n3"), other("c", "n3", "cache", requests={"cpu": "1m"})],
        preferred("podAntiAffinity", (10, NEAR_CACHE)),
        "n2",
    ),
    (
        "a pod that likes it nearby",
        [
            *(node("n2"), node("n3")),
            other("c", "n3", "cache", **preferred("podAffinity", (10, {"topologyKey": HOST, **WEB}))),
        ],
        {},
        "n3",
    ),
    (
        "a pod that requires it nearby",
        [
            *(node("n2"), node("n3")),
            other("c", "n3", "cache", affinity={"podAffinity": {REQUIRED: [{"topologyKey": HOST, **WEB}]}}),
        ],
        {},
        "n3",
    ),
    (
        "its image",
        [
            *(node("n2"), other("a", "n2", requests={"cpu": "1m"}), node("n4"), node("n5")),
            node("n3", images=[{"names": [BIG], "sizeBytes": 3 * 2**30}]),
            other("o", "n3", requests={"cpu": "100m"}),
        ],
        {"owner": "Job", "container": {"image": BIG}},
        "n3",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "spec", "target"), [case[1:] for case in CHOSEN], ids=[c[0] for c in CHOSEN]
)
def test_a_pod_moves_to_the_node_with_the_best_score(others, spec, target, tmp_path):
    snapshot = read(tmp_path, node("n1"), pod("moving", "n1", **spec), *others)
    assert moves(snapshot) == {"shop/moving": f"to {target}"}


def test_equally_good_nodes_are_counted(tmp_path):
    snapshot = read(tmp_path, *(node(f"n{number}") for number in range(1, 5)), pod("moving", "n1"))
    assert moves(snapshot) == {"shop/moving": "to n2 (equally good: 2 others)"}


def test_the_highest_priority_chooses_first(tmp_path):
    """Only one of them fits on n2, and n3 has less free."""
    large = {"requests": {"cpu": "3"}}
    listed = [node("n1", cpu="8"), node("n2"), node("n3", cpu="2")]
    listed += [pod("low", "n1", **large), pod("high", "n1", priority=1000, **large)]
    assert moves(read(tmp_path, *listed)) == {"shop/high": "to n2"}


def test_a_budget_that_allows_one_at_a_time_makes_rounds(tmp_path):
    listed = [node("n1"), node("n2"), node("n3"), *(pod(f"p{number}", "n1") for number in range(3))]
    found = rows(read(tmp_path, *listed, budget(maxUnavailable=1)))
    assert [reason.rpartition(", ")[2] for decision, _, reason in found if decision == "move"] == [
        *("in round 1", "in round 2", "in round 3"),
    ]
    assert ("paces", "shop/web", "1 of 3 pods at once") in found
    assert found[-1][0] == "drained"


def test_a_pod_without_a_node_blocks_the_rest_of_its_budget(tmp_path):
    """The first replacement stays pending, so the budget never lets the second pod go."""
    listed = [node("n1"), node("n2", cpu="50m"), pod("a", "n1"), pod("b", "n1"), budget(maxUnavailable=1)]
    found = rows(read(tmp_path, *listed))
    assert found[0][:2] == ("remains", "shop/a")
    assert "without enough cpu" in found[0][2]
    assert found[1] == ("remains", "shop/b", "its budget shop/web waits for 1 evicted pods that have no node")
    assert found[-1][0] == "not-drained"


def test_a_pod_of_two_budgets_cannot_be_evicted(tmp_path):
    listed = [node("n1"), node("n2"), pod("a", "n1"), budget(), budget("all", maxUnavailable=1)]
    assert rows(read(tmp_path, *listed))[0] == (
        *("remains", "shop/a", "has 2 budgets, and the eviction API refuses more than one"),
    )


def test_a_pod_without_a_controller_keeps_its_node_or_is_lost(tmp_path):
    snapshot = read(tmp_path, node("n1"), node("n2"), pod("alone", "n1", owner=""))
    kept, verdict = rows(snapshot)
    assert kept[:2] == ("remains", "shop/alone")
    assert "--force" in kept[2]
    assert verdict == ("not-drained", "", "1 pod without a controller")
    lost, verdict = rows(snapshot, force=True)
    assert lost[:2] == ("lost", "shop/alone")
    assert verdict[0] == "drained"


def preempting(tmp_path, *more: dict[str, Any], **spec: Any) -> Snapshot:
    """Return a snapshot in which `moving` needs 3 CPUs; n2 and n3 have pods of lower priority."""
    listed = [node("n1"), node("n2"), node("n3"), pod("moving", "n1", requests={"cpu": "3"}, priority=100)]
    listed += [other("low", "n2", requests={"cpu": "2"}), other("tiny", "n2", requests={"cpu": "500m"})]
    listed += [other("high", "n3", requests={"cpu": "2"}, priority=50)]
    return read(tmp_path, *listed, *more)


def test_a_pod_preempts_the_least_important_pods(tmp_path):
    """`tiny` may stay; `low` finds its place on n3, where 2 CPUs are left."""
    found = rows(preempting(tmp_path))
    assert ("move", "shop/moving", "to n2, where it preempts shop/low") in found
    assert ("move", "shop/low", "to n3") in found
    assert ("drained", "", "all its other pods fit elsewhere") in found


def test_a_preempted_pod_without_a_node_is_displaced(tmp_path):
    found = rows(preempting(tmp_path, other("full", "n3", requests={"cpu": "1"}, priority=50)))
    (displaced,) = [row for row in found if row[0] == "displaced"]
    assert displaced[1] == "shop/low"
    assert "without enough cpu" in displaced[2]


def test_preemption_avoids_a_budget(tmp_path):
    guard = budget("guard", maxUnavailable=0, selector={"matchLabels": {"app": "other"}})
    guard["spec"]["selector"] = {"matchLabels": {"app": "low"}}
    snapshot = read(
        tmp_path,
        *(node("n1"), node("n2"), node("n3"), guard),
        pod("moving", "n1", requests={"cpu": "3"}, priority=100),
        other("guarded", "n2", "low", requests={"cpu": "2"}),
        other("free", "n3", requests={"cpu": "2"}, priority=50),
    )
    assert moves(snapshot)["shop/moving"] == "to n3, where it preempts shop/free"


@pytest.mark.parametrize("why", ["a class that never preempts", "not asked", "the same priority"])
def test_nothing_is_preempted_without_a_right(why, tmp_path):
    never = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "polite"},
        "value": 100,
        "preemptionPolicy": "Never",
    }
    snapshot = preempting(tmp_path, *([never] if "class" in why else []))
    if why == "the same priority":
        rest = [
            other(name, on, requests={"cpu": "2"}, priority=100) for name, on in (("a", "n2"), ("b", "n3"))
        ]
        moving = pod("moving", "n1", requests={"cpu": "3"}, priority=100)
        snapshot = read(tmp_path, node("n1"), node("n2"), node("n3"), moving, *rest)
    found = rows(snapshot, preemption=why != "not asked")
    assert [decision for decision, *_ in found] == ["remains", "not-drained"]


def test_daemons_that_are_preempted_go_nowhere_else(tmp_path):
    listed = [node("n1"), node("n2"), pod("moving", "n1", requests={"cpu": "3"}, priority=100)]
    listed += [pod("daemon", "n2", owner="DaemonSet", requests={"cpu": "2"})]
    found = rows(read(tmp_path, *listed))
    assert ("displaced", "shop/daemon", "belongs to this node alone") in found
