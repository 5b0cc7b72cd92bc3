"""Fits plain data to a type as the kubelet's decoder does.

A null field counts as missing; a null in a map or a list is the zero value. Equal texts are shared, because
the pods of a node mostly repeat each other. Values that no field accepts are refused here: integers beyond
64 bits and NUL in text.
"""

from __future__ import annotations

from functools import cache
from sys import intern
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity

MAX_DEPTH = 100
_ZEROS: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, Quantity: "0", Duration: "0s"}


def fitted(document: Any, kind: Any) -> Any:
    """Return a copy that `msgspec.convert` accepts. Raises `InvalidInput` with the field path."""
    return _fit(document, kind, "", 0)


def _fit(value: Any, kind: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidInput(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidInput(f"{path or 'document'}: holds a NUL character")
        return intern(value) if type(value) is str else value
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            if Quantity in (kind, *get_args(kind)):
                return str(value)
            raise InvalidInput(f"{path or 'document'}: a number exceeds 64 bits")
        return value
    if isinstance(value, list):
        item = _form(kind).item
        zero = _zero(item)
        return [
            _fit(zero if one is None else one, item, f"{path}[{index}]", depth + 1)
            for index, one in enumerate(value)
        ]
    if isinstance(value, dict):
        return _fit_fields(value, kind, path, depth)
    return value


def _fit_fields(value: dict[Any, Any], kind: Any, path: str, depth: int) -> dict[str, Any]:
    form = _form(kind)
    kept: dict[str, Any] = {}
    for name, one in value.items():
        if not isinstance(name, str) or "\0" in name:
            raise InvalidInput(f"{path or 'document'}: a key holds a NUL character or is not a string")
        field = form.fields.get(name, form.item)
        if one is None:
            if form.fields:
                continue
            one = _zero(field)
        kept[name] = _fit(one, field, f"{path}.{name}" if path else name, depth + 1)
    return kept


class _Form(msgspec.Struct, frozen=True):
    """The shape of a type: its fields by JSON name, and the type of its items."""

    fields: dict[str, Any]
    item: Any = None


@cache
def _form(kind: Any) -> _Form:
    """Return the shape of a type; `None` and `Any` leave their data as it is."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _form(get_args(kind)[0])
    if origin in (Union, UnionType):
        forms = [_form(choice) for choice in get_args(kind) if choice is not type(None)]
        return _Form(
            {name: field for form in forms for name, field in form.fields.items()},
            next((form.item for form in forms if form.item is not None), None),
        )
    if origin in (list, dict):
        return _Form({}, get_args(kind)[-1])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _Form({field.encode_name: field.type for field in msgspec.structs.fields(kind)})
    return _Form({})


@cache
def _zero(kind: Any) -> Any:
    """Return the value of a null that cannot be omitted."""
    for choice in get_args(kind) or (kind,):
        if choice in _ZEROS:
            return _ZEROS[choice]
    return {} if _form(kind).fields else None
