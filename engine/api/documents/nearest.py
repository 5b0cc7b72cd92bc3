"""Finds the known name closest to an unknown one, for "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest_name(name: str, known: Collection[str]) -> str | None:
    """Return the name that was probably meant, or None. `gpu` means `nvidia.com/gpu`."""
    folded = {one.lower(): one for one in known}
    tails = {one.rpartition("/")[2]: full for one, full in folded.items()}
    asked = name.lower()
    tail = asked.rpartition("/")[2]
    if tail in tails:
        return tails[tail]
    # The tail of a name is short, so that more of it has to agree.
    # The tail of a name is short, so that more of it has to agree: `cpu` is near to too much.
    for wanted, names, least in ((asked, folded, 0.6), (tail, tails, 0.75)):
        close = difflib.get_close_matches(wanted, names, 1, least)
        if close:
            return names[close[0]]
    return None


def nearest(name: str, known: Collection[str]) -> str:
    """Return `; did you mean X?`, or an empty text."""
    found = nearest_name(name, known)
    return f"; did you mean {found}?" if found is not None else ""
