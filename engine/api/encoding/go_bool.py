"""Parses booleans like Go's `strconv.ParseBool`."""

from __future__ import annotations

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    """Parse a boolean. Raises `ValueError` in Go's words."""
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')
