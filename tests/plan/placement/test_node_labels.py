"""Labels and taints of nodes, from their objects and from the columns of a file, with the same answers."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.admission.selectors import selects
from engine.api.errors import InvalidInput
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.plan import Snapshot, SnapshotFile, write_snapshot
from engine.plan.anonymize.anonymous import anonymous
from engine.plan.cluster import Cluster, ask
from engine.plan.questions.drain import DrainParameters
from engine.plan.questions.headroom import HeadroomParameters
from engine.plan.questions.preempt import PreemptParameters
from engine.plan.reading.added import with_nodes
from engine.plan.snapshot import node_labels
from engine.plan.snapshot.columns import LABEL, REPEATED_TEXT, TAINTS
from engine.plan.snapshot.lazy_table import whole
from engine.plan.snapshot.node_labels import instance_types, labels_of_nodes
from engine.plan.snapshot.objects import node_object
from tests.plan.placement.made_cluster import HOST, ZONE, node, pod, read

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
KEYS = (ZONE, HOST, "size", "disk")
KIND = "node.kubernetes.io/instance-type"


def written(snapshot: Snapshot, path: Path) -> Snapshot:
    """Write the snapshot to a file, and load it again."""
    write_snapshot(snapshot, path)
    return SnapshotFile(path).load()


def without_columns(path: Path) -> Path:
    """Copy the file to the first format, which has no columns of labels and taints."""
    older = path.with_suffix(".older.kes")
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(older, "w") as copy:
        for info in file.infolist():
            data = file.read(info)
            if info.filename == "manifest.json":
                data = json.dumps(json.loads(data) | {"formatVersion": 1}).encode()
            if info.filename == "nodes.parquet":
                nodes = pq.read_table(pa.BufferReader(data))
                names = [name for name in nodes.column_names if name != TAINTS and not name.startswith(LABEL)]
                sink = io.BytesIO()
                pq.write_table(nodes.select(names), sink)
                data = sink.getvalue()
            copy.writestr(info.filename, data)
    return older


@pytest.fixture(scope="module", params=["objects", "file", "older file"])
def labelled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    draw, directory = random.Random(5), tmp_path_factory.mktemp("labelled")
    nodes = []
    for number in range(40):
        labels = {"size": str(draw.randrange(4))} if draw.random() < 0.7 else {}
        labels |= {"disk": draw.choice(["ssd", "hdd"])} if draw.random() < 0.7 else {}
        nodes.append(node(f"n{number}", draw.choice("abc"), labels=labels))
    made, path = read(directory, *nodes), directory / "cluster.kes"
    if request.param == "objects":
        return made
    loaded = written(made, path)
    assert {LABEL + key for key in KEYS} <= set(loaded.nodes.column_names)
    if request.param == "file":
        return loaded
    older = SnapshotFile(without_columns(path)).load()
    assert TAINTS not in older.nodes.column_names
    return older


def requirement(draw: random.Random) -> NodeSelectorRequirement:
    key, operator = draw.choice(KEYS), draw.choice(OPERATORS)
    if operator in ("Gt", "Lt"):
        return NodeSelectorRequirement(key="size", operator=operator, values=[str(draw.randrange(4))])
    values = {"size": "0123", "disk": ("ssd", "hdd"), ZONE: "abc", HOST: ("n1", "n2", "n30")}[key]
    wanted = draw.sample(list(values), 2) if operator in ("In", "NotIn") else None
    return NodeSelectorRequirement(key=key, operator=operator, values=wanted)


@pytest.mark.parametrize("seed", range(60))
def test_groups_answer_as_single_nodes(labelled: Snapshot, seed: int) -> None:
    draw, nodes = random.Random(seed), labels_of_nodes(labelled)
    terms = []
    for _ in range(draw.randrange(1, 3)):
        named = NodeSelectorRequirement(key="metadata.name", operator="In", values=["n3", "n7"])
        fields = [named] if draw.random() < 0.2 else None
        listed = [requirement(draw) for _ in range(draw.randrange(1, 4))]
        terms.append(NodeSelectorTerm(match_expressions=listed, match_fields=fields))
    selector = NodeSelector(node_selector_terms=terms)
    expected = [
        selects(selector, node_object(labelled, number).labels, name)
        for number, name in enumerate(labelled.node_names)
    ]
    assert nodes.selected(selector).tolist() == expected


def test_nodes_that_do_not_differ_are_asked_once(labelled: Snapshot) -> None:
    asked: list[str] = []

    def matches(labels: object, name: str) -> bool:
        asked.append(name)
        return True

    labels_of_nodes(labelled).where(None, matches, "disk")
    assert len(asked) == 3


TAINTED = {"key": "gpu", "effect": "NoExecute", "timeAdded": "2026-11-26T08:00:00Z"}


@pytest.fixture
def small(tmp_path: Path) -> Snapshot:
    nodes = [
        node("n1", "a", labels={KIND: "large", "empty": ""}, taints=[TAINTED]),
        node("n2", "b", unschedulable=True),
        node("n3", "c", labels={KIND: "small"}, taints=[{"key": "slow", "effect": "PreferNoSchedule"}]),
        node("n4", "c", labels={KIND: "small"}),
    ]
    pods = [pod(f"web-{number}", f"n{number}", requests={"cpu": "1"}) for number in (1, 2, 3)]
    return read(tmp_path, *nodes, *pods)


def asked(snapshot: Snapshot, *names: str) -> list[object]:
    """Return the rows of the named questions, or of all, whose answers depend on labels and taints."""
    questions = {
        "drain": DrainParameters(nodes=["n3"]),
        "headroom": HeadroomParameters(like=["shop/web-2"], most=20, fail="zone"),
        "preempt": PreemptParameters(requests={"cpu": "1"}),
    }
    return [
        ask(Cluster(snapshot), name, one).table.to_pylist()
        for name, one in questions.items()
        if name in (names or questions)
    ]


def test_a_file_answers_from_its_columns(
    small: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, read = written(small, tmp_path / "small.kes"), list[str]()
    plain = pq.ParquetFile.read_row_groups

    def noted(self: pq.ParquetFile, groups: list[int], names: list[str]) -> pa.Table:
        read.extend(names)
        return plain(self, groups, names)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    assert asked(loaded, "drain", "headroom") == asked(small, "drain", "headroom")
    assert instance_types(loaded) == ["large", "", "small", "small"]
    assert LABEL + HOST in read
    assert "document" not in read
    assert asked(loaded) == asked(small)


def test_a_part_of_a_file_has_no_domains_of_the_rest(small: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "small.kes"
    write_snapshot(small, path)
    for part in (
        SnapshotFile(path).shard(2, 4),
        SnapshotFile(path).load().select(pa.array([2, 3]).to_numpy()),
    ):
        domain, values = labels_of_nodes(part).values_of(ZONE)
        assert (domain.tolist(), values) == ([0, 0], ["c"])
        assert labels_of_nodes(part).values_of("empty")[1] == []


@pytest.mark.parametrize("change", [lambda one: with_nodes(one, 0, 2, {}), lambda one: anonymous(one)[0]])
def test_changed_objects_have_no_columns_of_the_old_ones(
    small: Snapshot, tmp_path: Path, change: Callable[[Snapshot], Snapshot]
) -> None:
    changed = [change(one) for one in (small, written(small, tmp_path / "small.kes"))]
    assert not [name for name in changed[1].nodes.column_names if name == TAINTS or LABEL in name]
    assert whole(changed[1].nodes).to_pylist() == whole(changed[0].nodes).to_pylist()


def test_a_file_with_too_many_keys_has_no_columns_of_labels(
    small: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_labels, "MOST_KEYS", 3)
    loaded = written(small, tmp_path / "small.kes")
    assert TAINTS not in loaded.nodes.column_names
    assert asked(loaded) == asked(small)


def test_taints_that_cannot_be_read_are_named(small: Snapshot, tmp_path: Path) -> None:
    texts = pa.array(["", "[7]", "", ""]).dictionary_encode().cast(REPEATED_TEXT)
    nodes = whole(small.nodes).append_column(TAINTS, texts)
    loaded = written(replace(small, nodes=nodes), tmp_path / "small.kes")
    with pytest.raises(InvalidInput, match=r"nodes\.taints: '\[7\]' are not taints"):
        _ = labels_of_nodes(loaded).taint_sets
