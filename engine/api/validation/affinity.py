"""Affinity and topology spread: a scheduler's fields, checked as a kubelet checks them in a manifest."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Pod
from engine.api.references import LabelSelector
from engine.api.scheduling import (
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from engine.api.validation.names import (
    dns_label,
    dns_subdomain,
    in_range,
    label_value,
    labels,
    one_of,
    qualified_name,
)

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SETS, _PRESENCE, _ORDER = ("In", "NotIn"), ("Exists", "DoesNotExist"), ("Gt", "Lt")
_DO_NOT_SCHEDULE = "DoNotSchedule"


def affinity_problems(pod: Pod) -> Iterator[str]:
    affinity, where = pod.spec.affinity, "spec.affinity"
    if affinity is not None:
        if affinity.node_affinity is not None:
            yield from _node_affinity(affinity.node_affinity, f"{where}.nodeAffinity")
        for name, given in (
            ("podAffinity", affinity.pod_affinity),
            ("podAntiAffinity", affinity.pod_anti_affinity),
        ):
            if given is not None:
                yield from _pod_affinity(given, f"{where}.{name}")
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(pod.spec.topology_spread_constraints or []):
        field = f"spec.topologySpreadConstraints[{index}]"
        yield from _spread(constraint, field)
        # A hard and a soft constraint of the same topology are two kinds, and may stand together.
        kind = (constraint.topology_key, constraint.when_unsatisfiable)
        if kind in seen:
            yield f"{field}: {kind[0][:64]!r} has a constraint of {kind[1][:64]!r} already"
        seen.add(kind)


def _node_affinity(affinity: NodeAffinity, where: str) -> Iterator[str]:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        if not required.node_selector_terms:
            yield f"{where}.{_REQUIRED}.nodeSelectorTerms: expected at least one"
        for index, term in enumerate(required.node_selector_terms or []):
            yield from _node_term(term, f"{where}.{_REQUIRED}.nodeSelectorTerms[{index}]", strict=True)
    for index, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or []):
        field = f"{where}.{_PREFERRED}[{index}]"
        yield from in_range(weighted.weight, 1, 100, f"{field}.weight")
        yield from _node_term(weighted.preference, f"{field}.preference", strict=False)


def _node_term(term: NodeSelectorTerm, where: str, *, strict: bool) -> Iterator[str]:
    """Check a term of node affinity. With `strict`, values must be possible label values."""
    for index, wanted in enumerate(term.match_expressions or []):
        field = f"{where}.matchExpressions[{index}]"
        yield from _requirement(wanted.key, wanted.operator, wanted.values, field, ordered=True)
        # `ValidatePreferredSchedulingTerms` takes any value: such a term matches no node, which is harmless.
        for value in wanted.values or [] if strict else []:
            yield from label_value(value, f"{field}.values")
    for index, wanted in enumerate(term.match_fields or []):
        yield from _node_field(wanted, f"{where}.matchFields[{index}]")


def _node_field(wanted: NodeSelectorRequirement, field: str) -> Iterator[str]:
    yield from one_of(wanted.key, ("metadata.name",), f"{field}.key")
    yield from one_of(wanted.operator, _SETS, f"{field}.operator")
    if wanted.operator in _SETS and len(wanted.values or []) != 1:
        yield f"{field}.values: expected one value"
    for value in wanted.values or []:
        yield from dns_subdomain(value, f"{field}.values")


def _requirement(
    key: str, operator: str, values: list[str] | None, field: str, *, ordered: bool
) -> Iterator[str]:
    """Check a requirement. With `ordered`, the operators Gt and Lt are known."""
    yield from qualified_name(key, f"{field}.key")
    yield from one_of(operator, (*_SETS, *_PRESENCE, *(_ORDER if ordered else ())), f"{field}.operator")
    if operator in _SETS and not values:
        yield f"{field}.values: expected at least one with the operator {operator}"
    elif operator in _PRESENCE and values:
        yield f"{field}.values: expected none with the operator {operator}"
    elif operator in _ORDER and len(values or []) != 1:
        yield f"{field}.values: expected one value with the operator {operator}"


def _pod_affinity(affinity: PodAffinity, where: str) -> Iterator[str]:
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution or []):
        yield from _pod_term(term, f"{where}.{_REQUIRED}[{index}]")
    for index, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or []):
        field = f"{where}.{_PREFERRED}[{index}]"
        yield from in_range(weighted.weight, 1, 100, f"{field}.weight")
        yield from _pod_term(weighted.pod_affinity_term, f"{field}.podAffinityTerm")


def _pod_term(term: PodAffinityTerm, where: str) -> Iterator[str]:
    yield from _selector(term.label_selector, f"{where}.labelSelector")
    yield from _selector(term.namespace_selector, f"{where}.namespaceSelector")
    for index, namespace in enumerate(term.namespaces or []):
        yield from dns_label(namespace, f"{where}.namespaces[{index}]")
    match, mismatch = term.match_label_keys or [], term.mismatch_label_keys or []
    yield from _label_keys(match, mismatch, term.label_selector, where)
    yield from qualified_name(term.topology_key, f"{where}.topologyKey")


def _selector(selector: LabelSelector | None, where: str) -> Iterator[str]:
    if selector is None:
        return
    yield from labels(selector.match_labels, f"{where}.matchLabels")
    for index, wanted in enumerate(selector.match_expressions or []):
        field = f"{where}.matchExpressions[{index}]"
        yield from _requirement(wanted.key, wanted.operator, wanted.values, field, ordered=False)
        for value in wanted.values or []:
            yield from label_value(value, f"{field}.values")


def _label_keys(
    match: list[str], mismatch: list[str], selector: LabelSelector | None, where: str
) -> Iterator[str]:
    """Check keys whose values the API server takes from the pod and adds to the selector.

    It adds one expression for a key: a key that the selector has twice was in it before.
    """
    for name, keys in (("matchLabelKeys", match), ("mismatchLabelKeys", mismatch)):
        if keys and selector is None:
            yield f"{where}.{name}: requires a labelSelector"
        else:
            for index, key in enumerate(keys):
                yield from qualified_name(key, f"{where}.{name}[{index}]")
    if selector is not None:
        seen = set(selector.match_labels or {})
        for expression in selector.match_expressions or []:
            if expression.key in match and expression.key in seen:
                yield f"{where}.matchLabelKeys: {expression.key[:64]!r} is a key of the labelSelector"
            seen.add(expression.key)
    for key in match:
        if key in mismatch:
            yield f"{where}.matchLabelKeys: {key[:64]!r} is one of mismatchLabelKeys"


def _spread(constraint: TopologySpreadConstraint, where: str) -> Iterator[str]:
    if constraint.max_skew <= 0:
        yield f"{where}.maxSkew: expected 1 or more, got {constraint.max_skew}"
    if not constraint.topology_key:
        yield f"{where}.topologyKey: expected a label's name"
    action = constraint.when_unsatisfiable
    yield from one_of(action, (_DO_NOT_SCHEDULE, "ScheduleAnyway"), f"{where}.whenUnsatisfiable")
    if constraint.min_domains is not None:
        if constraint.min_domains <= 0:
            yield f"{where}.minDomains: expected 1 or more, got {constraint.min_domains}"
        if action != _DO_NOT_SCHEDULE:
            yield f"{where}.minDomains: requires whenUnsatisfiable {_DO_NOT_SCHEDULE}"
    policies = ("Honor", "Ignore")
    yield from one_of(constraint.node_affinity_policy, policies, f"{where}.nodeAffinityPolicy")
    yield from one_of(constraint.node_taints_policy, policies, f"{where}.nodeTaintsPolicy")
    yield from _label_keys(constraint.match_label_keys or [], [], constraint.label_selector, where)
    yield from _selector(constraint.label_selector, f"{where}.labelSelector")
