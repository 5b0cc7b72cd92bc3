"""rollout over random clusters: which pods nodes refuse, and the limit of all pods, by plain arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.plan import load_snapshot
from engine.plan.questions.rollout import RolloutParameters, rollout

MI, GI = 1 << 20, 1 << 30
THRESHOLD = 100 * MI
"""The default of evictionHard's memory.available."""


def a_cluster(random: np.random.Generator) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return nodes with pods of random sizes, some of which are full: the objects, and the pods by node."""
    objects, pods = [], dict[str, list[dict[str, Any]]]()
    for number in range(int(random.integers(1, 5))):
        name = f"n{number}"
        cpu, memory = int(random.integers(1, 17)), int(random.integers(2, 33)) * GI
        amounts = {"cpu": str(cpu), "memory": str(memory), "pods": "110"}
        less = {"cpu": f"{cpu * 1000 - 100}m", "memory": str(memory - 300 * MI), "pods": "110"}
        objects.append(
            {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {},
                "status": {"capacity": amounts, "allocatable": less,
                           "conditions": [{"type": "Ready", "status": "True"}]},
            }
        )  # fmt: skip
        pods[name] = []
        for place in range(int(random.integers(0, 14))):
            requests = {
                "cpu": int(random.integers(0, cpu * 250)),
                "memory": int(random.integers(0, memory // 4)),
            }
            own = {"name": f"p{number}-{place}", "created": int(random.integers(0, 8)), **requests}
            pods[name].append(own)
            container = {
                "name": "c",
                "resources": {"requests": {"cpu": f"{own['cpu']}m", "memory": str(own["memory"])}},
            }
            objects.append(
                {
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": own["name"], "namespace": "shop", "uid": own["name"],
                                 "creationTimestamp": f"2026-01-01T00:00:0{own['created']}Z"},
                    "spec": {"nodeName": name, "containers": [container]},
                    "status": {"phase": "Running"},
                }
            )  # fmt: skip
    return objects, pods


def a_change(random: np.random.Generator) -> dict[str, Any]:
    """Return random fields of a configuration that change what pods may request."""
    changes: dict[str, Any] = {}
    for field in ("kubeReserved", "systemReserved"):
        reserved = {"cpu": f"{random.integers(0, 1000)}m", "memory": f"{random.integers(0, 2000)}Mi"}
        chosen = {name: value for name, value in reserved.items() if random.random() < 0.5}
        if chosen:
            changes[field] = chosen
    if random.random() < 0.5:
        changes["maxPods"] = int(random.integers(1, 15))
    if random.random() < 0.3:
        changes["evictionHard"] = {"memory.available": f"{random.integers(1, 900)}Mi"}
    return changes or {"maxPods": 3}


def reserved_by(changes: dict[str, Any], resource: str) -> int:
    """Return what both reserves take of CPU (milli) or memory (bytes)."""
    texts = (changes.get(field, {}).get(resource, "0") for field in ("kubeReserved", "systemReserved"))
    unit = {"cpu": 1, "memory": MI}[resource]
    return sum(int(text.removesuffix("m").removesuffix("Mi")) * unit for text in texts)


def refused(pods: list[dict[str, Any]], allocatable: dict[str, int]) -> dict[str, str]:
    """Return the pods that a node refuses, each with the first resource that is short."""
    found, used, count = dict[str, str](), {"cpu": 0, "memory": 0}, 0
    for pod in sorted(pods, key=lambda one: one["created"]):
        short = [name for name in used if pod[name] and used[name] + pod[name] > allocatable[name]]
        if count + 1 > allocatable["pods"]:
            found[pod["name"]] = "OutOfpods"
        elif short:
            found[pod["name"]] = f"OutOf{short[0]}"
        else:
            count += 1
            used = {name: used[name] + pod[name] for name in used}
    return found


@pytest.mark.parametrize("seed", range(80))
def test_refusals_and_limits_are_those_of_the_arithmetic(seed: int, tmp_path: Path) -> None:
    """Refuse the pods that fit today and no longer fit, in the order of their creation."""
    random = np.random.default_rng(seed)
    objects, pods = a_cluster(random)
    changes = a_change(random)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    rows = rollout(load_snapshot([str(path)]), RolloutParameters(changes=changes)).table.to_pylist()
    hard = changes.get("evictionHard", {}).get("memory.available")
    threshold = int(hard.removesuffix("Mi")) * MI if hard else THRESHOLD
    for node in (one for one in objects if one["kind"] == "Node"):
        name = node["metadata"]["name"]
        capacity = {
            "cpu": int(node["status"]["capacity"]["cpu"]) * 1000,
            "memory": int(node["status"]["capacity"]["memory"]),
        }
        today = {"cpu": capacity["cpu"] - 100, "memory": capacity["memory"] - 300 * MI, "pods": 110}
        left = {resource: most - reserved_by(changes, resource) for resource, most in capacity.items()}
        after = {
            "cpu": max(left["cpu"], 0),
            "memory": max(left["memory"] - threshold, 0),
            "pods": changes.get("maxPods", 110),
        }
        before = refused(pods[name], today)
        expected = {pod: why for pod, why in refused(pods[name], after).items() if pod not in before}
        mine = [row for row in rows if row["node"] == name]
        found = {
            row["object"].removeprefix("shop/"): row["reason"].partition(":")[0]
            for row in mine
            if row["decision"] == "refuse"
        }
        assert found == expected
        limits = [row["amount"] for row in mine if row["decision"] == "limit"]
        assert limits == ([max(left["memory"], 0)] if reserved_by(changes, "memory") else [])
