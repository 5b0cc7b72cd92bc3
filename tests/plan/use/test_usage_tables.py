"""Recorded use from tables: values, faults of single rows, and tables that cannot be used."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api.errors import InvalidInput
from engine.plan import FaultLog
from engine.plan.history.history import Times
from engine.plan.history.usage_tables import history_from_tables
from tests.plan.use.made_up_use import END, read


def test_a_table_of_use(tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    file.write_text(
        "time,node,namespace,pod,container,memory,cpu\n"
        f"{END},,shop,a,app,1000,0.5\n{END + 20},,shop,a,app,3000,0.7\n{END - 90},,shop,a,app,2000,-1\n"
        f"{END},n1,,,,9000,2\n{END},,shop,a,,5,5\n"
    )
    faults = FaultLog()
    history = history_from_tables([str(file)], 60, faults)
    assert history.times == Times(END - 60, 60, 3)
    np.testing.assert_allclose(read(history, "shop/a", "memory"), [2000, 1000, 3000], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/a", "cpu"), [np.nan, 5e5, 7e5], rtol=3e-4)
    assert sum(row["node"] == "n1" for row in history.index.to_pylist()) == 2
    said = [str(fault) for fault in faults.kept]
    assert any("row 5: names no container and no node" in line for line in said)
    assert any("container shop/a/app: cpu: has values that are not amounts" in line for line in said)


def test_single_values_of_a_table_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    stamp = datetime.fromtimestamp(END + 60, UTC).isoformat()
    file.write_text(
        "time,namespace,pod,container,memory,cpu\n"
        f"{END},shop,a,app,1000,0.5\n{stamp},shop,a,app,many,0.7\nyesterday,shop,a,app,1,1\n"
        f",shop,a,app,1,1\n{END},shop,b,app,5000,0.1\n{END + 60},shop,b,app,NaN,\n"
    )
    faults = FaultLog()
    history = history_from_tables([str(file)], 60, faults)
    np.testing.assert_allclose(read(history, "shop/a", "memory"), [1000, np.nan], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/a", "cpu"), [5e5, 7e5], rtol=3e-4)
    np.testing.assert_allclose(read(history, "shop/b", "memory"), [5000, np.nan], rtol=3e-4)
    said = [str(fault) for fault in faults.kept]
    assert len(said) == 2
    assert said[0].endswith(
        "row 3: time: expected Unix seconds or timestamps, got 'yesterday'; rows left out for this: 2"
    )
    assert "container shop/a/app: memory: has values that are not amounts" in said[1]


def test_a_parquet_table_with_timestamps(tmp_path: Path) -> None:
    file = tmp_path / "use.parquet"
    stamps = pa.array([END * 10**6, (END + 60) * 10**6], pa.timestamp("us", "UTC"))
    texts = {name: ["a", "a"] for name in ("namespace", "pod", "container")}
    pq.write_table(pa.table({"time": stamps, **texts, "memory": [1, 2]}), file)
    history = history_from_tables([str(file)], 60, FaultLog())
    assert history.times == Times(END, 60, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n1\n", "has no column 'time'"),
        ("time\n1\n", "has neither a column 'memory' nor a column 'cpu'"),
        ("time,cpu\n1,1\n", "has no columns 'namespace', 'pod' and 'container'"),
        ("time,node,cpu\n", "has no rows"),
        ("time,node,cpu\n-5,a,1\n", "time: expected Unix seconds or timestamps, got '-5'"),
        (f"time,node,cpu\n{END},a,500m\n", "cpu: expected cores, got '500m'"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "use.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"use\.csv") as caught:
        history_from_tables([str(file)], 60, FaultLog())
    assert said in str(caught.value)
