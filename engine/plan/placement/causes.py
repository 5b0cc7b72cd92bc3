"""Name what excludes nodes for a pod: the taints that it does not tolerate, the labels that it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import tolerates
from engine.api.node import Taint
from engine.api.pod import Pod
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.plan.snapshot.node_labels import NodeLabels, Nodes

MOST_NAMED: Final = 3
"""Causes that a reason names, the most common first."""
_OPERATORS: Final = {"In": "in", "NotIn": "not in", "Gt": ">", "Lt": "<"}


def untolerated_taints(
    pod: Pod, taints: Sequence[Sequence[Taint]], codes: NDArray[np.int64], excluded: Nodes
) -> Counter[str]:
    """Return how many of the `excluded` nodes, bool[nodes], have each taint that a pod does not tolerate.

    `taints` are distinct sets of taints, and `codes`, int64[nodes], the set of each node.
    """
    tolerations = pod.spec.tolerations or ()
    found: Counter[str] = Counter()
    for own, count in zip(taints, np.bincount(codes[excluded], minlength=len(taints)).tolist(), strict=True):
        for taint in own if count else ():
            if not tolerates(tolerations, taint):
                found[taint_text(taint)] += count
    return found


def unmatched_labels(
    pod: Pod, required: NodeSelector | None, labels: NodeLabels, excluded: Nodes
) -> Counter[str]:
    """Return how many of the `excluded` nodes, bool[nodes], fail each condition of the node selector of a pod
    and of its required node affinity. The terms of an affinity, any of which suffices, are one condition.
    """
    found: Counter[str] = Counter()
    for text, selector in _conditions(pod, required):
        failing = int((excluded & ~labels.selected(selector)).sum())
        if failing:
            found[text] += failing
    return found


def named(causes: Counter[str], total: int) -> str:
    """Return the most common causes in parentheses, each with its number unless it applies to all."""
    if not causes:
        return ""
    if len(causes) == 1 and causes.total() == total:
        return f" ({next(iter(causes))})"
    ordered = sorted(causes.items(), key=lambda one: (-one[1], one[0]))
    parts = [f"{count:,} {cause}" for cause, count in ordered[:MOST_NAMED]]
    more = f" and {len(causes) - MOST_NAMED} more" if len(causes) > MOST_NAMED else ""
    return f" ({', '.join(parts)}{more})"


def taint_text(taint: Taint) -> str:
    """Return a taint as kubectl writes it: `key=value:effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _conditions(pod: Pod, required: NodeSelector | None) -> Iterator[tuple[str, NodeSelector]]:
    """Yield the conditions that a node must meet for a pod, all of them, as texts and as selectors."""
    for key, value in (pod.spec.node_selector or {}).items():
        one = NodeSelectorRequirement(key, "In", [value])
        yield f"{key}={value}", NodeSelector([NodeSelectorTerm([one])])
    terms = (required.node_selector_terms if required is not None else None) or []
    if len(terms) != 1:
        if terms:
            yield " or ".join(_term_text(term) for term in terms), NodeSelector(terms)
        return
    for one in terms[0].match_expressions or ():
        yield _text(one), NodeSelector([NodeSelectorTerm([one])])
    for one in terms[0].match_fields or ():
        yield _text(one), NodeSelector([NodeSelectorTerm(match_fields=[one])])


def _term_text(term: NodeSelectorTerm) -> str:
    return " and ".join(_text(one) for one in (*(term.match_expressions or ()), *(term.match_fields or ())))


def _text(one: NodeSelectorRequirement) -> str:
    """Return a requirement as kubectl writes a label selector."""
    if one.operator == "Exists":
        return one.key
    if one.operator == "DoesNotExist":
        return f"!{one.key}"
    values = one.values or []
    if one.operator == "In" and len(values) == 1:
        return f"{one.key}={values[0]}"
    if one.operator in ("Gt", "Lt"):
        return f"{one.key} {_OPERATORS[one.operator]} {''.join(values[:1])}"
    shown = f"{', '.join(values[:MOST_NAMED])}{', …' if len(values) > MOST_NAMED else ''}"
    return f"{one.key} {_OPERATORS.get(one.operator, one.operator)} ({shown})"
