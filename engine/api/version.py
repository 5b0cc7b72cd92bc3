"""The package's version, as answers, snapshots and peers name it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

PACKAGE = "kubengine"
_BEFORE, _AFTER = f"{PACKAGE}-", ".dist-info"


@cache
def engine_version() -> str:
    """Return the installed package's version.

    The name of its metadata directory has it. `importlib.metadata` would load 36 modules, above all the
    parser of e-mails, into every agent.
    """
    for entry in sys.path:
        for found in Path(entry or ".").glob(f"{_BEFORE}*{_AFTER}"):
            return found.name.removeprefix(_BEFORE).removesuffix(_AFTER)
    return "unpackaged"
