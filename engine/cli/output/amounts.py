"""Format bytes and durations for tables."""

from __future__ import annotations

from engine.api.amounts.sizes import quantity_size

_AGES = ((86400, "d"), (3600, "h"), (60, "m"))


def show_bytes(amount: int | None) -> str:
    """Format bytes as `1.5Gi`; None as a dash."""
    return "-" if amount is None else quantity_size(amount)


def show_age(seconds: float) -> str:
    """Format seconds as `3d`, `5m`, `12s`."""
    for unit, name in _AGES:
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(seconds, 0):.0f}s"
