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
from engine.plan.answers.answer import Answer
from engine.plan.cluster import Cluster, ask
from engine.plan.questions import QUESTIONS
from engine.plan.snapshot.anonymous import anonymous
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
    """A cluster whose names appear in owners, labels, selectors, affinity, taints, budgets and volumes."""
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
                 volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "disk-7"}}])  # fmt: skip
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
