"""Small inputs that grow end in one error, in bounded memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api.errors import InvalidInput
from engine.plan import load_snapshot
from engine.plan.reading import table_file

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
    ("begin", "repeated", "said"),
    [
        (b'{"kind":"', b"a", "holds an object larger than 33554432 bytes"),
        (b'{"a":', b"[", "is nested deeper than 128 levels"),
        (b"", b" ", "no nodes and no pods"),
    ],
    ids=["one-object", "depth", "nothing"],
)
def test_a_gzip_bomb(tmp_path: Path, begin: bytes, repeated: bytes, said: str) -> None:
    path = bomb(tmp_path / "cluster.json.gz", begin, repeated)
    done = subprocess.run(
        [sys.executable, "-c", READ, path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    *error, most = done.stdout.splitlines()
    assert said in " ".join(error)
    assert str(path) in error[0]
    assert int(most) < MOST_KIB


def test_gzip_within_gzip(tmp_path: Path) -> None:
    """Thousands of levels, or an archive that contains itself, would never end."""
    path = tmp_path / "cluster.json.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"{}")))
    with pytest.raises(InvalidInput, match="gzip within gzip"):
        load_snapshot([str(path)])


def test_a_hundred_thousand_resource_names(tmp_path: Path) -> None:
    names = {f"example.com/r{number}": "1" for number in range(100_000)}
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


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_spoilt_table_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PAR1" + bytes(range(256)) * 8 + b"PAR1")
    with pytest.raises(InvalidInput, match=name):
        table_file.read_table(str(path))
