"""Apply the filters between pods of the v1.36 scheduler: InterPodAffinity and PodTopologySpread.

`PodTopology` tracks the node of every pod while pods move, and computes the nodes that the required rules of
one pod, and the required anti-affinity of the others, allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import selects_labels
from engine.api.encoding.json_text import encode_json
from engine.api.pod import Pod
from engine.api.references import LabelSelector, LabelSelectorRequirement
from engine.api.scheduling import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from engine.plan.placement.causes import FilterResult, affinity_text, counted_causes, spread_text
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.distinct import distinct_numbers
from engine.plan.snapshot.lazy_table import coded
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes
from engine.plan.snapshot.objects import decoded_spec

PodRows: TypeAlias = NDArray[np.int64]
"""Rows of pods in the snapshot, in ascending order."""

_DO_NOT_SCHEDULE: Final = "DoNotSchedule"


class Undecidable(Exception):
    """Report that a filter needs data that the snapshot does not hold; the text names the data."""


@dataclass(frozen=True)
class _Rules:
    """Hold the required rules between pods of one template."""

    affinity: tuple[PodAffinityTerm, ...] = ()
    anti_affinity: tuple[PodAffinityTerm, ...] = ()
    spread: tuple[TopologySpreadConstraint, ...] = ()


class PodTopology:
    """Compute the nodes that pass the filters between pods, while pods move.

    It tracks all pods of the snapshot, including those without a node (-1).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        pods = snapshot.pods
        # Reading the column of nodes and copying it would touch twice as much memory.
        nodes, placed = np.arange(snapshot.node_count, dtype=np.int32), snapshot.offsets[-1]
        self._node: NDArray[np.int32] = np.repeat(
            np.append(nodes, np.int32(NO_NODE)), np.append(np.diff(snapshot.offsets), pods.num_rows - placed)
        )
        self._template: NDArray[np.int32] = pods["template"].to_numpy()
        labels, self._label_code = coded(pods, "labels")
        self._labels: list[Mapping[str, str]] = [
            msgspec.json.decode(text) or {} if text else {} for text in labels
        ]
        self._namespaces, self._namespace_code = coded(pods, "namespace")
        self.domains_of = labels_of_nodes(snapshot).domains_of
        self._rules: dict[int, _Rules] = {}
        self._matched: dict[tuple[bytes, tuple[str, ...] | None], PodRows] = {}
        self._of_template: dict[int, PodRows] = {}

    def node_of(self, row: int) -> int:
        """Return the node of a pod, -1 for none."""
        return int(self._node[row])

    def count_by_domain(self, key: str, pods: PodRows, *counted: Nodes) -> NDArray[np.int64]:
        """Return int64[domains]: how many of these pods are in each domain of a topology key. Only pods on
        nodes that are in each of `counted`, bool[nodes], count.
        """
        domain, count = self.domains_of(key)
        at = self.nodes_of(pods)
        for nodes in counted:
            at = at[nodes[at]]
        found = domain[at]
        return np.bincount(found[found >= 0], minlength=count)

    def nodes_of(self, pods: PodRows) -> NDArray[np.int32]:
        """Return int32[n]: the nodes of those of these pods that have one; a node appears once per pod."""
        at = self._node[pods]
        found: NDArray[np.int32] = at[at != NO_NODE]
        return found

    def pods_of_template(self, template: int) -> PodRows:
        """Return the pods of a template."""
        found = self._of_template.get(template)
        if found is None:
            found = self._of_template[template] = np.flatnonzero(self._template == template)
        return found

    def labels_of(self, row: int) -> Mapping[str, str]:
        labels: Mapping[str, str] = self._labels[self._label_code[row]]
        return labels

    def namespace_of(self, row: int) -> str:
        namespace: str = self._namespaces[self._namespace_code[row]]
        return namespace

    def remove_pod(self, row: int) -> None:
        """Remove a pod from its node."""
        self._node[row] = NO_NODE

    def add_pod(self, row: int, node: int) -> None:
        """Put a pod on a node, -1 for none."""
        self._node[row] = node

    def filter(self, row: int, affine: Nodes, tolerated: Nodes) -> Iterator[FilterResult]:
        """Yield for each rule the nodes that it allows, and what names the pods that it keeps away from or
        asks for.

        `affine` nodes match the pod's node selector and node affinity, and it tolerates the taints of
        `tolerated` nodes: the node inclusion policies of topology spread read both. Raise `Undecidable`.
        """
        rules = self._rules_of(int(self._template[row]))
        own = (self.namespace_of(row),)
        labels = self.labels_of(row)
        repelling = list(self._repelling_pods(own[0], labels))
        if repelling:
            near = self._near_any((term.topology_key, pods) for term, pods in repelling)
            causes = counted_causes(lambda: self._named_by_owner(repelling))
            yield FilterResult("anti-affinity of a pod on the node", ~near, causes)
        if rules.anti_affinity:
            kept_off = [(one, self.pods_selected(one, own)) for one in rules.anti_affinity]
            near = self._near_any((one.topology_key, pods) for one, pods in kept_off)
            causes = counted_causes(
                lambda: ((affinity_text(one), self._near(one.topology_key, pods)) for one, pods in kept_off)
            )
            yield FilterResult("its pod anti-affinity", ~near, causes)
        if rules.affinity:
            yield self._filter_by_affinity(rules.affinity, own, labels)
        for spread in rules.spread:
            counted = np.ones(self._snapshot.node_count, bool)
            if spread.node_affinity_policy != "Ignore":
                counted &= affine
            if spread.node_taints_policy == "Honor":
                counted &= tolerated
            # A node counts only if it has the topology keys of all constraints of the pod.
            for other in rules.spread:
                counted &= self.domains_of(other.topology_key)[0] >= 0
            nodes = self._within_skew(spread, own, labels, counted)
            causes = partial(_only_cause, spread_text(spread, spread_selector(spread, labels)))
            yield FilterResult("its topology spread", nodes, causes)

    def _filter_by_affinity(
        self, terms: Sequence[PodAffinityTerm], own: tuple[str, ...], labels: Mapping[str, str]
    ) -> FilterResult:
        """Allow the nodes that share all domains with a pod that matches every term.

        If no such pod has a node and the pod matches its own terms, every node with the topology keys will
        do: otherwise the first pod of a group could never be scheduled.
        """
        matching = self.pods_selected(terms[0], own)
        for term in terms[1:]:
            matching = np.intersect1d(matching, self.pods_selected(term, own), assume_unique=True)
        if not len(self.nodes_of(matching)) and all(
            selects_labels(term.label_selector, labels) and own[0] in (self.namespaces_of(term, own) or own)
            for term in terms
        ):
            near = {term.topology_key: self.domains_of(term.topology_key)[0] >= 0 for term in terms}
        else:
            near = {term.topology_key: self._near(term.topology_key, matching) for term in terms}
        causes = counted_causes(lambda: ((affinity_text(one), ~near[one.topology_key]) for one in terms))
        return FilterResult("its pod affinity", np.logical_and.reduce(list(near.values())), causes)

    def _repelling_pods(
        self, namespace: str, labels: Mapping[str, str]
    ) -> Iterator[tuple[PodAffinityTerm, PodRows]]:
        """Yield each term of required anti-affinity that matches a pod with this namespace and these labels,
        and the pods that have the term.
        """
        for template in self._repelling:
            for term in self._rules_of(template).anti_affinity:
                if not selects_labels(term.label_selector, labels):
                    continue
                pods = self.pods_of_template(template)
                namespaces = self.namespaces_of(term, ())
                # An empty tuple stands for the namespace of each pod that has the term.
                if namespaces is not None and namespace not in namespaces:
                    if namespaces:
                        continue
                    pods = self.in_namespaces(pods, (namespace,))
                yield term, pods

    def _named_by_owner(
        self, repelling: Sequence[tuple[PodAffinityTerm, PodRows]]
    ) -> Iterator[tuple[str, Nodes]]:
        """Yield each term with the controller of pods that have it, and the nodes in a domain with them."""
        owners, codes = coded(self._snapshot.pods, "owner")
        for term, pods in repelling:
            keys = codes[pods].astype(np.int64) * len(self._namespaces) + self._namespace_code[pods]
            for key in distinct_numbers(keys).tolist():
                owner, namespace = divmod(key, len(self._namespaces))
                kind, _, name = owners[owner].partition("/")
                where = self._namespaces[namespace]
                label = f"{kind} {where}/{name}" if name else f"pods of {where} without a controller"
                yield f"{label}: {affinity_text(term)}", self._near(term.topology_key, pods[keys == key])

    def _near_any(self, pods_by_key: Iterable[tuple[str, PodRows]]) -> Nodes:
        """Return bool[nodes]: the nodes in a domain of some topology key with one of its pods."""
        found = np.zeros(self._snapshot.node_count, bool)
        for key, pods in pods_by_key:
            found |= self._near(key, pods)
        return found

    def _within_skew(
        self,
        spread: TopologySpreadConstraint,
        own: tuple[str, ...],
        labels: Mapping[str, str],
        counted: Nodes,
    ) -> Nodes:
        """Return bool[nodes]: the nodes where one more pod keeps the skew of a constraint within its maximum.

        `counted`, bool[nodes], are the nodes whose pods and domains count.
        """
        domain, _ = self.domains_of(spread.topology_key)
        selector = spread_selector(spread, labels)
        matching = self.count_by_domain(spread.topology_key, self.pods_matching(selector, own), counted)
        eligible = distinct_numbers(domain[counted])
        least = int(matching[eligible].min()) if len(eligible) else 0
        # With fewer than minDomains the global minimum is 0, so that pods wait for further domains.
        if spread.min_domains is not None and len(eligible) < spread.min_domains:
            least = 0
        itself = 1 if selects_labels(selector, labels) else 0
        keyed = domain >= 0
        fits: Nodes = keyed.copy()
        fits[keyed] = matching[domain[keyed]] + itself - least <= spread.max_skew
        return fits

    def _near(self, key: str, pods: PodRows) -> Nodes:
        """Return bool[nodes]: the nodes whose domain of a topology key has one of these pods."""
        domain, count = self.domains_of(key)
        found = domain[self.nodes_of(pods)]
        # The last element stays False: it is what domain -1 selects.
        occupied = np.zeros(count + 1, bool)
        occupied[found[found >= 0]] = True
        near: Nodes = occupied[domain]
        return near

    def pods_selected(self, term: PodAffinityTerm, own: tuple[str, ...]) -> PodRows:
        """Return the pods that an affinity term selects; `own` is the namespace of the pod that has the term.
        Raise `Undecidable`.
        """
        return self.pods_matching(term.label_selector, self.namespaces_of(term, own))

    @staticmethod
    def namespaces_of(term: PodAffinityTerm, own: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the namespaces that an affinity term covers, `own` if it names none; None for all
        namespaces. Raise `Undecidable` for a namespace selector, because a snapshot holds no labels of
        namespaces.
        """
        chosen = term.namespace_selector
        if chosen is not None:
            if chosen.match_labels or chosen.match_expressions:
                raise Undecidable("its affinity chooses namespaces by their labels")
            return None
        return tuple(term.namespaces) if term.namespaces else own

    def pods_matching(self, selector: LabelSelector | None, namespaces: tuple[str, ...] | None) -> PodRows:
        """Return the pods of these namespaces (None: all) that a label selector matches, cached."""
        key = encode_json(selector), namespaces
        found = self._matched.get(key)
        if found is None:
            matches = np.array([selects_labels(selector, labels) for labels in self._labels], bool)
            found = np.flatnonzero(matches[self._label_code] if len(matches) else matches)
            if namespaces is not None:
                found = self.in_namespaces(found, namespaces)
            self._matched[key] = found
        return found

    def in_namespaces(self, pods: PodRows, namespaces: tuple[str, ...]) -> PodRows:
        """Return the pods among `pods` that are in these namespaces."""
        named = np.array([name in namespaces for name in self._namespaces], bool)
        found: PodRows = pods[named[self._namespace_code[pods]]]
        return found

    @cached_property
    def _repelling(self) -> list[int]:
        """Return the templates that may have required anti-affinity."""
        specs = self._snapshot.templates["spec"].to_pylist()
        return [row for row, spec in enumerate(specs) if "podAntiAffinity" in spec]

    def _rules_of(self, template: int) -> _Rules:
        found = self._rules.get(template)
        if found is None:
            found = self._rules[template] = _rules(self._snapshot, template)
        return found


def _only_cause(text: str, excluded: Nodes) -> Counter[str]:
    return Counter({text: int(excluded.sum())})


def spread_selector(spread: TopologySpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
    """Return the selector of a spread constraint, extended by the pod's values of its `matchLabelKeys`."""
    selector = spread.label_selector
    keys = [key for key in spread.match_label_keys or () if key in labels]
    if not keys or selector is None:
        return selector
    return LabelSelector(
        match_labels=selector.match_labels,
        match_expressions=[
            *(selector.match_expressions or ()),
            *(LabelSelectorRequirement(key=key, operator="In", values=[labels[key]]) for key in keys),
        ],
    )


def _rules(snapshot: Snapshot, template: int) -> _Rules:
    """Return the required rules of a template. Raise `Undecidable` if its spec cannot be read."""
    try:
        pod: Pod = decoded_spec(snapshot.templates["spec"][template].as_py())
    except msgspec.ValidationError as error:
        raise Undecidable(f"its affinity or topology spread cannot be read: {error}") from None
    affinity = pod.spec.affinity
    return _Rules(
        _terms(affinity.pod_affinity if affinity is not None else None),
        _terms(affinity.pod_anti_affinity if affinity is not None else None),
        tuple(
            spread
            for spread in pod.spec.topology_spread_constraints or []
            if spread.when_unsatisfiable == _DO_NOT_SCHEDULE
        ),
    )


def _terms(affinity: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    """Return the required terms of an affinity or anti-affinity."""
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return tuple(required or ())
