"""Parses whole numbers in texts of peers."""

from __future__ import annotations

from typing import Final

MOST_DIGITS: Final = 18
"""The maximum number of digits, so that every number fits into 64 bits with its sign."""


def decimal(text: str) -> int | None:
    """Return the number of up to MOST_DIGITS ASCII digits; None for any other text.

    `str.isdigit` accepts digits that `int` does not (`²`), and `int` refuses texts of 5,000 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
