"""The compiled kernels run by default, and KUBENGINE_PURE=1 picks the twin of every kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELECTORS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "engine/_fast").rglob("*.py")
    if not path.name.startswith("_") and "_select import PURE" in path.read_text()
)
"""Modules that choose between a kernel and its twin; a few kernels have none."""
SHOW = """
import importlib, sys
from engine._fast import _select
for name in sys.argv[1:]:
    room, _, kernel = name.rpartition(".")
    selector = importlib.import_module(name)
    forms = {form: importlib.import_module(f"{room}._{kernel}_{form}") for form in ("c", "py")}
    for thing in selector.__all__:
        chosen = getattr(selector, thing)
        found = [form for form, module in forms.items() if getattr(module, thing, None) is chosen]
        if len(found) == 1:  # what both have is a constant
            print(name, *found)
"""


@pytest.mark.parametrize(("pure", "form"), [("0", "c"), ("1", "py")])
def test_which_form_is_loaded(pure, form):
    environment = os.environ | {"KUBENGINE_PURE": pure}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, *SELECTORS], env=environment, capture_output=True, text=True, check=True
    )
    assert len(SELECTORS) > 10
    lines = {tuple(line.split()) for line in shown.stdout.splitlines()}
    forms: dict[str, set[str]] = {}
    for name, found in lines:
        forms.setdefault(name, set()).add(found)
    assert sorted(forms) == SELECTORS
    if form == "c":
        assert all("c" in found for found in forms.values()), forms
    else:
        assert all(found == {"py"} for found in forms.values()), forms
