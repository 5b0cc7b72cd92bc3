"""compare: pods that are new, gone, moved or larger in the second of two snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer
from engine.plan.questions.compare import compare
from tests.plan.placement.made_cluster import node, pod, read

Rows = list[tuple[str, str, str, str, int]]


def changes(tmp_path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[Answer, Rows]:
    found = compare(read(tmp_path, *before), read(tmp_path, *after))
    fields = ("decision", "node", "object", "reason", "amount")
    return found, [tuple(row[field] for field in fields) for row in found.table.to_pylist()]


BASE = [node("n1"), node("n2"), pod("a", "n1"), pod("b", "n2")]
CASES: list[tuple[str, list[dict[str, Any]], Rows, str]] = [
    ("nothing", BASE, [], "Nothing changed between A and B."),
    ("a node", [*BASE, node("n3")], [("node-came", "n3", "", "", 1)], "Nodes: 1 came."),
    (
        "a field of a node",
        [node("n1", cpu="8"), *BASE[1:]],
        [("node-changed", "n1", "allocatable cpu", "4 → 8", 1)],
        "Nodes: 1 changed.",
    ),
    (
        "a cordon",
        [node("n1", unschedulable=True), *BASE[1:]],
        [("node-changed", "n1", "unschedulable", "False → True", 1)],
        "Nodes: 1 changed.",
    ),
    (
        "a pod",
        [*BASE, pod("c", "n1")],
        [
            ("workload-scaled", "", "ReplicaSet shop/web", "2 → 3 pods", 1),
            ("pod-came", "n1", "shop/c", "to n1 (ReplicaSet shop/web)", 1),
        ],
        "Workloads: 1 scaled; pods: 1 came; 100m more cpu requested.",
    ),
    (
        "another node",
        [*BASE[:3], pod("b", "n1")],
        [("pod-moved", "n1", "shop/b", "to n1 from n2", 1)],
        "Pods: 1 moved.",
    ),
    (
        "another request",
        [*BASE[:3], pod("b", "n2", requests={"cpu": "50m", "memory": "1Mi"})],
        [
            ("pod-shrank", "n2", "shop/b", "cpu 100m → 50m", -50),
            ("pod-grew", "n2", "shop/b", "memory 0 → 1Mi", 2**20),
        ],
        "Pods: 1 grew, 1 shrank; 50m less cpu requested; 1Mi more memory requested.",
    ),
    (
        "another workload",
        [*BASE[:3], pod("d", "", app="db", owner="StatefulSet")],
        [
            ("workload-scaled", "", "ReplicaSet shop/web", "2 → 1 pods", -1),
            ("workload-came", "", "StatefulSet shop/db", "0 → 1 pods", 1),
            ("pod-went", "n2", "shop/b", "from n2 (ReplicaSet shop/web)", 1),
            ("pod-came", "", "shop/d", "(StatefulSet shop/db)", 1),
        ],
        "Workloads: 1 came, 1 scaled; pods: 1 came, 1 went.",
    ),
]


@pytest.mark.parametrize(
    ("after", "expected", "headline"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_changes_are_rows(after, expected, headline, tmp_path):
    answer, rows = changes(tmp_path, BASE, after)
    assert rows == expected
    assert answer.headline == headline


def test_fields_of_a_node_keep_the_order_of_its_object(tmp_path):
    """The order of a set of their names would differ between processes."""
    taints = [{"key": f"key{number}", "effect": "NoSchedule"} for number in range(9)]
    _, rows = changes(tmp_path, BASE, [node("n1", taints=taints), *BASE[1:]])
    assert [row[2] for row in rows] == [f"taint key{number}" for number in range(9)]


def test_ended_pods_have_gone(tmp_path):
    ended = pod("b", "n2")
    ended["status"]["phase"] = "Succeeded"
    _, rows = changes(tmp_path, BASE, [*BASE[:3], ended])
    assert [row[0] for row in rows] == ["workload-scaled", "pod-went"]


def test_the_command_also_compares_answers(run_plan: Callable[..., Any], tmp_path):
    paths = []
    for name, objects in (("a", BASE), ("b", [node("n1", cpu="8"), *BASE[1:]])):
        (tmp_path / name).mkdir()
        read(tmp_path / name, *objects)
        paths.append(str(tmp_path / name / "cluster.json"))
    asked = ("--ask", "admit", "--with", '{"requests": {"cpu": "1"}}')
    done = run_plan("compare", *paths, *asked, "--json", "--fail-on", "changed:admits")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["headline"] == "Nodes: 1 changed."
    changed = [row for row in answer["rows"] if row["scenario"] == "admit"]
    assert [(row["node"], row["decision"], row["amount"]) for row in changed] == [("n1", "changed:admits", 4)]


def test_programs_compare_clusters(tmp_path):
    clusters = []
    for name, cpu in (("a", "4"), ("b", "8")):
        (tmp_path / name).mkdir()
        clusters.append(engine.Cluster(read(tmp_path / name, node("n1", cpu=cpu), *BASE[1:])))
    found = engine.compare(*clusters, {"admit": {"requests": {"cpu": "1"}}})
    rows = [(row["scenario"], row["decision"]) for row in found.table.to_pylist()]
    assert rows[0] == ("", "node-changed")
    assert ("admit", "changed:admits") in rows
    assert [one.scenario for one in found.compared] == ["admit"]
    with pytest.raises(InvalidInput, match="cpus"):
        engine.compare(*clusters, {"admit": {"cpus": 1}})


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("{}", "/none.json"), 1, "/none.json"),
        (("{}", "{}", "--ask", "none"), 2, "none"),
        (("{}", "{}", "--ask", "admit", "--with", '{"cpu": 1}'), 2, "cpu: unknown field"),
        (("{}",), 2, "Missing argument 'B'"),
    ],
)
def test_wrong_usage_names_its_part(arguments, status, message, run_plan: Callable[..., Any], tmp_path):
    read(tmp_path, *BASE)
    done = run_plan(
        "compare", *(part.format(tmp_path / "cluster.json") if part == "{}" else part for part in arguments)
    )
    assert done.returncode == status
    assert message.encode() in done.stderr
