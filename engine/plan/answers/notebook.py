"""Show answers in notebooks: data frames, and a table that a browser draws."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from types import ModuleType

import pyarrow as pa

from engine.api.errors import InvalidInput
from engine.plan.answers.readable import readable

ROWS = 20
"""Rows of a table in a notebook."""
_STYLE = "text-align:left"


def optional_module(name: str) -> ModuleType:
    """Import a library that the planner does not require. Raise `InvalidInput` with the command that installs
    it.
    """
    try:
        return import_module(name)
    except ImportError:
        raise InvalidInput(f"is not installed: pip install {name}", subject=name) from None


def notebook_html(table: pa.Table, headline: str, notes: Sequence[str]) -> str:
    """Return the headline, the first rows and the notes of an answer."""
    names = [name for name in table.column_names if name not in ("scenario", "unit")]
    head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in names)
    rows = []
    for row in table.slice(0, ROWS).to_pylist():
        row["amount"] = readable(row["amount"], row["unit"])
        cells = "".join(f'<td style="{_STYLE}">{escape(str(row[name]))}</td>' for name in names)
        rows.append(f"<tr>{cells}</tr>")
    above = f"<p><b>{escape(headline)}</b></p>" if headline else ""
    more = f"<p>{table.num_rows:,} rows</p>" if table.num_rows > ROWS else ""
    below = "".join(f"<li>{escape(line)}</li>" for line in notes)
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div>{above}{body}{more}{f'<ul>{below}</ul>' if below else ''}</div>"
