"""CSV and Parquet through a mapping, and places for pods without a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from engine.api.errors import InvalidInput
from engine.plan.placement.place import place
from engine.plan.reading.mapping import load_mapped
from engine.tables import QOS_NAMES

MAPPING = """\
nodes:
  file: nodes.csv
  columns:
    {name: sn, cpu: {column: cpu_milli, unit: m}, memory: {column: mib, unit: Mi}, example.com/gpu: gpus,
     pods: {value: 3}}
  labels: {model: model}
pods:
  file: pods.csv
  columns:
    name: name
    cpu: {column: cpu, unit: ""}
    memory: {column: mib, unit: Mi}
    example.com/gpu: gpus
    qos: {column: class, map: {BE: BestEffort, LS: Burstable}}
    priority: {column: class, map: {BE: -5, LS: 100}}
    created: {column: start, unit: ms}
    deleted: {column: end, unit: ms}
"""
NODES = "sn,cpu_milli,mib,gpus,model\na,4000,8192,2,T4\nb,2000,4096,0,\n"
PODS = """\
name,cpu,mib,gpus,class,start,end
one,1.5,1024,1,LS,0,
two,0.25,512,0,BE,1000,
three,2,100,0,LS,2000,3000
four,3,64,2,LS,4000,
"""


def write(tmp_path: Path, mapping: str = MAPPING, nodes: str = NODES, pods: str = PODS) -> Path:
    for name, text in (("mapping.yaml", mapping), ("nodes.csv", nodes), ("pods.csv", pods)):
        (tmp_path / name).write_text(text)
    return tmp_path / "mapping.yaml"


def test_columns_and_units_are_read_exactly(tmp_path):
    snapshot, odd = load_mapped(write(tmp_path))
    assert odd == []
    assert snapshot.allocatable("cpu").tolist() == [4000, 2000]
    assert snapshot.allocatable("memory").tolist() == [8 * 2**30, 4 * 2**30]
    assert snapshot.allocatable("pods").tolist() == [3, 3]
    rows = slice(0, snapshot.pods.num_rows)
    assert snapshot.per_pod("request/cpu", rows).tolist() == [1500, 250, 2000, 3000]
    assert snapshot.per_pod("request/memory", rows).tolist() == [2**30, 2**29, 100 * 2**20, 64 * 2**20]
    assert snapshot.per_pod("request/example.com/gpu", rows).tolist() == [1, 0, 0, 2]
    assert [QOS_NAMES[q] for q in snapshot.pods["qos"].to_pylist()] == [
        "Burstable",
        "BestEffort",
        "Burstable",
        "Burstable",
    ]
    assert snapshot.pods["priority"].to_pylist() == [100, -5, 100, 100]
    assert snapshot.pods["created"].to_pylist() == [0, 1, 2, 4]
    assert snapshot.meta["taken_at"] == 2.0


def test_parquet_and_other_files_on_the_command_line(tmp_path):
    mapping = write(tmp_path)
    pq.write_table(pa_csv.read_csv(tmp_path / "pods.csv"), tmp_path / "other.parquet")
    ours, _ = load_mapped(mapping)
    theirs, _ = load_mapped(mapping, pods=str(tmp_path / "other.parquet"))
    assert ours.pods.to_pylist() == theirs.pods.to_pylist()


def test_pods_are_placed_by_time_and_release_their_slots(tmp_path):
    mapping = write(tmp_path, MAPPING + "taken_at: 5\n")
    snapshot, _ = load_mapped(mapping)
    placed, missed = place(snapshot, rule="pack")
    node = dict(zip(placed.pods["name"].to_pylist(), placed.pods["node"].to_pylist(), strict=True))
    assert missed == 1
    assert node == {"one": 0, "two": 0, "three": -1, "four": -1}


@pytest.mark.parametrize(("rule", "nodes"), [("spread", [0, 0, 1]), ("pack", [1, 1, 0])])
def test_spread_and_pack(tmp_path, rule, nodes):
    pods = "name,cpu,mib,gpus,class,start,end\n" + "".join(f"p{i},1,1024,0,LS,{i},\n" for i in range(3))
    snapshot, _ = load_mapped(write(tmp_path, pods=pods))
    placed, missed = place(snapshot, rule=rule)
    found = dict(zip(placed.pods["name"].to_pylist(), placed.pods["node"].to_pylist(), strict=True))
    assert missed == 0
    assert [found[f"p{i}"] for i in range(3)] == nodes


def test_placing_never_overcommits(cluster):
    from dataclasses import replace

    import pyarrow as pa

    from engine.plan.snapshot.columns import arranged

    at = cluster.pods.schema.get_field_index("node")
    loose = cluster.pods.set_column(at, "node", pa.array(np.full(cluster.pods.num_rows, -1, np.int32)))
    unplaced = arranged(cluster.nodes, loose, templates=cluster.templates, meta=cluster.meta)
    for order in ("time", "size"):
        placed, missed = place(replace(unplaced), order=order)
        assert placed.placed + missed == cluster.placed
        for resource in cluster.resources.names:
            used = np.bincount(
                placed.column("node"),
                weights=placed.per_pod(f"request/{resource}"),
                minlength=placed.node_count,
            )
            assert (used <= np.maximum(placed.allocatable(resource), 0)).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mapping": MAPPING.replace("cpu_milli", "cores")}, "no column 'cores' (for cpu)"),
        ({"mapping": MAPPING.replace("unit: m}", "unit: parsec}")}, "cpu: quantity '4000parsec'"),
        ({"mapping": MAPPING.replace("labels:", "label:")}, "line 6: nodes.label: unknown field"),
        ({"mapping": MAPPING.replace("BE: BestEffort, ", "")}, "qos: 'BE' is not a QoS class"),
        ({"mapping": MAPPING.replace("map: {BE: -5, LS: 100}", "map: {}")}, "priority: expected 32-bit"),
        ({"mapping": MAPPING.replace("unit: ms", "unit: moons", 1)}, "created: expected one of s, ms"),
        ({"pods": PODS.replace("1.5", "-1.5")}, "cpu: -1.5 is negative"),
        ({"pods": PODS.replace("1.5", "9e30")}, "more than a node has"),
        ({"nodes": NODES.replace("b,2000", "a,2000")}, "node names are empty or repeated"),
        ({"pods": 'name,cpu\n"broken'}, "pods.csv"),
    ],
)  # fmt: skip
def test_errors_name_file_and_column(tmp_path, change, words):
    with pytest.raises(InvalidInput) as caught:
        load_mapped(write(tmp_path, **change))
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    mapping = write(tmp_path)
    with pytest.raises(InvalidInput, match=r"gone\.csv"):
        load_mapped(mapping, pods="gone.csv")
