"""Computes the uid that kubelet v1.36 gives a static pod, so that a later kubelet adopts the running pod.

The uid is the 128-bit FNV-1a hash of the pod's printed form, with every field of the kubelet's internal
structures and all defaults, followed by the node's name and the manifest's path, or by its URL. Source:
kubelet v1.36, `applyDefaults` of the config package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec

from engine._fast.devices.device_checksum import fnv1a_128
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSecurityContext, PodSpec
from engine.api.quantity import Quantity
from engine.api.status import PodStatus
from engine.node.sources.kubelet_types import LISTED, fields
from engine.node.sources.printed_quantity import printed_quantity

_INLINE = {"TypeMeta", "VolumeSource", "ProbeHandler"}
_POD_SECURITY = ("core.PodSpec", "SecurityContext")
_HOST_FIELDS = ("host_network", "host_pid", "host_ipc", "share_process_namespace", "host_users")
"""Fields of a pod's spec that the kubelet's internal structure has in the security context."""
_NO_SECURITY = (None, PodSecurityContext())
_NUMBERS = {"int64", "int32"}
_NIL_KINDS = ("*", "[]", "map[")
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


class _Manifest(msgspec.Struct):
    """Hold the parts of a pod that are printed."""

    objectmeta: ObjectMeta
    spec: PodSpec
    status: dict[str, Any]


class Unprintable(Exception):
    """Raised if the printed form of one of the pod's fields is not known."""


def kubelet_uid(pod: Pod, *, metadata: ObjectMeta, place: str) -> str:
    """Compute the uid of a pod with defaults.

    `metadata` is the manifest's own; `place` is `host:NODEfile:PATH` or `url:URL`. Raises `Unprintable`.
    """
    text = f"(*core.Pod){printed_pod(pod, metadata)}{place}"
    return f"{fnv1a_128(text.encode(errors='surrogateescape')):032x}"


def printed_pod(pod: Pod, metadata: ObjectMeta) -> str:
    """Return the pod as Go prints the kubelet's structure."""
    if metadata.creation_timestamp or metadata.deletion_timestamp or pod.status != PodStatus():
        raise Unprintable("times and a status have no printed form")
    return _struct("core.Pod", _Manifest(metadata, pod.spec, {}))


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
    return partial(_struct, kind) if kind in LISTED else partial(_text, kind)


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
    parts = []
    for label, attribute, form, member, absent in _fields(kind, value.__class__):
        if form is _INLINED:
            parts.append(label + member.print(value))
        elif form is _INHERITED:
            parts.append(label + member.printed(value))
        elif attribute is None or (found := getattr(value, attribute)) is None:
            parts.append(absent or label + _absent(member.kind))
        elif form is _TEXT and isinstance(found, str):
            parts.append(label + found)
        elif form is _NUMBER:
            parts.append(f"{label}{found}")
        elif form is _BOOL:
            parts.append(label + ("true" if found else "false"))
        else:
            parts.append(label + member.print(found))
    return _braced(parts)


@cache
def _absent(kind: str) -> str:
    """Return the printed form of an absent value."""
    return "<nil>" if kind.startswith(_NIL_KINDS) else _printer(kind)(None)


@cache
def _empty(kind: str) -> str:
    """Return the printed form of an empty structure."""
    return _braced(
        [
            each.label + (_absent(each.kind) if each.default is None else each.print(each.default))
            for each in _members(kind)
        ]
    )


def _braced(fields: Sequence[str]) -> str:
    return f"{{{' '.join(fields)}}}"


class _Form(Enum):
    """Name the way in which a field is printed. Most fields are absent, strings or numbers, printed without a
    call.
    """

    TEXT = auto()
    NUMBER = auto()
    BOOL = auto()
    OTHER = auto()
    INLINE = auto()
    """An embedded structure: its fields are read from the owner."""
    INHERITED = auto()
    """The value depends on more than the field of that name."""


# By a name each, since an enumeration's attribute takes longer than all else that is done with a field.
_TEXT, _NUMBER, _BOOL, _OTHER, _INLINED, _INHERITED = _Form


class _Member(msgspec.Struct, frozen=True):
    """Describe a field of a structure: the text before its value, and how to find and print the value."""

    struct: str
    name: str
    kind: str
    label: str
    print: Callable[[Any], str]
    default: Any
    form: _Form

    def printed(self, owner: Any) -> str:
        if (self.struct, self.name) == _POD_SECURITY and owner.security_context in _NO_SECURITY:
            return _bare_security(*(getattr(owner, each) for each in _HOST_FIELDS))
        return self.print(self._value(owner))

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


class _Field(NamedTuple):
    """Describe a field of a structure for values of one class. The field is absent if `attribute` is None.

    `absent`, which includes the label, is printed then, unless it is empty.
    """

    label: str
    attribute: str | None
    form: _Form
    member: _Member
    absent: str


@cache
def _fields(kind: str, owner: type) -> list[_Field]:
    """Return the fields of a structure as they are read from values of a class."""
    known = _attributes(owner) if issubclass(owner, msgspec.Struct) else None
    found = []
    for member in _members(kind):
        form, attribute = member.form, None
        if known is None and form is not _INLINED:
            form = _INHERITED
        elif known is not None:
            attribute = known.get(member.name.lower())
        # The empty form of a structure is left to its first use, since most pods lack most structures.
        simple = form in (_TEXT, _NUMBER, _BOOL) or member.kind.startswith(_NIL_KINDS)
        absent = member.label + _absent(member.kind) if simple else ""
        found.append(_Field(member.label, attribute, form, member, absent))
    return found


@cache
def _form(kind: str) -> _Form:
    kind = kind.removeprefix("*")
    if kind == "bool":
        return _BOOL
    if kind in _NUMBERS:
        return _NUMBER
    listed = kind in LISTED or kind in _SPECIAL or kind == "core.ResourceList"
    return _OTHER if listed or kind.startswith(("map[", "[]")) else _TEXT


@cache
def _members(kind: str) -> list[_Member]:
    found = []
    for name, of in fields(kind):
        default = _DEFAULTS.get((kind, name))
        if name in _INLINE:
            form = _INLINED
        elif default is not None or (kind, name) == _POD_SECURITY:
            form = _INHERITED
        else:
            form = _form(of)
        found.append(_Member(kind, name, of, f"{name}:({of})", _printer(of), default, form))
    return found


def _may_default(kind: str, value: Any) -> bool:
    """Tell whether a structure gets defaults. A volume source gets one only if it is empty: it is an emptyDir
    then.
    """
    sources = (name for name, _ in fields(kind))
    return kind != "core.VolumeSource" or all(_get(value, name) is None for name in sources)


class _PodSecurity:
    """Combine the security context with the host namespaces of the spec.

    They are fields of the spec in the API, but of the security context in the kubelet's internal structure.
    """

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def _get(value: Any, name: str) -> Any:
    """Return a field of a struct or of a plain object, or None."""
    if value is None:
        return None
    if isinstance(value, dict):
        return next((found for key, found in value.items() if key.lower() == name.lower()), None)
    attribute = _attributes(value.__class__).get(name.lower())
    return getattr(value, attribute) if attribute is not None else None


@cache
def _bare_security(*host_fields: bool | None) -> str:
    """Return the printed form of the security context of a pod that has none of its own."""
    given: dict[str, Any] = dict(zip(_HOST_FIELDS, host_fields, strict=True))
    spec = PodSpec(**given)
    return _struct("core.PodSecurityContext", _PodSecurity(spec))


@cache
def _attributes(kind: type) -> dict[str, str]:
    """Return the attributes of a class by the kubelet's names in lower case."""
    names: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]
    return {name.replace("_", ""): name for name in names}


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
