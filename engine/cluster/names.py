"""Escapes object names in requests, so that no name can change which object is meant. Pure.

Source: client-go v1.36 (`rest.Request.Name`, `fields.EscapeValue`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from engine.api.errors import InvalidInput

_NO_SEGMENT: Final = (".", "..")
_SPECIAL: Final = str.maketrans({"\\": "\\\\", ",": "\\,", "=": "\\="})


def object_path(collection: str, name: str) -> str:
    """Return the path of an object in a collection. Raises `InvalidInput` for an impossible name."""
    if not name:
        raise InvalidInput("resource name may not be empty")
    wrong = [f"may not be '{name}'"] if name in _NO_SEGMENT else []
    wrong += [f"may not contain '{mark}'" for mark in "/%" if mark in name]
    if wrong:
        raise InvalidInput(f'invalid resource name "{name}": [{" ".join(wrong)}]')
    return f"{collection}/{quote(name, safe=':')}"


def field_is(field: str, value: str) -> str:
    """Return a field selector of one term."""
    return f"{field}={value.translate(_SPECIAL)}"
