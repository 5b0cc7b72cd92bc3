"""Computes the uid that kubelet v1.36 gives a static pod, so that a later kubelet adopts the running pod.

The uid is the 128-bit FNV-1a hash of the pod's printed form, with every field of the kubelet's internal
structures and all defaults, followed by the node's name and the manifest's path, or by its URL. Source:
kubelet v1.36, `applyDefaults` of the config package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec

from engine._fast.devices.device_checksum import fnv1a_128
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.status import PodStatus
from engine.node.sources.kubelet_types import fields
from engine.node.sources.printed_quantity import printed_quantity

_INLINE = {"TypeMeta", "VolumeSource", "ProbeHandler"}
_POD_SECURITY = ("core.PodSpec", "SecurityContext")
_NUMBERS = {"int64", "int32"}
_ROUNDED = "map[core.ResourceName]resource.Quantity"
_NO_TIME = "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"
_FILE_MODE = 0o644
_DEFAULTS: dict[tuple[str, str], Any] = {
    ("core.ObjectFieldSelector", "APIVersion"): "v1",
    ("core.DownwardAPIVolumeSource", "DefaultMode"): _FILE_MODE,
    ("core.ProjectedVolumeSource", "DefaultMode"): _FILE_MODE,
    ("core.VolumeSource", "EmptyDir"): {},
}
"""Defaults of the kubelet that `engine.api.defaults` does not set."""


class Unprintable(Exception):
    """Raised if the pod has a field whose printed form is not known here."""


def kubelet_uid(pod: Pod, *, metadata: ObjectMeta, place: str) -> str:
    """Compute the uid of a pod with defaults.

    `metadata` is the manifest's own; `place` is `host:NODEfile:PATH` or `url:URL`. Raises `Unprintable`.
    """
    text = f"(*core.Pod){printed_pod(pod, metadata)}{place}"
    return f"{fnv1a_128(text.encode(errors='surrogateescape')):032x}"


def printed_pod(pod: Pod, metadata: ObjectMeta) -> str:
    """Return the pod as Go prints the kubelet's structure."""
    if metadata.creation_timestamp or metadata.deletion_timestamp or pod.status != PodStatus():
        raise Unprintable("times and a status are not printed")
    return _printer("core.Pod")({"objectmeta": metadata, "spec": pod.spec, "status": {}})


@cache
def _printer(kind: str) -> Callable[[Any], str]:
    """Return the function that prints a value of a kind, without its type name."""
    if kind.startswith("*"):
        return partial(_pointed_to, kind[1:])
    if kind.startswith("[]"):
        return partial(_list, kind[2:])
    if kind == "core.ResourceList":
        kind = _ROUNDED
    if kind.startswith("map["):
        return partial(_map, kind)
    if kind == "bool":
        return lambda value: "true" if value else "false"
    if kind in _NUMBERS:
        return lambda value: str(value or 0)
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    return partial(_struct, kind) if kind in _structures() else partial(_text, kind)


def _pointed_to(kind: str, value: Any) -> str:
    return "<nil>" if value is None else _printer(kind)(value)


def _list(kind: str, values: Sequence[Any] | None) -> str:
    return "<nil>" if values is None else f"[{' '.join(map(_printer(kind), values))}]"


def _map(kind: str, value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "<nil>"
    of = kind.partition("]")[2]
    if kind == _ROUNDED:
        pairs = (f"{name}:{printed_quantity(amount, milli=True)}" for name, amount in sorted(value.items()))
    else:
        pairs = (f"{name}:{_printer(of)(each)}" for name, each in sorted(value.items()))
    return f"map[{' '.join(pairs)}]"


def _text(kind: str, value: Any) -> str:
    if isinstance(value, str | None):
        return value or ""
    raise Unprintable(f"{kind} is not listed")


def _struct(kind: str, value: Any) -> str:
    if value is None or value == {}:
        return _empty(kind)
    return _braced([field(value) for field in _fields(kind, value.__class__)])


@cache
def _empty(kind: str) -> str:
    """Return the printed form of an empty structure."""
    return _braced([each.label + each.printed({}) for each in _members(kind)])


def _braced(fields: Sequence[str]) -> str:
    return f"{{{' '.join(fields)}}}"


@dataclass(frozen=True, slots=True)
class _Member:
    """A field of a structure: the text before its value, and how to find and print the value."""

    struct: str
    name: str
    label: str
    print: Callable[[Any], str]
    default: Any

    @property
    def stands_alone(self) -> bool:
        """Whether the field alone determines its name."""
        inherits = self.name in _INLINE or (self.struct, self.name) == _POD_SECURITY
        return not inherits and self.default is None

    def printed(self, owner: Any) -> str:
        return self.print(owner if self.name in _INLINE else self._value(owner))

    def _value(self, owner: Any) -> Any:
        if (self.struct, self.name) == _POD_SECURITY:
            return _PodSecurity(owner)
        if isinstance(owner, _PodSecurity):
            found = _get(owner.spec.security_context, self.name)
            return found if found is not None else _get(owner.spec, self.name)
        found = _get(owner, self.name)
        if self.default is not None and found in (None, "") and _may_default(self.struct, owner):
            return self.default
        return found


@cache
def _fields(kind: str, owner: type) -> list[Callable[[Any], str]]:
    """Return what prints the fields of a structure, read from values of a class."""
    return [_field(member, owner) for member in _members(kind)]


def _field(member: _Member, owner: type) -> Callable[[Any], str]:
    label, printed = member.label, member.print
    if not (member.stands_alone and issubclass(owner, msgspec.Struct)):
        return lambda value: label + member.printed(value)
    absent, attribute = label + printed(None), _attribute(owner, member.name)
    if attribute is None:
        return lambda _: absent

    def field(value: Any) -> str:
        found = getattr(value, attribute)
        return absent if found is None else label + printed(found)

    return field


@cache
def _members(kind: str) -> list[_Member]:
    return [
        _Member(kind, name, f"{name}:({of})", _printer(of), _DEFAULTS.get((kind, name)))
        for name, of in _structures()[kind]
    ]


def _may_default(kind: str, value: Any) -> bool:
    """Tell whether a structure gets defaults. A volume without a source is an emptyDir; other defaults stand
    alone.
    """
    sources = (name for name, _ in _structures()[kind])
    return kind != "core.VolumeSource" or all(_get(value, name) is None for name in sources)


class _PodSecurity:
    """The host namespaces, which the kubelet's structure keeps in the security context and a manifest in the
    spec.
    """

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def _get(value: Any, name: str) -> Any:
    """Return a field of a struct or of a plain object, or None."""
    if value is None:
        return None
    if isinstance(value, dict):
        return next((found for key, found in value.items() if key.lower() == name.lower()), None)
    attribute = _attribute(value.__class__, name)
    return getattr(value, attribute) if attribute is not None else None


@cache
def _attribute(kind: type, name: str) -> str | None:
    names: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]
    return next((each for each in names if each.replace("_", "") == name.lower()), None)


@cache
def _structures() -> dict[str, tuple[tuple[str, str], ...]]:
    return fields()


def _int_or_string(value: int | str) -> str:
    number, text = (value, "") if isinstance(value, int) else (0, value)
    return f"{{Type:(intstr.Type){int(isinstance(value, str))} IntVal:(int32){number} StrVal:(string){text}}}"


def _quantity(value: Quantity | None) -> str:
    return printed_quantity(value, milli=False)


_SPECIAL: dict[str, Callable[[Any], str]] = {
    "v1.Time": lambda _: _NO_TIME,
    "intstr.IntOrString": _int_or_string,
    "resource.Quantity": _quantity,
}
