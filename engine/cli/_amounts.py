"""Bytes and times for tables."""

from __future__ import annotations

_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_AGES = ((86400, "d"), (3600, "h"), (60, "m"))


def show_bytes(amount: int | None) -> str:
    """`1.5Gi`; a dash for None."""
    if amount is None:
        return "-"
    for unit, name in _UNITS:
        if abs(amount) >= unit:
            return f"{amount / unit:.1f}{name}"
    return str(amount)


def show_age(seconds: float) -> str:
    """`3d`, `5m`, `12s`."""
    for unit, name in _AGES:
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(seconds, 0):.0f}s"
