"""Asking every node at once gives the answer that each node gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.admission import InsufficientResource, NodeAllocations, decide
from engine.admission.everywhere import shortages_everywhere, used_on_each_node, victims_everywhere
from engine.api.documents import convert
from engine.api.meta import ObjectMeta
from engine.api.node import Node
from engine.api.pod import Pod, PodSpec
from engine.api.qos import is_critical
from engine.tables import ClusterTables


def random_pod(rng: np.random.Generator, name: str, **spec: Any) -> Pod:
    requests = {"cpu": f"{rng.integers(0, 900)}m", "memory": f"{rng.integers(0, 900)}Mi"}
    if rng.random() < 0.3:
        requests["example.com/gpu"] = str(rng.integers(0, 3))
    if rng.random() < 0.2:
        requests["hugepages-2Mi"] = f"{rng.integers(1, 9) * 2}Mi"
    container = {"name": "c", "resources": {"requests": requests}}
    if rng.random() < 0.3:
        spec["overhead"] = {"cpu": "10m", "example.com/fpga": "1"} if rng.random() < 0.3 else {"cpu": "10m"}
    priority = [None, 0, 100, 2_000_000_000][rng.integers(0, 4)]
    document = {"metadata": {"name": name, "uid": name}, "spec": {"containers": [container], **spec}}
    if priority is not None:
        document["spec"]["priority"] = priority
    return convert(document, Pod, name)


def random_node(rng: np.random.Generator, name: str) -> Node:
    allocatable = {"cpu": str(rng.integers(1, 5)), "memory": "3Gi", "pods": str(rng.integers(2, 9))}
    if rng.random() < 0.5:
        allocatable["example.com/gpu"] = str(rng.integers(0, 4))
    if rng.random() < 0.3:
        allocatable["hugepages-2Mi"] = "16Mi"
    return convert({"metadata": {"name": name}, "status": {"allocatable": allocatable}}, Node, name)


@pytest.mark.parametrize("seed", range(20))
def test_every_node_answers_as_it_does_alone(seed):
    rng = np.random.default_rng(seed)
    nodes = [
        (random_node(rng, f"n{i}"), [random_pod(rng, f"{i}-{j}") for j in range(rng.integers(0, 7))])
        for i in range(8)
    ]
    cluster = ClusterTables.from_objects(nodes)
    used = used_on_each_node(cluster)
    for number in range(10):
        pod = random_pod(rng, f"wanted-{number}")
        short = shortages_everywhere(cluster, pod, used)
        taken = victims_everywhere(cluster, pod, short.ids, short.missing)
        for index, (node, pods) in enumerate(nodes):
            verdict = decide(NodeAllocations(node, pods), pod)
            missing = zip(short.resources, short.missing[:, index].tolist(), strict=True)
            failed = [f for f in verdict.failures if isinstance(f, InsufficientResource)]
            expected = [(failure.resource, failure.missing) for failure in failed]
            assert [(name, amount) for name, amount in missing if amount] == expected
            wanted = dict(zip(short.resources, short.wanted[:, index].tolist(), strict=True))
            assert all(wanted[failure.resource] == failure.requested for failure in failed)
            if is_critical(pod):
                assert verdict.admit is not taken.left[:, index].any()
                victims = taken.rows[taken.offsets[index] : taken.offsets[index + 1]]
                chosen = verdict.preemption.victims if verdict.preemption is not None else ()
                assert [cluster.uids[row] for row in victims] == list(chosen)


def test_nodes_without_pressure_evict_no_pod():
    rng = np.random.default_rng(1)
    node = random_node(rng, "n")
    cluster = ClusterTables.from_objects([(node, [random_pod(rng, f"p{i}") for i in range(9)])])
    pod = Pod(metadata=ObjectMeta(name="c", uid="c"), spec=PodSpec(priority=2_000_000_001))
    short = shortages_everywhere(cluster, pod, used_on_each_node(cluster))
    taken = victims_everywhere(cluster, pod, short.ids, short.missing)
    assert len(taken.rows)
    assert not taken.left.any()
    taken = victims_everywhere(cluster, pod, short.ids, np.zeros_like(short.missing))
    assert not len(taken.rows)
    assert not taken.left.any()
