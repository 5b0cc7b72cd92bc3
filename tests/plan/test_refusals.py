"""What the agent would refuse, or no node has, is refused in a plan, too: no answer reassures by mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.errors import InvalidInput
from engine.plan.cluster import Cluster, ask
from engine.plan.on_dask import pack, unpack
from engine.plan.questions import QUESTIONS
from engine.plan.questions.evict import EvictParameters
from engine.plan.scenario import Plan

REFUSED = [
    ("evict", {"available": "200%"}, "available: percentage of memory.available must be <= 100%: 200%"),
    ("evict", {"available": "-1%"}, "available: percentage of memory.available must be >= 0%: -1%"),
    ("evict", {"available": "-1Gi"}, "available: expected 0 to"),
    ("evict", {"available": "lots"}, "available: quantity 'lots' is not valid"),
    ("evict", {"available": "100Ti"}, "available: 100Ti is more than the "),
    ("evict", {"growth": "-100Mi"}, "growth: expected 0 to"),
    ("evict", {"use": "80"}, "use: expected a percentage"),
    (
        "evict",
        {"threshold": "101%"},
        "threshold: eviction percentage threshold memory.available must be <= 100%: 101%",
    ),
    ("evict", {"threshold": "-1Gi"}, "threshold: eviction threshold memory.available must be positive: -1Gi"),
    ("evict", {"soft": "101%"}, "soft: eviction percentage threshold memory.available must be <= 100%: 101%"),
    ("evict", {"soft": "10%", "grace": "long"}, 'grace: time: invalid duration "long"'),
    ("evict", {"signal": "nodefs.available"}, "signal: expected one of memory.available"),
    (
        "evict",
        {"changes": {"evicionHard": {}}},
        "changes: evicionHard: no such field in KubeletConfiguration; did you mean evictionHard?",
    ),
    (
        "evict",
        {"changes": {"evictionHard": {"memory.available": "200%"}}},
        "changes: evictionHard: eviction percentage",
    ),
    (
        "cgroups",
        {"changes": {"maxPods": -1}},
        "changes: invalid configuration: maxPods (--max-pods) -1 must not be",
    ),
    (
        "image-gc",
        {"changes": {"imageGCHighThresholdPercent": 150}},
        "changes: invalid configuration: imageGCHighThresholdPercent (--image-gc-high-threshold) 150 must be",
    ),
    (
        "image-gc",
        {"changes": {"imageGCHighThresholdPercent": "x"}},
        "changes: imageGCHighThresholdPercent: Expected",
    ),
    ("image-gc", {"high": 101}, "high: invalid HighThresholdPercent 101, must be in range [0-100]"),
    ("image-gc", {"low": -1}, "low: invalid LowThresholdPercent -1, must be in range [0-100]"),
    (
        "image-gc",
        {"high": 50, "low": 60},
        "low: LowThresholdPercent 60 can not be higher than HighThresholdPercent 50",
    ),
    ("image-gc", {"order": "random"}, "order: 'random' is not one of lru"),
    ("devices", {"resource": "gpu"}, "resource: no node has gpu; did you mean nvidia.com/gpu?"),
    (
        "admit",
        {"requests": {"gpu": 1}},
        "or domain/name; did you mean nvidia.com/gpu?",
    ),
    (
        "admit",
        {"requests": {"nvidia.com/gpus": 1}},
        "requests: no node has nvidia.com/gpus; did you mean nvidia.com/gpu?",
    ),
    ("admit", {"limits": {"example.com/odd": 1}}, "limits: no node has example.com/odd"),
    ("admit", {"requests": {"cpu": "-1"}}, "requests: cpu: expected 0 or more, got -1"),
    ("admit", {"requests": {"memory": "1Gib"}}, "requests: memory: quantity '1Gib' is not valid"),
    ("admit", {"requests": {"cpu": 2}, "limits": {"cpu": 1}}, "requests: cpu: "),
    (
        "preempt",
        {"requests": {"nvidia.com/gpu": "0.5"}, "critical": True},
        "nvidia.com/gpu: expected a whole number",
    ),
]


@pytest.mark.parametrize(("question", "parameters", "words"), REFUSED)
def test_values_that_no_agent_accepts_are_refused(cluster, question, parameters, words):
    with pytest.raises(InvalidInput) as refused:
        ask(Cluster(cluster), question, msgspec.convert(parameters, QUESTIONS[question].parameters))
    assert words in str(refused.value)


@pytest.mark.parametrize("available", ["0%", "100%", "0", "1Gi", "12.5%"])
def test_possible_available_amounts_are_accepted(cluster, available):
    assert len(ask(Cluster(cluster), "evict", EvictParameters(available=available)))


def test_a_resource_that_some_nodes_have_is_asked_about_in_shards(cluster_file):
    answers = [
        ask(Cluster.open([str(cluster_file)]), "admit", admitted("nvidia.com/gpu"), shard_pods=pods)
        for pods in (1, 0)
    ]
    assert answers[0].table.equals(answers[1].table)
    with pytest.raises(InvalidInput, match=r"no node has nvidia\.com/gpus"):
        ask(Cluster.open([str(cluster_file)]), "admit", admitted("nvidia.com/gpus"), shard_pods=1)


def test_a_manifest_is_answered_with_a_note(cluster, tmp_path):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
        "  containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpus: 1}}}]\n"
    )
    parameters = msgspec.convert({"file": str(manifest)}, QUESTIONS["admit"].parameters)
    answer = ask(Cluster(unpack(pack(cluster))), "admit", parameters)
    assert "no node has nvidia.com/gpus; did you mean nvidia.com/gpu?" in answer.note_lines


def test_an_error_of_a_scenario_names_its_position(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "scenarios:\n- name: x\n  ask: evict\n  with:\n    resource: memory\n    available: 200%\n"
    )
    with pytest.raises(InvalidInput, match=r"line 6: scenarios\[0\].with.available: percentage of memory"):
        Plan(plan)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evict", "--available", "200%"],
        ["admit", "--requests", "cpu"],
        ["admit", "--requests", "gpu=1"],
        ["admit"],
        ["drain"],
        ["devices", "--policy", "best"],
        ["diff", "admit", "-a", "7"],
        ["cgroups", "--changes", "maxPods=-1"],
        ["evict", "--changes", "evictionHard=x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_status_2(
    cluster_file: Path, arguments: list[str], run_plan: Callable[..., Any]
):
    assert run_plan(*arguments, str(cluster_file)).returncode == 2


def admitted(resource: str) -> msgspec.Struct:
    return msgspec.convert({"requests": {resource: 1}}, QUESTIONS["admit"].parameters)
