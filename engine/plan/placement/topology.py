"""Apply rules between pods: required affinity and anti-affinity, and required topology spread.

`PodTopology` knows the node of every pod while pods move, and computes the nodes that one pod's rules allow.
Source: the v1.36 scheduler's InterPodAffinity and PodTopologySpread filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.selectors import selects_labels
from engine.api.encoding.json_text import encode_json
from engine.api.pod import Pod
from engine.api.references import LabelSelector, LabelSelectorRequirement
from engine.api.scheduling import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.lazy_table import coded
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes
from engine.plan.snapshot.objects import decoded_spec

PodRows: TypeAlias = NDArray[np.int64]
"""Rows of pods in the snapshot, in ascending order."""
Allowed = tuple[str, Nodes]
"""Why the other nodes are excluded, and the nodes that remain."""

_DO_NOT_SCHEDULE: Final = "DoNotSchedule"


class Undecidable(Exception):
    """Report that a rule needs data that a snapshot does not hold; the text names it."""


@dataclass(frozen=True)
class _Rules:
    """Hold what the pods of one template demand of other pods."""

    affinity: tuple[PodAffinityTerm, ...] = ()
    anti_affinity: tuple[PodAffinityTerm, ...] = ()
    spread: tuple[TopologySpreadConstraint, ...] = ()


class PodTopology:
    """Compute which nodes the rules between pods allow for one pod, while pods move.

    All pods of the snapshot take part, also those without a node (-1).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        pods = snapshot.pods
        # Reading the column of nodes and copying it would touch twice as much memory.
        self._node: NDArray[np.int32] = np.full(pods.num_rows, NO_NODE, np.int32)
        self._node[: snapshot.placed] = np.repeat(
            np.arange(snapshot.node_count, dtype=np.int32), np.diff(snapshot.offsets)
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
        """Return the node of a pod, or -1 while a new one is chosen."""
        return int(self._node[row])

    def on_domains(self, key: str, pods: PodRows, counted: Nodes | None = None) -> NDArray[np.int64]:
        """Return int64[domains]: how many of these pods each domain of a topology key holds on the `counted`
        nodes.
        """
        domain, count = self.domains_of(key)
        at = self.places(pods)
        if counted is not None:
            at = at[counted[at]]
        found = domain[at]
        return np.bincount(found[found >= 0], minlength=count)

    def places(self, pods: PodRows) -> NDArray[np.int32]:
        """Return the node of each of these pods that is on one."""
        at = self._node[pods]
        found: NDArray[np.int32] = at[at != NO_NODE]
        return found

    def of_template(self, template: int) -> PodRows:
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

    def leave(self, row: int) -> None:
        """Take the pod off its node while a new node is chosen."""
        self._node[row] = NO_NODE

    def enter(self, row: int, node: int) -> None:
        """Put the pod on this node."""
        self._node[row] = node

    def allowed(self, row: int, affine: Nodes, tolerated: Nodes) -> Iterator[Allowed]:
        """Return the nodes that each rule allows for a pod.

        `affine` nodes match its selectors; it tolerates the taints of `tolerated` ones. Raise `Undecidable`.
        """
        rules = self._rules_of(int(self._template[row]))
        own = (self.namespace_of(row),)
        labels = self.labels_of(row)
        yield "anti-affinity of a pod on the node", ~self._repelled(own[0], labels)
        if rules.anti_affinity:
            near = np.zeros(self._snapshot.node_count, bool)
            for term in rules.anti_affinity:
                near |= self._holding(term.topology_key, self.selected(term, own))
            yield "its pod anti-affinity", ~near
        if rules.affinity:
            yield "its pod affinity", self._attracted(rules.affinity, own, labels)
        for spread in rules.spread:
            counted = np.ones(self._snapshot.node_count, bool)
            if spread.node_affinity_policy != "Ignore":
                counted &= affine
            if spread.node_taints_policy == "Honor":
                counted &= tolerated
            for other in rules.spread:
                counted &= self.domains_of(other.topology_key)[0] >= 0
            yield "its topology spread", self._spread(spread, own, labels, counted)

    def _attracted(
        self, terms: Sequence[PodAffinityTerm], own: tuple[str, ...], labels: Mapping[str, str]
    ) -> Nodes:
        """Return the nodes near pods that match every term; any keyed node for the first pod of a group that
        attracts itself.
        """
        everyone = self.selected(terms[0], own)
        for term in terms[1:]:
            everyone = np.intersect1d(everyone, self.selected(term, own), assume_unique=True)
        keyed = np.ones(self._snapshot.node_count, bool)
        for term in terms:
            keyed &= self.domains_of(term.topology_key)[0] >= 0
        if not len(self.places(everyone)) and all(
            selects_labels(term.label_selector, labels) and own[0] in (self.spaces(term, own) or own)
            for term in terms
        ):
            return keyed
        near = keyed
        for term in terms:
            near = near & self._holding(term.topology_key, everyone)
        return near

    def _repelled(self, namespace: str, labels: Mapping[str, str]) -> Nodes:
        """Return the nodes near a pod whose own anti-affinity excludes this one."""
        near = np.zeros(self._snapshot.node_count, bool)
        for template in self._repelling:
            for term in self._rules_of(template).anti_affinity:
                if not selects_labels(term.label_selector, labels):
                    continue
                pods = self.of_template(template)
                spaces = self.spaces(term, ())
                if spaces is not None and namespace not in spaces:
                    if spaces:
                        continue
                    pods = self.in_namespaces(pods, (namespace,))
                near |= self._holding(term.topology_key, pods)
        return near

    def _spread(
        self,
        spread: TopologySpreadConstraint,
        own: tuple[str, ...],
        labels: Mapping[str, str],
        counted: Nodes,
    ) -> Nodes:
        domain, _ = self.domains_of(spread.topology_key)
        selector = spread_selector(spread, labels)
        held = self.on_domains(spread.topology_key, self.matching(selector, own), counted)
        eligible = np.unique(domain[counted])
        least = int(held[eligible].min()) if len(eligible) else 0
        if spread.min_domains is not None and len(eligible) < spread.min_domains:
            least = 0
        itself = 1 if selects_labels(selector, labels) else 0
        keyed = domain >= 0
        fits: Nodes = keyed.copy()
        fits[keyed] = held[domain[keyed]] + itself - least <= spread.max_skew
        return fits

    def _holding(self, key: str, pods: PodRows) -> Nodes:
        """Return the nodes whose domain of a topology key holds one of these pods."""
        domain, count = self.domains_of(key)
        found = domain[self.places(pods)]
        holds = np.zeros(count + 1, bool)
        holds[found[found >= 0]] = True
        near: Nodes = holds[domain]
        return near

    def selected(self, term: PodAffinityTerm, own: tuple[str, ...]) -> PodRows:
        spaces = self.spaces(term, own)
        return self.matching(term.label_selector, spaces)

    @staticmethod
    def spaces(term: PodAffinityTerm, own: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the namespaces that a term covers, `own` if it names none; None for all."""
        chosen = term.namespace_selector
        if chosen is not None:
            if chosen.match_labels or chosen.match_expressions:
                raise Undecidable("its affinity chooses namespaces by their labels")
            return None
        return tuple(term.namespaces) if term.namespaces else own

    def matching(self, selector: LabelSelector | None, namespaces: tuple[str, ...] | None) -> PodRows:
        """Return the pods of these namespaces that a selector matches."""
        key = encode_json(selector), namespaces
        found = self._matched.get(key)
        if found is None:
            labelled = np.array([selects_labels(selector, labels) for labels in self._labels], bool)
            found = np.flatnonzero(labelled[self._label_code] if len(labelled) else labelled)
            if namespaces is not None:
                found = self.in_namespaces(found, namespaces)
            self._matched[key] = found
        return found

    def in_namespaces(self, pods: PodRows, namespaces: tuple[str, ...]) -> PodRows:
        """Return those of some pods that are in these namespaces."""
        named = np.array([name in namespaces for name in self._namespaces], bool)
        found: PodRows = pods[named[self._namespace_code[pods]]]
        return found

    @cached_property
    def _repelling(self) -> list[int]:
        """Return templates of placed pods that have required anti-affinity."""
        specs = self._snapshot.templates["spec"].to_pylist()
        return [row for row, spec in enumerate(specs) if "podAntiAffinity" in spec]

    def _rules_of(self, template: int) -> _Rules:
        found = self._rules.get(template)
        if found is None:
            found = self._rules[template] = _rules(self._snapshot, template)
        return found


def spread_selector(spread: TopologySpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
    """Return the selector of a spread constraint with the pod's own values of its `matchLabelKeys`."""
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
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return tuple(required or ())
