"""Parse field selectors: `metadata.name=x,spec.nodeName!=y`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.testing.apiserver.store import StoreError

Selector = Callable[[Mapping[str, Any]], bool]


def field_selector(text: str) -> Selector:
    """Parse a field selector. A missing field counts as empty. Raise StoreError (400) for an
    invalid selector.
    """
    terms: list[tuple[list[str], bool, str]] = []
    for term in filter(None, text.split(",")):
        field, equals, value = term.partition("=")
        if not equals:
            raise StoreError(400, "BadRequest", f"invalid field selector {text!r}")
        terms.append((field.removesuffix("!").split("."), not field.endswith("!"), value.removeprefix("=")))
    return lambda value: all((_field(value, names) == wanted) is same for names, same, wanted in terms)


def _field(value: Any, names: list[str]) -> str:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
