"""Whole numbers in texts that peers wrote."""

from __future__ import annotations

from typing import Final

MOST_DIGITS: Final = 18
"""So that every number fits into 64 bits with its sign."""


def decimal(text: str) -> int | None:
    """The number that ASCII digits, MOST_DIGITS at most, stand for; None for any other text.

    `str.isdigit` is true of digits that `int` does not take (`²`), and `int` refuses texts of 5,000 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
