"""ImageTable: rows by name, growth, reuse."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput
from engine.tables import ImageTable


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
