"""Asking every node at once gives the answer that each node gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.admission import AdmittedPods, InsufficientResource, decide
from engine.admission.everywhere import NOT_SHORT, admit_everywhere, shortages_on
from engine.api.documents import convert
from engine.api.node import Node
from engine.api.pod import Pod
from engine.tables import ClusterTables, ResourceNames


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
def test_every_node_says_what_it_says_alone(seed):
    rng = np.random.default_rng(seed)
    nodes = [
        (random_node(rng, f"n{i}"), [random_pod(rng, f"{i}-{j}") for j in range(rng.integers(0, 7))])
        for i in range(8)
    ]
    cluster = ClusterTables.from_objects(nodes)
    for number in range(10):
        pod = random_pod(rng, f"wanted-{number}")
        answer = admit_everywhere(cluster, pod)
        for index, (node, pods) in enumerate(nodes):
            verdict = decide(AdmittedPods(node, pods), pod)
            victims = answer.victims[answer.victim_offsets[index] : answer.victim_offsets[index + 1]]
            assert answer.admits[index] == verdict.admit
            assert answer.fits[index] == (not verdict.failures)
            chosen = verdict.preemption.victims if verdict.preemption is not None else ()
            assert [cluster.uids[row] for row in victims] == list(chosen)
            if verdict.failures:
                first = verdict.failures[0]
                assert isinstance(first, InsufficientResource)
                if cluster.resources.find(first.resource) is not None:
                    assert cluster.resources.name(int(answer.first_short[index])) == first.resource
            else:
                assert answer.first_short[index] == NOT_SHORT


def test_ineligible_nodes_do_nothing():
    rng = np.random.default_rng(1)
    node = random_node(rng, "n")
    cluster = ClusterTables.from_objects([(node, [random_pod(rng, f"p{i}") for i in range(9)])])
    critical = convert(
        {
            "metadata": {"name": "c", "uid": "c"},
            "spec": {"priority": 2_000_000_001, "containers": [{"name": "c"}]},
        },
        Pod,
        "c",
    )
    answer = admit_everywhere(cluster, critical)
    assert answer.admits.all()
    assert len(answer.victims)
    answer = admit_everywhere(cluster, critical, eligible=np.zeros(1, np.bool_))
    assert not answer.admits.any()
    assert not len(answer.victims)


@pytest.mark.parametrize("seed", range(10))
def test_many_pods_on_one_node(seed):
    rng = np.random.default_rng(seed)
    admitted = AdmittedPods(random_node(rng, "n"), [random_pod(rng, f"p{i}") for i in range(4)])
    wanted = [random_pod(rng, f"w{i}") for i in range(12)]
    names = ResourceNames()
    shortage = shortages_on(admitted.node, admitted.used, len(admitted), wanted, names)
    for pod, missing in zip(wanted, shortage.tolist(), strict=True):
        expected = {failure.resource: failure.missing for failure in admitted.check(pod)}
        got = dict(zip(("pods", *names.names), missing, strict=True))
        assert {name: amount for name, amount in got.items() if amount} == expected
