"""Answers in notebooks: data frames, and HTML."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.api.errors import InvalidInput
from engine.plan import Snapshot
from engine.plan.answers.answer import COLUMNS, Answer
from engine.plan.cluster import Cluster, ask
from engine.plan.questions.admit import AdmitParameters


@pytest.fixture
def answer(cluster: Snapshot) -> Answer:
    return ask(Cluster(cluster), "admit", AdmitParameters(requests={"cpu": "1"}))


def test_a_pandas_frame_has_the_rows(answer: Answer) -> None:
    pytest.importorskip("pandas")
    frame = answer.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["amount"].tolist() == answer.table["amount"].to_pylist()
    assert frame.groupby("decision", observed=True)["amount"].sum()["admits"] > 0


def test_a_polars_frame_has_the_rows(answer: Answer) -> None:
    polars = pytest.importorskip("polars")
    frame = answer.to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["amount"].to_list() == answer.table["amount"].to_pylist()
    assert frame.filter(polars.col("decision") == "admits").height > 0


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_library_is_named_with_its_command(
    name: str, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=rf"{name}: is not installed: pip install {name}"):
        getattr(answer, f"to_{name}")()


def test_polars_gets_the_arrow_table(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: ("frame", table)))
    assert answer.to_polars() == ("frame", answer.table)


def test_html_shows_the_first_rows_and_escapes_texts(answer: Answer) -> None:
    text = Answer(answer.table, {"a <note>": 2}, "3 nodes & more")._repr_html_()
    assert "<b>3 nodes &amp; more</b>" in text
    assert "<li>a &lt;note&gt;: 2</li>" in text
    assert text.count("<tr>") == 21
    assert f"{len(answer):,} rows" in text


PAGE = (Path(__file__).parents[2] / "docs/how-to/notebook.md").read_text()
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_worked_notebook_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in CELLS:
        exec(cell, names)
        shown = re.findall(r"^# (.*)$", cell, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown
    assert (tmp_path / "drain.html").stat().st_size > 10_000
    assert len(CELLS) == 6
