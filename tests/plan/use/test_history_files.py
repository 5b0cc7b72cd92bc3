"""Files with recorded use: their codes, what was written, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from engine.api.errors import InvalidInput
from engine.plan import synthesize
from engine.plan.history.codes import MISSING, decode, encode
from engine.plan.history.history import HistoryBuilder, Times
from engine.plan.history.history_file import read_history, write_history
from engine.plan.snapshot.columnar_file import write_snapshot
from tests.plan.use.made_up_use import END, TIMES


def test_codes_keep_order_and_are_near() -> None:
    values = np.concatenate([[0.0], np.geomspace(1, 2.0**47, 5000)])
    codes = encode(values)
    assert (np.diff(codes.astype(int)) >= 0).all()
    np.testing.assert_allclose(decode(codes), values, rtol=2.6e-4)
    assert encode(np.array([np.nan]))[0] == MISSING
    assert np.isnan(decode(np.array([MISSING], np.uint16)))[0]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    builder = HistoryBuilder(Times(END, 60, 7))
    for number in range(20_000):
        at = np.arange(number % 7 + 1)
        builder.add(("memory", "", f"ns{number % 3}", f"pod-{number}", "c"), at, encode(at + float(number)))
    history = builder.history({"sources": ["x"]})
    write_history(history, tmp_path / "use.arrow")
    again = read_history(tmp_path / "use.arrow")
    assert again.times == history.times
    assert again.meta == {"sources": ["x"]}
    assert again.index.equals(history.index)
    rows = np.arange(len(history))
    assert np.array_equal(again.codes(rows), history.codes(rows))
    some = np.array([19_999, 3, 8192, 8191])
    assert np.array_equal(again.codes(some), history.codes(some))


@pytest.mark.parametrize("keep", [0, 10, 400, -9])
def test_a_broken_file_is_named(keep: int, tmp_path: Path) -> None:
    builder = HistoryBuilder(Times(END, 60, 7))
    builder.row(("memory", "", "a", "b", "c"))
    write_history(builder.history({}), tmp_path / "use.arrow")
    broken = tmp_path / "broken.arrow"
    broken.write_bytes((tmp_path / "use.arrow").read_bytes()[:keep])
    with pytest.raises(InvalidInput, match=r"broken\.arrow"):
        read_history(broken)
    with pa.ipc.new_file(broken, pa.schema([("a", pa.int64())])) as writer:
        writer.write_table(pa.table({"a": [1]}))
    with pytest.raises(InvalidInput, match="is not a history"):
        read_history(broken)


def test_a_missing_history_says_which_command_writes_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file; `kubengine plan history` writes one"):
        read_history(tmp_path / "use.arrow")


def test_a_file_that_is_no_history_is_described(tmp_path: Path) -> None:
    """Tell a file without its end from one that never was a history."""
    builder = HistoryBuilder(TIMES)
    builder.add(("memory", "", "shop", "a", "app"), np.arange(3), encode(np.arange(3.0)))
    write_history(builder.history({}), tmp_path / "whole.arrow")
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "whole.arrow").read_bytes()[:-100])
    write_snapshot(synthesize(2, 2, 1), tmp_path / "cluster.kes")
    (tmp_path / "notes").write_text("nothing" * 20)
    for name, words in {
        "cut.arrow": "begins as one, but its end is missing",
        "cluster.kes": "it is a snapshot",
        "notes": "Not an Arrow file",
        ".": "not a readable history",
    }.items():
        with pytest.raises(InvalidInput, match=words) as caught:
            read_history(tmp_path / name)
        assert caught.value.subject == str(tmp_path / name)
