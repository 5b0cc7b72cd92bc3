"""Small inputs that grow end in one error, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api.errors import InvalidInput
from engine.plan import load_snapshot
from engine.plan.reading import table_file
from engine.plan.reading.yaml_document import YAMLDocument
from engine.plan.snapshot import parquet_bounds
from engine.plan.snapshot.columnar_file import SnapshotFile, write_snapshot
from engine.plan.synth.cluster import synthesize

GROWN = 512 << 20
MOST_KIB = 500 << 10
"""Resident memory of the reading process, which is about 200 MiB without any input."""
# Not `ru_maxrss`, which begins with the memory of the process that started this one.
READ = r"""
import re, sys
from pathlib import Path
from engine.api.errors import InvalidInput
from engine.plan import load_snapshot
try:
    load_snapshot([sys.argv[1]])
except InvalidInput as error:
    print(error)
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


ALIASES = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)
"""Each of its lists holds the one before nine times."""


def bomb(path: Path, begin: bytes, repeated: bytes) -> Path:
    """Write `begin` and half a gigabyte of `repeated` bytes as gzip."""
    packed = zlib.compressobj(1, wbits=31)
    chunk = repeated * ((1 << 20) // len(repeated))
    with path.open("wb") as file:
        file.write(packed.compress(begin))
        for _ in range(GROWN // len(chunk)):
            file.write(packed.compress(chunk))
        file.write(packed.flush())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "repeated", "message"),
    [
        (b'{"kind":"', b"a", "holds an object larger than 33554432 bytes"),
        (b'{"a":', b"[", "is nested deeper than 128 levels"),
        (b"", b" ", "no nodes and no pods"),
    ],
    ids=["one-object", "depth", "nothing"],
)
def test_a_gzip_bomb(tmp_path: Path, begin: bytes, repeated: bytes, message: str) -> None:
    path = bomb(tmp_path / "cluster.json.gz", begin, repeated)
    done = subprocess.run(
        [sys.executable, "-c", READ, path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    *error, most = done.stdout.splitlines()
    assert message in " ".join(error)
    assert str(path) in error[0]
    assert int(most) < MOST_KIB


def test_gzip_within_gzip(tmp_path: Path) -> None:
    """Thousands of levels, or an archive that contains itself, would never end."""
    path = tmp_path / "cluster.json.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"{}")))
    with pytest.raises(InvalidInput, match="gzip within gzip"):
        load_snapshot([str(path)])


def test_a_million_resource_names(tmp_path: Path) -> None:
    names = {f"r.io/{number}": "1" for number in range(1_000_000)}
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", **names}}
    path = tmp_path / "node.json"
    path.write_text(json.dumps({"kind": "Node", "metadata": {"name": "n"}, "status": status}))
    with pytest.raises(InvalidInput, match="the 64 resources that a snapshot can hold"):
        load_snapshot([str(path)])


def test_a_parquet_file_of_too_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its footer names the number of rows; they are refused before any is read."""
    monkeypatch.setattr(table_file, "MAX_VALUES", 1000)
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"a": pa.repeat(0, 501), "b": pa.repeat(0, 501)}), path)
    with pytest.raises(InvalidInput, match="501 rows of 2 columns, more than 1000 values"):
        table_file.read_table(str(path))
    pq.write_table(pa.table({"a": pa.repeat(0, 1000)}), path)
    assert table_file.read_table(str(path)).num_rows == 1000


def test_a_parquet_file_that_repeats_one_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary stores the text once for all rows, so neither the file's size nor its rows show it."""
    monkeypatch.setattr(parquet_bounds, "MAX_TEXT", 1 << 20)
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"a": pa.repeat("x" * 1024, 1025)}), path)
    assert path.stat().st_size < 5000
    with pytest.raises(InvalidInput, match="a: 1049600 bytes of text, more than 1048576"):
        table_file.read_table(str(path))
    texts = pa.table({"a": ["x" * 1024, None, "y"], "b": [1, 2, 3]})
    pq.write_table(texts, path)
    assert table_file.read_table(str(path)) == texts


def rewritten(path: Path, member: str, table: pa.Table) -> None:
    """Put a table into a snapshot file in place of its own."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    members[member] = sink.getvalue().to_pybytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_a_snapshot_file_of_tables_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are run-length encoded, and a text that a dictionary repeats, in files of a few kilobytes."""
    path = tmp_path / "c.kes"
    write_snapshot(synthesize(2, 10), path)
    with zipfile.ZipFile(path) as archive:
        nodes = pq.read_table(io.BytesIO(archive.read("nodes.parquet")))
    many = pa.table({name: pa.repeat(nodes[name][0], 3000) for name in nodes.column_names})
    rewritten(path, "nodes.parquet", many)
    monkeypatch.setattr(parquet_bounds, "MAX_VALUES", 50_000)
    with pytest.raises(InvalidInput, match=r"nodes.parquet: 3000 rows of .* more than 50000 values"):
        SnapshotFile(path)
    monkeypatch.setattr(parquet_bounds, "MAX_VALUES", 10**9)
    long = nodes.set_column(nodes.column_names.index("name"), "name", [["n" * 600_000] * nodes.num_rows])
    rewritten(path, "nodes.parquet", long)
    monkeypatch.setattr(parquet_bounds, "MAX_TEXT", 1 << 20)
    with pytest.raises(InvalidInput, match=r"nodes.parquet: name: 1200000 bytes of text"):
        SnapshotFile(path).load().nodes["name"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "expanding its aliases"),
        ("[" * 200_000, "nested deeper|not valid YAML"),
        ("ask: [" + "{a: " * 150 + "1" + "}" * 150 + "]", "nested deeper"),
        ("ask: fits\nask: fits\n", "is given twice"),
        ("ask: fits\n---\nask: fits\n", "expected one document, found 2"),
    ],
    ids=["aliases", "depth", "deep-flow", "twice", "documents"],
)  # fmt: skip
def test_yaml_that_grows(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as caught:
        YAMLDocument(path)
    assert caught.value.subject == str(path)


@pytest.mark.parametrize("text", ["---\nask: fits\n---\n", '{\n\t"ask": "fits"\n}\n'], ids=["empty", "tabs"])
def test_documents_around_which_others_are_empty_and_json_with_tabs_are_read(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    assert YAMLDocument(path).plain == {"ask": "fits"}


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_spoilt_table_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PAR1" + bytes(range(256)) * 8 + b"PAR1")
    with pytest.raises(InvalidInput, match=name):
        table_file.read_table(str(path))
