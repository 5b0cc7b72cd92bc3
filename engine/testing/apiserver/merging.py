"""Apply patches as the API server does: JSON merge patch (RFC 7386) and strategic merge patch.

Pure. A list with a merge key is merged item by item, `$patch: replace` replaces it, `$patch: delete` removes
an item, `$setElementOrder/LIST` gives the order; every other list is replaced whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.cluster.merge import MERGE_KEYS

KEYS: Mapping[str, str] = {
    **MERGE_KEYS,
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "ownerReferences": "uid",
    "hostAliases": "ip",
}
_ORDER = "$setElementOrder/"
_DIRECTIVE = "$patch"


def merge_patch(old: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    if patch.get(_DIRECTIVE) == "replace":
        return {name: _plain(value) for name, value in patch.items() if not name.startswith("$")}
    if patch.get(_DIRECTIVE) == "delete":
        return {}
    merged = dict(old)
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        before = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = strategic_merge(before if isinstance(before, Mapping) else {}, value)
        elif isinstance(value, list) and name in KEYS:
            order = patch.get(_ORDER + name)
            merged[name] = _merge_list(KEYS[name], before if isinstance(before, list) else [], value, order)
        else:
            merged[name] = value
    for name, order in patch.items():
        known = name.removeprefix(_ORDER)
        if name.startswith(_ORDER) and known not in patch and isinstance(merged.get(known), list):
            merged[known] = _merge_list(KEYS[known], merged[known], [], order)
    return merged


def _merge_list(key: str, old: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    if any(item.get(_DIRECTIVE) == "replace" for item in patch):
        return [_plain(item) for item in patch if _DIRECTIVE not in item]
    merged = {item[key]: item for item in old}
    for item in patch:
        if item.get(_DIRECTIVE) == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = strategic_merge(merged.get(item[key], {}), item)
    if order is None:
        return list(merged.values())
    return [merged[name] for name in _in_order(list(merged), [item[key] for item in order])]


def _in_order(present: list[str], wanted: list[str]) -> list[str]:
    """Order items as in `wanted`; the server's other items stay behind their previous neighbour."""
    ordered = [name for name in wanted if name in present]
    for at, name in enumerate(present):
        if name not in ordered:
            before = present[at - 1] if at else None
            ordered.insert(ordered.index(before) + 1 if before is not None else 0, name)
    return ordered


def _plain(value: Any) -> Any:
    """Remove directives and nulls, which have no meaning in new values."""
    if isinstance(value, Mapping):
        return {
            name: _plain(each)
            for name, each in value.items()
            if each is not None and not name.startswith("$")
        }
    return [_plain(each) for each in value] if isinstance(value, list) else value
