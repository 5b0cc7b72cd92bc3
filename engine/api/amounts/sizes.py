"""Formats amounts of bytes for people."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")
_SUFFIXES = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


def binary_size(amount: int) -> str:
    """Return `512 B` or `1.5 GiB`, as the kubelet (v1.36) words sizes in its messages."""
    if amount < 1024:
        return f"{amount} B"
    size = amount / 1024
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.1f} {unit}"


def quantity_size(amount: int) -> str:
    """Return `512`, `1.5Gi`, `250Mi` or `-3Gi`: four digits, in the units of manifests."""
    for power, suffix in zip(range(6, 0, -1), _SUFFIXES, strict=True):
        if abs(amount) >= 1024**power:
            return f"{amount / 1024**power:.4g}{suffix}"
    return str(amount)
