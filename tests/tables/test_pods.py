"""PodTable and ClusterTables hold what the API types say, and survive nonsense."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api.documents import as_written
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod, ResourceRequirements
from engine.tables import (
    CPU_ID,
    CRITICAL,
    GUARANTEED,
    HAS_PRIORITY,
    MEMORY_ID,
    STATIC,
    ClusterTables,
    PodColumns,
    PodTable,
    ResourceNames,
)


def make_pod(uid: str, *, requests=None, limits=None, priority=None, annotations=None, overhead=None) -> Pod:
    resources = {"requests": requests or {}, "limits": limits or {}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    if priority is not None:
        spec["priority"] = priority
    if overhead is not None:
        spec["overhead"] = overhead
    metadata = {"name": uid, "uid": uid, "annotations": annotations or {}}
    return as_written({"metadata": metadata, "spec": spec}, Pod, uid)


def test_a_row_holds_the_scaled_sums():
    table = PodTable()
    row = table.add(
        make_pod(
            "a",
            requests={"cpu": "1500u", "memory": "1Gi", "example.com/gpu": "2"},
            limits={"cpu": "2", "memory": "1Gi"},
            priority=7,
            annotations={"kubernetes.io/config.source": "file"},
            overhead={"cpu": "100m", "ephemeral-storage": "1Ki"},
        )
    )
    columns, gpu = table.columns, table.resources.find("example.com/gpu")
    assert columns.ranking[:, row].tolist() == [102, 2**30, 0, 2]
    assert columns.requests[:, row].tolist() == [102, 2**30, 1024, 2]
    assert columns.limits[:, row].tolist() == [2100, 2**30, 0]
    assert (columns.priority[row], gpu) == (7, 3)
    assert columns.flags[row] & (CRITICAL | STATIC | HAS_PRIORITY) == CRITICAL | STATIC | HAS_PRIORITY
    table.validate()


def test_rows_are_stable_reused_and_grow():
    table = PodTable(capacity=1)
    rows = {f"u{i}": table.add(make_pod(f"u{i}", requests={"cpu": f"{i}m"})) for i in range(100)}
    for i in range(0, 100, 3):
        table.remove(f"u{i}")
    table.validate()
    for i in range(1, 100, 3):
        assert table.row(f"u{i}") == rows[f"u{i}"]
        assert table.columns.ranking[CPU_ID, rows[f"u{i}"]] == i
    table.remove("u7")
    reused = table.add(make_pod("new", requests={"memory": "5"}))
    assert reused == rows["u7"]
    assert table.columns.ranking[:, reused].tolist() == [0, 5, 0]
    assert sorted(table.rows().tolist()) == sorted(table.row(uid) for uid in table)
    table.validate()


def test_update_replaces_a_row():
    table = PodTable.from_pods([make_pod("a", requests={"example.com/gpu": "1", "cpu": "1"}), make_pod("b")])
    assert table.update(make_pod("a", requests={"cpu": "3"}, limits={"cpu": "3", "memory": "1"})) == 0
    assert table.columns.ranking[:, 0].tolist() == [3000, 0, 0, 0]
    assert (
        table.update(make_pod("b", requests={"cpu": "1", "memory": "2"}, limits={"cpu": "1", "memory": "2"}))
        == 1
    )
    assert table.columns.qos[1] == GUARANTEED


def _of_priority(pod: Pod, priority: int) -> Pod:
    """Return the pod with a priority that no manifest can have."""
    pod.spec.priority = priority
    return pod


def _of_pod_level(pod: Pod, **requests: str) -> Pod:
    pod.spec.resources = as_written({"requests": requests}, ResourceRequirements, "resources")
    return pod


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (make_pod("a"), "in the table already"),
        (make_pod(""), r"metadata\.uid"),
        (make_pod("n", requests={"cpu": "-1"}), "negative"),
        (make_pod("o", requests={"memory": "1"}, overhead={"memory": "-1"}), "negative"),
        (_of_pod_level(make_pod("l"), memory="-1"), "negative"),
        (make_pod("big", requests={"memory": "9223372036854775808"}), "64 bits"),
        (make_pod("r", requests={"no such thing!": "1"}), "not a resource name"),
        (_of_priority(make_pod("p"), 2**31), "32-bit"),
    ],
)
def test_nonsense_leaves_the_table_as_it_was(pod, message):
    table = PodTable.from_pods([make_pod("a", requests={"cpu": "1"})])
    before = {name: array.copy() for name, array in table.columns.arrays()}
    with pytest.raises(InvalidInput, match=message):
        table.add(pod)
    table.validate()
    assert len(table) == 1
    for name, array in table.columns.arrays():
        assert np.array_equal(array, before[name]), name


def test_from_columns_checks_what_it_takes():
    columns = PodColumns.zeros(3, 3)
    columns.ranking[MEMORY_ID] = [1, 2, 3]
    table = PodTable.from_columns(columns, ResourceNames(), ["a", "b", "c"])
    assert [table.row(uid) for uid in table] == [0, 1, 2]
    table.validate()
    with pytest.raises(InvalidInput, match="same uid"):
        PodTable.from_columns(PodColumns.zeros(2, 3), ResourceNames(), ["a", "a"])
    columns.ranking[0, 1] = -1
    with pytest.raises(InvalidInput, match="ranking: an amount is negative"):
        PodTable.from_columns(columns, ResourceNames(), ["a", "b", "c"])
    with pytest.raises(InvalidInput, match="names for 3"):
        PodTable.from_columns(PodColumns.zeros(1, 4), ResourceNames(), ["a"])


def test_a_cluster_is_its_nodes_end_to_end():
    first = as_written(
        {"metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "4", "pods": "10", "e.com/x": "2"}}},
        Node,
        "n0",
    )
    second = as_written({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "2"}}}, Node, "n1")
    pods = [make_pod(f"u{i}", requests={"cpu": f"{i}"}) for i in range(5)]
    cluster = ClusterTables.from_objects([(first, pods[:2]), (second, pods[2:])])
    assert cluster.offsets.tolist() == [0, 2, 5]
    assert cluster.columns.node.tolist() == [0, 0, 1, 1, 1]
    assert cluster.columns.requests[CPU_ID, cluster.node_rows(1)].tolist() == [2000, 3000, 4000]
    assert cluster.allocatable.tolist() == [[4000, 2000], [0, 0], [0, 0], [2, -1]]
    assert cluster.pod_limit.tolist() == [10, 0]


def test_a_million_pods_fit_in_160_bytes_each():
    pods, nodes = 1_000_000, 10_000
    resources = ResourceNames(["nvidia.com/gpu", "hugepages-2Mi", "hugepages-1Gi"])
    cluster = ClusterTables.from_arrays(
        node_names=[f"n{i}" for i in range(nodes)],
        allocatable=np.ones((6, nodes), np.int64),
        pod_limit=np.full(nodes, 110),
        offsets=np.arange(0, pods + 1, pods // nodes),
        requests=np.ones((6, pods), np.int64),
        ranking=np.ones((6, pods), np.int64),
        resources=resources,
    )
    assert cluster.columns.nbytes / pods <= 160


@pytest.mark.parametrize("offsets", [[0, 3, 2], [1, 2, 2], [0, 2]])
def test_bad_offsets_are_named(offsets):
    with pytest.raises(InvalidInput, match="offsets"):
        ClusterTables.from_arrays(
            node_names=["a", "b"],
            allocatable=np.zeros((3, 2), np.int64),
            pod_limit=np.zeros(2, np.int64),
            offsets=np.array(offsets),
            requests=np.zeros((3, 2), np.int64),
        )
