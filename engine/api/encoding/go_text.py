"""Formats values as Go does: JSON, and maps in the dump whose hash is a checkpoint's checksum."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from engine.api.encoding.json_text import encode_json

_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def go_number(number: int | float) -> str:
    """Return a number as Go's JSON encoder writes it: without an exponent from 1e-6 up to 1e21."""
    if isinstance(number, int) or not (number == 0 or 1e-6 <= abs(number) < 1e21):
        return str(number)
    return f"{Decimal(repr(number)):f}"


def go_json(value: object) -> bytes:
    """Return JSON with the escapes of Go's encoder; keys stay in the given order."""
    return encode_json(value).decode().translate(_ESCAPES).encode()


def go_map(items: Mapping[str, str] | Mapping[int, str]) -> str:
    """Return a map in Go's dump: keys sorted, text bytewise and numbers by value; values are
    dumps already.
    """
    pairs = sorted(items.items(), key=lambda item: item[0].encode() if isinstance(item[0], str) else item[0])
    return f"map[{' '.join(f'{key}:{value}' for key, value in pairs)}]"
