"""The sizes of images by node, from a file that is read part by part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from engine.plan import SnapshotFile, synthesize
from engine.plan.placement.image_sizes import image_sizes
from engine.plan.snapshot.columnar_file import write_snapshot


@pytest.mark.parametrize("differ", [False, True])
def test_each_image_has_its_size_on_each_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, differ: bool
) -> None:
    monkeypatch.setattr("engine.plan.snapshot.columnar_file.ROW_GROUP", 7)
    made = synthesize(6, 10, 1)
    rows = made.images.select(["node", "names"]).to_pylist()
    number = {text: code for code, text in enumerate(dict.fromkeys(row["names"] for row in rows))}
    sizes = [1000 + number[row["names"]] + differ * row["node"] for row in rows]
    at = made.images.schema.get_field_index("size")
    images = made.images.set_column(at, "size", pa.array(sizes, pa.int64()))
    write_snapshot(replace(made, images=images), tmp_path / "made.kes")
    found = image_sizes(SnapshotFile(tmp_path / "made.kes").load())
    names = {name for row in rows for name in row["names"].split()}
    assert len(names) > 10
    for name in names:
        expected = dict.fromkeys(range(6), -1)
        expected |= {
            row["node"]: size for row, size in zip(rows, sizes, strict=True) if name in row["names"].split()
        }
        assert found.sizes_on_nodes(name).tolist() == list(expected.values())
    assert found.sizes_on_nodes("nobody:1").tolist() == [-1] * 6
