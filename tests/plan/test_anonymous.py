"""Snapshots without names: nothing of the names is left, and questions answer as before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.plan import Snapshot, load_snapshot, write_snapshot
from engine.plan.anonymize.anonymous import anonymous
from engine.plan.anonymize.device_objects import device_objects
from engine.plan.anonymize.pseudonyms import Pseudonyms
from engine.plan.answers.answer import Answer
from engine.plan.cluster import Cluster, ask
from engine.plan.questions import QUESTIONS
from engine.plan.questions.drain import DrainParameters
from engine.plan.reading.dynamic_rows import DynamicRows
from engine.plan.snapshot.json_writer import write_list
from tests.plan import test_claims
from tests.plan.placement import made_cluster
from tests.plan.use.sized_cluster import SizedCluster

SECRETS = (
    "shop",
    "web",
    "secret",
    "example.com",
    "team",
    "gold",
    "zone-x",
    "disk-7",
    "n1",
    "n2",
    "n3",
    "vault",
)


@pytest.fixture
def named(tmp_path: Path) -> Snapshot:
    """Return a cluster with names in owners, labels, selectors, affinity, taints, budgets and volumes."""
    cluster = SizedCluster()
    for name in ("n1", "n2", "n3"):
        cluster.node(name)
        labels = cluster.objects[-1]["metadata"]["labels"]
        labels |= {"topology.kubernetes.io/zone": "zone-x", "example.com/tier": "gold"}
    cluster.objects[-1]["spec"]["taints"] = [
        {"key": "example.com/secret", "value": "team", "effect": "NoSchedule"}
    ]
    cluster.pods("Deployment shop/web", ["n1", "n2"], {"cpu": "1", "memory": "1Gi"}, None,
                 topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                                             "whenUnsatisfiable": "DoNotSchedule",
                                             "labelSelector": {"matchLabels": {"app": "web"}}}])  # fmt: skip
    cluster.pods("StatefulSet shop/vault", ["n1"], {"cpu": "1"}, None,
                 nodeSelector={"example.com/tier": "gold", "kubernetes.io/hostname": "n1"},
                 volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "disk-7"}},
                          {"name": "e", "gcePersistentDisk": {"pdName": "team"}}])  # fmt: skip
    cluster.pods("Deployment shop/secret", ["n2"], {"cpu": "500m"}, None,
                 tolerations=[{"key": "example.com/secret", "operator": "Equal", "value": "team"}],
                 affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                     {"topologyKey": "topology.kubernetes.io/zone", "namespaces": ["shop"],
                      "labelSelector": {"matchExpressions": [
                          {"key": "app", "operator": "In", "values": ["web"]}]}}]}})  # fmt: skip
    cluster.objects += [
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
         "metadata": {"name": "web", "namespace": "shop"},
         "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
         "metadata": {"name": "disk-7", "namespace": "shop"},
         "spec": {"volumeName": "vault"}},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "vault"},
         "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
             {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n3"]}]}]}}}},
    ]  # fmt: skip
    return cluster.snapshot(tmp_path)


def test_no_name_is_left_in_the_file(named: Snapshot, tmp_path: Path) -> None:
    made, table = anonymous(named)
    write_snapshot(made, tmp_path / "a.kes")
    again = load_snapshot([str(tmp_path / "a.kes")])
    texts = []
    for name in ("nodes", "pods", "templates", "images", "budgets", "volumes", "priority_classes"):
        texts.append(json.dumps(getattr(again, name).to_pylist(), default=str))
    texts.append(json.dumps(again.meta))
    whole = "\n".join(texts)
    words = set(re.findall(r"[A-Za-z0-9.-]+", whole))
    left = {
        secret
        for secret in SECRETS
        if any(secret in re.split(r"[.-]", word) or secret == word for word in words)
    }
    assert not left
    assert "example.com" not in whole
    assert table["namespace"] == {"shop": "namespace-1"}
    assert set(table["node"]) >= {"n1", "n2", "n3"}


def restored(answer: Answer, table: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return the rows with the names that they stand for."""
    back = {fake: name for known in table.values() for name, fake in known.items()}
    pattern = re.compile(r"[a-z]+-[0-9]+")
    rows = answer.table.to_pylist()
    for row in rows:
        for field in ("node", "object", "reason"):
            row[field] = pattern.sub(lambda match: back.get(match[0], match[0]), row[field])
    return rows


@pytest.mark.parametrize(
    ("question", "parameters"),
    [
        ("drain", {"nodes": ["*"]}),
        ("drain", {"nodes": ["{n1}"]}),
        ("evict", {"available": "10Mi", "use": "90%"}),
        ("admit", {"requests": {"cpu": "1"}}),
        ("pending", {}),
        ("cgroups", {}),
    ],
)
def test_questions_answer_as_before(question: str, parameters: dict[str, Any], named: Snapshot) -> None:
    made, table = anonymous(named)
    answers = []
    for snapshot, n1 in ((named, "n1"), (made, table["node"]["n1"])):
        plain = json.loads(json.dumps(parameters).replace("{n1}", n1))
        typed = msgspec.convert(plain, QUESTIONS[question].parameters)
        answers.append(ask(Cluster(snapshot), question, typed))
    before, after = answers[0].table.to_pylist(), restored(answers[1], table)
    assert before == after


def test_made_up_clusters_answer_as_before(cluster: Snapshot) -> None:
    made, table = anonymous(cluster)
    for question in ("drain", "preempt", "image-gc"):
        plain = {"drain": {"nodes": ["*"]}, "preempt": {"requests": {"cpu": "2"}, "critical": True}}.get(
            question, {}
        )
        typed = msgspec.convert(plain, QUESTIONS[question].parameters)
        before, after = (ask(Cluster(snapshot), question, typed) for snapshot in (cluster, made))
        for name in ("decision", "amount", "unit"):
            assert before.table[name].to_pylist() == after.table[name].to_pylist(), question
    assert len(table["node"]) >= cluster.node_count


KINDS = {"slices": "ResourceSlice", "used": "ResourceClaim", "classes": "DeviceClass"}
STAYING = re.compile(
    r"NoSchedule|NoExecute|None|In|NotIn|Exists|Equal|ExactCount|All|[0-9.]+[KMGTi]*|metadata.name"
    r"|resource.kubernetes.io/.*|pods"
)


def texts_of(value: Any) -> set[str]:
    """Return every text of a document that is no field's name; keys of maps of names are texts too."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return set().union(*map(texts_of, value))
    if isinstance(value, dict):
        found = set().union(*map(texts_of, value.values()))
        for name in ("attributes", "capacity", "counters", "consumedCapacity", "requests"):
            if isinstance(value.get(name), dict):
                found |= value[name].keys() - {"requests"}
        return found
    return set()


def without_names(situation: dict[str, Any]) -> tuple[dict[str, Any], Pseudonyms]:
    """Return a situation of `test_claims` whose objects have gone through the table of a snapshot."""
    rows = DynamicRows()
    objects = [(kind, one) for part, kind in KINDS.items() for one in situation[part]]
    objects.append(("ResourceClaim", situation["claim"]))
    for number, (kind, document) in enumerate(objects):
        meta = document.get("metadata", {}) | {"name": f"o{number}"}
        if kind == "DeviceClass":
            meta = document["metadata"]
        rows.add(kind, json.dumps(document | {"metadata": meta}).encode())
    names = Pseudonyms()
    made = device_objects(names, rows.table()).to_pylist()
    assert len(made) == len(objects)
    read = [(row["kind"], json.loads(row["document"])) for row in made]
    fresh = {part: [one for of, one in read if of == kind] for part, kind in KINDS.items()}
    return fresh | {"claim": fresh["used"].pop()}, names


def test_claims_get_the_same_devices_without_names() -> None:
    """600 situations with partitions, counters, constraints, taints and selectors of all kinds."""
    answered, named = 0, set[str]()
    for situation in test_claims.recorded():
        fresh, names = without_names(situation)
        wanted = test_claims.allocated(situation)
        table = {fake: name for kind in names.table.values() for name, fake in kind.items()}
        node, labels = names.of("node", "n1"), names.labels({"z": "a"})
        got = test_claims.allocated(fresh, node, labels)
        if got is not None:
            got = [["/".join(table[part] for part in text.split("/")) for text in pick] for pick in got]
        assert got == wanted, situation["number"]
        answered += wanted is not None
        before = texts_of([situation[part] for part in (*KINDS, "claim")])
        secrets = {text for text in before if text and not STAYING.fullmatch(text)}
        assert secrets & texts_of(fresh) == set(), situation["number"]
        named |= secrets
    assert answered > 50
    assert len(named) > 50


def test_claims_are_asked_about_as_before(tmp_path: Path) -> None:
    objects = made_cluster.device_objects("n2")
    user = made_cluster.pod("web-0", "n1", resourceClaims=[{"name": "d", "resourceClaimName": "gpu"}])
    user["spec"]["containers"][0]["resources"]["claims"] = [{"name": "d"}]
    nodes = [made_cluster.node(name) for name in ("n1", "n2", "n3")]
    named = made_cluster.read(tmp_path, *nodes, user, *objects)
    made, table = anonymous(named)
    write_snapshot(made, tmp_path / "a.kes")
    with (tmp_path / "a.json").open("wb") as file:
        write_list(made, file)
    questions = [(named, "n1")]
    questions += [(load_snapshot([str(tmp_path / one)]), table["node"]["n1"]) for one in ("a.kes", "a.json")]
    answers = [ask(Cluster(snapshot), "drain", DrainParameters(nodes=[node])) for snapshot, node in questions]
    before = answers[0].table.to_pylist()
    assert [row["decision"] for row in before] == ["move", "drained"]
    assert "to n2" in before[0]["reason"]
    for answer in answers[1:]:
        assert restored(answer, table) == before
    written = (tmp_path / "a.json").read_text()
    for gone in (made_cluster.GPU, "shop", "n1", "n2", "gpu-0", "gpu", "web"):
        assert f'"{gone}"' not in written


def test_the_command_keeps_the_table_back(
    cluster_file: Path, run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    names, made = tmp_path / "names.json", tmp_path / "made.kes"
    done = run_plan("snapshot", str(cluster_file), "--anonymize", str(names), "-o", str(made))
    assert done.returncode == 0, done.stderr
    table = json.loads(names.read_text())
    assert names.stat().st_mode & 0o777 == 0o600
    assert load_snapshot([str(made)]).node_names[0] == "node-1"
    assert "node-1" in table["node"].values()
    done = run_plan("snapshot", str(cluster_file), "--anonymize", "names", "-o", str(made))
    assert b"--anonymize: name the file for the table of names" in done.stderr
