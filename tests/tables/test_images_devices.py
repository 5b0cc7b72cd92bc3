"""ImageTable and DeviceTable: rows by name, growth, reuse."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput
from engine.tables import FREE, DeviceTable, ImageTable


def test_images():
    table = ImageTable(capacity=1)
    rows = [table.add(f"sha256:{i}", size=i, detected=float(i), pinned=i == 3) for i in range(40)]
    assert table.remove("sha256:5") == rows[5]
    assert table.add("sha256:new", size=1, detected=0.0) == rows[5]
    assert table.columns.pinned.nonzero()[0].tolist() == [rows[3]]
    assert (len(table), len(table.rows()), table.key(rows[7])) == (40, 40, "sha256:7")
    with pytest.raises(InvalidInput, match="already"):
        table.add("sha256:7", size=1, detected=0.0)
    with pytest.raises(InvalidInput, match="number of bytes"):
        table.add("sha256:x", size=-1, detected=0.0)
    with pytest.raises(InvalidInput, match="no such image"):
        table.remove("sha256:5")


def test_devices():
    table = DeviceTable(capacity=2)
    rows = [table.add(3, f"d{i}", healthy=i != 2, numa=1 << (i % 2)) for i in range(6)]
    table.add(4, "d0", healthy=True)
    table.columns.owner[rows[0]] = 17
    assert table.counts(3) == (6, 5, 4)
    assert table.remove(3, "d0") == rows[0]
    assert table.columns.owner[rows[0]] == FREE
    assert table.counts(3) == (5, 4, 4)
    assert (table.device(rows[1]), table.row(4, "d0")) == ("d1", 6)
    with pytest.raises(InvalidInput, match="already"):
        table.add(4, "d0", healthy=True)
    with pytest.raises(InvalidInput, match="NUMA"):
        table.add(4, "d9", healthy=True, numa=1 << 64)
