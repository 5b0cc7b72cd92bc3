"""Finds the path of a field that cannot be decoded, including mapping keys that `msgspec` omits.

`msgspec` puts the path at the end of its message and writes `[...]` for the value of a mapping. People read
the path first, and need the key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from engine.api.errors import InvalidInput
from engine.api.struct import decode_hook

MAX_KEYS = 1000
"""Larger mappings are not searched for the faulty key."""

_UNNAMED = "[...]"
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]", re.ASCII)


def described(document: Any, kind: Any, error: Exception) -> str:
    """Return `path: what is wrong` for an error in converting a document to a type."""
    text, marker, path = str(error).rpartition(" - at `")
    if not marker:
        return str(error)
    path = _with_keys(document, kind, str(error), path.rstrip("`").removeprefix("$"))
    return f"{path.removeprefix('.') or 'document'}: {text}"


def _with_keys(document: Any, kind: Any, message: str, path: str) -> str:
    steps: list[str | int] = []
    shown = ""
    # From the outside in, since the path to an inner mapping has the keys of the outer ones in it.
    *parts, last = path.split(_UNNAMED)
    for number, part in enumerate(parts):
        shown += part
        steps += [int(index) if index else name for name, index in _STEP.findall(part)]
        key = _faulty_key(document, kind, message, steps)
        if key is None:
            return _UNNAMED.join([shown, *parts[number + 1 :], last])
        shown += f"[{key}]"
        steps.append(key)
    return shown + last


def _faulty_key(document: Any, kind: Any, message: str, steps: Sequence[str | int]) -> str | None:
    """Return the key of the mapping at a path whose value causes this error."""
    try:
        mapping = document
        for step in steps:
            mapping = mapping[step]
    except (LookupError, TypeError):
        return None
    if not isinstance(mapping, dict) or len(mapping) > MAX_KEYS:
        return None
    # msgspec stops at the first fault, so the entry that alone gives the same message is the faulty one.
    for key, value in mapping.items():
        with suppress(InvalidInput):
            try:
                msgspec.convert(_replaced(document, steps, {key: value}), kind, dec_hook=decode_hook)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return str(key)
    return None


def _replaced(document: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    if not steps:
        return value
    # Only along the path: a deep copy of a large document for each key would take minutes.
    copy = document.copy()
    copy[steps[0]] = _replaced(document[steps[0]], steps[1:], value)
    return copy
