"""Computes strategic merge patches from one object to another, as the API server applies them.

Pure, on JSON objects. Lists with a merge key are merged by it, others are replaced (Kubernetes' API
conventions, "Strategic Merge Patch").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MERGE_KEYS: Mapping[str, str] = {"conditions": "type", "podIPs": "ip", "hostIPs": "ip", "addresses": "type"}
REPLACED = frozenset({"addresses"})
"""Lists with a merge key that kubelets replace nevertheless: two addresses may share a type."""


def strategic_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch from `old` to `new`; empty if they are equal."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if value == before:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[name] = strategic_patch(before, value)
        elif name in REPLACED and isinstance(value, list):
            patch[name] = [*value, {"$patch": "replace"}]
        elif name in MERGE_KEYS and isinstance(value, list) and isinstance(before, list):
            patch |= _merged(name, MERGE_KEYS[name], before, value)
        else:
            patch[name] = value
    return patch


def _merged(name: str, key: str, old: list[Any], new: list[Any]) -> dict[str, Any]:
    before = {item[key]: item for item in old}
    wanted = {item[key] for item in new}
    changed = [
        {key: item[key], **strategic_patch(before[item[key]], item)} if item[key] in before else item
        for item in new
        if before.get(item[key]) != item
    ]
    gone = [{"$patch": "delete", key: item[key]} for item in old if item[key] not in wanted]
    return {name: [*changed, *gone], f"$setElementOrder/{name}": [{key: item[key]} for item in new]}
