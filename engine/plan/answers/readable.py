"""Format amounts of answers for people."""

from __future__ import annotations

from engine.api.amounts.sizes import binary_size

SINGULAR = {
    "pods": "pod", "nodes": "node", "pieces": "piece", "devices": "device", "processes": "process",
    "inodes": "inode", "times": "time", "shares": "share", "rounds": "round", "questions": "question",
    "fields": "field", "groups": "group",
}  # fmt: skip

NO_LIMIT = "no limit"
"""The unit of a limit that is not set, whose amount is -1: it cannot be added to others."""


def readable(amount: int, unit: str) -> str:
    """Format an amount: `3.2 GiB`, `1,250 milli-CPU`, `12 pods`, `1 pod`, `no limit`."""
    if unit == NO_LIMIT:
        return NO_LIMIT
    if unit != "bytes":
        return f"{amount:,} {SINGULAR.get(unit, unit) if amount == 1 else unit}".strip()
    return binary_size(amount) if amount >= 0 else f"-{binary_size(-amount)}"


def printable(text: str) -> str:
    """Return a text from elsewhere as a terminal may show it: with escapes for control characters, which
    would color, move or overwrite other text, and for those that reverse its direction.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
