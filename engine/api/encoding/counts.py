"""Write a number of things in words."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one: `1 replica`, `1,250 replicas`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
