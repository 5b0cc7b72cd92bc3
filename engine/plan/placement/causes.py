"""Name what excludes nodes for a pod: the taints that it does not tolerate, the labels that it asks for, and
the rules between pods that they break.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import tolerates
from engine.api.node import Taint
from engine.api.pod import Pod
from engine.api.references import LabelSelector, LabelSelectorRequirement
from engine.api.scheduling import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from engine.plan.snapshot.node_labels import NodeLabels, Nodes

MOST_NAMED: Final = 3
"""Causes that a reason names, the most common first."""
_OPERATORS: Final = {"In": "in", "NotIn": "not in", "Gt": ">", "Lt": "<"}

Causes: TypeAlias = Callable[[Nodes], Counter[str]]
"""Return how many of the excluded nodes, bool[nodes], each cause excludes; several may exclude one node."""


def no_causes(excluded: Nodes) -> Counter[str]:
    """Name no cause: the reason of the filter says enough."""
    return Counter()


class FilterResult(NamedTuple):
    """Hold the reason why a filter excludes nodes, bool[nodes]: the nodes that pass it, and what names the
    causes as long as no pod moves.
    """

    reason: str
    nodes: Nodes
    causes: Causes = no_causes


def counted_causes(causes: Callable[[], Iterable[tuple[str, Nodes]]]) -> Causes:
    """Return what counts the excluded nodes among those, bool[nodes], that each cause excludes."""

    def count(excluded: Nodes) -> Counter[str]:
        found: Counter[str] = Counter()
        for text, nodes in causes():
            if both := int((excluded & nodes).sum()):
                found[text] += both
        return found

    return count


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
    wanted = [
        NodeSelectorRequirement(key, "In", [value]) for key, value in (pod.spec.node_selector or {}).items()
    ]
    conditions = [*_conditions(NodeSelector([NodeSelectorTerm(wanted)])), *_conditions(required)]
    return counted_causes(lambda: ((text, ~labels.selected(one)) for text, one in conditions))(excluded)


def unreached(claim: str, affinity: NodeSelector | None, labels: NodeLabels) -> Causes:
    """Return what names the conditions of a volume's node affinity that nodes fail, and the claim."""
    return counted_causes(
        lambda: ((f"claim {claim}: {text}", ~labels.selected(one)) for text, one in _conditions(affinity))
    )


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


def affinity_text(term: PodAffinityTerm) -> str:
    """Return which pods a term of pod affinity selects, and in which domains."""
    if term.namespace_selector is not None:
        where = " of all namespaces"
    else:
        where = f" of {_listed(term.namespaces)}" if term.namespaces else ""
    return f"{_pods_text(term.label_selector)}{where} per {term.topology_key}"


def spread_text(spread: TopologySpreadConstraint, selector: LabelSelector | None) -> str:
    """Return which pods a constraint of topology spread counts, in which domains, and its maximal skew."""
    return f"{_pods_text(selector)} per {spread.topology_key}, maxSkew {spread.max_skew}"


def _pods_text(selector: LabelSelector | None) -> str:
    """Return which pods a label selector selects, as kubectl writes it."""
    if selector is None:
        return "no pods"
    parts = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    parts += [_text(one) for one in selector.match_expressions or ()]
    return " and ".join(parts) or "all pods"


def _conditions(required: NodeSelector | None) -> Iterator[tuple[str, NodeSelector]]:
    """Yield the conditions of a node selector, all of which a node must meet, as texts and as selectors."""
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


def _text(one: NodeSelectorRequirement | LabelSelectorRequirement) -> str:
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
    return f"{one.key} {_OPERATORS.get(one.operator, one.operator)} ({_listed(values)})"


def _listed(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:MOST_NAMED])}{', …' if len(texts) > MOST_NAMED else ''}"
