"""headroom: whether workloads fit together, how many more do, and what is left in a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.api.errors import InvalidInput
from engine.plan import Snapshot
from engine.plan.answers.answer import Answer
from engine.plan.questions.headroom import HeadroomParameters, headroom
from tests.plan.placement.made_cluster import HOST, REQUIRED, ZONE, device_objects, node, pod, read


def controller(kind: str, name: str, replicas: int | None, cpu: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "app", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    field = "parallelism" if kind == "Job" else "replicas"
    count = {} if replicas is None else {field: replicas}
    meta = {"name": name, "namespace": "shop"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": {**count, "template": template}}


def asked(tmp_path: Path, snapshot: Snapshot, *documents: dict[str, Any], **parameters: Any) -> Answer:
    path = tmp_path / "workloads.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return headroom(snapshot, HeadroomParameters(file=[str(path)], **parameters))


def rows(answer: Answer, *decisions: str) -> list[tuple[str, str, int]]:
    listed = answer.table.to_pylist()
    return [(row["node"], row["object"], row["amount"]) for row in listed if row["decision"] in decisions]


def three(tmp_path: Path, *more: dict[str, Any]) -> Snapshot:
    """Three nodes of 4 CPUs in two zones, with a pod of 1 CPU on each."""
    nodes = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
    pods = [pod(f"old{number}", f"n{number}", app="old", requests={"cpu": "1"}) for number in (1, 2, 3)]
    return read(tmp_path, *nodes, *pods, *more)


def test_workloads_are_placed_together_and_then_each_is_repeated(tmp_path):
    answer = asked(
        tmp_path,
        three(tmp_path),
        controller("Deployment", "web", 4, "1"),
        controller("Job", "run", None, "2"),
    )
    placed = rows(answer, "places")
    assert sum(amount for _, name, amount in placed if name == "shop/web") == 4
    assert sum(amount for _, name, amount in placed if name == "shop/run") == 1
    # 9 CPUs were free, 6 are now used.
    assert ("", "shop/web", 3) in rows(answer, "headroom")
    assert answer.headline.startswith("All 5 pods fit; 3 more of shop/web, ")


def test_each_copy_gets_its_own_claim_from_a_template(tmp_path):
    objects = device_objects("n2", "n3", on="n1")
    spec = objects[-1]["spec"]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu", "namespace": "shop"},
        "spec": {"spec": spec},
    }
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    job = controller("Job", "train", 1, "100m", resourceClaims=claims)
    answer = asked(tmp_path, three(tmp_path, *objects, template), job)
    assert sum(amount for _, _, amount in rows(answer, "places")) == 1
    (more,) = [row for row in answer.table.to_pylist() if row["decision"] == "headroom"]
    assert (more["amount"], more["reason"]) == (
        1,
        "then no node of 3: 3 excluded by the devices that its claims need",
    )


def test_replicas_that_do_not_fit_are_counted_with_the_reason(tmp_path):
    answer = asked(tmp_path, three(tmp_path), controller("StatefulSet", "db", 5, "2"))
    (row,) = [row for row in answer.table.to_pylist() if row["decision"] == "no-place"]
    assert row["amount"] == 2
    assert "without enough cpu" in row["reason"]
    assert answer.headline == "3 of 5 pods fit; 0 more of shop/db."


def test_the_important_workload_is_placed_first(tmp_path):
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    answer = asked(
        tmp_path,
        three(tmp_path, high),
        controller("Deployment", "low", 3, "3"),
        controller("Deployment", "high", 3, "3", priorityClassName="high"),
    )
    assert rows(answer, "no-place") == [("", "shop/low", 3)]


def test_rules_between_replicas_bound_the_copies(tmp_path):
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}
    alone = {"podAntiAffinity": {REQUIRED: [term]}}
    answer = asked(tmp_path, three(tmp_path), controller("Deployment", "web", 1, "100m", affinity=alone))
    assert rows(answer, "headroom") == [("", "shop/web", 2)]


def test_a_copy_of_an_existing_pod_keeps_its_labels(tmp_path):
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}
    there = pod("there", "n1", affinity={"podAntiAffinity": {REQUIRED: [term]}})
    answer = headroom(three(tmp_path, there), HeadroomParameters(like=["shop/there"]))
    assert rows(answer, "headroom") == [("", "shop/there", 2)]
    assert answer.headline == "2 more of shop/there."


def test_copies_stop_at_most(tmp_path):
    answer = asked(tmp_path, three(tmp_path), controller("Deployment", "web", 0, "1m"), most=7)
    assert rows(answer, "headroom") == [("", "shop/web", 7)]


@pytest.mark.parametrize(("fail", "failures"), [("node", 3), ("zone", 2), (ZONE, 2)])
def test_every_failure_is_survived_with_less_headroom(fail, failures, tmp_path):
    """Without n1, its two pods move and 6 - 1 CPUs are free on the others; without zone a, 1 is free."""
    answer = asked(tmp_path, three(tmp_path), controller("Deployment", "web", 0, "1"), fail=fail)
    assert len(rows(answer, "survives")) == failures
    least = min(amount for *_, amount in rows(answer, "survives"))
    assert least == (5 if fail == "node" else 1)
    assert answer.headline.startswith(
        f"9 more of shop/web. If any one {fail} fails, all pods have a place, and "
    )
    assert rows(answer, "headroom") == [("", "shop/web", 9)]


def test_a_failure_that_loses_pods_is_named(tmp_path):
    answer = asked(tmp_path, three(tmp_path), controller("Deployment", "web", 6, "1"), fail="zone")
    assert rows(answer, "loses") == [("", "zone a", 5), ("n3", "zone b", 1)]
    said = "2 of 2 zones cannot fail without pods losing their place: 5 pods if zone a fails."
    assert said in answer.headline


def test_daemons_and_pods_without_a_controller_end_with_their_node(tmp_path):
    more = [pod("daemon", "n1", owner="DaemonSet", requests={"cpu": "1"})]
    more += [pod("single", "n1", owner="", requests={"cpu": "1"})]
    answer = asked(tmp_path, three(tmp_path, *more), controller("Deployment", "web", 0, "1"), fail="node")
    assert ("n1", "node n1", 5) in rows(answer, "survives")
    assert [text for text in answer.notes if "without a controller" in text]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "Service", "metadata": {"name": "x"}}, "expected one of Pod, Deployment"),
        (controller("Deployment", "web", -1, "1"), r"Deployment web: spec\.replicas: expected 0 to"),
        ({"kind": "Deployment", "metadata": {"name": "web"}, "spec": {}}, "spec.template: expected a pod"),
        (controller("Deployment", "web", 1, "-1"), "negative"),
        (controller("Deployment", "web", 1, "much"), "web"),
    ],
)
def test_a_faulty_manifest_is_named(document, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        asked(tmp_path, three(tmp_path), document)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "name manifests"),
        ({"like": ["shop/none"]}, "no such pod"),
        ({"fail": "rack"}, "has the label rack"),
    ],
)
def test_faulty_parameters_are_named(parameters, said, tmp_path):
    given = {"like": ["shop/old1"]} | parameters if "fail" in parameters else parameters
    with pytest.raises(InvalidInput, match=said):
        headroom(three(tmp_path), HeadroomParameters(**given))


def test_the_command_answers_in_ci(run_plan: Callable[..., Any], tmp_path):
    three(tmp_path)
    path = tmp_path / "web.yaml"
    path.write_text(json.dumps(controller("Deployment", "web", 6, "1")))
    done = run_plan(
        *("headroom", "-f", str(path), "--fail", "zone", "--json", "--fail-on", "loses"),
        str(tmp_path / "cluster.json"),
    )
    assert done.returncode == 1
    assert "cannot fail without pods losing their place" in json.loads(done.stdout)["headline"]
