"""The struct base that every API type shares: Kubernetes' JSON names from Python's."""

from __future__ import annotations

from functools import cache
from itertools import repeat
from typing import Annotated, Any, ClassVar

import msgspec

from engine.api.duration import Duration
from engine.api.encoding.go_text import go_number
from engine.api.encoding.json_text import json_encoder
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity

_ACRONYMS = {
    word.lower(): word
    for word in (
        "IP", "IPs", "PID", "IPC", "ID", "API", "GC", "DNS", "CFS", "QPS", "URL", "CIDR", "TLS",
        "QOS", "FQDN", "OOM", "CPUs",
    )
}  # fmt: skip


def json_name(attribute: str) -> str:
    """Convert a name: `host_ip` → `hostIP`, `image_gc_high_threshold` → `imageGCHighThreshold`."""
    first, *rest = attribute.split("_")
    return first + "".join(_ACRONYMS.get(word, word[:1].upper() + word[1:]) for word in rest)


class Struct(msgspec.Struct, kw_only=True, omit_defaults=True, rename=json_name, gc=False):
    """Represent a Kubernetes API object: attributes in snake_case, Kubernetes' own JSON names.

    A document holds nothing that refers to it, so the garbage collector has nothing to find: each object is
    16 bytes smaller, and thousands of pods are no work for a collection.
    """


class PartlyShown(msgspec.Struct, frozen=True):
    """Leave the fields in `HIDDEN`, secrets and long ones, out of the value's text, which gets into messages
    and logs.
    """

    HIDDEN: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in self.HIDDEN)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A field of 32 bits: a kubelet's decoder refuses what does not fit."""
Uint32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""A field of 32 bits without a sign."""


def written(value: Any) -> Any:
    """Declare a field whose default is written out like any other value, as an API server does.

    A status has some twenty of these; `repeat` returns the value without a call of Python's.
    """
    return msgspec.field(default_factory=repeat(value).__next__)


def decode_hook(kind: type, value: Any) -> Any:
    """Decode the types that `msgspec` does not know: quantities and durations."""
    try:
        if kind is Quantity:
            if isinstance(value, str):
                return Quantity.parse(value.strip(" "))
            if isinstance(value, int | float) and not isinstance(value, bool):
                return Quantity.parse(go_number(value))
            raise TypeError(f"expected a quantity such as 500m or 1Gi, got {type(value).__name__}")
        if kind is Duration:
            if isinstance(value, str):
                return Duration.parse(value)
            raise TypeError(f"expected a duration such as 10s or 1m30s, got {type(value).__name__}")
    except InvalidInput as error:
        raise ValueError(error.message) from None
    raise NotImplementedError(kind)


def forget_empty(value: Any) -> None:
    """Set the empty lists and maps of a document to None in place, as Go's `omitempty` leaves them out.

    Fields whose default is not None stay as they are.
    """
    if isinstance(value, msgspec.Struct):
        for name, optional in _fields(type(value)):
            inner = getattr(value, name)
            if inner is None:
                continue
            if optional and not inner and isinstance(inner, list | dict):
                setattr(value, name, None)
            elif isinstance(inner, msgspec.Struct | list):
                forget_empty(inner)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, msgspec.Struct):
                forget_empty(inner)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class, and whether the default of each is None.

    `msgspec.structs.fields` would evaluate all annotations of the class for it.
    """
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    # Defaults belong to the last fields; the first ones are required.
    aligned = (*[msgspec.NODEFAULT] * (len(names) - len(defaults)), *defaults)
    return tuple((name, default is None) for name, default in zip(names, aligned, strict=True))


def encode_hook(value: Any) -> Any:
    """Encode quantities and durations, which `msgspec` does not know, as text."""
    if isinstance(value, Quantity | Duration):
        return str(value)
    raise NotImplementedError(type(value))


def to_builtins(value: Any) -> Any:
    """Return dicts, lists and strings in the shape of Kubernetes' JSON."""
    return msgspec.to_builtins(value, enc_hook=encode_hook, str_keys=True)


to_json = json_encoder(encode_hook)
"""Return JSON in the shape of Kubernetes."""
