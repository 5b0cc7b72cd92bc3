"""Give names their replacements, and replace them in labels, taints and selectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

WELL_KNOWN: Final = re.compile(
    r"^([a-z0-9.-]+\.)?(kubernetes|k8s)\.io/|^pod-template-hash$|^controller-revision-hash$"
)
"""Label and taint keys that stay: the scheduler and the planner read them."""
KEPT_VALUES: Final = ("kubernetes.io/os", "kubernetes.io/arch")
KEPT_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_FIELD_VALUES: Final = "metadata.name"


class Pseudonyms:
    """Give each name of a kind one replacement, in the order in which they are first met."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, str]] = {}

    def of(self, kind: str, name: str) -> str:
        if not name:
            return name
        known = self.table.setdefault(kind, {})
        if name not in known:
            known[name] = f"{kind}-{len(known) + 1}"
        return known[name]

    def in_order(self, kind: str, names: Iterable[str]) -> None:
        """Give names replacements that sort as the names do."""
        known = self.table.setdefault(kind, {})
        ordered = sorted(set(names) - known.keys())
        width = len(str(len(known) + len(ordered)))
        for name in ordered:
            known[name] = f"{kind}-{len(known) + 1:0{width}}"

    def namespace(self, name: str) -> str:
        return name if name in KEPT_NAMESPACES else self.of("namespace", name)

    def key(self, key: str) -> str:
        return key if WELL_KNOWN.search(key) else self.of("key", key)

    def value(self, key: str, value: str) -> str:
        """Return a label's value. A host name is that of the node, wherever it is selected."""
        if key in KEPT_VALUES or value in ("", "true", "false"):
            return value
        return self.of("node" if key == "kubernetes.io/hostname" else "value", value)

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {self.key(key): self.value(key, value) for key, value in labels.items()}


def replaced_taint(names: Pseudonyms, taint: Mapping[str, Any]) -> dict[str, Any]:
    key = taint.get("key", "")
    fresh = dict(taint) | ({"key": names.key(key)} if key else {})
    if taint.get("value"):
        fresh["value"] = names.value(key, taint["value"])
    return fresh


def selecting(names: Pseudonyms, value: Any) -> Any:
    """Replace labels, keys and namespaces in anything that selects: affinity, spread, selectors."""
    if isinstance(value, list):
        return [selecting(names, one) for one in value]
    if not isinstance(value, dict):
        return value
    fresh = {name: selecting(names, inner) for name, inner in value.items()}
    if "operator" in value and "key" in value:
        key, values = value["key"], value.get("values") or ()
        if key == _FIELD_VALUES:
            fresh["values"] = [names.of("node", one) for one in values]
        else:
            fresh["key"] = names.key(key)
            if values:
                numeric = value["operator"] in ("Gt", "Lt")
                fresh["values"] = list(values) if numeric else [names.value(key, one) for one in values]
    for name in ("matchLabels", "match_labels"):
        if value.get(name):
            fresh[name] = names.labels(value[name])
    if value.get("topologyKey"):
        fresh["topologyKey"] = names.key(value["topologyKey"])
    for name in ("matchLabelKeys", "mismatchLabelKeys"):
        if value.get(name):
            fresh[name] = [names.key(one) for one in value[name]]
    if value.get("namespaces"):
        fresh["namespaces"] = [names.namespace(one) for one in value["namespaces"]]
    return fresh
