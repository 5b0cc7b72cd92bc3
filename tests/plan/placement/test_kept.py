"""Sums and labels are computed once per snapshot, and once more only where they would differ."""

from __future__ import annotations

import pytest

from engine.api.documents import as_written
from engine.api.pod import Pod
from engine.plan.placement.node_capacity import requests_on_nodes
from engine.plan.reading.added import AddedPods, with_pods
from engine.plan.snapshot.node_labels import labels_of_nodes
from tests.plan.placement import made_cluster


@pytest.fixture
def cluster(tmp_path):
    pods = [made_cluster.pod("web-1", "n1", requests={"cpu": "2"}), made_cluster.pod("web-2", "n1")]
    return made_cluster.read(tmp_path, made_cluster.node("n1"), made_cluster.node("n2"), *pods)


def waiting(**requests: str) -> AddedPods:
    container = {"name": "c", "resources": {"requests": requests}}
    return AddedPods(
        as_written({"metadata": {"name": "p"}, "spec": {"containers": [container]}}, Pod, "p"), 1
    )


def test_requests_are_summed_once_per_snapshot(cluster):
    sums = requests_on_nodes(cluster)
    assert dict(zip(cluster.resources.names, sums.tolist(), strict=True))["cpu"] == [2100, 0]
    assert requests_on_nodes(cluster) is sums


def test_waiting_pods_leave_the_sums_of_nodes_as_they_are(cluster):
    more, _ = with_pods(cluster, [waiting(cpu="1")])
    labels = labels_of_nodes(more)
    assert labels_of_nodes(cluster) is labels
    assert requests_on_nodes(more) is requests_on_nodes(cluster)


def test_pods_with_another_resource_get_sums_that_have_it(cluster):
    assert "example.com/gpu" not in cluster.resources.names
    requests_on_nodes(cluster)
    more, _ = with_pods(cluster, [waiting(**{"example.com/gpu": "1"})])
    assert len(requests_on_nodes(more)) == len(more.resources.names) == len(cluster.resources.names) + 1
