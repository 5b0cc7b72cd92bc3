"""The memory of tables: what is written cell by cell is what arrays show, however it grew."""

from __future__ import annotations

import numpy as np
import pytest

from engine.api.errors import InvalidInput
from engine.tables import CPU_ID, MEMORY_ID, ImageTable, PodColumns, PodTable, ResourceNames
from tests.tables.test_pods import make_pod

MIB = 1 << 20


def _fill(table: PodTable, numbers: range) -> None:
    for number in numbers:
        requests = {"cpu": f"{number + 1}m", "memory": f"{number}Mi"}
        if number % 3 == 2:
            requests[f"example.com/kind-{number % 2}"] = str(number)
        table.add(make_pod(f"u{number}", requests=requests, priority=-number))


def _expect(table: PodTable, numbers: range) -> None:
    columns = table.columns
    rows = [table.row(f"u{number}") for number in numbers]
    assert columns.requests[CPU_ID, rows].tolist() == [number + 1 for number in numbers]
    assert columns.ranking[MEMORY_ID, rows].tolist() == [number * MIB for number in numbers]
    assert columns.priority[rows].tolist() == [-number for number in numbers]
    for kind in range(2):
        column = columns.requests[table.resources.ids[f"example.com/kind-{kind}"], rows]
        wanted = [number if number % 3 == 2 and number % 2 == kind else 0 for number in numbers]
        assert column.tolist() == wanted
    table.validate()


@pytest.mark.parametrize("capacity", [0, 1, 7, 64])
def test_a_table_keeps_everything_as_it_grows_in_rows_and_resources(capacity: int) -> None:
    table = PodTable(capacity=capacity)
    _fill(table, range(70))
    _expect(table, range(70))
    assert table.requests("u5") == {"cpu": 6, "memory": 5 * MIB, "example.com/kind-1": 5}
    for number in range(0, 70, 2):
        table.remove(f"u{number}")
    with pytest.raises(InvalidInput, match="no pod with this uid"):
        table.requests("u0")
    _expect(table, range(1, 70, 2))


def test_a_table_of_given_columns_grows_like_its_own() -> None:
    given = PodTable()
    _fill(given, range(6))
    columns = PodColumns(
        **{name: array[..., :6].copy() for name, array in given.columns.arrays()},
        fractions=dict(given.columns.fractions),
    )
    names = ResourceNames()
    for name in given.resources.in_order:
        names.intern(name)
    table = PodTable.from_columns(columns, names, [f"u{number}" for number in range(6)])
    assert table.columns is columns
    _fill(table, range(6, 40))
    _expect(table, range(40))


def test_arrays_and_cells_are_one_memory() -> None:
    table = PodTable()
    _fill(table, range(3))
    table.columns.priority[1] = 7
    assert table.cells.priority[1] == 7
    images = ImageTable(capacity=1)
    rows = [images.add(f"sha256:{i}", size=i, detected=float(i), pinned=i == 3) for i in range(20)]
    columns = images.columns
    assert columns.size[rows].tolist() == list(range(20))
    assert (columns.live.dtype, columns.pinned.sum()) == (np.bool_, 1)
    images.cells.in_use[rows[4]] = True
    assert columns.in_use.nonzero()[0].tolist() == [rows[4]]
    copied = images.cells.copy()
    images.remove("sha256:4")
    assert (copied.live[rows[4]], images.cells.live[rows[4]]) == (1, 0)
    again = images.add("sha256:again", size=1, detected=9.0)
    assert (again, images.cells.in_use[again], images.cells.last_used[again]) == (rows[4], 0, 0.0)
