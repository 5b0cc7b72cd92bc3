"""Matches node selectors, affinity terms, taints and label selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from engine.api.node import Taint
from engine.api.pod import Pod
from engine.api.references import LabelSelector, LabelSelectorRequirement
from engine.api.resources import is_qualified_name
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration
from engine.api.validation.names import is_label_value

NO_EXECUTE: Final = "NoExecute"

_INTEGER = re.compile(r"[+-]?[0-9]+")


def matches_node(pod: Pod, labels: Mapping[str, str], name: str) -> bool:
    """Match `spec.nodeSelector` and required node affinity (kubelet v1.32 GetRequiredNodeAffinity)."""
    for key, value in (pod.spec.node_selector or {}).items():
        if labels.get(key) != value:
            return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None or affinity.required_during_scheduling_ignored_during_execution is None:
        return True
    return selects(affinity.required_during_scheduling_ignored_during_execution, labels, name)


def selects(selector: NodeSelector, labels: Mapping[str, str], name: str) -> bool:
    """Tell whether one of the terms matches a node."""
    return any(_term(term, labels, name) for term in selector.node_selector_terms or ())


def selects_labels(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector matches; an empty one matches everything, None nothing."""
    if selector is None:
        return False
    named = all(labels.get(key) == value for key, value in (selector.match_labels or {}).items())
    return named and all(
        one.operator not in ("Gt", "Lt") and _expression(one, labels)
        for one in selector.match_expressions or ()
    )


def _term(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Match one term; an empty or malformed term matches nothing."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    return all(_expression(one, labels) for one in expressions) and all(_field(one, name) for one in fields)


def _expression(
    wanted: NodeSelectorRequirement | LabelSelectorRequirement, labels: Mapping[str, str]
) -> bool:
    values = wanted.values or []
    # `labels.NewRequirement` refuses such a requirement, and its term then matches nothing.
    if not is_qualified_name(wanted.key) or not all(map(is_label_value, values)):
        return False
    present = labels.get(wanted.key)
    match wanted.operator:
        case "In":
            return present is not None and present in values
        # A label that is absent has none of the values.
        case "NotIn":
            return bool(values) and (present is None or present not in values)
        case "Exists":
            return not values and present is not None
        case "DoesNotExist":
            return not values and present is None
        case "Gt" | "Lt":
            if len(values) != 1 or not _is_integer(values[0]) or present is None or not _is_integer(present):
                return False
            ours, limit = int(present), int(values[0])
            return ours > limit if wanted.operator == "Gt" else ours < limit
    return False


def _field(wanted: NodeSelectorRequirement, name: str) -> bool:
    values = wanted.values or []
    # Any other field is unknown, and so has the empty value (`fields.Set.Get`).
    value = name if wanted.key == "metadata.name" else ""
    if len(values) != 1:
        return False
    if wanted.operator == "In":
        return value == values[0]
    return wanted.operator == "NotIn" and value != values[0]


def _is_integer(text: str) -> bool:
    return len(text) <= 64 and _INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    # Lt and Gt (TaintTolerationComparisonOperators) are alpha and off in v1.36: they tolerate nothing.
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
