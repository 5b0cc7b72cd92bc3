"""The columnar file: read back unchanged, whole or by shards, with a clear error for a broken file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import InvalidInput, Refused
from engine.plan import Snapshot, SnapshotFile, load_snapshot, synthesize
from engine.plan.cluster import Cluster, ask
from engine.plan.on_dask import pack, unpack
from engine.plan.questions.image_gc import ImageGCParameters
from engine.plan.questions.preempt import PreemptParameters
from engine.plan.snapshot.columnar_file import TABLES, node_ranges, write_snapshot, write_stream
from engine.plan.snapshot.distinct import distinct
from engine.plan.snapshot.lazy_table import (
    LazyTable,
    coded,
    filled,
    read_ahead,
    rows_with,
    texts_of,
    whole,
)


def same(a: Snapshot, b: Snapshot) -> None:
    for name in TABLES:
        found, expected = whole(getattr(a, name)), whole(getattr(b, name))
        # A file has columns of labels in addition.
        assert (
            found.select(expected.column_names).cast(expected.schema).to_pylist() == expected.to_pylist()
        ), name


def test_it_comes_back_the_same(cluster, cluster_file):
    read = SnapshotFile(cluster_file).load()
    same(read, cluster)
    assert read.meta == cluster.meta
    assert load_snapshot([str(cluster_file)]).placed == cluster.placed


def test_it_goes_through_a_pipe(cluster, tmp_path):
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    write_stream(cluster, pipe)
    path = tmp_path / "piped.kes"
    path.write_bytes(pipe.data)
    same(SnapshotFile(path).load(), cluster)


@pytest.mark.parametrize("max_pods", [1, 37, 200, 10**6])
def test_shards_are_the_cluster_cut_at_nodes(cluster, cluster_file, max_pods):
    shards = list(SnapshotFile(cluster_file).shards(max_pods))
    assert [name for shard in shards for name in shard.node_names] == cluster.node_names
    labels = [label for shard in shards for label in shard.pod_labels(np.arange(shard.placed)).to_pylist()]
    assert labels == cluster.pod_labels(np.arange(cluster.placed)).to_pylist()
    assert sum(shard.images.num_rows for shard in shards) == cluster.images.num_rows
    for shard in shards:
        assert shard.placed <= max_pods or shard.node_count == 1
        assert (shard.column("node") == np.repeat(np.arange(shard.node_count), np.diff(shard.offsets))).all()


def test_row_groups_that_a_shard_needs_are_enough(tmp_path, monkeypatch, cluster):
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 50)
    path = tmp_path / "small-groups.kes"
    write_snapshot(cluster, path)
    file = SnapshotFile(path)
    for first, last in ((0, 3), (5, 6), (20, 24)):
        same(file.shard(first, last), cluster.shard(first, last))


def test_an_unused_column_is_not_read(cluster, tmp_path):
    """Bad columns are found on first use, in the whole file and in a shard; the error names file, table and
    column.
    """
    path = tmp_path / "bad-sizes.kes"
    at = cluster.images.column_names.index("size")
    sizes = pa.array(np.full(cluster.images.num_rows, -1))
    write_snapshot(replace(cluster, images=cluster.images.set_column(at, "size", sizes)), path)
    asked = PreemptParameters(critical=True, requests={"cpu": "2"})
    expected = ask(Cluster(cluster), "preempt", asked).table
    for opened in (Cluster(SnapshotFile(path).load()), Cluster.open([str(path)])):
        for shard_pods in (0, 100):
            assert ask(opened, "preempt", asked, shard_pods=shard_pods).table.equals(expected)
            with pytest.raises(InvalidInput, match=r"images\.size: expected 0") as caught:
                ask(opened, "image-gc", ImageGCParameters(), shard_pods=shard_pods)
            assert caught.value.subject == str(path)


def test_a_single_value_needs_one_row_group(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 100)
    path = tmp_path / "groups.kes"
    write_snapshot(cluster, path)
    read: list[tuple[list[int], list[str]]] = []
    plain = pq.ParquetFile.read_row_groups

    def counted(self, groups, names):
        read.append((list(groups), list(names)))
        return plain(self, groups, names)

    loaded = load_snapshot([str(path)])
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    rows = (0, 99, 100, 777, cluster.pods.num_rows - 1)
    assert [loaded.pod_label(row) for row in rows] == [cluster.pod_label(row) for row in rows]
    assert {tuple(groups) for groups, names in read if names == ["name"]} == {(row // 100,) for row in rows}


def test_a_loaded_snapshot_is_split_once_for_many_questions(cluster):
    opened = Cluster(cluster)
    first, again = list(opened.shards(100)), list(opened.shards(100))
    assert len(first) > 1
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert len(list(opened.shards(300))) < len(first)


def test_packing_holds_only_its_own_rows(cluster):
    shard = cluster.shard(3, 5)
    same(unpack(pack(shard)), shard)
    assert sum(len(v) for v in pack(shard).values()) < sum(len(v) for v in pack(cluster).values()) / 2


def test_tables_are_plain_parquet(cluster, cluster_file):
    with zipfile.ZipFile(cluster_file) as archive:
        table = pq.read_table(pa.BufferReader(archive.read("pods.parquet")))
    assert table.num_rows == cluster.pods.num_rows
    assert {"namespace", "name", "uid", "node", "template", "priority"} <= set(table.column_names)


def broken(cluster_file: Path, tmp_path: Path, change) -> Path:
    path = tmp_path / "broken.kes"
    with zipfile.ZipFile(cluster_file) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, data: None if name == "pods.parquet" else data, "no table pods"),
        (lambda name, data: b"{}" if name == "manifest.json" else data, "not a Kubengine snapshot"),
        (
            lambda name, data: data.replace(b'"formatVersion":2', b'"formatVersion":9'),
            "this version reads 1 and 2",
        ),
        (lambda name, data: data[:100] if name == "nodes.parquet" else data, "not a readable snapshot"),
        (lambda name, data: b"" if name == "pods.parquet" else data, "not a readable snapshot"),
    ],
)
def test_a_broken_file_is_reported(cluster_file, tmp_path, change, words):
    path = broken(cluster_file, tmp_path, change)
    with pytest.raises(InvalidInput, match=words) as caught:
        SnapshotFile(path).load()
    assert caught.value.subject == str(path)


def test_a_truncated_file_is_reported(cluster_file, tmp_path):
    path = tmp_path / "cut.kes"
    path.write_bytes(cluster_file.read_bytes()[:-1000])
    with pytest.raises(InvalidInput, match="begins as one, but its end is missing"):
        SnapshotFile(path)


def test_writing_leaves_nothing_half_done(cluster, tmp_path):
    with pytest.raises(Refused, match=r"no/where\.kes"):
        write_snapshot(cluster, tmp_path / "no" / "where.kes")
    write_snapshot(cluster, tmp_path / "x.kes")
    assert [p.name for p in tmp_path.iterdir()] == ["x.kes"]


def test_node_ranges_cover_everything_once():
    counts = np.array([5, 0, 7, 100, 1, 1], np.int64)
    assert node_ranges(counts, 10) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert node_ranges(np.array([], np.int64), 10) == []


def test_a_seed_gives_one_cluster():
    one, two, other = synthesize(5, 20, 3), synthesize(5, 20, 3), synthesize(5, 20, 4)
    same(one, two)
    assert one.meta["input_hash"] == two.meta["input_hash"] != other.meta["input_hash"]


def test_made_up_nodes_are_never_overcommitted():
    cluster = synthesize(100, 60, 5)
    for resource in cluster.resources.names:
        used = np.bincount(
            cluster.column("node"), weights=cluster.per_pod(f"request/{resource}"), minlength=100
        )
        assert (used <= np.maximum(cluster.allocatable(resource), 0)).all(), resource


@pytest.mark.parametrize(("nodes", "density"), [(0, 10), (10, -1), (10**9, 1)])
def test_senseless_sizes_are_refused(nodes, density):
    with pytest.raises(InvalidInput):
        synthesize(nodes, density)


def test_a_pod_is_found_in_every_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    write_snapshot(made, tmp_path / "made.kes")
    pods = SnapshotFile(tmp_path / "made.kes").load().pods
    names = made.pods["name"].to_pylist()
    assert [rows_with(pods, "name", name) for name in names] == [[row] for row in range(len(names))]
    assert rows_with(pods, "name", "nobody") == rows_with(made.pods, "name", "nobody") == []


def test_columns_are_numbered_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    claims = [f"claim-{row % 3}" if row % 2 else "" for row in range(made.pods.num_rows)]
    at = made.pods.schema.get_field_index("claims")
    pods = made.pods.set_column(at, "claims", pa.array(claims).dictionary_encode())
    write_snapshot(replace(made, pods=pods), tmp_path / "made.kes")
    read = SnapshotFile(tmp_path / "made.kes").load().pods
    for name in ("labels", "owner", "claims"):
        expected = pods[name].to_pylist()
        # The first use numbers the column, the second one has it already.
        for more in ([expected[3], "new", "new"], ["other"], []):
            texts, codes = coded(read, name, more)
            assert [texts[code] for code in codes] == [*expected, *more]
            assert len(set(texts)) == len(texts)
    assert filled(read, "claims") == {row: text for row, text in enumerate(claims) if text}
    assert filled(read, "nothing") == {}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_texts_of_some_rows_are_those_of_the_column(
    first: int, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take rows in any order and more than once, of a table of many parts and of a range of its nodes."""
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    write_snapshot(made, tmp_path / "made.kes")
    pods = SnapshotFile(tmp_path / "made.kes").load().shard(first, 3).pods
    begin, end = made.offsets[first], made.offsets[3]
    rows = np.random.default_rng(1).integers(0, end - begin, 50)
    for name in ("namespace", "name", "owner"):
        if ahead:
            read_ahead(pods, name, "no such column", name)
        expected = made.pods[name].to_pylist()[begin:end]
        assert texts_of(pods, name, rows).to_pylist() == [expected[row] for row in rows]
        assert texts_of(pods, name, rows[:0]).to_pylist() == []
        assert pods[name].to_pylist() == expected
        assert texts_of(pods, name, rows).to_pylist() == [expected[row] for row in rows]


def test_texts_that_are_asked_for_again_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read a part once for its first rows, and once as a whole when others are asked for."""
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    write_snapshot(made, tmp_path / "made.kes")
    pods = SnapshotFile(tmp_path / "made.kes").load().pods
    read: list[int] = []
    plain = pq.ParquetFile.read_row_groups

    def counted(self: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
        read.extend(groups)
        return plain(self, groups, names)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    names = made.pods["name"].to_pylist()
    for rows, parts in (
        ([1, 8, 9], [0, 1]), ([1, 8, 9], []), ([9, 2, 8], [0, 1]), ([6, 7], []), ([1, 20], [2]),
        ([20, 1], []), ([15], [2]), ([16, 20], []),
    ):  # fmt: skip
        read.clear()
        assert texts_of(pods, "name", np.array(rows)).to_pylist() == [names[row] for row in rows]
        assert sorted(read) == parts


def test_columns_that_were_read_ahead_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    write_snapshot(made, tmp_path / "made.kes")
    pods = SnapshotFile(tmp_path / "made.kes").load().pods
    read_ahead(pods, "owner", "claims")
    texts, codes = coded(pods, "owner")
    assert [texts[code] for code in codes] == made.pods["owner"].to_pylist()
    assert filled(pods, "claims") == filled(made.pods, "claims")


def test_a_column_that_was_read_ahead_raises_its_errors_on_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(3, 10, 1)
    at = made.pods.schema.get_field_index("qos")
    wrong = made.pods.set_column(at, "qos", pa.array(np.full(made.pods.num_rows, 9, np.uint8)))
    write_snapshot(replace(made, pods=wrong), tmp_path / "made.kes")
    pods = SnapshotFile(tmp_path / "made.kes").load().pods
    read_ahead(pods, "qos", "priority")
    assert pods["priority"].to_pylist() == made.pods["priority"].to_pylist()
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"made\.kes: pods\.qos: expected 0 to 2, got 9"):
            pods["qos"]


def test_parts_may_have_other_dictionaries_or_the_same() -> None:
    """Number texts of parts whose dictionaries are equal, in another order, larger, or with a text twice."""
    dictionaries = [["a", "b"], ["a", "b"], ["b", "a"], ["c", "a", "c"], ["c", "a", "c"], []]
    codes: list[list[int]] = [[0, 1, 0], [1], [0, 0, 1], [2, 1, 0], [0], []]
    arrays = [
        pa.DictionaryArray.from_arrays(pa.array(own, pa.int32()), pa.array(texts, pa.string()))
        for own, texts in zip(codes, dictionaries, strict=True)
    ]
    parts = [pa.chunked_array([array]) for array in arrays]
    whole = [text for part in parts for text in part.to_pylist()]
    table = LazyTable(
        ["text"], lambda names: pa.table({}), lambda: len(whole), parts=lambda name: iter(parts)
    )
    texts, found = table.coded("text")
    assert [texts[code] for code in found] == whole
    assert texts == ["a", "b", "c"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=30))
def test_distinct_values_are_numbered_as_by_numpy(values: list[int]) -> None:
    column = np.array(values, np.int64)
    expected = np.unique(column, return_inverse=True)
    for one, other in zip(distinct(column), expected, strict=True):
        assert one.tolist() == other.tolist()
