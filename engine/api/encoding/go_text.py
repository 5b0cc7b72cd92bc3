"""Text as Go writes it: JSON, and maps in the dump whose hash is a checkpoint's checksum."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def go_json(value: object) -> bytes:
    """JSON with the escapes of Go's encoder. Keys stay in the order that they are given in."""
    return msgspec.json.encode(value).decode().translate(_ESCAPES).encode()


def go_map(items: Mapping[str, str] | Mapping[int, str]) -> str:
    """A map in Go's dump: keys in order, text bytewise and numbers by value; values as they are dumped."""
    pairs = sorted(items.items(), key=lambda item: item[0].encode() if isinstance(item[0], str) else item[0])
    return f"map[{' '.join(f'{key}:{value}' for key, value in pairs)}]"
