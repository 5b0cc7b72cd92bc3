"""The uid that a kubelet v1.36 gives the pod of a manifest, so that one that comes later finds it here.

It is the 128-bit FNV-1a of the pod's printed form, with every field of the kubelet's own structures and
the defaults filled in, followed by the node's name and the manifest's path. Source: kubelet v1.36, the
config package's `applyDefaults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from engine._fast.device_checksum import fnv1a_128
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.status import PodStatus
from engine.node.kubelet_types import fields
from engine.node.printed_quantity import printed_quantity

_INLINE = {"TypeMeta", "VolumeSource", "ProbeHandler"}
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
"""What the kubelet fills in and `engine.api.defaults` leaves out."""


class Unprintable(Exception):
    """The pod has something that this module doesn't know how a kubelet prints."""


def kubelet_uid(pod: Pod, *, metadata: ObjectMeta, node_name: str, path: str) -> str:
    """`pod` has its defaults; `metadata` is the manifest's own. Raises `Unprintable`."""
    text = f"(*core.Pod){printed_pod(pod, metadata)}host:{node_name}file:{path}"
    return f"{fnv1a_128(text.encode(errors='surrogateescape')):032x}"


def printed_pod(pod: Pod, metadata: ObjectMeta) -> str:
    """The pod as Go prints the kubelet's structure of it."""
    if metadata.creation_timestamp or metadata.deletion_timestamp or pod.status != PodStatus():
        raise Unprintable("times and a status are not printed")
    return _struct("core.Pod", {"objectmeta": metadata, "spec": pod.spec, "status": {}})


def _printed(kind: str, value: Any) -> str:
    """A value, without its type before it."""
    if kind.startswith("*"):
        return "<nil>" if value is None else _printed(kind[1:], value)
    if kind.startswith("[]"):
        return "<nil>" if value is None else f"[{' '.join(_printed(kind[2:], each) for each in value)}]"
    if kind == "core.ResourceList":
        kind = _ROUNDED
    if kind.startswith("map["):
        return "<nil>" if value is None else _map(kind, value)
    if kind == "bool":
        return "true" if value else "false"
    if kind in _NUMBERS:
        return str(value or 0)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(value)
    return _struct(kind, value) if kind in _structures() else _text(kind, value)


def _map(kind: str, value: Mapping[str, Any]) -> str:
    of = kind.partition("]")[2]
    if kind == _ROUNDED:
        pairs = (f"{name}:{printed_quantity(amount, milli=True)}" for name, amount in sorted(value.items()))
    else:
        pairs = (f"{name}:{_printed(of, each)}" for name, each in sorted(value.items()))
    return f"map[{' '.join(pairs)}]"


def _text(kind: str, value: Any) -> str:
    if isinstance(value, str | None):
        return value or ""
    raise Unprintable(f"{kind} is not listed")


def _struct(kind: str, value: Any) -> str:
    parts = []
    for name, of in _structures()[kind]:
        found = value if name in _INLINE else _field(kind, value, name)
        parts.append(f"{name}:({of}){_printed(of, found)}")
    return f"{{{' '.join(parts)}}}"


def _field(kind: str, value: Any, name: str) -> Any:
    if name == "SecurityContext" and kind == "core.PodSpec":
        return _PodSecurity(value)
    if isinstance(value, _PodSecurity):
        found = _get(value.spec.security_context, name)
        return found if found is not None else _get(value.spec, name)
    found = _get(value, name)
    if found in (None, "") and (kind, name) in _DEFAULTS and _may_default(kind, value):
        return _DEFAULTS[kind, name]
    return found


def _may_default(kind: str, value: Any) -> bool:
    """A volume without any source is an empty directory; every other default stands alone."""
    sources = (name for name, _ in _structures()[kind])
    return kind != "core.VolumeSource" or all(_get(value, name) is None for name in sources)


class _PodSecurity:
    """The kubelet keeps the host's namespaces in the pod's security context, manifests beside it."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def _get(value: Any, name: str) -> Any:
    """A field of a struct or of a plain object of a manifest, None where it has none."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return next((found for key, found in value.items() if key.lower() == name.lower()), None)
    attribute = _attributes(value.__class__).get(name.lower())
    return getattr(value, attribute) if attribute is not None else None


@cache
def _attributes(kind: type) -> dict[str, str]:
    names: Sequence[str] = kind.__struct_fields__  # type: ignore[attr-defined]
    return {name.replace("_", ""): name for name in names}


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
